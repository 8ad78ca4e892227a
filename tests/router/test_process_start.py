"""How a router starts, reloads, restarts and stops, as real processes."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from pathlib import Path

import aiohttp
import pytest

from tests.processes import Processes, Running
from tests.router.fleet import BOUND_S, Stream, fleet

pytestmark = pytest.mark.processes


def one_line(process: Running) -> str:
    """The single line that a refused start leaves on stderr."""
    assert process.wait(BOUND_S) == 2, repr(process)
    said = [line for line in process.stderr if not line.startswith("{")]
    assert len(said) == 1, process.stderr
    assert process.stdout == []
    return said[0]


def test_a_taken_port_ends_the_start_with_one_line(processes: Processes) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        on_data = processes.start("router", "--port", str(port), "--admin-port", "0")
        on_admin = processes.start("router", "--port", "0", "--admin-port", str(port))
        assert one_line(on_data).startswith(f"tidegate router: --port: {port} on 127.0.0.1 is in use")
        assert one_line(on_admin).startswith(f"tidegate router: --admin-port: {port} on 127.0.0.1 is in use")


def test_a_file_that_cannot_be_used_ends_the_start_with_one_line(processes: Processes, tmp_path: Path) -> None:
    contents = {
        "absent.yaml": (None, "absent.yaml: cannot be read: No such file or directory"),
        "broken.yaml": ("models: [", "broken.yaml: line "),
        "unknown.yaml": ("modles: []", "unknown.yaml: `modles`: []: unknown field; did you mean `models`?"),
        "policy.yaml": (
            "apiVersion: x/v1\nkind: ScalingPolicy\nspec: {}\n",
            "`tidegate controller --local -f policy.yaml`",
        ),
        "value.yaml": ("share: 2", "value.yaml: `share`: 2; expected float <= 1.0"),
    }
    running = {}
    for name, (content, _) in contents.items():
        if content is not None:
            (tmp_path / name).write_text(content)
        flags = ("--port", "0", "--admin-port", "0", "--state-dir", str(tmp_path / "state"))
        running[name] = processes.start("router", "-f", str(tmp_path / name), *flags)
    for name, (_, message) in contents.items():
        assert message in one_line(running[name])


def table_file(path: Path, url: str, limit: int) -> None:
    """An intent table of one endpoint."""
    endpoint = f"{{id: a, url: '{url}', model: tide-1, engine: vllm, limit: {limit}}}"
    path.write_text(f"models: [{{name: tide-1}}]\nendpoints: [{endpoint}]\n")


async def test_a_file_is_served_and_read_again_on_change_and_on_sighup(processes: Processes, tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    async with fleet(processes) as ours:
        engine = await ours.engine("a")
        table_file(path, engine.url, limit=1)
        router = await ours.start_router("-f", str(path), "--name", "edge-1")
        await ours.healths(a="ready")
        assert (await ours.ask())[0] == 200
        table_file(path, engine.url, limit=5)
        report = await ours.until(lambda report: report["endpoints"]["a"]["limit"] == 5)
        assert report["router"] == "edge-1"
        path.write_text("models: [")
        await asyncio.to_thread(router.process.wait_log, "not YAML.*the last good table stays", BOUND_S)
        assert (await ours.ask())[0] == 200
        table_file(path, engine.url, limit=7)
        router.process.signal(signal.SIGHUP)
        await ours.until(lambda report: report["endpoints"]["a"]["limit"] == 7)
        assert router.process.stop() == 0


async def test_worker_urls_are_enough(processes: Processes) -> None:
    async with fleet(processes) as ours:
        engine = await ours.engine("a")
        await ours.start_router("--worker-urls", engine.url, "--model", "tide-1", "--max-concurrent-requests", "3")
        id_ = engine.url.removeprefix("http://")
        await ours.healths(**{id_: "ready"})
        assert (await ours.ask())[0] == 200
        assert (await ours.load())["endpoints"][id_]["limit"] == 3


@pytest.mark.fault("R9")
async def test_sigterm_lets_a_stream_end_and_exits_with_0(processes: Processes) -> None:
    async with fleet(processes) as ours:
        engine = await ours.engine("a", "--decode-tokens-per-s", "50")
        router = await ours.start_router("--shutdown-grace-secs", "0.5")
        await ours.put(engine.endpoint(limit=2))
        await ours.healths(a="ready")
        stream = Stream()
        async with asyncio.TaskGroup() as group:
            group.create_task(ours.stream(stream, 100))
            await stream.begun.wait()
            assert await ours.status(f"{router.admin}/ready") == 200
            router.process.signal(signal.SIGTERM)
            await asyncio.to_thread(router.process.wait_log, '"stopping"', BOUND_S)
            assert await ours.status(f"{router.admin}/ready") == 503
            assert await ours.status(f"{router.admin}/health") == 200
        assert (stream.events()[-1], stream.words()) == (b"data: [DONE]", 100)
        assert await asyncio.to_thread(router.process.wait, BOUND_S) == 0
        assert await ours.status(f"{router.data}/health") == 0
        assert [row["aborted"] for row in engine.generations()] == [False]


async def test_a_second_signal_does_not_wait(processes: Processes) -> None:
    async with fleet(processes) as ours:
        engine = await ours.engine("a", "--decode-tokens-per-s", "20")
        router = await ours.start_router()
        await ours.put(engine.endpoint())
        await ours.healths(a="ready")
        stream = Stream()
        streaming = asyncio.create_task(ours.stream(stream, 4000))
        await stream.begun.wait()
        router.process.signal(signal.SIGTERM)
        await asyncio.to_thread(router.process.wait_log, '"stopping"', BOUND_S)
        router.process.signal(signal.SIGINT)
        assert await asyncio.to_thread(router.process.wait, BOUND_S) == 0
        (outcome,) = await asyncio.gather(streaming, return_exceptions=True)
        assert outcome is None or isinstance(outcome, aiohttp.ClientError)
        assert b"[DONE]" not in stream.body
        assert any("requests cut" in line for line in router.process.stderr)


@pytest.mark.fault("R28")
async def test_a_restarted_router_starts_from_the_tables_it_was_sent(processes: Processes, tmp_path: Path) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    async with fleet(processes) as ours:
        engine = await ours.engine("a")
        first = await ours.start_router(*state)
        assert await ours.status(f"{first.admin}/ready") == 503
        await ours.put(engine.endpoint(limit=3))
        first.process.kill()

        second = await ours.start_router(*state)
        assert await ours.status(f"{second.admin}/ready") == 200
        assert (await ours.load())["held"] == {"test": [1, 1]}
        await ours.healths(a="ready")
        assert (await ours.ask())[0] == 200
        assert (await ours.load())["endpoints"]["a"]["limit"] == 3
        assert second.process.stop() == 0

        (tmp_path / "state" / "router-tables.json").write_text("{")
        third = await ours.start_router(*state)
        assert await ours.status(f"{third.admin}/ready") == 503
        (line,) = [json.loads(line) for line in third.process.stderr if "stored tables ignored" in line]
        assert line["level"] == "error"
        assert "router-tables.json" in line["problem"]
