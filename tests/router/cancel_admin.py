"""Stories of cancellation: the admin side, with clients that leave, and what workers say to each other."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from router.model import EndpointAck, IntentTable, ModelIntent, TableAck
from router.settings import Settings
from router.shell.admin_site import admin_site
from router.shell.control import Line
from router.shell.predecessors import Predecessors
from router.shell.server import Server
from router.shell.sockets import listening
from router.shell.table_store import TableStore
from tests.router.cancel_sides import engine
from tests.router.cancelling import Part, story
from tests.router.wire import Caller, Received

TOKEN = "0123456789abcdef"
ACK = TableAck(applied=(1, 1), endpoints={"e": EndpointAck(in_flight=1, drained=False, health="ready")})


def table(revision: int) -> IntentTable:
    """The whole table of a source."""
    return IntentTable(source="c", epoch=1, revision=revision, models=(ModelIntent(name=f"m{revision}"),))


def request(method: str, path: str, body: bytes = b"") -> bytes:
    """To the admin API."""
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def put(revision: int) -> bytes:
    """A table in a request."""
    return request("PUT", "/admin/v1/endpoints", msgspec.json.encode(table(revision)))


async def acknowledging(received: Received, writer: asyncio.StreamWriter) -> None:
    """A predecessor that takes its time."""
    body = msgspec.json.encode(ACK)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body))
    await asyncio.sleep(0.002)
    writer.write(body)
    await writer.drain()


class Site:
    """The admin side of a real router on a free port. `handling`: what the next request is handled by, for a story to
    run; the handler waits for the task that is `run` by.
    """

    def __init__(self, server: Server, store: TableStore, place: tuple[str, int]) -> None:
        self.server = server
        self.store = store
        self._place = place
        self.handling: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.run: asyncio.Future[asyncio.Task[Any]] = asyncio.get_running_loop().create_future()
        self._own = server._admin._in_error_form

    def hand_over(self) -> None:
        """Let a story run the next request."""

        @web.middleware
        async def hand(asked: web.Request, handler: Any) -> web.StreamResponse:
            self.handling.set_result(self._own(asked, handler))
            answer: web.StreamResponse = await (await self.run)
            return answer

        self.server._admin._in_error_form = hand  # type: ignore[method-assign,assignment]

    async def call(self) -> Caller:
        """A client."""
        return Caller(*await asyncio.open_connection(*self._place))


@asynccontextmanager
async def serving(*, ours: bool = False) -> AsyncIterator[Site]:
    """`ours`: a story runs what handles a request."""
    with tempfile.TemporaryDirectory() as folder:
        data, admin = listening("127.0.0.1", 0, "--port"), listening("127.0.0.1", 0, "--admin-port")
        with data, admin:
            server = Server(Settings(state_dir=Path(folder), admin_token=TOKEN), data, admin)
            site = Site(server, TableStore(Path(folder)), admin.getsockname())
            if ours:
                site.hand_over()
            async with admin_site(server._admin, admin):
                yield site


async def _put(*, leaves: bool) -> AsyncIterator[Part]:
    loop = asyncio.get_running_loop()
    async with engine(acknowledging) as port, serving(ours=True) as site:
        site.server._admin.predecessors.came([f"http://127.0.0.1:{port}"])
        caller = await site.call()
        whole = put(1)
        caller.writer.write(whole[:-20])
        handling = await site.handling
        rest = loop.call_later(0.004, caller.writer.write, whole[-20:])
        yield Part(handling, site.run.set_result, caller.leave if leaves else None, then=caller.leave)
        rest.cancel()
        applied = [each.revision for each in site.server._dispatcher.tables().values()]
        stored = [each.revision for each in site.store.load()[0]]
        assert applied == stored, "applied and stored, or neither"
        assert not site.server._admin.at_work
    async with serving() as site:
        site.server._admin.predecessors.came(())
        again = await site.call()
        assert (await again.ask(put(2))).status == 200
        assert [each.revision for each in site.store.load()[0]] == [2]
        again.leave()


PUT = (
    "shell/admin.py:Admin._guarded.checked",
    "shell/admin.py:Admin._in_error_form",
    "shell/admin.py:Admin.put_endpoints",
    "shell/predecessors.py:Predecessors.with_theirs|gather",
)


@story(*PUT)
async def who_sent_a_table_leaves() -> AsyncIterator[Part]:
    async for part in _put(leaves=True):
        yield part


@story(*PUT)
async def the_handler_of_a_table_is_cancelled() -> AsyncIterator[Part]:
    async for part in _put(leaves=False):
        yield part


async def _load(*, leaves: bool) -> AsyncIterator[Part]:
    async with serving(ours=True) as site:
        caller = await site.call()
        caller.writer.write(request("GET", "/admin/v1/load?after=0&wait_s=5"))
        handling = await site.handling
        woken = asyncio.get_running_loop().call_later(0.003, site.server._admin.close)
        yield Part(handling, site.run.set_result, caller.leave if leaves else None, then=caller.leave)
        woken.cancel()
        assert len(site.server._admin.wakes) == 0
        assert not site.server._admin.at_work


@story("shell/admin.py:Admin.get_load")
async def who_waits_for_a_report_leaves() -> AsyncIterator[Part]:
    async for part in _load(leaves=True):
        yield part


@story("shell/admin.py:Admin.get_load")
async def the_handler_of_a_wait_is_cancelled() -> AsyncIterator[Part]:
    async for part in _load(leaves=False):
        yield part


# ---- the site as such


@story(
    "shell/admin_site.py:admin_site",
    "shell/admin_site.py:AdminSite.start",
    "shell/admin_site.py:AdminSite.move",
    unix=True,
)
async def the_admin_site_opens_moves_and_closes() -> AsyncIterator[Part]:
    with tempfile.TemporaryDirectory() as folder, socket.socket() as data:
        public, private = listening("127.0.0.1", 0, "--admin-port"), listening("127.0.0.1", 0, "--admin-port")
        server = Server(Settings(state_dir=Path(folder)), data, public)
        there: list[Caller] = []

        async def life() -> None:
            async with admin_site(server._admin, public) as site:
                for path in ("/health", "/admin/v1/load?after=0&wait_s=50"):
                    there.append(Caller(*await asyncio.open_connection(*public.getsockname())))
                    there[-1].writer.write(request("GET", path))
                await site.move(private)
                await asyncio.sleep(0.001)

        def leave() -> None:
            for caller in there:
                caller.leave()
            public.close()
            private.close()

        yield Part(life(), then=leave)
        assert len(server._admin.wakes) == 0
        assert not server._admin.at_work


# ---- predecessors


@story("shell/predecessors.py:Predecessors.with_theirs", points=8)
async def predecessors_are_told_a_table() -> AsyncIterator[Part]:
    async with engine(acknowledging) as port:
        before = Predecessors(None)
        before.came([f"http://127.0.0.1:{port}"])
        yield Part(before.with_theirs(b"{}", ACK))
        assert (await before.with_theirs(b"{}", ACK)).endpoints["e"].in_flight == 2


@story("shell/predecessors.py:Predecessors._told")
async def one_predecessor_is_told_a_table() -> AsyncIterator[Part]:
    async with engine(acknowledging) as port, aiohttp.ClientSession() as session:
        before = Predecessors(None)
        yield Part(before._told(session, f"http://127.0.0.1:{port}", b"{}"))
        assert await before._told(session, f"http://127.0.0.1:{port}", b"{}") == ACK


# ---- the line between a parent and a worker


@asynccontextmanager
async def line() -> AsyncIterator[tuple[Line, socket.socket]]:
    """One end, and the other as a bare socket."""
    ours, theirs = socket.socketpair()
    made = await Line.over(ours)
    with theirs:
        yield made, theirs
    made.close()
    await asyncio.sleep(0)


@story("shell/control.py:Line.over")
async def an_end_of_the_line_is_taken_over() -> AsyncIterator[Part]:
    ours, theirs = socket.socketpair()
    taken: list[Line] = []

    async def over() -> None:
        taken.append(await Line.over(ours))

    def hang_up() -> None:
        for each in taken:
            each.close()

    with theirs:
        yield Part(over(), then=hang_up)


async def _heard(hear: Callable[[Line], Any], said: bytes) -> AsyncIterator[Part]:
    async with line() as (ours, theirs):
        parts = [said[5:], said[:5]]

        def send() -> None:
            if parts:
                theirs.send(parts.pop())

        send()
        await asyncio.sleep(0.001)
        asyncio.get_running_loop().call_later(0.002, send)
        yield Part(hear(ours))
        send()
        theirs.send(b'{"what":"go"}\n')
        async with asyncio.timeout(5):
            while (message := await ours.hear()) is not None and message.what != "go":
                assert message.what == "ready", "what was half heard is heard again, whole"


@story("shell/control.py:Line.hear")
async def a_message_is_heard() -> AsyncIterator[Part]:
    async for part in _heard(lambda ours: ours.hear(), b'{"what":"ready"}\n'):
        yield part


@story("shell/control.py:Line.hear_settings")
async def settings_are_heard() -> AsyncIterator[Part]:
    async with line() as (ours, theirs):
        said = msgspec.json.encode(Settings()) + b"\n"
        saying = asyncio.get_running_loop().call_later(0.002, theirs.send, said)
        yield Part(ours.hear_settings())
        saying.cancel()
