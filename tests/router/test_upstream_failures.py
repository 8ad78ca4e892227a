"""What can go wrong between router and engine, and clients that leave: over real sockets, gauges back at 0 each time."""

from __future__ import annotations

import asyncio
import json

import pytest

from router.shell.http import Limits
from router.shell.upstream import Upstream
from tests.router.wire import (
    SSE_HEAD,
    Engine,
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


async def never(received: Received, writer: asyncio.StreamWriter) -> None:
    """An engine that takes the request and says nothing."""
    await received.gone.wait()


@on_uvloop
@pytest.mark.fault("R10")
async def test_a_stale_keep_alive_connection_is_replayed_once_and_nobody_notices() -> None:
    async with Site(json_answer()) as site:
        engine = site.engines[0]
        assert (await site.ask(post())).status == 200
        pool = site.dispatcher.endpoints["e0"].pool
        taken = pool[0]
        # The engine closes the idle connection at the moment it is used: the router reads the end only after it has written.
        taken.transport.pause_reading()
        engine.drop_connections()
        await asyncio.sleep(0.01)
        caller = await site.call()
        caller.writer.write(post(b'{"model":"m","n":2}'))
        await until(lambda: taken.exchange is not None)
        taken.transport.resume_reading()
        answer = await caller.answer()
        assert answer.status == 200
        assert [received.field("x-request-id") for received in engine.received] == [["boot-1"], ["boot-2-a2"]]
        assert site.dispatcher.endpoints["e0"].outcomes == {"success": 2}
        await site.settled()


@on_uvloop
@pytest.mark.fault("R10")
async def test_an_idle_connection_that_the_engine_closes_is_not_used_again() -> None:
    async with Site(json_answer()) as site:
        site.plane.driver.stop()  # which closes idle connections by itself
        for _ in range(3):
            assert (await site.ask(post())).status == 200
            site.engines[0].drop_connections()
            await until(lambda: all(each.dead for each in site.dispatcher.endpoints["e0"].pool))
        assert [received.field("x-request-id") for received in site.engines[0].received] == [
            ["boot-1"],
            ["boot-2"],
            ["boot-3"],
        ]


@on_uvloop
@pytest.mark.fault("R10")
async def test_idle_connections_are_closed_before_engines_do_it() -> None:
    async with Site(json_answer()) as site:
        await site.ask(post())
        site.plane.driver.stop()
        for _ in range(16):
            site.plane.driver.beat()
        assert len(site.dispatcher.endpoints["e0"].pool) == 1
        site.plane.driver.beat()
        assert len(site.dispatcher.endpoints["e0"].pool) == 0
        await site.engines[0].received[0].gone.wait()


@on_uvloop
async def test_bytes_on_an_idle_connection_never_reach_the_next_client() -> None:
    async with Site(raw_answer(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", b"HTTP/1.1 200 OK\r\n")) as site:
        assert (await site.ask(post())).body == b"ok"
        await site.engines[0].received[0].gone.wait()
        assert (await site.ask(post())).body == b"ok"
        assert site.engines[0].connections == 2


@on_uvloop
async def test_connection_refused_goes_to_the_other_endpoint_and_ejects_the_first() -> None:
    async with Site(json_answer(b"0"), json_answer(b"1")) as site:
        await site.engines[0].stop()
        answers = [await site.ask(post()) for _ in range(10)]
        assert [answer.body for answer in answers] == [b"1"] * 10
        assert site.dispatcher.endpoints["e0"].health == "ejected"
        assert site.dispatcher.endpoints["e0"].outcomes == {"unreachable": 1}
        await site.settled()


@on_uvloop
async def test_the_only_endpoint_refuses_and_comes_back_within_the_deadline() -> None:
    async with Site(json_answer()) as site:
        await site.engines[0].stop()
        caller = await site.call()
        caller.writer.write(post())
        await until(lambda: site.dispatcher.endpoints["e0"].health == "ejected")
        await site.engines[0].start()
        assert (await caller.answer()).status == 200
        assert site.engines[0].received[0].field("x-request-id") == ["boot-1-a2"]
        await site.settled()


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        (raw_answer(close=True), "replica_failed"),
        (raw_answer(b"HTTP/1.1 200 OK\r\ncont", close=True), "replica_failed"),
        (raw_answer(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\nok"), "bad_answer"),
        (raw_answer(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok"), "bad_answer"),
        (raw_answer(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n"), "bad_answer"),
        (raw_answer(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"), "bad_answer"),
        (raw_answer(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000), "bad_answer"),
        (raw_answer(b"SSH-2.0-OpenSSH\r\n\r\n"), "bad_answer"),
        (raw_answer(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000), "bad_answer"),
    ],
)
@on_uvloop
async def test_no_answer_or_a_bad_one_is_502_once(behaviour, code: str) -> None:  # type: ignore[no-untyped-def]
    async with Site(behaviour, json_answer()) as site:
        site.engines[1].behaviour = behaviour
        caller = await site.call()
        answer = await caller.ask(post())
        assert answer.status == 502
        assert json.loads(answer.body)["error"]["code"] == code
        assert sum(len(engine.received) for engine in site.engines) == 1  # sent once: it may have run
        for engine in site.engines:
            engine.behaviour = json_answer()
        assert (await caller.ask(post())).status == 200
        await site.settled()


@on_uvloop
async def test_interim_answers_are_swallowed() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with Site(raw_answer(interim + b"HTTP/1.1 200 OK\r\n", b"content-length: 2\r\n\r\nok")) as site:
        answer = await site.ask(post())
        assert (answer.status, answer.body, "link" in answer.fields) == (200, b"ok", False)


@on_uvloop
async def test_surplus_behind_an_answer_is_cut_off() -> None:
    async with Site(raw_answer(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n")) as site:
        caller = await site.call()
        assert (await caller.ask(post())).body == b"ok"
        assert (await caller.ask(post())).body == b"ok"
        assert site.engines[0].connections == 2


@on_uvloop
async def test_idempotent_requests_are_sent_again_elsewhere_with_the_next_id() -> None:
    async with Site(raw_answer(close=True), json_answer(), routing={"retries": {"idempotent": True}}) as site:
        for _ in range(6):
            assert (await site.ask(post())).status == 200
        ids = [received.field("x-request-id")[0] for received in site.engines[1].received]
        assert any(each.endswith("-a2") for each in ids)
        await site.settled()


@pytest.mark.fault("R1")
@on_uvloop
async def test_queued_requests_leave_connecting_waiting_and_streaming_ones_abort_the_engine() -> None:
    async with Site(never, limit=1) as site:  # waiting for the first byte, and queued behind it
        first, second = await site.call(), await site.call()
        first.writer.write(post())
        await site.engines[0].got(1)
        second.writer.write(post())
        await until(lambda: site.dispatcher.model_states()[0].queue.count == 1)
        second.leave()
        await until(lambda: site.dispatcher.model_states()[0].queue.count == 0)
        first.leave()
        await asyncio.wait_for(site.engines[0].received[0].gone.wait(), 1)
        await site.settled()
        assert len(site.engines[0].received) == 1
        assert site.plane.counters.left == 2
    async with Site(raw_answer(SSE_HEAD + chunk(event(0)))) as site:  # streaming
        caller = await site.call()
        caller.writer.write(post())
        await caller.reader.readuntil(event(0))
        caller.leave()
        await asyncio.wait_for(site.engines[0].received[0].gone.wait(), 1)
        await site.settled()
        assert site.dispatcher.endpoints["e0"].outcomes == {"client_gone": 1}
    async with Site(json_answer()) as site:  # connecting: the loop's connect is held back
        gate = asyncio.Event()
        connect = site.plane._connect

        async def late(upstream):  # type: ignore[no-untyped-def]
            await gate.wait()
            await connect(upstream)

        site.plane._connect = late  # type: ignore[method-assign]
        caller = await site.call()
        caller.writer.write(post())
        await until(lambda: site.dispatcher.endpoints["e0"].in_flight == 1)
        caller.leave()
        await site.settled()
        gate.set()
        await until(lambda: not site.plane._connects)
        assert site.engines[0].received == []
        assert site.dispatcher.endpoints["e0"].health == "ready"


class Hasty(Engine):
    """An engine that answers as soon as it has the head, reads no more and never closes."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]  # a stream reader cannot be told to read no more
        self.connections += 1
        self._writers.append(writer)
        writer.write(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 2\r\n\r\nno")


@on_uvloop
async def test_an_engine_that_answers_early_and_never_reads_the_rest_of_the_body_keeps_nothing() -> None:
    site = Site(json_answer())
    site.engines = [Hasty(json_answer())]
    async with site:
        caller = await site.call()
        caller.writer.write(post(b'{"model":"m"}'.ljust(30 << 20)))
        seen: list[Upstream] = []

        def sent() -> bool:
            seen.extend(
                each.exchange.upstream for each in site.plane.clients if each.exchange and each.exchange.upstream
            )
            return bool(seen)

        await until(sent)
        assert (await caller.answer()).status == 413
        await until(lambda: seen[0].transport is None)
        await site.settled()


@on_uvloop
async def test_a_half_closed_client_counts_as_gone() -> None:
    async with Site(never) as site:
        caller = await site.call()
        caller.writer.write(post())
        await site.engines[0].got(1)
        caller.writer.write_eof()
        await asyncio.wait_for(site.engines[0].received[0].gone.wait(), 1)
        await site.settled()


@on_uvloop
async def test_clients_that_leave_inside_their_body_leave_nothing() -> None:
    async with Site(json_answer()) as site:
        for size in (1000, 2 << 20):
            caller = await site.call()
            caller.writer.write(post(b"x" * size)[:-500])
            await until(lambda: any(client.receiving for client in site.plane.clients))
            caller.leave()
            await until(lambda: not site.plane.clients)
        await site.settled()


@on_uvloop
async def test_a_full_queue_is_429_and_a_late_one_503_both_with_retry_after() -> None:
    routing = {"queue": {"max_requests": 1, "timeout_s": 0.2}}
    async with Site(never, limit=1, routing=routing) as site:
        callers = [await site.call() for _ in range(3)]
        for number, caller in enumerate(callers):
            caller.writer.write(post())
            await until(lambda number=number: site.plane.minted == number + 1)  # type: ignore[misc]
        refused = await callers[2].answer()
        assert (refused.status, refused.fields["retry-after"]) == (429, "5")
        assert json.loads(refused.body)["error"]["code"] == "queue_full"
        late = await callers[1].answer()
        assert (late.status, late.fields["retry-after"]) == (503, "5")
        assert float(late.fields["server-timing"].removeprefix("queue;dur=")) >= 200
        assert "connection" not in late.fields  # it may go on asking
        callers[0].leave()
        await site.settled()


@on_uvloop
async def test_bounds_on_the_engines_side_are_504_or_an_error_event() -> None:
    timeouts = {"timeouts": {"first_byte_s": 0.2, "between_bytes_s": 0.2, "total_s": 60}}
    async with Site(never, routing=timeouts) as site:
        caller = await site.call()
        answer = await caller.ask(post())
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (504, "timeout")
        await site.engines[0].received[0].gone.wait()
        assert site.dispatcher.endpoints["e0"].outcomes == {"timeout": 1}
        site.engines[0].behaviour = raw_answer(SSE_HEAD + chunk(event(0)))
        answer = await caller.ask(post())
        assert answer.whole
        assert b'"code":504' in answer.body
        await site.settled()
    total = {"timeouts": {"total_s": 0.2}}
    async with Site(raw_answer(SSE_HEAD + chunk(event(0))), routing=total) as site:
        answer = await site.ask(post())
        assert b'"code":504' in answer.body
        assert site.dispatcher.endpoints["e0"].outcomes == {"ignored": 1}
        await site.settled()


@on_uvloop
async def test_a_connection_that_cannot_be_made_in_time_is_504() -> None:
    async with Site(json_answer(), routing={"timeouts": {"connect_s": 0.2}, "retries": {"max_attempts": 1}}) as site:
        forever = asyncio.Event()

        async def hang(upstream):  # type: ignore[no-untyped-def]
            await forever.wait()

        site.plane._connect = hang  # type: ignore[method-assign]
        answer = await site.ask(post())
        assert answer.status == 504
        assert site.dispatcher.endpoints["e0"].outcomes == {"timeout": 1}
        await site.settled()


@on_uvloop
async def test_bounds_on_the_clients_side() -> None:
    limits = Limits(head_s=0.2, body_s=0.2, idle_s=0.2)
    async with Site(json_answer(), limits=limits) as site:
        head, body, idle = await site.call(), await site.call(), await site.call()
        head.writer.write(b"POST / HTTP/1.1\r\nHo")
        body.writer.write(post(b"x" * 100)[:-1])
        assert (await idle.ask(post())).status == 200
        assert b"did not arrive within 0.2 s" in (await head.answer()).body
        assert b"made no progress for 0.2 s" in (await body.answer()).body
        assert await idle.closed() == b""
        await until(lambda: not site.plane.clients)


@on_uvloop
async def test_a_draining_endpoint_finishes_its_stream_and_says_drained() -> None:
    gate = asyncio.Event()

    async def behave(received: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(event(0)))
        await gate.wait()
        writer.write(chunk(event(1)) + b"0\r\n\r\n")

    async with Site(behave) as site:
        caller = await site.call()
        caller.writer.write(post())
        await caller.reader.readuntil(event(0))
        site.tell(intent="draining")
        assert not site.dispatcher.acknowledgement("t").endpoints["e0"].drained
        woken: list[int] = []
        site.dispatcher.on_wake = lambda: woken.append(1)
        gate.set()
        await caller.reader.readuntil(b"0\r\n\r\n")
        assert site.dispatcher.acknowledgement("t").endpoints["e0"].drained
        assert woken == [1]


@on_uvloop
async def test_a_request_waits_for_a_replica_that_a_table_brings() -> None:
    async with Site(json_answer()) as site:
        site.tell(starting=True)
        caller = await site.call()
        caller.writer.write(post())
        await until(lambda: site.dispatcher.model_states()[0].queue.count == 1)
        site.tell()
        assert (await caller.answer()).status == 200
        await site.settled()
