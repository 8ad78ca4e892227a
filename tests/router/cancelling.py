"""Cancels a coroutine of the router at each place where it waits, one after the other, and says where that was.

`places()` lists every `await`, `async with`, `async for` and asynchronous comprehension of the router by the syntax
tree. `Stepped` runs a coroutine inside a task, counts how often it waits, and cancels it there: `ONCE` while it waits,
`LATE` when what it waited for has come but it was not yet told (what came must not be lost), `TWICE` once more at its
next wait, while it cleans up. It notes the places of the whole chain of callers at which a cancellation came out of an
await. `at_each` does that on a fresh loop for each place, and requires that the cancellation comes out and that no task
and no descriptor is left. What else must hold after it is for the story to say.
"""

from __future__ import annotations

import ast
import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

ROUTER = Path(__file__).resolve().parents[2] / "router"
ONCE, LATE, TWICE = "once", "late", "twice"
WAYS = (ONCE, LATE, TWICE)
PATIENCE_S = 0.08
"""What has not come by then will not come: the coroutine waits for ever where it is. Processes take longer to start."""
PATIENCE_WITH_PROCESSES_S = 0.5
POINTS_MAX = 40
SETTLE_S = 5.0


@dataclass(frozen=True, order=True)
class Place:
    """Somewhere the router waits. `function`: `FILE:QUALIFIED.NAME`, the file below `router/`; `text`: its first
    line."""

    function: str
    text: str


def _bounds(node: ast.AST) -> bool:
    """Is it a block that only bounds another wait: entering and leaving it arms and disarms a timer, and never waits."""
    texts = [ast.unparse(item.context_expr) for item in node.items] if isinstance(node, ast.AsyncWith) else [""]
    return all(text.startswith("asyncio.timeout") for text in texts)


def _found(tree: ast.AST, names: tuple[str, ...]) -> list[tuple[str, ast.AST]]:
    """(qualified name of the function, node) of everything that waits."""
    found: list[tuple[str, ast.AST]] = []
    for node in ast.iter_child_nodes(tree):
        inner = names
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = (*names, node.name)
        waits = isinstance(node, ast.Await | ast.AsyncWith | ast.AsyncFor) and not _bounds(node)
        if waits or (isinstance(node, ast.comprehension) and node.is_async):
            found.append((".".join(names), node))
        found += _found(node, inner)
    return found


def places_in(file: str, text: str) -> list[tuple[Place, range]]:
    """Where a module waits, and on which of its lines; of a block only the lines that open it."""
    found = []
    for name, node in _found(ast.parse(text), ()):
        first = getattr(node, "lineno", 0)
        if isinstance(node, ast.AsyncWith):
            last = max(item.context_expr.end_lineno or first for item in node.items)
        elif isinstance(node, ast.AsyncFor | ast.comprehension):
            first = min(first or node.iter.lineno, node.iter.lineno)
            last = node.iter.end_lineno or first
        else:
            last = getattr(node, "end_lineno", first)
        found.append((Place(f"{file}:{name}", ast.unparse(node).splitlines()[0]), range(first, last + 1)))
    return found


def all_places() -> list[tuple[Place, range]]:
    """Those of the whole router."""
    return [
        found
        for path in sorted(ROUTER.rglob("*.py"))
        for found in places_in(path.relative_to(ROUTER).as_posix(), path.read_text(encoding="utf-8"))
    ]


PLACES = all_places()


def _by_line() -> dict[tuple[str, int], list[Place]]:
    found: dict[tuple[str, int], list[Place]] = {}
    for place, lines in PLACES:
        for line in lines:
            found.setdefault((place.function, line), []).append(place)
    return found


_places_by_line = _by_line()


def _waiting_at(awaited: Any) -> list[Place]:
    """Places of the router in a chain of coroutines, each of which waits for the next."""
    found: list[Place] = []
    while awaited is not None:
        kind = next((each for each in ("cr", "ag", "gi") if hasattr(awaited, f"{each}_frame")), None)
        if kind is None:
            break
        frame, code = getattr(awaited, f"{kind}_frame"), getattr(awaited, f"{kind}_code")
        path = Path(code.co_filename)
        if frame is not None and ROUTER in path.parents:
            function = f"{path.relative_to(ROUTER).as_posix()}:{code.co_qualname.replace('.<locals>', '')}"
            found += _places_by_line.get((function, frame.f_lineno), ())
        following = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
        if kind == "cr" and frame is not None and not hasattr(following, "cr_frame"):
            manager = frame.f_locals.get("self")  # of @asynccontextmanager: its `asend` does not say whose it is
            following = getattr(manager, "gen", following)
        awaited = following
    return found


class Stepped:
    """Runs `coroutine` as part of whatever task awaits `run()`. `point`: cancel at the so-manieth wait, 0 = never; `place`:
    the first time that it waits there; `cancel`: how, None = the task is cancelled. `cancelled`: places where a
    cancellation came; `waits`: how often it waited.
    """

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        point: int = 0,
        way: str = ONCE,
        cancel: Callable[[], object] | None = None,
        place: Place | None = None,
    ) -> None:
        self._coroutine = coroutine
        self._point = point
        self._place = place
        self._way = way
        self._cancel = cancel
        self._asked = False
        self._task: asyncio.Task[Any] | None = None
        self.waits = 0
        self.at: list[Place] = []
        self.reached = False
        self.threw = False
        self.cancelled: set[Place] = set()
        self.waiting = asyncio.Event()

    async def run(self) -> Any:
        """The coroutine's result."""
        self._task = asyncio.current_task()
        return await self

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[Any], Any] = self._coroutine.send
        value: Any = None
        while True:
            try:
                awaited = step(value)
            except StopIteration as end:
                return end.value
            self._waits(awaited)
            try:
                value, step = (yield awaited), self._coroutine.send
            except BaseException as error:  # noqa: BLE001  # it is the coroutine's
                if isinstance(error, asyncio.CancelledError) and self._asked:  # else a time-out's own
                    self.threw = True
                    self.cancelled.update(self.at)
                value, step = error, self._coroutine.throw

    def cancel(self) -> None:
        """Now, wherever it is."""
        self._asked = True
        if self._cancel is not None:
            self._cancel()
        elif self._task is not None:
            self._task.cancel()

    def _waits(self, awaited: Any) -> None:
        self.waits += 1
        self.at = _waiting_at(self._coroutine)
        self.waiting.set()
        again = self._way == TWICE and self.threw and self.waits == self._point + 1
        there = self._place in self.at and not self.reached
        if self.waits != self._point and not again and not there:
            return
        self.reached = True
        if self._way != LATE:
            self.cancel()
        elif isinstance(awaited, asyncio.Future):
            awaited.add_done_callback(lambda _: self.cancel())
        else:
            asyncio.get_running_loop().call_soon(self.cancel)


@dataclass
class Part:
    """What is to be cancelled. `begun`: told of the task that runs it; `cancel`: how it is cancelled, None = its task
    is; then it may also end in order; `then`: done when it has ended, before looking at what is left.
    """

    coroutine: Coroutine[Any, Any, Any]
    begun: Callable[[asyncio.Task[Any]], object] = lambda task: None
    cancel: Callable[[], object] | None = None
    then: Callable[[], object] = lambda: None


@dataclass
class Story:
    """A part of the router to be cancelled at each place where it waits: `make` sets it up, gives it, and checks after
    the cancellation that it works again. `covers`: the functions whose every place it is cancelled at, or with `|TEXT`
    behind the name those whose first line has this text; `unix`: on asyncio's own loop, which runs the parent of
    workers.
    """

    make: Callable[[], Any]
    covers: tuple[str, ...]
    unix: bool
    points: int
    patience_s: float
    ways: tuple[str, ...]
    cancelled: set[Place] = field(default_factory=set)

    @property
    def name(self) -> str:
        """That of the function that tells it."""
        return str(self.make.__name__)

    def places(self) -> set[Place]:
        """Those that it covers."""
        wanted = [each.partition("|") for each in self.covers]
        return {
            place
            for place, _ in PLACES
            for function, _, text in wanted
            if place.function == function and text in place.text
        }


STORIES: list[Story] = []


def story(
    *covers: str,
    unix: bool = False,
    points: int = POINTS_MAX,
    patience_s: float = PATIENCE_S,
    ways: tuple[str, ...] = WAYS,
) -> Callable[[Callable[[], AsyncIterator[Part]]], Callable[[], AsyncIterator[Part]]]:
    """Make a story of an async generator that gives one `Part`. `points`: how many waits are tried at most; `patience_s`: see above."""

    def made(tell: Callable[[], AsyncIterator[Part]]) -> Callable[[], AsyncIterator[Part]]:
        STORIES.append(Story(asynccontextmanager(tell), covers, unix, points, patience_s, ways))
        return tell

    return made


def descriptors() -> dict[int, str]:
    """Open ones of this process and what they are."""
    found = {}
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # the one that listed them
            found[int(name)] = os.readlink(f"/dev/fd/{name}")
    return {fd: what for fd, what in found.items() if what != "/dev/null"}  # a loop keeps one in reserve


class Before:
    """What there was before a part began. Raises `AssertionError` in `nothing_left` when there is more afterwards."""

    def __init__(self) -> None:
        self._tasks = asyncio.all_tasks()
        self._open = descriptors()

    def _more(self) -> list[str]:
        tasks = [repr(task) for task in asyncio.all_tasks() - self._tasks]
        return tasks + [what for fd, what in descriptors().items() if self._open.get(fd) != what]

    async def nothing_left(self) -> None:
        """Wait for the loop to be done with what is closed."""
        loop = asyncio.get_running_loop()
        end = loop.time() + SETTLE_S
        while more := self._more():
            assert loop.time() < end, f"left behind: {more}"
            await asyncio.sleep(0.001)


async def _once(of: Story, point: int, way: str, place: Place | None) -> Stepped:
    async with of.make() as part:
        before = Before()
        stepped = Stepped(part.coroutine, point, way, part.cancel, place)
        task = asyncio.create_task(stepped.run())
        part.begun(task)
        patience = asyncio.get_running_loop().call_later(of.patience_s, stepped.cancel)
        outcome: Any = (await asyncio.gather(task, return_exceptions=True))[0]
        patience.cancel()
        if stepped.threw and (part.cancel is None or isinstance(outcome, BaseException)):
            swallowed = f"a cancellation at {stepped.at} was swallowed: {outcome!r}"
            assert isinstance(outcome, asyncio.CancelledError), swallowed
        elif isinstance(outcome, BaseException):
            raise outcome
        part.then()
        await before.nothing_left()
    return stepped


def told(of: Story, point: int, way: str, place: Place | None = None) -> bool:
    """Tell a story once, cancelled at a wait or at a place; was it there."""
    unhandled: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=asyncio.new_event_loop if of.unix else uvloop.new_event_loop) as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
        stepped = runner.run(asyncio.wait_for(_once(of, point, way, place), 20))
    assert not unhandled, (point, way, place, unhandled)
    of.cancelled |= stepped.cancelled
    return stepped.reached


def at_each(of: Story, way: str) -> int:
    """Tell a story again and again, each time cancelled at its next wait; how many there were."""
    return next((point for point in range(1, of.points) if not told(of, point, way)), of.points)
