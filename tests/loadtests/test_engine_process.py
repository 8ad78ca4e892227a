"""The engine as a process: loading, ports, signals, crashes."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

Start = Callable[..., Awaitable[asyncio.subprocess.Process]]

pytestmark = pytest.mark.processes


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start engines; whatever is left of them at the end is killed."""
    started: list[asyncio.subprocess.Process] = []

    async def begin(*flags: str) -> asyncio.subprocess.Process:
        words = ("-m", "tidegate", "engine", "--exit-after-s", "60", *flags)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=pipe, stderr=pipe)
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def url_of(process: asyncio.subprocess.Process, word: str) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(30):
        line = (await process.stdout.readline()).decode()
    assert line.startswith(f"tidegate engine {word}: http://127.0.0.1:"), line
    return line.split()[-1]


def refused(url: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(url.rsplit(":", 1)[1]))) != 0


async def ask(url: str, max_tokens: int) -> bytes:
    document = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": max_tokens, "stream": True}
    async with aiohttp.ClientSession() as client, client.post(f"{url}/v1/chat/completions", json=document) as answer:
        return await answer.read()


async def test_the_port_is_refused_until_loaded_and_sigterm_lets_a_stream_finish(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = await start("--port", "0", "--load-seconds", "0.5", "--log", str(log), "--decode-tokens-per-s", "20")
    url = await url_of(process, "loading")
    assert refused(url)
    await url_of(process, "ready")
    stream = asyncio.create_task(ask(url, 10))
    async with aiohttp.ClientSession() as client:
        for _ in range(2000):
            if 'running{engine="0",model_name="tide-1"} 1.0' in await (await client.get(f"{url}/metrics")).text():
                break
            await asyncio.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert (await stream).endswith(b"[DONE]\n\n")
    assert await process.wait() == 0
    assert refused(url)
    [row] = [json.loads(line) for line in log.read_text().splitlines()]
    assert (row["aborted"], row["tokens"]) == (False, 10)


async def test_loading_with_503_and_a_sigterm_meanwhile(start: Start) -> None:
    process = await start("--port", "0", "--load-seconds", "50", "--loading", "503")
    url = await url_of(process, "loading")
    async with aiohttp.ClientSession() as client, client.get(f"{url}/health") as answer:
        assert answer.status == 503
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


async def test_a_taken_port_is_one_line_and_exit_code_2(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = await start("--port", str(taken.getsockname()[1]))
        _, errors = await process.communicate()
    assert process.returncode == 2
    assert errors.decode().count("\n") == 1
    assert b"Address already in use" in errors


async def test_bad_flags_are_all_named_at_once(start: Start) -> None:
    process = await start("--port", "0", "--slots", "0", "--decode-tokens-per-s", "-1")
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert b"--slots 0" in errors
    assert b"--decode-tokens-per-s -1.0" in errors


async def test_one_that_dies_in_mid_stream_leaves_half_an_answer_and_a_log(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = await start("--port", "0", "--die-after-tokens", "3", "--log", str(log))
    await url_of(process, "loading")
    url = await url_of(process, "ready")
    with pytest.raises(aiohttp.ClientPayloadError):
        await ask(url, 10)
    assert await process.wait() == 1
    [row] = [json.loads(line) for line in log.read_text().splitlines()]
    assert row["aborted"]


async def test_one_that_crashes_while_loading_and_one_that_never_is_ready(start: Start) -> None:
    crashing = await start("--port", "0", "--load-seconds", "0.2", "--crash-loading")
    stuck = await start("--port", "0", "--never-ready", "--exit-after-s", "1.5")
    url = await url_of(stuck, "loading")
    assert refused(url)
    assert await crashing.wait() == 1
    assert await stuck.wait() == 0


async def test_one_that_ignores_sigterm_serves_on(start: Start) -> None:
    process = await start("--port", "0", "--ignore-sigterm")
    await url_of(process, "loading")
    url = await url_of(process, "ready")
    process.send_signal(signal.SIGTERM)
    assert (await ask(url, 2)).endswith(b"[DONE]\n\n")
    assert process.returncode is None


async def begun(url: str, max_tokens: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream whose first token is here."""
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": max_tokens, "stream": True})
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    writer.write(head.encode())
    await reader.readuntil(b'"role"')
    return reader, writer


async def rest_of(stream: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
    """What still comes of it."""
    reader, writer = stream
    async with asyncio.timeout(20):
        data = await reader.read(-1)
    writer.close()
    return data


async def until_refused(url: str) -> None:
    async with asyncio.timeout(20):
        while not refused(url):  # noqa: ASYNC110  # another process sets no event of ours
            await asyncio.sleep(0.01)


async def told(start: Start, *flags: str) -> tuple[asyncio.subprocess.Process, str]:
    """A process that serves."""
    process = await start("--port", "0", "--decode-tokens-per-s", "20", *flags)
    await url_of(process, "loading")
    return process, await url_of(process, "ready")


@pytest.mark.fault("R9")
async def test_sigterm_as_vllm_closes_the_port_and_leaves_streams_hanging(start: Start) -> None:
    process, url = await told(start, "--sigterm", "hang")
    reader, writer = await begun(url, 1000)
    process.send_signal(signal.SIGTERM)
    await until_refused(url)
    with pytest.raises(TimeoutError):  # noqa: PT012
        async with asyncio.timeout(0.3):
            while await reader.read(1000):  # what was under way, and then nothing
                pass
    assert process.returncode is None
    writer.close()


async def test_sigterm_as_vllm_with_a_shutdown_time_finishes_and_refuses(start: Start) -> None:
    process, url = await told(start, "--sigterm", "refuse")
    stream = await begun(url, 20)
    process.send_signal(signal.SIGTERM)
    async with aiohttp.ClientSession() as client:
        async with asyncio.timeout(20):
            while True:
                async with client.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 1}) as answer:
                    if answer.status == 500:
                        break
        async with client.get(f"{url}/health") as answer:
            assert answer.status == 200
    assert (await rest_of(stream)).endswith(b"[DONE]\n\n\r\n0\r\n\r\n")
    assert await process.wait() == 0


async def test_sigterm_as_llama_cpp_falls_silent_and_ends_without_done(start: Start) -> None:
    process, url = await told(start, "--sigterm", "silence", "--sigterm-s", "0.3")
    stream = await begun(url, 1000)
    process.send_signal(signal.SIGTERM)
    try:
        assert b"[DONE]" not in await rest_of(stream)
    except ConnectionResetError:
        pass
    assert await process.wait() == 0


async def test_sigterm_as_triton_finishes_and_resets_new_connections(start: Start) -> None:
    process, url = await told(start, "--sigterm", "reset")
    stream = await begun(url, 20)
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(20):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
            except ConnectionResetError:  # reset before the loop saw that it was connected
                break
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            try:
                await reader.readuntil(b"\r\n\r\n")
            except (ConnectionResetError, asyncio.IncompleteReadError):
                break
            finally:
                writer.close()
    assert (await rest_of(stream)).endswith(b"[DONE]\n\n\r\n0\r\n\r\n")
    assert await process.wait() == 0


async def test_a_dead_core_ends_the_process_in_order(start: Start) -> None:
    process, url = await told(start)
    stream = await begun(url, 1000)
    async with aiohttp.ClientSession() as client, client.post(f"{url}/fault", json={"core_dead": True}) as answer:
        assert answer.status == 200
    assert b"EngineCore" in await rest_of(stream)
    assert await process.wait() == 0
    assert refused(url)


async def test_it_starts_light(start: Start) -> None:
    code = "import sys, loadtests.engine, loadtests.engine_http; print([m for m in %r if m in sys.modules])"
    heavy = ["numpy", "pydantic", "prometheus_client", "msgspec", "structlog", "rich"]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code % heavy, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert out.decode().strip() == "[]"
