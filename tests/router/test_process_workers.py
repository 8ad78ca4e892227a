"""Several workers behind one data port, as real processes: replaced, killed and orphaned under load."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Processes
from tests.router.fleet import BOUND_S, Engine, Fleet, Router, Stream, chat, fleet
from tests.router.wire import Caller, post

pytestmark = pytest.mark.processes

FAST = ("--slots", "64", "--decode-tokens-per-s", "400", "--prefill-tokens-per-s", "100000")


async def two_workers(ours: Fleet, *flags: str) -> Router:
    """A router with two workers; `router.admin` is the first one's until `talk_to` says otherwise."""
    await ours.start_router("--workers", "2", *flags)
    return ours.router


def admins(router: Router) -> list[str]:
    """Both admin addresses."""
    found = next(line for line in router.process.stdout if "router ready" in line)
    return found.split()[-1].split(",")


@asynccontextmanager
async def talk_to(ours: Fleet, admin: str) -> AsyncIterator[None]:
    """Let the fleet's admin calls go to one worker."""
    router = ours.router
    ours._router = Router(process=router.process, data=router.data, admin=admin)
    try:
        yield
    finally:
        ours._router = router


def workers_of(router: Router) -> set[int]:
    """Pids of the worker processes."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            if b"router.shell.worker" in (folder / "cmdline").read_bytes():
                parent = int((folder / "stat").read_text().rpartition(") ")[2].split()[1])
                if parent == router.process.pid:
                    found.add(int(folder.name))
    return found


async def until(done: Callable[[], bool]) -> None:
    """Wait for something about other processes."""
    async with asyncio.timeout(BOUND_S):
        while not done():  # noqa: ASYNC110  # another process sets no event of ours
            await asyncio.sleep(0.05)


def logged(router: Router, event: str) -> int:
    """How often the router or its workers have said so."""
    return sum(f'"event": "{event}"' in line for line in list(router.process.stderr))


@dataclass
class Load:
    """Clients that ask until they are told to stop, and every way in which one was let down."""

    port: int
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    answered: int = 0
    told_to_close: int = 0
    failures: list[str] = field(default_factory=list)

    async def connect(self) -> Caller:
        return Caller(*await asyncio.open_connection("127.0.0.1", self.port))

    async def one(self, caller: Caller, what: str) -> bool:
        """One request; True = the connection may be used again."""
        answer = await caller.ask(post(json.dumps(chat(2)).encode()))
        if answer.status != 200 or not answer.whole:
            self.failures.append(f"{what}: {answer}")
        self.answered += 1
        if answer.fields.get("connection") == "close":
            self.told_to_close += 1
            assert await caller.reader.read() == b""
            return False
        return True

    async def keep_alive(self, pause_s: float) -> None:
        """One connection for as long as the router keeps it."""
        caller = await self.connect()
        while not self.stop.is_set():
            try:
                if not await self.one(caller, "keep-alive"):
                    caller.writer.close()
                    caller = await self.connect()
            except (OSError, asyncio.IncompleteReadError) as error:
                self.failures.append(f"keep-alive: {error!r}")
                caller.writer.close()
                caller = await self.connect()
            await asyncio.sleep(pause_s)
        caller.writer.close()

    async def fresh(self) -> None:
        """A connection for each request."""
        while not self.stop.is_set():
            caller = None
            try:
                caller = await self.connect()
                await self.one(caller, "fresh")
            except (OSError, asyncio.IncompleteReadError) as error:
                self.failures.append(f"fresh: {error!r}")
            if caller is not None:
                caller.writer.close()


async def streams(ours: Fleet, load: Load, done: list[Stream]) -> None:
    """Streams of a second, one after the other."""
    while not load.stop.is_set():
        stream = Stream()
        done.append(stream)
        try:
            await ours.stream(stream, 400)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what the test looks for
            load.failures.append(f"stream: {error!r}")


def serving(engine: Engine) -> tuple[str, ...]:
    return ("--worker-urls", engine.url, "--model", "tide-1", "--engine", "vllm")


@pytest.mark.fault("R9")
async def test_workers_are_replaced_under_load_without_a_failed_request_a_cut_stream_or_a_reset(
    processes: Processes,
) -> None:
    async with fleet(processes) as ours:
        engine = await ours.engine("a", *FAST)
        router = await two_workers(ours, *serving(engine), "--access-log", str(processes.folder / "access.jsonl"))
        load = Load(int(router.data.rpartition(":")[2]))
        told: list[Stream] = []
        before = workers_of(router)
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(load.keep_alive(0.01 * number))
            for _ in range(3):
                group.create_task(load.fresh())
            for _ in range(4):
                group.create_task(streams(ours, load, told))
            for turn in (1, 2):
                await until(lambda turn=turn: load.answered > 100 * turn)  # type: ignore[misc]
                router.process.signal(signal.SIGUSR2)
                await until(lambda turn=turn: logged(router, "workers replaced") == turn)  # type: ignore[misc]
                await until(lambda turn=turn: logged(router, "worker ended") == 2 * turn)  # type: ignore[misc]
            answered = load.answered
            await until(lambda: load.answered > answered + 50)
            load.stop.set()
        after = workers_of(router)
        assert load.failures == []
        assert (len(before), len(after), before & after) == (2, 2, set())
        assert load.told_to_close > 0
        assert [(stream.events()[-1], stream.words()) for stream in told] == [(b"data: [DONE]", 400)] * len(told)
        assert not any(row["aborted"] for row in engine.generations())
        assert router.process.stop() == 0
        rows = [json.loads(line) for line in (processes.folder / "access.jsonl").read_text().splitlines()]
        assert len(rows) == load.answered + len(told)
        assert {row["outcome"] for row in rows} == {"success"}


@pytest.mark.fault("R28")
async def test_a_replaced_worker_that_still_streams_keeps_its_endpoint_from_being_drained(processes: Processes) -> None:
    async with fleet(processes) as ours:
        engine = await ours.engine("a", "--decode-tokens-per-s", "50")
        router = await two_workers(ours)
        first, second = admins(router)
        for admin in (first, second):
            async with talk_to(ours, admin):
                await ours.put_again(engine.endpoint(limit=4))
                await ours.healths(a="ready")
        stream = Stream()
        async with fleet(processes) as client:
            client._router = router
            streaming = asyncio.create_task(client.stream(stream, 100_000))
            await stream.begun.wait()
            (holder,) = [admin for admin in (first, second) if await in_flight(ours, admin)]
            router.process.signal(signal.SIGUSR2)
            await until(lambda: logged(router, "workers replaced") == 1)
            async with talk_to(ours, holder):
                assert (await ours.load())["endpoints"]["a"]["in_flight"] == 0, "the new worker's own count"
                answer = await ours.put(engine.endpoint(limit=4, intent="draining"))
                assert answer["endpoints"]["a"] == {"in_flight": 1, "drained": False, "health": "ready"}
            assert not streaming.done()
            streaming.cancel()  # the stream's end is its client's, so that no machine is too slow for this test
            await asyncio.gather(streaming, return_exceptions=True)
        await until(lambda: logged(router, "worker ended") == 2)
        async with talk_to(ours, holder):
            answer = await ours.put_again(engine.endpoint(limit=4, intent="draining"))
        assert answer["endpoints"]["a"] == {"in_flight": 0, "drained": True, "health": "ready"}


async def in_flight(ours: Fleet, admin: str) -> int:
    """Requests at endpoint a, by one worker's count."""
    async with talk_to(ours, admin):
        return int((await ours.load())["endpoints"]["a"]["in_flight"])


@pytest.mark.fault("R28")
async def test_a_worker_that_is_killed_comes_back_with_its_tables_and_nobody_is_refused_meanwhile(
    processes: Processes, tmp_path: Path
) -> None:
    async with fleet(processes) as ours:
        engine = await ours.engine("a", *FAST)
        router = await two_workers(ours, "--state-dir", str(tmp_path / "state"))
        for admin in admins(router):
            async with talk_to(ours, admin):
                await ours.put_again(engine.endpoint(limit=4))
                await ours.healths(a="ready")
        assert sorted(path.parent.name for path in (tmp_path / "state").glob("*/router-tables.json")) == [
            "worker-0",
            "worker-1",
        ]
        load = Load(int(router.data.rpartition(":")[2]))
        before = workers_of(router)
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(load.fresh())
            await until(lambda: load.answered > 20)
            os.kill(min(before), signal.SIGKILL)
            await until(lambda: len(workers_of(router) - before) == 1)
            answered = load.answered
            await until(lambda: load.answered > answered + 50)
            load.stop.set()
        # a connection that the dead worker had accepted is lost with it; none is refused, and none that waits is reset
        assert len(load.failures) <= 4
        assert "refused" not in str(load.failures)
        for admin in admins(router):
            async with talk_to(ours, admin):
                assert (await ours.load())["held"] == {"test": [1, 0]}
                await ours.healths(a="ready")


async def test_both_workers_share_a_file_and_read_it_again_on_sighup(processes: Processes, tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    row = "endpoints: [{{id: a, url: 'http://127.0.0.1:9', model: tide-1, limit: {}}}]\n"
    path.write_text("models: [{name: tide-1}]\n" + row.format(9))
    async with fleet(processes) as ours:
        router = await two_workers(ours, "-f", str(path), "--name", "edge")
        reports = []
        for admin in admins(router):
            async with talk_to(ours, admin):
                reports.append(await ours.load())
        assert [(report["router"], report["endpoints"]["a"]["limit"]) for report in reports] == [
            ("edge-0", 4),
            ("edge-1", 4),
        ]
        path.write_text("models: [{name: tide-1}]\n" + row.format(20))
        router.process.signal(signal.SIGHUP)
        for admin in admins(router):
            async with talk_to(ours, admin):
                await ours.until(lambda report: report["endpoints"]["a"]["limit"] == 10)


@pytest.mark.fault("R9")
async def test_sigterm_to_the_parent_lets_streams_of_both_workers_end_and_a_group_signal_does_not_hurry(
    processes: Processes,
) -> None:
    async with fleet(processes) as ours:
        engine = await ours.engine("a", "--slots", "8", "--decode-tokens-per-s", "50")
        router = await two_workers(ours, *serving(engine))
        told = [Stream() for _ in range(6)]
        async with asyncio.TaskGroup() as group:
            for stream in told:
                group.create_task(ours.stream(stream, 60))
            for stream in told:
                await stream.begun.wait()
            os.killpg(router.process.pid, signal.SIGTERM)  # as a process manager does: parent and workers alike
        assert [(stream.events()[-1], stream.words()) for stream in told] == [(b"data: [DONE]", 60)] * 6
        assert await asyncio.to_thread(router.process.wait, BOUND_S) == 0
        assert not any("requests cut" in line for line in router.process.stderr)


async def test_workers_whose_parent_is_killed_leave_and_free_the_port_at_once(processes: Processes) -> None:
    async with fleet(processes) as ours:
        engine = await ours.engine("a", "--slots", "8", "--decode-tokens-per-s", "50")
        router = await two_workers(ours, *serving(engine))
        port = int(router.data.rpartition(":")[2])
        stream = Stream()
        async with asyncio.TaskGroup() as group:
            group.create_task(ours.stream(stream, 100))
            await stream.begun.wait()
            workers = workers_of(router)
            assert len(workers) == 2
            router.process.signal(signal.SIGKILL)
            await until(lambda: can_listen(port))
        assert (stream.events()[-1], stream.words()) == (b"data: [DONE]", 100)
        await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
        await asyncio.to_thread(router.process.wait, BOUND_S)


def can_listen(port: int) -> bool:
    """Could another router take this port."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except OSError:
            return False
        return True


@pytest.mark.parametrize("what", ["admin port", "file", "log"])
def test_a_start_that_cannot_be_ends_in_one_line(processes: Processes, tmp_path: Path, what: str) -> None:
    (tmp_path / "bad.yaml").write_text("modles: []")
    flags: dict[str, tuple[list[str], str]] = {
        "file": (["-f", str(tmp_path / "bad.yaml")], "bad.yaml: `modles`"),
        "log": (["--access-log", str(tmp_path / "no" / "a.log")], r"--access-log: .*no/a.log cannot be written to"),
        "admin port": (["--admin-port", "65535"], "--admin-port: 65535 leaves no room for 2 workers"),
    }
    words, message = flags[what]
    if "--admin-port" not in words:
        words += ["--admin-port", "0"]
    router = processes.start("router", "--port", "0", "--workers", "2", *words)
    assert router.wait(BOUND_S) == 2
    said: list[Any] = [line for line in router.stderr if not line.startswith("{")]
    assert len(said) == 1, router.stderr
    assert re.search(message, said[0]), said
    assert router.stdout == []


def documented(start: str) -> str:
    """The line of the page about the router that begins so."""
    page = (Path(__file__).parents[2] / "docs" / "router.md").read_text()
    return next(line for line in page.splitlines() if line.startswith(start))


async def test_the_example_of_the_page_works_and_its_table_names_every_field(processes: Processes) -> None:
    log = processes.folder / "access.jsonl"
    async with fleet(processes) as ours:
        words = documented("tidegate engine").split()[1:]
        words[words.index("--port") + 1] = "0"
        engine = processes.start(*words)
        url = (await asyncio.to_thread(engine.wait_ready, r"tidegate engine ready: (http://\S+)", BOUND_S)).group(1)
        words = documented("tidegate router --worker-urls").split()[2:]
        words = [{"http://127.0.0.1:8001": url, "access.jsonl": str(log)}.get(word, word) for word in words]
        router = await ours.start_router(*words)
        body = json.loads(documented("curl").split("-d ")[1].strip("'"))
        async with ours.session.post(f"{router.data}/v1/chat/completions", json=body) as answer:
            assert answer.status == 200
        assert router.process.stop() == 0
    (line,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert (line["model"], line["status"], line["outcome"]) == ("my-model", 200, "success")
    page = (Path(__file__).parents[2] / "docs" / "router.md").read_text()
    table = page[page.index("| field |") :]
    first_cells = " ".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", first_cells)) == set(line)
