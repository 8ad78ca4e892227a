"""Crowds of clients and the want of file descriptors: who is served goes on being served, and no engine is blamed."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from http.client import HTTPConnection
from typing import Any

import aiohttp
import pytest

from router.shell.descriptors import clients_allowed, clients_within, is_our_want
from router.shell.driver import BEAT_S, CROWDED_IDLE_S
from router.shell.http import Limits
from router.shell.probe import answers
from tests.processes import Processes
from tests.router.by_hand import beats, client, plane
from tests.router.test_probe import Known
from tests.router.wire import Site, json_answer, on_uvloop, post, until

OURS = [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL]
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def failing(error: OSError) -> Any:
    """Stands for `loop.create_connection`."""

    async def connect(*_: Any, **__: Any) -> None:
        raise error

    return connect


@pytest.mark.fault("R26")
@pytest.mark.parametrize("number", OURS)
@on_uvloop
async def test_a_connection_that_we_cannot_make_is_503_and_says_nothing_about_the_engine(number: int) -> None:
    async with Site(json_answer()) as site:
        endpoint = site.dispatcher.endpoints["e0"]
        loop, site.plane.loop = site.plane.loop, _Lacking(site.plane.loop, OSError(number, "none left"))  # type: ignore[assignment]
        for _ in range(5):
            answer = await site.ask(post())
            assert (answer.status, answer.fields["retry-after"]) == (503, "1")
            assert b'"code":"out_of_connections"' in answer.body
            assert "connection" not in answer.fields
        assert (endpoint.health, endpoint.outcomes) == ("ready", {"ignored": 5})
        site.plane.loop = loop
        assert (await site.ask(post())).status == 200
        await site.settled()


class _Lacking:
    """A loop that cannot connect."""

    def __init__(self, loop: asyncio.AbstractEventLoop, error: OSError) -> None:
        self._loop = loop
        self.create_connection = failing(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


@on_uvloop
async def test_idle_engine_connections_make_room() -> None:
    async with Site(json_answer(), json_answer(), limit=1) as site:
        for _ in range(6):
            assert (await site.ask(post())).status == 200
        pools = [endpoint.pool for endpoint in site.dispatcher.endpoints.values()]
        assert all(pools)
        other = site.dispatcher.endpoints["e0"]
        taken = other.pool.pop()  # as if it were in use
        site.plane.loop = _Lacking(site.plane.loop, OSError(errno.EMFILE, "none left"))  # type: ignore[assignment]
        caller = await site.call()
        while (await caller.ask(post())).status != 503:
            pass
        assert not any(pools)
        taken.drop()


@on_uvloop
async def test_an_engine_that_refuses_is_blamed_as_before() -> None:
    async with Site(json_answer(), routing={"retries": {"max_attempts": 1}}) as site:
        error = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        site.plane.loop = _Lacking(site.plane.loop, error)  # type: ignore[assignment]
        assert (await site.ask(post())).status == 502
        assert site.dispatcher.endpoints["e0"].health == "ejected"


def test_what_is_our_own_want() -> None:
    assert all(is_our_want(OSError(number, "")) for number in OURS)
    assert is_our_want(socket.gaierror(socket.EAI_SYSTEM, ""))
    for error in (
        ConnectionRefusedError(errno.ECONNREFUSED, ""),
        TimeoutError(errno.ETIMEDOUT, ""),
        OSError(errno.EHOSTUNREACH, ""),
        socket.gaierror(socket.EAI_NONAME, ""),
        OSError("Multiple exceptions"),
    ):
        assert not is_our_want(error)


@pytest.mark.fault("R26")
@pytest.mark.parametrize("engine", ["generic", "vllm"])
async def test_a_probe_that_cannot_be_made_says_nothing(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_socket(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async with aiohttp.ClientSession() as session:
        monkeypatch.setattr(socket, "socket", no_socket)
        said = await answers(session, Known(engine=engine))
        monkeypatch.undo()
        assert said is None
        assert await answers(session, Known(engine=engine)) is False


def test_how_many_clients_the_open_files_suffice_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [clients_within(files) for files in (0, 64, 1024, 65_536, 1 << 20)] == [1, 28, 448, 28_672, 458_752]
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    assert (clients_allowed(20_000), clients_allowed(100)) == (448, 100)
    monkeypatch.setattr("resource.getrlimit", lambda _: (-1, -1))
    assert clients_allowed(20_000) == 20_000


@pytest.mark.fault("R26")
@on_uvloop
async def test_in_a_crowd_those_who_do_nothing_make_room_early() -> None:
    of = plane(Limits(connections=8, idle_s=75))
    for _ in range(6):
        _, first = client(of)
    beats(of, int(CROWDED_IDLE_S / BEAT_S) + 1)
    assert first.done == []  # six of eight are no crowd
    transports = [client(of)[1] for _ in range(2)]
    assert client(of)[1].done == ["abort"]  # beyond the bound
    beats(of, int(CROWDED_IDLE_S / BEAT_S) + 1)
    assert (first.done, [transport.done for transport in transports]) == (["close"], [["close"]] * 2)


@pytest.mark.fault("R26")
@on_uvloop
async def test_slow_heads_idle_and_half_open_connections_leave_others_alone() -> None:
    async with Site(json_answer(), limits=Limits(head_s=0.5, idle_s=0.5)) as site:
        idle = [await site.call() for _ in range(300)]
        slow = [await site.call() for _ in range(300)]
        for caller in slow:
            caller.writer.write(b"POST /x HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        half = await site.call()
        half.writer.write_eof()
        assert await half.closed() == b""
        async with asyncio.timeout(10):
            while site.plane.counters.bad_requests < len(slow):
                for caller in slow[:100]:
                    if not caller.writer.is_closing():
                        caller.writer.write(b"y")  # a byte now and then does not prolong the bound on a head
                assert (await site.ask(post())).status == 200
                await asyncio.sleep(0.03)
        answers = [await caller.answer() for caller in slow]
        assert {answer.status for answer in answers} == {400}
        for caller in idle:
            assert await caller.closed() == b""
        await until(lambda: not any(each.receiving for each in site.plane.clients))
        assert (await site.ask(post())).status == 200
        await site.settled()


@pytest.mark.fault("R26")
@pytest.mark.processes
def test_a_router_with_few_files_serves_on_while_a_crowd_stands_at_the_door(processes: Processes) -> None:
    engine = processes.start("engine", "--port", "0", "--model", "tide-1")
    url = engine.wait_ready(r"(http://\S+)")[1]
    flags = f"--worker-urls {url} --model tide-1 --port 0 --admin-port 0"
    limited = f"ulimit -n 128; exec {sys.executable} -m tidegate router {flags}"
    router = processes.start_program("/bin/sh", "-c", limited)
    ready = router.wait_ready(r"data http://(\S+):(\d+) admin http://(\S+):(\d+)")
    place = ready[1], int(ready[2])
    served = HTTPConnection(*place, timeout=20)

    def ask() -> int:
        served.request("POST", "/v1/completions", '{"model":"tide-1","prompt":"a","max_tokens":1}')
        with served.getresponse() as answer:
            answer.read()
            return answer.status

    while ask() != 200:  # until the probe has found the engine
        pass
    crowd = [socket.create_connection(place) for _ in range(200)]
    try:
        assert [ask() for _ in range(20)] == [200] * 20
        admin = HTTPConnection(ready[3], int(ready[4]), timeout=20)
        admin.request("GET", "/admin/v1/load")
        report = admin.getresponse().read().decode()
        assert '"health":"ready"' in report
        assert "unreachable" not in report
        admin.close()
    finally:
        for each in crowd:
            each.close()
        served.close()
