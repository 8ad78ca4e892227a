"""What routing reads of a request, and what it makes of an engine's refusals and silence: on real sockets."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from router.shell.prefix import BYTES_MAX, prefix_key
from tests.router.wire import (
    SSE_HEAD,
    Behaviour,
    Received,
    Site,
    chunk,
    event,
    json_answer,
    on_uvloop,
    post,
    raw_answer,
    until,
)

FULL = b'{"error":{"message":"queue full"}}'


def held() -> tuple[asyncio.Event, Behaviour]:
    """An engine that answers when the event is set."""
    go = asyncio.Event()

    async def behave(received: Received, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    return go, behave


def chat(*messages: tuple[str, str], model: str = "m") -> bytes:
    return json.dumps(
        {"messages": [{"role": role, "content": text} for role, text in messages], "model": model}
    ).encode()


@pytest.mark.parametrize(
    ("routing", "fields", "order"),
    [
        ({"tenants": {}}, ["X-Tenant-ID: a", "x-tenant-id:a", "x-tenant-id: a ", "x-tenant-id: b"], [0, 3, 1, 2]),
        ({"tenants": {"header": "Authorization"}}, [f"authorization: Bearer {k}" for k in "aaab"], [0, 3, 1, 2]),
        ({"priorities": {}}, ["x-priority: batch", "x-priority: interactive", "x: y", "x-priority: 0"], [3, 1, 2, 0]),
        ({"priorities": {}}, ["note: x-priority: 0", "note: a", "note: b", "x-priority: system"], [3, 0, 1, 2]),
    ],
)
@on_uvloop
async def test_who_is_next_is_read_from_headers(routing: dict[str, Any], fields: list[str], order: list[int]) -> None:
    go, behave = held()
    async with Site(behave, limit=1, routing=routing) as site:
        first = await site.call()
        first.writer.write(post())
        await site.engines[0].got(1)
        callers = []
        for number, field in enumerate(fields):
            callers.append(await site.call())
            callers[-1].writer.write(post(b'{"model":"m"}', field, f"x-number: {number}"))
            await until(lambda number=number: site.dispatcher.model_states()[0].queue.count == number + 1)  # type: ignore[misc]
        go.set()
        for caller in (first, *callers):
            assert (await caller.answer()).status == 200
        assert [int(received.field("x-number")[0]) for received in site.engines[0].received[1:]] == order
        await site.settled()


@on_uvloop
async def test_a_client_may_say_how_long_it_would_wait() -> None:
    go, behave = held()
    async with Site(behave, limit=1) as site:
        first = await site.call()
        first.writer.write(post())
        await site.engines[0].got(1)
        answer = await site.ask(post(b'{"model":"m"}', "x-queue-timeout-s: 0.3"))
        assert (answer.status, answer.fields["retry-after"]) == (503, "5")
        assert b"had room within 0." in answer.body
        go.set()
        assert (await first.answer()).status == 200


@on_uvloop
async def test_prompts_that_begin_alike_meet_at_one_engine() -> None:
    async with Site(*[json_answer()] * 4, routing={"policy": "prefix"}, limit=16) as site:
        for turn in range(12):
            talk = [("system", "be brief"), ("user", "tell me of the tide"), *[("assistant", "x")] * turn]
            await site.ask(post(chat(*talk)))
        assert sorted(len(engine.received) for engine in site.engines) == [0, 0, 0, 12]
        for number in range(40):
            await site.ask(post(chat(("system", "be brief"), ("user", f"question {number}"))))
        assert all(engine.received for engine in site.engines)


@on_uvloop
async def test_a_session_keeps_its_engine() -> None:
    async with Site(*[json_answer()] * 4, routing={"policy": "session"}, limit=16) as site:
        for _ in range(3):
            for number in range(12):
                await site.ask(post(b'{"model":"m"}', f"x-session-id: s{number}"))
        for engine in site.engines:
            counts = Counter(received.field("x-session-id")[0] for received in engine.received)
            assert set(counts.values()) <= {3}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (chat(("user", "a")), chat(("user", "a"), ("assistant", "b"), ("user", "c")), True),
        (chat(("system", "s"), ("user", "a")), chat(("system", "s"), ("user", "a"), ("user", "c")), True),
        (chat(("system", "s"), ("user", "a")), chat(("system", "t"), ("user", "a")), False),
        (chat(("user", "a")), chat(("user", "b")), False),
        (chat(("user", "a")), chat(("user", "a"), model="other"), False),
        (b'{"prompt": "' + b"x" * 2000 + b'1"}', b'{"prompt": "' + b"x" * 2000 + b'2"}', True),
        (b'{"prompt": "a"}', b'{"prompt": "b"}', False),
        (b'{"input": "a", "instructions": "i"}', b'{"input": "a", "instructions": "j"}', False),
        (b'{"system": "s", "messages": [{"role": "user"}]}', b'{"system": "t", "messages": [{"role": "user"}]}', False),
        (b'{"text_input": "a"}', b'{"inputs": "a"}', True),
        (
            chat(("user", "x" * (BYTES_MAX + 1000) + "1")),
            chat(("user", "x" * (BYTES_MAX + 1000) + "2")),
            True,
        ),
    ],
)
def test_what_begins_alike(one: bytes, other: bytes, same: bool) -> None:
    assert prefix_key(one) is not None
    assert (prefix_key(one) == prefix_key(other)) is same


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"no", b'{"messages": []}', b'{"messages": 5}', b'{"messages": [{"role": 5}]}', b"[" * 5000],
)
def test_what_has_no_beginning(body: bytes) -> None:
    assert prefix_key(body) is None


@pytest.mark.fault("R6", "R18")
@pytest.mark.parametrize("status", [b"503 Service Unavailable", b"429 Too Many Requests"])
@on_uvloop
async def test_a_full_engine_is_passed_by_and_nobody_hears_of_it(status: bytes) -> None:
    async with Site(json_answer(FULL, status), json_answer(b"served"), limit=8) as site:
        caller = await site.call()
        for _ in range(6):
            answer = await caller.ask(post(b'{"model":"m","n":1}'))
            assert (answer.status, answer.body) == (200, b"served")
        full, other = site.engines
        assert 1 <= len(full.received) <= 3  # it is spared meanwhile
        assert {received.body for received in other.received} == {b'{"model":"m","n":1}'}
        assert site.dispatcher.endpoints["e0"].health == "ready"
        await site.settled()


@pytest.mark.fault("R6", "R18")
@pytest.mark.parametrize(("more", "told"), [(b"", "1"), (b"retry-after: 1\r\n", "1"), (b"Retry-After: 7\r\n", "7")])
@on_uvloop
async def test_when_every_engine_stays_full_the_engines_own_words_are_passed_on(more: bytes, told: str) -> None:
    async with Site(
        json_answer(FULL, b"503 Service Unavailable", more), routing={"retries": {"max_attempts": 2}}
    ) as site:
        asked = asyncio.ensure_future(site.ask(post()))
        await site.engines[0].got(1)
        site.dispatcher.expired(asyncio.get_running_loop().time() + 20)  # the pause is over
        site.plane.apply_effects()
        answer = await asked
        assert (answer.status, answer.body, answer.fields["retry-after"]) == (503, FULL, told)
        assert len(site.engines[0].received) == 2
        await site.settled()


@pytest.mark.fault("R6")
@on_uvloop
async def test_a_refusal_with_a_streamed_body_is_left_behind_with_its_connection() -> None:
    refusal = b"HTTP/1.1 503 Service Unavailable\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"full")
    async with Site(raw_answer(refusal), json_answer(b"served")) as site:
        for _ in range(4):
            assert (await site.ask(post())).body == b"served"
        await until(lambda: all(received.gone.is_set() for received in site.engines[0].received))
        await site.settled()


@pytest.mark.fault("R7")
@on_uvloop
async def test_an_engine_whose_streams_fall_silent_gets_no_new_requests_until_it_goes_on() -> None:
    go = asyncio.Event()

    async def stalls(received: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(event(0)))
        await go.wait()
        writer.write(chunk(event(1)) + b"0\r\n\r\n")

    async with Site(stalls, limit=8, routing={"timeouts": {"progress_s": 0.5}}) as site:
        at = site.dispatcher.endpoints["e0"]
        stream = await site.call()
        stream.writer.write(post(b'{"model":"m","stream":true}'))
        await until(lambda: at.health == "ejected")
        behind = await site.call()
        behind.writer.write(post(b'{"model":"m","stream":true}'))
        await until(lambda: site.dispatcher.model_states()[0].queue.count == 1)
        go.set()
        assert (await stream.answer()).whole
        assert (await behind.answer()).whole
        assert at.health == "ready"
        await site.settled()
