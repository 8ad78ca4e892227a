"""A state machine over the dispatcher beside a dumb model: whatever happens in whatever order, the rules hold after each event."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.core.dispatcher import QUEUED
from router.core.endpoints import (
    CLIENT_ERROR,
    CUT,
    SATURATED,
    SERVER_ERROR,
    SUCCESS,
    TIMEOUT,
    UNREACHABLE,
    Endpoint,
)
from router.core.refusals import Refusal
from router.core.requests import Request
from router.model import EngineLoad
from tests.router.core.story import Story, endpoint

IDS = ("a", "b", "c")
ROUTING: dict[str, Any] = {"retries": {"idempotent": True}, "queue": {"max_requests": 5, "timeout_s": 7}}
KINDS: list[dict[str, Any]] = [
    {},
    {"policy": "prefix", "tenants": {"weights": {"x": 2.0}}},
    {"policy": "session", "priorities": {}},
    {"policy": "round-robin", "tenants": {}, "priorities": {"bands": ["high", "low"]}, "ramp_s": 0},
]
"""What a table may say about the model besides `ROUTING`."""
ASKED = st.fixed_dictionaries(
    {
        "size": st.sampled_from([1, 10]),
        "tokens_in": st.sampled_from([5, 5, 500]),
        "patience_s": st.sampled_from([None, None, 2.0]),
        "key": st.sampled_from([None, 1, 2]),
        "fields": st.fixed_dictionaries(
            {"x-tenant-id": st.sampled_from("xyz"), "x-priority": st.sampled_from(["0", "1", "system", "?"])}
        ),
    }
)


class DispatcherMachine(RuleBasedStateMachine):
    """The dumb model: `told` (intent and limit by id), `running` (request -> endpoint) and `waiting` (a list).

    The shell takes what an admin event caused a moment later, so anything may happen before; until then a request
    that was started or refused is still `waiting` here, and `decided` says so.
    """

    def __init__(self) -> None:
        super().__init__()
        self.story = Story()
        self.told: dict[str, dict[str, Any]] = {}
        self.running: dict[Request, Endpoint] = {}
        self.waiting: list[Request] = []
        self.judged: set[Request] = set()
        self.kind = KINDS[0]

    def tell(self, told: dict[str, dict[str, Any]], kind: dict[str, Any] | None = None) -> None:
        self.told = told
        self.kind = self.kind if kind is None else kind
        rows = [endpoint(name, **changes) for name, changes in told.items()]
        self.story.tell(*rows, ready=False, routing={**ROUTING, **self.kind})

    def settle(self) -> None:
        """Take the effects and check each start against the rules."""
        started, refused = self.story.effects()
        for made in started:
            self.waiting.remove(made)
            assert made.endpoint is not None
            self.running[made] = made.endpoint
        for made, refusal in refused:
            self.waiting.remove(made)
            assert refusal.retry_after_s is None or 1 <= refusal.retry_after_s <= 60
        self.running = {made: at for made, at in self.running.items() if made.endpoint is not None}

    def judge(self, made: Request, at: Endpoint) -> None:
        """The rules that a decision to send must have kept when it was made."""
        assert at is made.endpoint
        assert self.told[at.id]["intent"] == "active", "sent to a standby, draining or absent endpoint"
        assert at.health in ("ready", "half-open"), "sent to an endpoint that is not routable"
        assert at.in_flight <= at.limit <= at.told_limit, "sent above the limit"
        largest = [each.max_input_tokens for each in self.story.dispatcher.endpoints.values() if each.exists]
        if at.max_input_tokens is not None and at.max_input_tokens < made.tokens_in:
            assert None not in largest
            assert at.max_input_tokens == max(size for size in largest if size), "a long prompt on a small endpoint"

    def verdict(self, made: Request, verdict: Endpoint | Refusal | str) -> None:
        if verdict == QUEUED:
            self.waiting.append(made)
        elif isinstance(verdict, Endpoint):
            self.judge(made, verdict)
            self.running[made] = verdict
        self.new_starts_keep_the_rules()
        self.settle()

    @initialize()
    def first_table(self) -> None:
        self.tell({name: {"intent": "active", "limit": 2} for name in IDS})

    @rule(
        told=st.dictionaries(
            st.sampled_from(IDS),
            st.fixed_dictionaries(
                {
                    "intent": st.sampled_from(["active", "active", "standby", "draining"]),
                    "limit": st.integers(1, 3),
                    "max_input_tokens": st.sampled_from([None, None, 100]),
                }
            ),
        ),
        kind=st.sampled_from(KINDS),
    )
    def table(self, told: dict[str, dict[str, Any]], kind: dict[str, Any]) -> None:
        self.tell(told, kind)

    @rule(name=st.sampled_from(IDS), ok=st.booleans())
    def probe(self, name: str, ok: bool) -> None:
        self.story.dispatcher.probed(name, ok, self.story.now)

    @rule()
    def shell_takes_its_turn(self) -> None:
        self.settle()

    def decided(self) -> set[Request]:
        """Started or refused, and not taken by the shell yet."""
        return set(self.story.dispatcher.effects)

    @rule(asked=ASKED)
    def arrive(self, asked: dict[str, Any]) -> None:
        made, verdict = self.story.arrive(**asked)
        self.verdict(made, verdict)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), status=st.sampled_from([429, 503]), retry_after_s=st.sampled_from([None, 0.0, 3.0, 9e9]))
    def engine_is_full(self, data: st.DataObject, status: int, retry_after_s: float | None) -> None:
        made = data.draw(st.sampled_from(list(self.running)))
        verdict = self.story.dispatcher.full(made, status, retry_after_s, self.story.now)
        if verdict is None:
            assert made.endpoint is self.running[made], "its answer is passed on: the slot is kept"
            self.new_starts_keep_the_rules()
            self.settle()
        else:
            del self.running[made]
            self.verdict(made, verdict)

    @rule(name=st.sampled_from(IDS), waiting=st.sampled_from([None, 0.0, 9.0]), kv=st.sampled_from([None, 0.2, 0.99]))
    def reading(self, name: str, waiting: float | None, kv: float | None) -> None:
        self.story.dispatcher.engine_read(name, EngineLoad(waiting=waiting, kv=kv), self.story.now)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), age_s=st.sampled_from([0.0, 5.0, 60.0]))
    def streams(self, data: st.DataObject, age_s: float) -> None:
        made = data.draw(st.sampled_from(list(self.running)))
        at, now = self.running[made], self.story.now
        self.story.dispatcher.first_event(at, made, now)
        self.story.dispatcher.streaming(at, now - age_s, now)
        self.new_starts_keep_the_rules()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from([SUCCESS, CLIENT_ERROR, SATURATED, SERVER_ERROR, CUT, TIMEOUT]))
    def finish(self, data: st.DataObject, outcome: int) -> None:
        made = data.draw(st.sampled_from(list(self.running)))
        del self.running[made]
        self.story.end(made, outcome)
        self.new_starts_keep_the_rules()
        self.settle()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from([SERVER_ERROR, SERVER_ERROR, CUT]))
    def all_on_one_endpoint_end(self, data: st.DataObject, outcome: int) -> None:
        there = data.draw(st.sampled_from(list(self.running.values())))
        for made in [made for made, at in self.running.items() if at is there]:
            del self.running[made]
            self.story.end(made, outcome)
            self.new_starts_keep_the_rules()
        self.settle()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from([UNREACHABLE, CUT, TIMEOUT]))
    def fail(self, data: st.DataObject, outcome: int) -> None:
        made = data.draw(st.sampled_from(list(self.running)))
        del self.running[made]
        verdict = self.story.fail(made, outcome, sent=outcome != UNREACHABLE)
        assert made.attempts <= 3 + isinstance(verdict, Endpoint)
        self.verdict(made, verdict)

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        made = data.draw(st.sampled_from([*self.running, *self.waiting]))
        self.running.pop(made, None)
        if made in self.waiting:
            self.waiting.remove(made)
        self.story.dispatcher.left(made, self.story.now)
        assert made not in self.decided(), "one that left is still to be sent or refused"

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 4.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.story.later(seconds)
        self.new_starts_keep_the_rules()
        self.settle()

    @invariant()
    def new_starts_keep_the_rules(self) -> None:
        decided = self.decided()
        for made in decided - self.judged:
            if made.endpoint is not None:
                self.judge(made, made.endpoint)
        self.judged = decided

    @invariant()
    def slots_are_counted_right(self) -> None:
        held: dict[Endpoint, int] = {}
        bound = [made.endpoint for made in self.decided() if made.endpoint is not None]
        for at in (*self.running.values(), *bound):
            held[at] = held.get(at, 0) + 1
        for at in {*self.story.dispatcher.endpoints.values(), *held}:
            assert at.in_flight == held.get(at, 0)
        report = self.story.dispatcher.report(self.story.now)
        if "m" in report.models:
            load = report.models["m"]
            queued = [made for made in self.waiting if made not in self.decided()]
            assert (load.in_flight, load.queued) == (len(self.running) + len(bound), len(queued))
            assert load.queued_tokens == sum(made.tokens for made in queued)

    @invariant()
    def nobody_waits_while_there_is_room(self) -> None:
        room = [at for at in self.story.dispatcher.endpoints.values() if at.routable and at.in_flight < at.limit]
        for made in set(self.waiting) - self.decided():
            sized = [each.max_input_tokens for each in self.story.dispatcher.endpoints.values() if each.exists]
            longest = None if None in sized or not sized else max(size for size in sized if size)
            needed = made.tokens_in if longest is None else min(made.tokens_in, longest)
            fit = [at for at in room if at.max_input_tokens is None or at.max_input_tokens >= needed]
            assert all(at in made.tried for at in fit), "a queue is not empty while a routable endpoint has room"

    @invariant()
    def server_errors_alone_keep_nobody_out_while_too_few_are_ready(self) -> None:
        active = [at for at in self.story.dispatcher.endpoints.values() if at.exists]
        if sum(at.health == "ready" for at in active) < len(active) / 2:
            assert not any(at.soft and not at.probe_failures for at in active)

    @invariant()
    def drained_means_drained(self) -> None:
        if not self.story.dispatcher.has_table:
            return
        for name, ack in self.story.dispatcher.acknowledgement("test").endpoints.items():
            if ack.drained:
                assert self.told[name]["intent"] == "draining"
                assert not any(at.id == name for at in self.running.values() if at is self.story.at(name))

    def teardown(self) -> None:
        for made in [*self.running, *self.waiting]:
            self.story.dispatcher.left(made, self.story.now)
        assert not self.decided()
        report = self.story.dispatcher.report(self.story.now)
        assert all(load.in_flight == 0 and load.queued == 0 for load in report.models.values())
        assert all(load.in_flight == 0 for load in report.endpoints.values())
        assert all(load.intent != "absent" for load in report.endpoints.values())


DispatcherMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, derandomize=True
)
TestDispatcher = DispatcherMachine.TestCase
