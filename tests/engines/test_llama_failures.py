"""Real llama.cpp that crashes, freezes, is stopped or answers errors, seen by clients of the router."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from typing import Any

import openai
import pytest

from tests.engines.llama import MODEL, Llama, Llamas, chat, eventually, tell
from tests.router.fleet import Stream

pytestmark = pytest.mark.processes

SLOW = 64
LONG = 1800
QUICK = {"timeouts": {"first_byte_s": 1, "between_bytes_s": 1}}
AGAIN = {"retries": {"idempotent": True, "max_attempts": 3, "budget_percent": 100}}


def error_of(stream: Stream) -> Any:
    """The error event that ends a broken stream, after whole events and without `[DONE]`."""
    assert stream.status == 200
    assert bytes(stream.body).endswith(b"\n\n")
    assert b"[DONE]" not in stream.body
    *before, last = stream.events()
    assert before
    assert b"error" not in b"".join(before)
    return json.loads(last.removeprefix(b"data: "))["error"]


async def where(ours: Llamas, tag: str) -> Llama:
    """The replica that works on a request."""
    for llama in ours.started:
        if llama.process.running and tag in await llama.working():
            return llama
    raise AssertionError(f"nobody works on {tag!r}")


@pytest.mark.fault("R11")
async def test_a_replica_killed_in_the_middle_of_streams_ends_them_with_an_error_that_the_sdk_raises(
    ours: Llamas,
) -> None:
    doomed = await ours.llama("doomed", layers=SLOW)
    await ours.route(doomed)
    bytewise = Stream()
    reading = asyncio.create_task(ours.listen(bytewise, "bytes", LONG))

    def ask() -> int:
        """Ask with the synchronous SDK, which must not take the broken answer for a whole one."""
        pieces = 0
        with openai.OpenAI(base_url=f"{ours.router.data}/v1", api_key="none", max_retries=0) as client:
            for chunk in client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "sdk"}], max_tokens=LONG, stream=True
            ):
                pieces += len(chunk.choices)
        return pieces

    asking = asyncio.create_task(asyncio.to_thread(ask))
    await eventually(doomed.holds("bytes", "sdk"), "both stream")
    await bytewise.begun.wait()
    doomed.kill()
    await reading
    assert error_of(bytewise)["code"] == 502
    with pytest.raises(openai.APIError, match="closed the connection"):
        await asking
    report = await ours.quiet()
    assert report["endpoints"]["doomed"]["outcomes"] == {"cut": 2}


@pytest.mark.fault("R9", "R11")
async def test_a_replica_stopped_without_a_drain_falls_silent_and_its_stream_ends_with_an_error(ours: Llamas) -> None:
    """What the drain is there to avoid: on SIGTERM llama.cpp closes its port, sends no further token, and then ends the
    connection without a last chunk.
    """
    stopped, other = await ours.llama("stopped", "--ping-s", "1", layers=SLOW), await ours.llama("other")
    await ours.route(stopped)
    stream = Stream()
    reading = asyncio.create_task(ours.listen(stream, "cut", LONG))
    await stream.begun.wait()
    stopped.terminate()
    await ours.put(stopped.endpoint(), other.endpoint())
    await ours.healths(other="ready")
    assert {(await ours.say(f"elsewhere {number}"))[0] for number in range(6)} == {200}
    await reading
    assert error_of(stream)["code"] == 502
    assert await asyncio.to_thread(stopped.process.wait) == 0
    assert await other.generations() == 6


@pytest.mark.fault("R3")
async def test_a_request_lost_with_its_replica_is_sent_to_another_one_and_runs_once(ours: Llamas) -> None:
    frozen, other = await ours.llama("frozen", slots=4), await ours.llama("other", layers=16, slots=4)
    await ours.route(frozen, other, routing=AGAIN)
    frozen.freeze()
    asking = {f"request {n}": asyncio.create_task(ours.say(f"request {n}", 40)) for n in range(6)}
    await ours.until(lambda report: report["endpoints"]["other"]["outcomes"].get("success", 0) >= 1)
    report = await ours.until(lambda report: report["endpoints"]["other"]["in_flight"] == 0)
    waiting = report["endpoints"]["frozen"]["in_flight"]
    assert waiting >= 1
    frozen.kill()  # it read nothing of them, so nothing of them was generated
    assert [(await task)[0] for task in asking.values()] == [200] * 6
    assert (frozen.begun(), await other.generations()) == (0, 6)
    assert (await other.metrics())["tokens_predicted_total"] == 6 * 40
    report = await ours.quiet()
    assert report["endpoints"]["frozen"]["outcomes"]["cut"] == waiting


@pytest.mark.fault("R3")
async def test_a_request_that_a_frozen_replica_may_still_run_is_not_sent_to_another_one(ours: Llamas) -> None:
    frozen, other = await ours.llama("frozen"), await ours.llama("other")
    again = {**QUICK, **AGAIN}
    await ours.route(frozen, routing=again)
    frozen.freeze()
    asking = asyncio.create_task(ours.say("late", 40))
    await ours.until(lambda report: report["endpoints"]["frozen"]["in_flight"] == 1)
    await ours.put(frozen.endpoint(), other.endpoint(), routing=again)
    await ours.healths(other="ready")
    status, body = await asking
    assert (status, body["error"]["code"]) == (504, "timeout")
    frozen.thaw()
    await eventually(lambda: frozen.ended() == 1, "the frozen one ran it after all")
    assert (await other.metrics())["tokens_predicted_total"] == 0


@pytest.mark.fault("R7")
async def test_a_frozen_replica_is_left_out_and_comes_back_by_a_single_request(ours: Llamas) -> None:
    herd = [await ours.llama(name, layers=SLOW) for name in ("a", "b")]
    await ours.route(*herd, routing=QUICK)
    stream = Stream()
    reading = asyncio.create_task(ours.listen(stream, "frozen", LONG))
    await stream.begun.wait()
    frozen = await where(ours, "frozen")
    other = next(llama for llama in herd if llama is not frozen)
    frozen.freeze()
    answers = asyncio.gather(*(ours.say(f"round {number}") for number in range(8)))
    await ours.healths(**{frozen.id: "ejected"})
    statuses = [status for status, _ in await answers]
    await reading
    assert error_of(stream)["code"] == 504
    assert set(statuses) <= {200, 504}
    assert statuses.count(504) <= 2, "it has two slots, and the stream had one of them"
    assert {(await ours.say(f"after {number}"))[0] for number in range(6)} == {200}
    assert (await ours.load())["endpoints"][frozen.id]["in_flight"] == 0
    frozen.thaw()
    await ours.until(lambda report: report["endpoints"][frozen.id]["health"] == "half-open")
    assert {(await ours.say(f"again {number}"))[0] for number in range(12)} == {200}
    await ours.healths(**{frozen.id: "ready", other.id: "ready"})


@pytest.mark.fault("R10")
async def test_a_connection_that_the_replica_closes_as_it_is_used_again_is_replayed(ours: Llamas) -> None:
    """The router is stopped while, in this order, a request arrives and the replica goes away: so it sends the request on
    a connection that it could not yet know to be closed.
    """
    first = await ours.llama("a")
    await ours.route(first)
    host, _, port = ours.router.data.removeprefix("http://").rpartition(":")
    body = json.dumps(chat("raced", 4)).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    await answered(reader)
    ours.router.process.signal(signal.SIGSTOP)
    writer.write(request)
    assert writer.transport.get_write_buffer_size() == 0, "the request lies before the router"
    first.kill()
    second = await ours.llama("a again", port=first.port)
    ours.router.process.signal(signal.SIGCONT)
    await answered(reader)
    writer.close()
    assert (first.begun(), await second.generations()) == (1, 1)
    assert f'tidegate_router_replays_total{{model="{MODEL}"}} 1.0' in await ours.page()


async def answered(reader: asyncio.StreamReader) -> None:
    """Read one answer of a known length. Raises unless it is a good one."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    found = re.search(rb"(?i)content-length: (\d+)", head)
    assert found is not None, head
    await reader.readexactly(int(found[1]))


@pytest.mark.fault("R5")
async def test_requests_that_the_replica_finds_bad_do_not_count_against_it(ours: Llamas) -> None:
    llama = await ours.llama("a", context=256)
    await ours.route(llama)
    async with ours.sdk() as client:
        for _ in range(4):
            with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
                await tell(client, "long " * 100, 4)
            with pytest.raises(openai.BadRequestError, match="messages"):
                await client.post("/chat/completions", body={"model": MODEL}, cast_to=object)
        report = await ours.load()
        assert report["endpoints"]["a"]["health"] == "ready"
        assert report["endpoints"]["a"]["outcomes"] == {"client_error": 8}
        assert await tell(client, "short", 4) == 4
    assert "health changed" not in "".join(line for line in ours.router.process.stderr if "ejected" in line)


@pytest.mark.fault("R23")
async def test_when_all_replicas_are_gone_clients_are_told_when_to_come_back_and_are_served_when_one_is(
    ours: Llamas,
) -> None:
    herd = [await ours.llama(name) for name in ("a", "b")]
    await ours.route(*herd, routing={"queue": {"timeout_s": 0.5}})
    for llama in herd:
        llama.kill()
    status, body = await ours.say("nobody there")
    assert (status, body["error"]["code"]) in {(502, "unreachable"), (503, "queue_timeout")}
    async with ours.sdk() as client:
        with pytest.raises(openai.InternalServerError) as refused:
            await tell(client, "still nobody", 4)
    assert refused.value.status_code == 503
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
    await ours.llama("a again", port=herd[0].port)
    await ours.put(*(llama.endpoint() for llama in herd), routing={"queue": {"timeout_s": 30}})
    assert (await ours.say("one is back"))[0] == 200
