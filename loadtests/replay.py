"""Open-loop replay: every request is sent at its intended moment, whatever became of the ones before it.

Knows nothing of laws, replicas and reports. `play` paces the requests on the event loop and classifies what came of
each; latencies count from the *intended* moment, so a stall of the server (or of this client) is seen by every
request that should have been sent in it, not only by the one that was caught (coordinated omission). `run_replay` is
`tidegate replay`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice, repeat

from loadtests.replay_answers import ANSWERED, CLIENT_GONE, FAILED, LOST, Answer, classify
from loadtests.replay_client import ReplayClient, ReplayError, Target
from loadtests.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One request to be sent `at_s` seconds after the start. `leave_after_s`: close the connection that long after
    sending, None = stay.

    `output_tokens` is asked for as `max_tokens`. The rest is sent as headers or as the model's name, None = not said.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    model: str | None = None
    session: str | None = None
    tenant: str | None = None
    priority: int | None = None
    leave_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one request. Moments are seconds from the start of the play, None = never happened.

    `outcome`: answered (complete), refused (429, 503), failed (any other error status, an error event, a cut answer,
    no connection), client_gone (the replay itself left), lost (nothing decided by the timeout). `queue_s` as the
    answer's `server-timing` said, None = it did not. `tokens` that came. `detail` says why it is not answered.
    """

    request_id: str
    planned_s: float
    sent_s: float
    first_byte_s: float | None
    done_s: float | None
    status: int
    queue_s: float | None
    tokens: int
    outcome: str
    detail: str = ""

    @property
    def ttft_s(self) -> float | None:
        """Time to first byte of the body, from the intended moment of sending."""
        return None if self.first_byte_s is None else self.first_byte_s - self.planned_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayOptions:
    """How to play. `run` begins every request id, so give each run at one server its own."""

    model: str | None = None
    """Asked for by every request; None = the request's own, or none at all."""
    timeout_s: float = 600.0
    """After this long without an end a request is lost."""
    run: str = "replay"
    start_at: float | None = None
    """Loop time of second 0, so that several plays can share it; None = now."""
    words: bool = False
    """Send a prompt of as many words as input tokens. False: one short prompt, and only the `x-input-tokens` header
    says how long it stands for, which emulated engines believe."""
    stream: bool = True


def planned_requests(trace: Trace, limit: int | None = None) -> tuple[Planned, ...]:
    """The requests of a trace (the first `limit` of them), at least one output token each: engines refuse to make
    none.
    """
    columns = zip(
        trace.arrival_s,
        trace.input_tokens,
        trace.output_tokens,
        trace.model or repeat(None, len(trace)),
        trace.session or repeat(None, len(trace)),
        trace.tenant or repeat(None, len(trace)),
        trace.priority or repeat(None, len(trace)),
        strict=True,
    )
    return tuple(
        Planned(
            at_s=at_s,
            input_tokens=tokens_in,
            output_tokens=max(1, tokens_out),
            model=model or None,
            session=session or None,
            tenant=tenant or None,
            priority=priority,
        )
        for at_s, tokens_in, tokens_out, model, session, tenant, priority in islice(columns, limit)
    )


async def play(
    planned: Iterable[Planned],
    url: str,
    *,
    options: PlayOptions | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Send `planned` (ascending `at_s`) to the OpenAI-compatible server at `url`; returns outcomes in order of sending.

    `on_outcome` is called as each is decided. Cancelling the play counts what is still under way as client_gone (told
    to `on_outcome` only). Raises `ReplayError` for a URL that is none; a server that cannot be reached makes failed
    requests.
    """
    options = options or PlayOptions()
    player = _Player(Target.parse(url), options, on_outcome)
    return await player.play(planned)


class _Player:
    """The state of one play: the clock's zero, the client, and a slot for each outcome."""

    def __init__(self, target: Target, options: PlayOptions, on_outcome: Callable[[Outcome], None] | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._target = target
        self._options = options
        self._on_outcome = on_outcome
        self._start = self._loop.time() if options.start_at is None else options.start_at
        self._outcomes: list[Outcome | None] = []

    async def play(self, planned: Iterable[Planned]) -> list[Outcome]:
        async with ReplayClient(self._target) as client, asyncio.TaskGroup() as tasks:
            for number, request in enumerate(planned):
                # Sleeping even when late by now lets answers be read between two sends of a burst.
                await asyncio.sleep(max(0.0, self._start + request.at_s - self._loop.time()))
                self._outcomes.append(None)
                tasks.create_task(self._one(client, number, request))
        return [outcome for outcome in self._outcomes if outcome is not None]

    async def _one(self, client: ReplayClient, number: int, request: Planned) -> None:
        sent = self._loop.time()
        answer, verdict, detail = Answer(), LOST, ""
        try:
            verdict, detail = await self._ask(client, number, request, answer)
        except asyncio.CancelledError:
            verdict, detail = CLIENT_GONE, "the replay was stopped"
            raise
        finally:
            outcome = Outcome(
                request_id=self._request_id(number),
                planned_s=request.at_s,
                sent_s=sent - self._start,
                first_byte_s=self._since_start(answer.first_byte_at),
                done_s=self._since_start(answer.done_at if verdict == ANSWERED else self._loop.time()),
                status=answer.status,
                queue_s=answer.queue_s,
                tokens=answer.tokens,
                outcome=verdict,
                detail=detail,
            )
            self._outcomes[number] = outcome
            if self._on_outcome is not None:
                self._on_outcome(outcome)

    def _request_id(self, number: int) -> str:
        return f"{self._options.run}-{number}"

    async def _ask(self, client: ReplayClient, number: int, request: Planned, answer: Answer) -> tuple[str, str]:
        options = self._options
        headers = _headers(request, self._request_id(number))
        leaves = request.leave_after_s is not None and request.leave_after_s < options.timeout_s
        patience_s = request.leave_after_s if leaves else options.timeout_s
        try:
            async with asyncio.timeout(patience_s):
                await client.request("POST /v1/chat/completions", headers, _body(request, options, number), answer)
        except TimeoutError:
            if leaves:
                return CLIENT_GONE, f"left after {patience_s:g} s"
            return LOST, f"no end within {patience_s:g} s"
        except OSError as error:
            return FAILED, f"no connection: {error}"
        return classify(answer)

    def _since_start(self, moment: float | None) -> float | None:
        return None if moment is None else moment - self._start


def _headers(request: Planned, request_id: str) -> dict[str, str]:
    headers = {"x-request-id": request_id, "x-input-tokens": str(request.input_tokens)}
    if request.session is not None:
        headers["x-session-id"] = request.session
    if request.tenant is not None:
        headers["x-tenant-id"] = request.tenant
    if request.priority is not None:
        headers["x-priority"] = str(request.priority)
    return headers


def _body(request: Planned, options: PlayOptions, number: int) -> bytes:
    # The number comes first, so that a prefix cache does not take all prompts for one.
    prompt = f"{number}" + " tide" * max(0, request.input_tokens - 1) if options.words else "tide"
    body: dict[str, object] = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": request.output_tokens,
        "stream": options.stream,
    }
    if model := options.model or request.model:
        body = {"model": model, **body}
    return json.dumps(body, separators=(",", ":")).encode()


__all__ = ["Outcome", "Planned", "PlayOptions", "ReplayError", "classify", "planned_requests", "play"]
