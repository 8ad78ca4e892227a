"""Fuzzes both protocol handlers of the router in one process: random clients and engines, good and spoiled, in pieces.

    python -m loadtests.fuzz_router --seconds 60 --seed 1
    python -m loadtests.fuzz_router --replay out/fuzz-1-4711.json

A case is a list of steps in a world without sockets (`fuzz_world.py`); its author looks at what the world shows and
chooses the next step. A third of the cases are clean: nobody does anything wrong, so every request must get its answer
however the bytes are cut. `fuzz_checks.py` says what must hold after each. A case that fails is written to a file that
plays it again. The same seed gives the same cases.
"""

from __future__ import annotations

import argparse
import errno
import json
import random
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

from loadtests import fuzz_messages as messages
from loadtests.fuzz_checks import answers_in, check, check_answered, requests_in
from loadtests.fuzz_world import World

HANG_S = 10.0
"""So much processor time for one case is a hang; a usual one takes a millisecond."""
FAILURES_MAX = 20
CLIENTS_MAX = 4
STEPS_MAX = 60
CLEAN_ROUNDS_MAX = 500
DOORS = (0, 0, 0, 0, errno.ECONNREFUSED, errno.EMFILE, errno.ETIMEDOUT)


class Hang(AssertionError):
    """A case did not come to an end."""


@dataclass
class Case:
    """`seed` of the world's own choices; `steps`: what happens; `answered`: for each client the marks that it must get."""

    seed: int
    steps: list[list[Any]] = field(default_factory=list)
    answered: list[list[int]] = field(default_factory=list)


def finish(world: World, case: Case) -> None:
    """After the last step: what was promised is there, all bounds pass, nothing is left. Raises what is found."""
    for number, wanted in enumerate(case.answered):
        check_answered(world, number, wanted)
    world.quiet()
    check(world)


def play(case: Case) -> None:
    """Play a case again. Raises what is found."""
    with _no_hang():
        world = World(case.seed)
        for name, *args in case.steps:
            world.step(name, *args)
        finish(world, case)


@contextmanager
def _no_hang() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang(f"more than {HANG_S:g} s of processor time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class Author:
    """Writes one case while it plays."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = random.Random(seed)
        self.case = Case(seed)
        self.world = World(seed)
        kind = rng.randrange(6)
        self.clean = kind < 2
        self._spoil_clients = kind in (2, 4, 5)
        self._spoil_engines = kind in (3, 4, 5)
        self._patience = 0.5  # of a clean case: so long nobody's bound passes
        self._todo: list[bytes] = []
        self._answers: list[bytes] = []
        self._asked: list[int] = []

    def write(self) -> None:
        """The whole case. Raises what is found."""
        rng = self._rng
        with _no_hang():
            for _ in range(rng.randrange(1, STEPS_MAX)):
                self._next()
            if self.clean:
                self._complete()
            finish(self.world, self.case)

    def _step(self, *step: Any) -> None:
        self.case.steps.append(list(step))
        self.world.step(*step)

    def _next(self) -> None:
        """One step that makes sense now."""
        rng = self._rng
        kind = rng.random()
        if kind < 0.12 or not self._todo:
            self._open()
        elif kind < 0.45:
            self._client_speaks(rng.randrange(len(self._todo)), rng.choice((1, 3, 20, 200, 1 << 20)))
        elif kind < 0.55:
            self._step("answer the door", 0 if self.clean else rng.choice(DOORS))
        elif kind < 0.85 and self.world.engines:
            self._engine_speaks(rng.randrange(len(self.world.engines)), rng.choice((1, 3, 20, 200, 1 << 20)))
        elif kind < 0.9:
            self._wait()
        elif not self.clean:
            self._trouble()

    def _wait(self) -> None:
        seconds = self._rng.choice((0.01, 0.1, 0.3, 0.6, 1.2, 3.0))
        if self.clean:
            seconds = min(seconds, self._patience)
            self._patience -= seconds
        if seconds > 0:
            self._step("time", seconds)

    def _trouble(self) -> None:
        """Somebody leaves or stops reading, or the router is told something."""
        rng, world = self._rng, self.world
        client = rng.randrange(len(world.clients))
        engine = rng.randrange(len(world.engines)) if world.engines else 0
        match rng.randrange(8):
            case 0:
                self._step("client leaves", client, rng.random() < 0.5)
            case 1 | 2:
                self._step("engine leaves", engine, rng.random() < 0.5)
            case 3:
                self._step("client stalls", client, rng.random() < 0.6)
            case 4:
                self._step("engine stalls", engine, rng.random() < 0.6)
            case 5:
                self._step("table", rng.choice(("active", "active", "draining", "standby", "absent")))
            case 6 if rng.random() < 0.1:
                self._step("accepting", False)
            case _:
                self._step("engine", engine, rng.choice(messages.NASTY_BYTES).decode("latin-1"))

    def _open(self) -> None:
        """A client with all that it is going to say."""
        if len(self._todo) >= CLIENTS_MAX:
            return
        rng = self._rng
        sent, wanted = b"", []
        for number in range(rng.choice((1, 1, 2, 4))):
            number += len(self._todo) * messages.MARKS_EACH
            own = messages.mark(number)
            plain = self.clean or rng.random() < 0.8
            one = messages.request(rng, own) if plain else messages.side_request(rng, own)
            if self._spoil_clients and rng.random() < 0.6:
                one = messages.spoiled(rng, one)
            if self.clean and sent and len(sent + one) > 60_000:  # more than a client may send ahead
                break
            sent += one
            wanted.append(number)
        self._step("open")
        self._todo.append(sent)
        if self.clean:
            self.case.answered.append(wanted)

    def _client_speaks(self, number: int, most: int) -> None:
        todo = self._todo[number]
        if todo:
            self._step("client", number, todo[:most].decode("latin-1"))
            self._todo[number] = todo[most:]

    def _engine_speaks(self, number: int, most: int) -> None:
        """Go on with an answer, or begin the one to the request that is here."""
        wire, rng = self.world.engines[number], self._rng
        while len(self._answers) <= number:
            self._answers.append(b"")
            self._asked.append(0)
        asked = requests_in(wire.got)
        if len(asked) > self._asked[number] > 0:  # no engine goes on with an answer when the next request is here: what
            self._answers[number] = b""  # came of that would be its own confusion
        if not self._answers[number] and not wire.is_closing():
            if len(asked) <= self._asked[number]:
                half = bytes(wire.got[sum(map(len, asked)) :])
                if self.clean or rng.random() < 0.9 or not half:
                    return
                asked.append(half)  # it answers before it has read all
            own = b"".join(messages.mark(each) for each in messages.marks(asked[-1])[-1:])
            self._asked[number] = len(asked)
            plain = self.clean or rng.random() < 0.8
            made = messages.answer(rng, own) if plain else messages.odd_answer(rng, own)
            if self._spoil_engines and rng.random() < 0.5:
                made = messages.spoiled(rng, made)
            self._answers[number] = made
        todo = self._answers[number]
        if todo:
            self._step("engine", number, todo[:most].decode("latin-1"))
            self._answers[number] = todo[most:]

    def _complete(self) -> None:
        """Bring a clean case to its end: all is said, all is answered."""
        for _ in range(CLEAN_ROUNDS_MAX):
            before = len(self.case.steps)
            for number in range(len(self._todo)):
                self._client_speaks(number, 1 << 20)
            if self.world.loop.knocks:
                self._step("answer the door", 0)
            for number in range(len(self.world.engines)):
                self._engine_speaks(number, 1 << 20)
            if len(self.case.steps) == before:
                return


@dataclass
class Tally:
    """What a run came to."""

    cases: int = 0
    steps: int = 0
    bytes: int = 0
    answers: Counter[int] = field(default_factory=Counter)

    def add(self, author: Author) -> None:
        """Count a case."""
        self.cases += 1
        self.steps += len(author.case.steps)
        for wire in (*author.world.clients, *author.world.engines):
            self.bytes += len(wire.said) + len(wire.got)
        for wire in author.world.clients:
            if b"HEAD " not in wire.said:
                self.answers.update(status for status, _ in answers_in(bytes(wire.got), closed=True)[0])

    def __str__(self) -> str:
        by_status = ", ".join(f"{count} x {status}" for status, count in sorted(self.answers.items()))
        return f"{self.cases} cases, {self.steps} steps, {self.bytes} bytes; answers to clients: {by_status}"


def fuzz(seed: int, cases: int, seconds: float, folder: Path, failures: int = FAILURES_MAX) -> tuple[Tally, list[Path]]:
    """Write and play cases, at most so many, for so long, until so many failed; gives what was done and the files of
    those that failed.
    """
    tally, failed = Tally(), list[Path]()
    start = perf_counter()
    while tally.cases < cases and len(failed) < failures and perf_counter() - start < seconds:
        author = Author(seed * 1_000_003 + tally.cases)
        try:
            author.write()
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what the fuzzer looks for
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"fuzz-{seed}-{tally.cases}.json"
            document = {"problem": repr(error), "seed": author.case.seed, "steps": author.case.steps}
            path.write_text(json.dumps({**document, "answered": author.case.answered}), encoding="utf-8")
            failed.append(path)
            print(f"{path}: {error!r}", file=sys.stderr)
            tally.cases += 1
            continue
        tally.add(author)
    return tally, failed


def read_case(path: Path) -> Case:
    """A case from its file."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return Case(document["seed"], document["steps"], document["answered"])


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 when something was found."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.fuzz_router", description="fuzz the router's protocols")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="at most so many (default: no bound)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, default=Path("out"), help="where cases that fail are written (default: out)"
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="play a case again instead")
    args = parser.parse_args(argv)
    if args.replay is not None:
        try:
            play(read_case(args.replay))
        except Exception:  # noqa: BLE001  # as above
            traceback.print_exc()
            return 1
        print("nothing found")
        return 0
    start = perf_counter()
    tally, failed = fuzz(args.seed, args.cases, args.seconds, args.out)
    took_s = perf_counter() - start
    print(f"{tally}; {tally.cases / took_s:.0f} cases a second; {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
