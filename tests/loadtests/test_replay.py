"""Open-loop replay against a real server on loopback: every outcome, and the moments it is told by."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from loadtests.replay import Outcome, Planned, PlayOptions, planned_requests, play
from loadtests.replay_answers import Answer, classify, queue_seconds, read_event_line
from loadtests.replay_client import ReplayClient, ReplayError, Target
from loadtests.trace import Trace

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CHUNK = 'data: {"choices":[{"index":0,"delta":{"content":"tok "},"finish_reason":null}]}\n\n'
ROLE = 'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
DONE = "data: [DONE]\n\n"


@asynccontextmanager
async def serving(handler: Handler, path: str = "/v1/chat/completions") -> AsyncIterator[str]:
    """A server whose one handler answers every POST; yields its base URL."""
    app = web.Application()
    app.router.add_post(path, handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def one(**fields: Any) -> list[Planned]:
    return [Planned(**{"at_s": 0.0, "input_tokens": 7, "output_tokens": 3, **fields})]


async def stream(request: web.Request, *parts: str, headers: dict[str, str] | None = None) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8", **(headers or {})})
    await answer.prepare(request)
    for part in parts:
        await answer.write(part.encode())
    return answer


async def whole_stream(request: web.Request) -> web.StreamResponse:
    return await stream(
        request, ROLE, CHUNK, CHUNK, CHUNK, DONE, headers={"server-timing": "queue;dur=1500, net;dur=2"}
    )


async def cut_stream(request: web.Request) -> web.StreamResponse:
    answer = await stream(request, CHUNK)
    assert request.transport is not None
    await asyncio.sleep(0)
    request.transport.close()
    return answer


async def without_end(request: web.Request) -> web.StreamResponse:
    return await stream(request, CHUNK)


async def error_event(request: web.Request) -> web.StreamResponse:
    return await stream(request, CHUNK, 'data: {"error": {"message": "replica died", "code": 502}}\n\n', DONE)


async def named_error_event(request: web.Request) -> web.StreamResponse:
    return await stream(request, CHUNK, 'event: error\ndata: {"type": "overloaded"}\n\n', DONE)


async def hang(request: web.Request) -> web.StreamResponse:
    answer = await stream(request, CHUNK)
    await asyncio.sleep(30)
    return answer


async def whole_body(request: web.Request) -> web.StreamResponse:
    return web.json_response({"choices": [{"text": "x"}], "usage": {"completion_tokens": 42}})


def refusing(status: int) -> Handler:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": f"because {status}"}}, status=status)

    return refuse


@pytest.mark.parametrize(
    ("handler", "verdict", "status", "tokens", "detail"),
    [
        (whole_stream, "answered", 200, 3, ""),
        (whole_body, "answered", 200, 42, ""),
        (refusing(429), "refused", 429, 0, "because 429"),
        (refusing(503), "refused", 503, 0, "because 503"),
        (refusing(500), "failed", 500, 0, "status 500: because 500"),
        (refusing(404), "failed", 404, 0, "status 404: because 404"),
        (error_event, "failed", 200, 1, "replica died"),
        (named_error_event, "failed", 200, 1, "error event"),
        (without_end, "failed", 200, 1, "the stream ended without [DONE]"),
        (cut_stream, "failed", 200, 1, "connection closed before the answer's end"),
    ],
)
async def test_every_end_has_its_outcome(handler: Handler, verdict: str, status: int, tokens: int, detail: str) -> None:
    async with serving(handler) as url:
        (outcome,) = await play(one(), url)
    assert (outcome.outcome, outcome.status, outcome.tokens, outcome.detail) == (verdict, status, tokens, detail)
    assert outcome.done_s is not None
    assert outcome.queue_s == (1.5 if handler is whole_stream else None)


async def test_a_hang_is_lost_and_one_who_leaves_is_gone() -> None:
    gone: list[bool] = []

    async def watched(request: web.Request) -> web.StreamResponse:
        try:
            return await hang(request)
        except asyncio.CancelledError:
            gone.append(True)
            raise

    app_url: str
    async with serving(watched) as app_url:
        told: list[Outcome] = []
        planned = [*one(), *one(leave_after_s=0.4)]
        options = PlayOptions(timeout_s=0.8)
        outcomes = await play(planned, app_url, options=options, on_outcome=told.append)
    assert [outcome.outcome for outcome in outcomes] == ["lost", "client_gone"]
    assert [outcome.detail for outcome in outcomes] == ["no end within 0.8 s", "left after 0.4 s"]
    assert [outcome.outcome for outcome in told] == ["client_gone", "lost"]
    assert all(outcome.first_byte_s is not None and outcome.tokens == 1 for outcome in outcomes)


async def test_a_play_that_is_cancelled_leaves_and_says_so() -> None:
    told: list[Outcome] = []
    async with serving(hang) as url:
        playing = asyncio.ensure_future(play([*one(), *one(at_s=60.0)], url, on_outcome=told.append))
        await asyncio.sleep(0.1)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
    assert [(outcome.outcome, outcome.detail) for outcome in told] == [("client_gone", "the replay was stopped")]


async def test_nobody_listens() -> None:
    async with serving(whole_body) as url:
        pass
    (outcome,) = await play(one(), url)
    assert outcome.outcome == "failed"
    assert outcome.detail.startswith("no connection: ")


async def test_what_is_sent() -> None:
    seen: list[tuple[dict[str, str], dict[str, Any]]] = []

    async def look(request: web.Request) -> web.StreamResponse:
        seen.append(({name.lower(): value for name, value in request.headers.items()}, await request.json()))
        return await whole_stream(request)

    planned = [
        *one(session="s", tenant="t", priority=2, model="theirs"),
        *one(input_tokens=3, output_tokens=9),
    ]
    async with serving(look, "/base/v1/chat/completions") as url:
        await play(planned, f"{url}/base/v1/", options=PlayOptions(run="a"))
        await play(planned[1:], f"{url}/base", options=PlayOptions(run="b", model="mine", words=True, stream=False))
    (first, first_body), (second, second_body), (third, third_body) = seen
    assert {
        "x-request-id": "a-0",
        "x-input-tokens": "7",
        "x-session-id": "s",
        "x-tenant-id": "t",
        "x-priority": "2",
    }.items() <= first.items()
    assert (first_body["model"], first_body["max_tokens"], first_body["stream"]) == ("theirs", 3, True)
    assert (second["x-request-id"], second["x-input-tokens"], "model" in second_body) == ("a-1", "3", False)
    assert "x-session-id" not in second
    assert (third["x-request-id"], third_body["model"], third_body["stream"]) == ("b-0", "mine", False)
    assert len(third_body["messages"][0]["content"].split()) == 3


async def test_latency_counts_from_the_intended_moment() -> None:
    """Second 0 of the play lies half a second back, as if the client had been stopped: all of it is the requests'
    wait.
    """
    async with serving(whole_stream) as url:
        loop = asyncio.get_running_loop()
        planned = [*one(), *one(at_s=0.25), *one(at_s=0.7)]
        outcomes = await play(planned, url, options=PlayOptions(start_at=loop.time() - 0.5))
    assert [outcome.planned_s for outcome in outcomes] == [0.0, 0.25, 0.7]
    assert outcomes[0].sent_s >= 0.5
    assert outcomes[2].sent_s >= 0.7
    ttft = [outcome.ttft_s for outcome in outcomes]
    assert [wait is not None and wait >= least for wait, least in zip(ttft, (0.5, 0.25, 0.0), strict=True)] == [
        True
    ] * 3


async def test_open_loop_sends_while_nothing_is_answered() -> None:
    waiting = asyncio.Event()
    arrived = 0

    async def all_at_once(request: web.Request) -> web.StreamResponse:
        nonlocal arrived
        arrived += 1
        if arrived == 150:  # more than the 100 connections that a general client would allow itself
            waiting.set()
        await waiting.wait()
        return await whole_stream(request)

    async with serving(all_at_once) as url:
        outcomes = await play(one() * 150, url, options=PlayOptions(timeout_s=20))
    assert {outcome.outcome for outcome in outcomes} == {"answered"}
    assert len({outcome.request_id for outcome in outcomes}) == 150


async def test_connections_are_kept_while_the_server_keeps_them() -> None:
    peers: set[object] = set()

    async def look(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        answer = await whole_stream(request)
        if request.headers["x-request-id"] == "replay-2":
            answer.force_close()
        return answer

    async with serving(look) as url:
        async with ReplayClient(Target.parse(url)) as client:
            for number in range(3):
                answer = Answer()
                await client.request("POST /v1/chat/completions", {"x-request-id": f"replay-{number}"}, b"{}", answer)
                assert answer.complete
            assert repr(client) in ("ReplayClient(1 connections, 1 idle)", "ReplayClient(0 connections, 0 idle)")
        assert repr(client) == "ReplayClient(0 connections, 0 idle)"
    assert len(peers) == 1


async def raw_play(*writes: bytes) -> Outcome:
    """Play one request against a server that writes these bytes as they are."""

    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for data in writes:
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(0.01)
            writer.close()
            await writer.wait_closed()
        except ConnectionError:
            writer.close()
        served.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        (outcome,) = await play(one(), f"http://127.0.0.1:{port}", options=PlayOptions(timeout_s=5))
        await served.wait()
    finally:
        server.close()
    return outcome


@pytest.mark.parametrize(
    ("writes", "verdict", "detail"),
    [
        (
            [b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", CHUNK.encode(), DONE.encode()],
            "answered",
            "",
        ),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"], "failed", "connection closed before the answer's end"),
        ([b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"], "answered", ""),
        ([b"SSH-2.0-OpenSSH_9.6\r\n"], "failed", "not HTTP: "),
        ([], "failed", "connection closed before the answer's end"),
    ],
)
async def test_answers_byte_by_byte(writes: list[bytes], verdict: str, detail: str) -> None:
    outcome = await raw_play(*writes)
    assert outcome.outcome == verdict
    assert outcome.detail.startswith(detail)


async def test_a_line_split_anywhere_is_one_line() -> None:
    body = (ROLE + CHUNK + DONE).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    for cut in range(0, len(body), 17):
        outcome = await raw_play(head + body[:cut], body[cut:])
        assert (outcome.outcome, outcome.tokens) == ("answered", 1)


async def test_the_light_client_sees_what_a_general_client_sees() -> None:
    async with serving(whole_stream) as url:
        (outcome,) = await play(one(), url)
        async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/chat/completions", json={}) as answer:
            lines = (await answer.read()).decode().split("\n")
    assert outcome.status == answer.status
    assert outcome.tokens == sum('"content":"tok "' in line for line in lines)
    assert outcome.queue_s == queue_seconds(answer.headers["server-timing"])


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("queue;dur=12.5", 0.0125),
        ("net;dur=3, Queue;desc=x;dur=2000", 2.0),
        ('queue;dur="40"', 0.04),
        ("queue", None),
        ("queue;dur=soon", None),
        ("total;dur=4", None),
        ("queue;dur=-3", 0.0),
    ],
)
def test_queue_time_in_server_timing(header: str, seconds: float | None) -> None:
    assert queue_seconds(header) == seconds


def test_usage_in_a_stream_wins_over_counting_events() -> None:
    answer = Answer(stream=True, status=200, complete=True)
    for line in (CHUNK, 'data: {"choices":[],"usage":{"completion_tokens":9}}', 'data: {"usage": broken', ": comment"):
        read_event_line(line.strip().encode(), answer)
    assert (answer.tokens, answer.done, answer.error) == (9, False, "")
    assert classify(answer) == ("failed", "the stream ended without [DONE]")
    assert classify(Answer()) == ("failed", "no answer")


def test_planned_requests_come_from_a_trace() -> None:
    trace = Trace(
        arrival_s=array("d", [0.5, 1.0, 2.0]),
        input_tokens=array("q", [1, 2, 3]),
        output_tokens=array("q", [0, 5, 6]),
        session=["", "b", "c"],
    )
    first, second = planned_requests(trace, limit=2)
    assert first == Planned(at_s=0.5, input_tokens=1, output_tokens=1)
    assert second == Planned(at_s=1.0, input_tokens=2, output_tokens=5, session="b")


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://host/", "http://", "http://host:port/"])
async def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ReplayError, match="--url"):
        await play(one(), url)


def test_targets() -> None:
    target = Target.parse("http://[::1]:9/v1")
    assert (target.host, target.port, target.prefix, target.authority) == ("::1", 9, "", "[::1]:9")
    assert Target.parse("https://example.test/api").port == 443
