"""A router's data plane in a world that is moved by hand: a loop without time of its own, connections without sockets.

Everything the protocols ask of asyncio is here and nothing else, so a case is a list of steps that always ends the same
way: bytes arrive, a connection is made or fails, a side stops reading or leaves, time passes. What our own code raises
comes out of `World.step`. The connections know what asyncio's do: reading may be paused, what a peer does not take is
buffered and the protocol told so, closing flushes, aborting does not, and the end is told in the loop's next turn.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

from router.core.dispatcher import Dispatcher
from router.model import table_from
from router.shell.client import Client
from router.shell.http import DataPlane, Limits

HIGH_WATER: Final = 64 << 10
TURNS_MAX: Final = 10_000
"""Callbacks in one turn of the loop; more means that it never comes to rest."""
BOOT: Final = "f"
ENDPOINTS: Final = ("e0", "e1")
LIMITS: Final = Limits(
    body_bytes=1 << 20,
    bodies_total_bytes=2 << 20,
    connections=6,
    head_s=1.0,
    body_s=1.0,
    idle_s=2.0,
    stall_s=2.0,
)
ROUTING: Final = {
    "queue": {"max_requests": 4, "timeout_s": 1.5},
    "timeouts": {"connect_s": 0.5, "first_byte_s": 1.0, "between_bytes_s": 1.0, "total_s": 4.0},
}
QUIET_S: Final = 5.0
QUIET_TIMES_MAX: Final = 16
"""So often `QUIET_S` after the last step everything must have come to its end: four requests that wait behind each other
for the longest bounds. Idle connections to engines end 4 s after that.
"""


class Restless(AssertionError):
    """The loop did not come to rest."""


class Timer:
    """A call at a later time, until it is cancelled."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        """Never mind."""
        self.cancelled = True


class Knock:
    """An attempt to connect, awaited until the world answers it."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self.factory = factory
        self.task: Task | None = None
        self.error: OSError | None = None

    def __await__(self) -> Generator[Knock, None, None]:
        yield self
        if self.error is not None:
            raise self.error


class Task:
    """A coroutine that waits for knocks only."""

    def __init__(self, loop: HandLoop, coroutine: Coroutine[Knock, None, None]) -> None:
        self._loop = loop
        self._coroutine = coroutine
        self._done: list[Callable[[Any], None]] = []
        self._cancelled = False
        self.ended = False
        loop.call_soon(self.step)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Called with the task at its end."""
        self._done.append(callback)

    def cancel(self) -> None:
        """Raise in it at its next turn."""
        if not self.ended:
            self._cancelled = True
            self._loop.call_soon(self.step)

    def step(self) -> None:
        """One turn."""
        if self.ended:
            return
        try:
            if self._cancelled:
                self._coroutine.throw(asyncio.CancelledError())
            else:
                self._coroutine.send(None).task = self
                return
        except (StopIteration, asyncio.CancelledError):
            pass
        self.ended = True
        for callback in self._done:
            callback(self)


class HandLoop:
    """The part of an event loop that a data plane uses. `knocks`: attempts to connect that nobody answered yet."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: deque[Callable[[], None]] = deque()
        self.knocks: deque[Knock] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = 0

    def time(self) -> float:
        """Seconds."""
        return self.now

    def call_soon(self, call: Callable[..., None], *args: Any) -> None:
        """In this turn, after what is under way."""
        self.soon.append(lambda: call(*args))

    def call_later(self, delay_s: float, call: Callable[..., None], *args: Any) -> Timer:
        """After `delay_s`."""
        timer = Timer(lambda: call(*args))
        self._count += 1
        heapq.heappush(self._timers, (self.now + delay_s, self._count, timer))
        return timer

    def create_task(self, coroutine: Coroutine[Knock, None, None]) -> Task:
        """Run it, from the next turn on."""
        return Task(self, coroutine)

    async def create_connection(self, factory: Callable[[], Any], host: str, port: int) -> None:
        """Knock, and wait for an answer."""
        knock = Knock(factory)
        self.knocks.append(knock)
        await knock

    def rest(self) -> None:
        """Run until nothing is left to do now. Raises `Restless`."""
        for _ in range(TURNS_MAX):
            if not self.soon:
                return
            self.soon.popleft()()
        raise Restless(f"more than {TURNS_MAX} callbacks at once")

    def pass_time(self, seconds: float) -> None:
        """Let time pass and timers fire."""
        until = self.now + seconds
        while self._timers and self._timers[0][0] <= until:
            self.now, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                timer.call()
            self.rest()
        self.now = until


class Wire:
    """One connection as its protocol's transport. `got`: all bytes that the peer took; `said`: all that it sent; `end`: how
    the router ended it ("close", "abort"), "" = it did not; `lost`: it is over.
    """

    def __init__(self, loop: HandLoop, protocol: Any) -> None:
        self._loop = loop
        self._protocol = protocol
        self._buffer = bytearray()
        self._waiting = bytearray()
        self._writing_paused = False
        self._reading_paused = False
        self.stalled = False
        self.got = bytearray()
        self.said = bytearray()
        self.end = ""
        self.lost = False

    # ---- what the protocol does

    def write(self, data: bytes) -> None:
        """Bytes for the peer."""
        if self.end or self.lost:
            return
        if not self.stalled:
            self.got += data
            return
        self._buffer += data
        if len(self._buffer) > HIGH_WATER and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, parts: Any) -> None:
        """The same, in parts."""
        self.write(b"".join(parts))

    def write_eof(self) -> None:
        """No more bytes follow."""

    def get_write_buffer_size(self) -> int:
        """What the peer did not take yet."""
        return len(self._buffer)

    def get_extra_info(self, name: str) -> Any:
        """The peer's name; there is no socket."""
        return ("127.0.0.1", 1) if name == "peername" else None

    def is_closing(self) -> bool:
        """Is it over, or about to be."""
        return bool(self.end) or self.lost

    def set_protocol(self, protocol: Any) -> None:
        """Who reads from now on."""
        self._protocol = protocol

    def pause_reading(self) -> None:
        """Hold back what the peer sends."""
        self._reading_paused = True

    def resume_reading(self) -> None:
        """Take it again."""
        self._reading_paused = False
        self._loop.call_soon(self._read)

    def close(self) -> None:
        """End it once all is written."""
        if not self.end:
            self.end = "close"
            if not self._buffer:
                self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        """End it now."""
        if self.end != "abort":
            self.end = "abort"
            self._buffer.clear()
            self._loop.call_soon(self._lose, None)

    # ---- what the peer does

    def say(self, data: bytes) -> None:
        """The peer sends bytes."""
        self.said += data
        self._waiting += data
        self._read()

    def _read(self) -> None:
        while self._waiting and not (self._reading_paused or self.end or self.lost):
            protocol = self._protocol
            if isinstance(protocol, asyncio.BufferedProtocol):
                place = memoryview(protocol.get_buffer(-1))
                assert len(place), "asked to read into nothing"
                size = min(len(place), len(self._waiting))
                place[:size] = self._waiting[:size]
                place.release()
                del self._waiting[:size]
                protocol.buffer_updated(size)
            else:
                data = bytes(self._waiting)
                self._waiting.clear()
                protocol.data_received(data)

    def stall(self, stalled: bool) -> None:
        """The peer stops reading, or reads on."""
        self.stalled = stalled
        if stalled or self.lost:
            return
        self.got += self._buffer
        self._buffer.clear()
        if self.end == "close":
            self._loop.call_soon(self._lose, None)
        elif self._writing_paused:
            self._writing_paused = False
            self._protocol.resume_writing()

    def leave(self, reset: bool) -> None:
        """The peer closes or resets the connection."""
        if self.lost or self.end:
            return
        if reset:
            self.end = "reset"
            self._loop.call_soon(self._lose, ConnectionResetError(104, "reset"))
        elif not self._reading_paused:  # else its end is not seen
            self._protocol.eof_received()
            self.end = "left"
            if not self._buffer:
                self._loop.call_soon(self._lose, None)

    def _lose(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = True
            self._protocol.connection_lost(error)


class World:
    """A data plane with two endpoints, its clients and its engines' connections. `seed`: of its own choices."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.loop = HandLoop()
        self.routing = {**ROUTING, "retries": {"idempotent": rng.random() < 0.5}}
        self.dispatcher = Dispatcher(router="fuzz", boot=BOOT, random=rng.random, now=0.0)
        loop: Any = self.loop
        self.plane = DataPlane(self.dispatcher, loop, LIMITS)
        self.clients: list[Wire] = []
        self.engines: list[Wire] = []
        self._revision = 0
        self._tell("active")
        self.plane.start()

    def _tell(self, intent: str) -> None:
        """A table; `intent` of the first endpoint, "absent" = it is left out."""
        self._revision += 1
        told = [{"id": "e0", "intent": intent}, {"id": "e1", "intent": "active"}]
        endpoints = [
            {**each, "url": f"http://127.0.0.1:{number + 1}", "model": "m", "limit": 2}
            for number, each in enumerate(told)
            if each["intent"] != "absent"
        ]
        model = {"name": "m", "aliases": ["alias"], "routing": self.routing}
        document = {"source": "t", "revision": self._revision, "models": [model], "endpoints": endpoints}
        self.dispatcher.apply(table_from(document), self.loop.now)
        for each in endpoints:
            self.dispatcher.probed(str(each["id"]), True, self.loop.now)

    def step(self, name: str, *args: Any) -> None:
        """One step of a case, and all that follows from it at once. A step about what does not exist does nothing."""
        match name, args:
            case "open", ():
                client = Client(self.plane)
                wire: Any = Wire(self.loop, client)
                self.clients.append(wire)
                client.connection_made(wire)
            case "client" | "engine", (int(number), str(text)):
                for wire in self._wires(name)[number : number + 1]:
                    wire.say(text.encode("latin-1"))
            case "client stalls" | "engine stalls", (int(number), bool(stalled)):
                for wire in self._wires(name)[number : number + 1]:
                    wire.stall(stalled)
            case "client leaves" | "engine leaves", (int(number), bool(reset)):
                for wire in self._wires(name)[number : number + 1]:
                    wire.leave(reset)
            case "answer the door", (int(errno),):
                self._open_door(errno)
            case "time", (float(seconds),):
                self.loop.pass_time(seconds)
            case "table", (str(intent),):
                self._tell(intent)
            case "accepting", (bool(accepting),):
                self.dispatcher.accepting = accepting
            case _:
                raise ValueError(f"no such step: {name} {args}")
        self.loop.rest()

    def _wires(self, name: str) -> list[Wire]:
        return self.clients if name.startswith("client") else self.engines

    def _open_door(self, errno: int) -> None:
        """Answer the oldest knock: let it in (0), or fail with an error number."""
        while self.loop.knocks:
            knock = self.loop.knocks.popleft()
            if knock.task is None or knock.task.ended:
                continue
            if errno:
                knock.error = OSError(errno, "no")
            else:
                protocol = knock.factory()
                wire: Any = Wire(self.loop, protocol)
                self.engines.append(wire)
                protocol.connection_made(wire)
            self.loop.call_soon(knock.task.step)
            return

    def quiet(self) -> None:
        """Nobody does anything any more: all bounds pass."""
        for _ in range(QUIET_TIMES_MAX):
            self.loop.pass_time(QUIET_S)
            if all(wire.lost for wire in self.clients):
                break
        self.loop.pass_time(QUIET_S)
