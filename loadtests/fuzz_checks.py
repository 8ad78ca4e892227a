"""What must hold after each case of the fuzzer, told by a reader of its own that shares no code with the router.

- Nothing of ours was raised or counted as a bug, and nothing is left: connections, slots, queued requests, bytes, tasks.
- What engines were sent is plain: one Host, one id that is never used twice, at most one length, no chunks, no more.
- What clients were sent is whole answers, one after the other; only the last may be half, and then it was cut off.
- No cross-talk: every mark that a client got is one that it sent itself, and they come in the order of its requests.
"""

from __future__ import annotations

from loadtests.fuzz_messages import MARKS_EACH, marks
from loadtests.fuzz_world import BOOT, Wire, World

BODILESS = (204, 304)


class Found(AssertionError):
    """Something that must hold does not."""


def need(condition: object, problem: str) -> None:
    """Raises `Found`."""
    if not condition:
        raise Found(problem)


def _fields(head: bytes) -> list[tuple[bytes, bytes]]:
    """Names (lower case) and values."""
    lines = head.split(b"\r\n")[1:]
    return [(line.partition(b":")[0].lower(), line.partition(b":")[2].strip()) for line in lines]


def requests_in(data: bytes | bytearray) -> list[bytes]:
    """The whole requests that an engine was sent, each with its body. Raises `Found` when they are not plain."""
    found, start = [], 0
    while (end := data.find(b"\r\n\r\n", start)) >= 0:
        fields = _fields(bytes(data[start:end]))
        names = [name for name, _ in fields]
        for name in (b"transfer-encoding", b"upgrade", b"te", b"expect", b"content_length"):
            need(name not in names, f"an engine was sent {name!r}")
        for name, most in ((b"host", 1), (b"x-request-id", 1), (b"content-length", 1)):
            need(names.count(name) <= most, f"an engine was sent {name!r} more than once")
        need(b"host" in names, "an engine was sent no host")
        told = dict(fields)
        need(
            told.get(b"x-request-id", b"").startswith(BOOT.encode() + b"-"), "an engine was sent an id that is not ours"
        )
        stop = end + 4 + int(told.get(b"content-length", b"0"))
        if stop > len(data):
            break
        found.append(bytes(data[start:stop]))
        start = stop
    return found


def answers_in(data: bytes, closed: bool) -> tuple[list[tuple[int, bytes]], bool]:
    """(status, body) of each whole answer, and whether nothing is left over. `closed`: the connection ended in order, so
    an answer may end with it. Raises `Found` when they are not HTTP.
    """
    found: list[tuple[int, bytes]] = []
    while data:
        head, end, rest = data.partition(b"\r\n\r\n")
        need(data.startswith(b"HTTP/1.1 "[: len(data)]), f"a client was sent {data[:40]!r} as an answer")
        if not end:
            return found, False
        status = int(head[9:12])
        told = dict(_fields(head))
        if status < 200 or status in BODILESS:
            body, data = b"", rest
        elif told.get(b"transfer-encoding", b"").lower() == b"chunked":
            unchunked = _unchunked(rest)
            if unchunked is None:
                return found, False
            body, data = unchunked
        elif b"content-length" in told:
            size = int(told[b"content-length"])
            if len(rest) < size:
                return found, False
            body, data = rest[:size], rest[size:]
        else:
            need(told.get(b"connection") == b"close", "an answer without a length does not say that it closes")
            if not closed:
                return found, False
            body, data = rest, b""
        if status >= 200:
            found.append((status, body))
    return found, True


def _unchunked(data: bytes) -> tuple[bytes, bytes] | None:
    """(body, what follows), None = not whole. Raises `Found`."""
    body = b""
    while True:
        line, end, data = data.partition(b"\r\n")
        if not end:
            return None
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            raise Found(f"a client was sent a chunk of size {line[:40]!r}") from None
        if size == 0:
            break
        if len(data) < size + 2:
            return None
        need(data[size : size + 2] == b"\r\n", "a client was sent a chunk that is longer than it says")
        body += data[:size]
        data = data[size + 2 :]
    while True:
        line, end, data = data.partition(b"\r\n")
        if not end:
            return None
        if not line:
            return body, data


def check_answered(world: World, number: int, wanted: list[int]) -> None:
    """A client that did everything right, with engines that did, has an answer to each request, with its mark alone."""
    wire = world.clients[number]
    answers, whole = answers_in(bytes(wire.got), closed=wire.end == "close")
    need(whole, f"client {number} has half an answer")
    got = [sorted(set(marks(body))) for status, body in answers if status < 500]
    need(got == [[each] for each in wanted], f"client {number} got answers {got} to requests {wanted}")


def _check_client(number: int, wire: Wire) -> None:
    """Whole answers, and none of somebody else."""
    got = marks(wire.got)
    for each in got:
        need(each // MARKS_EACH == number, f"client {number} got the answer to request {each}, which it did not send")
    need(got == sorted(got), f"client {number} got answers in another order than it asked: {got}")
    if b"HEAD " in wire.said:  # answers without a body, whatever they say
        return
    _, whole = answers_in(bytes(wire.got), closed=wire.end in ("close", "left", "reset"))
    cut = wire.end in ("abort", "left", "reset") or wire.stalled
    need(whole or cut, f"client {number} was sent half an answer and a proper end ({wire.end})")


def check(world: World) -> None:
    """Everything of the module's list, after `World.quiet`. Raises `Found`."""
    plane, dispatcher = world.plane, world.dispatcher
    need(plane.counters.bugs == 0, "our own bug was counted")
    for number, wire in enumerate(world.clients):
        _check_client(number, wire)
        need(wire.lost, f"the connection of client {number} is still open")
    seen: set[bytes] = set()
    for number, wire in enumerate(world.engines):
        need(wire.lost, f"the engine's connection {number} is still open")
        for each in requests_in(wire.got):
            own = dict(_fields(each.partition(b"\r\n\r\n")[0]))[b"x-request-id"]
            need(own not in seen, f"the id {own!r} was sent to an engine twice")
            seen.add(own)
    need(not plane.clients, "the data plane still knows clients")
    need(not plane._connects, "somebody is still connecting")
    need(not plane.memory.uploads, "bodies are still on their way")
    need((plane.memory.held, plane.memory.promised) == (0, 0), f"{plane.memory.held} bytes of bodies are still held")
    need(not dispatcher.effects, "decisions were not carried out")
    for model in dispatcher.model_states():
        need((model.in_flight, model.queue.count, model.queue.bytes) == (0, 0, 0), f"{model.name} still has requests")
        ended = sum(model.meter.outcomes) + sum(model.meter.refused.values())
        need(model.meter.asked_for() == ended, f"{model.meter.asked_for()} requests arrived, {ended} ended")
    for endpoint in dispatcher.endpoints.values():
        need(endpoint.in_flight == 0, f"{endpoint.id} still has {endpoint.in_flight} in flight")
        need(not any(not each.dead for each in endpoint.pool or ()), f"{endpoint.id} still has an idle connection")
