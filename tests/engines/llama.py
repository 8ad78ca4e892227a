"""Real llama.cpp replicas for one test, and a real router in front of them.

`Llamas` is a `Fleet` whose engines are llama.cpp: it starts replicas (as many as wanted, each ready in 0.1 s), kills,
freezes and stops them, and reads what llama.cpp itself says: which prompts its slots are working on (`working`), its
metrics, and how many generations its log says were begun and ended (`begun`, `ended`). That log outlives a SIGKILL, so
"nothing was generated twice" is checked on the engine's own word. A request is known by its tag, which is its prompt.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import openai

from tests.engines import llama_server
from tests.processes import Processes, Running, free_port
from tests.router.fleet import BOUND_S, Fleet, Router, Stream

MODEL = "tide-1"
PROMPT = re.compile(r"<\|user\|>(.*?)</s>", re.DOTALL)
BEGUN, ENDED = "launch_slot_: ", "stop processing: "
POLL_S = 0.01


class Llama:
    """One llama.cpp replica. `id`: its name, also as an endpoint; `slots`: requests it works on at a time."""

    def __init__(self, name: str, port: int, slots: int, process: Running, session: aiohttp.ClientSession) -> None:
        self.id = name
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.slots = slots
        self.process = process
        self._session = session

    def endpoint(self, **changes: Any) -> dict[str, Any]:
        """Its row in an intent table: as many requests as it has slots."""
        row = {"id": self.id, "url": self.url, "model": MODEL, "engine": "llamacpp"}
        return {**row, "limit": self.slots, "capacity": self.slots, **changes}

    async def serving(self) -> None:
        """Wait until the model is loaded."""
        await asyncio.to_thread(self.process.wait_ready, r"llama\.cpp ready: ", BOUND_S)

    # ---- what can happen to it

    def kill(self) -> None:
        """SIGKILL: gone at once, as after a crash."""
        self.process.kill()

    def freeze(self) -> None:
        """SIGSTOP: alive for the kernel, which goes on to take connections, and silent."""
        self.process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.process.signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self.process.signal(signal.SIGTERM)

    # ---- what it says itself

    def begun(self) -> int:
        """Generations begun, by its log."""
        return sum(BEGUN in line for line in self.process.stderr)

    def ended(self) -> int:
        """Generations ended, by their last token or by the client's departure, by its log."""
        return sum(ENDED in line for line in self.process.stderr)

    async def generations(self) -> int:
        """Generations begun, counted when all of them have ended and its log, which comes a little later, says no more."""
        last, known = -1, 0
        async with asyncio.timeout(BOUND_S):
            while not last == known == self.ended():
                await asyncio.sleep(5 * POLL_S)
                last, known = known, self.begun()
        return known

    async def working(self) -> list[str]:
        """The tags of the requests that its slots are working on now, of which there is a token already."""
        async with self._session.get(f"{self.url}/slots") as response:
            slots = await response.json()
        found = [PROMPT.search(slot["prompt"]) for slot in slots if slot["is_processing"] and slot.get("generated")]
        return [match[1] if match else "" for match in found]

    def holds(self, *tags: str) -> Callable[[], Awaitable[bool]]:
        """A question for `eventually`: is it working on the requests of these tags."""

        async def asked() -> bool:
            return set(tags) <= set(await self.working())

        return asked

    async def metrics(self) -> dict[str, float]:
        """Its metrics page, by name without the prefix."""
        async with self._session.get(f"{self.url}/metrics") as response:
            page = await response.text()
        rows = [line.split() for line in page.splitlines() if line.startswith("llamacpp:")]
        return {name.removeprefix("llamacpp:"): float(value) for name, value in rows}


class Llamas(Fleet):
    """The replicas of one test and its router. `model(layers)` gives the path of a model."""

    def __init__(self, processes: Processes, session: aiohttp.ClientSession, model: Callable[[int], Path]) -> None:
        super().__init__(processes, session)
        self._model = model
        self.started: list[Llama] = []
        self.routers: list[Running] = []

    async def llama(
        self,
        name: str,
        *flags: str,
        layers: int = 2,
        slots: int = 2,
        context: int = 2048,
        port: int = 0,
        wait: bool = True,
    ) -> Llama:
        """Start a replica. `layers`: its speed, 0.03 ms a token each; `context`: tokens a slot holds; `port`: 0 = a free
        one; `wait`: until it serves.
        """
        port = port or free_port()
        program = (sys.executable, llama_server.__file__, str(self._model(layers)), str(port))
        process = self.processes.start_program(*program, "--slots", str(slots), "--context", str(context), *flags)
        started = Llama(name, port, slots, process, self.session)
        self.started.append(started)
        if wait:
            await started.serving()
        return started

    async def start_router(self, *flags: str) -> Router:
        """As in `Fleet`."""
        router = await super().start_router(*flags)
        self.routers.append(router.process)
        return router

    async def route(self, *llamas: Llama, flags: tuple[str, ...] = (), **model: Any) -> None:
        """Start a router, tell it of replicas, and wait until it has found all of them ready. `model`: as in `put`."""
        await self.start_router(*flags)
        await self.put(*(llama.endpoint() for llama in llamas), **model)
        await self.healths(**{llama.id: "ready" for llama in llamas})

    def sdk(self, retries: int = 0) -> openai.AsyncOpenAI:
        """The OpenAI SDK, pointed at the router."""
        return openai.AsyncOpenAI(
            base_url=f"{self.router.data}/v1", api_key="none", timeout=BOUND_S, max_retries=retries
        )

    async def say(self, tag: str, tokens: int = 4, **changes: Any) -> tuple[int, Any]:
        """One request that is not streamed, as bytes on a connection: status and JSON."""
        body = chat(tag, tokens, **changes)
        async with self.session.post(f"{self.router.data}/v1/chat/completions", json=body) as response:
            return response.status, await response.json()

    async def listen(self, into: Stream, tag: str, tokens: int, **changes: Any) -> None:
        """One streamed request, read to the end of its answer. Raises when the framing does not end properly."""
        body = chat(tag, tokens, stream=True, **changes)
        async with self.session.post(f"{self.router.data}/v1/chat/completions", json=body) as response:
            into.status, into.headers = response.status, dict(response.headers)
            async for piece in response.content.iter_any():
                into.body += piece
                if not into.begun.is_set() and into.words():
                    into.begun.set()
        into.begun.set()

    async def page(self) -> str:
        """The router's metrics page."""
        async with self.session.get(f"{self.router.admin}/metrics") as response:
            return await response.text()

    async def quiet(self) -> dict[str, Any]:
        """Wait until nothing is in flight or queued in the router; gives the load report."""
        return await self.until(
            lambda report: (
                all(model["in_flight"] == model["queued"] == 0 for model in report["models"].values())
                and all(endpoint["in_flight"] == 0 for endpoint in report["endpoints"].values())
            )
        )

    def close(self) -> None:
        """Kill all: what has a stream under way would take its time to stop."""
        for process in (*(llama.process for llama in self.started), *self.routers):
            process.kill()


def chat(tag: str, tokens: int, **changes: Any) -> dict[str, Any]:
    """The body of a chat request that is answered by exactly so many tokens."""
    messages = [{"role": "user", "content": tag}]
    return {"model": MODEL, "messages": messages, "max_tokens": tokens, "ignore_eos": True, **changes}


async def tell(client: openai.AsyncOpenAI, tag: str, tokens: int) -> int:
    """Stream one answer with the SDK; gives the tokens that its usage counts, 0 when no usage came. Raises its errors."""
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": tag}],
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    used = 0
    async for chunk in stream:
        used = chunk.usage.completion_tokens if chunk.usage else used
    return used


async def eventually(true: Callable[[], Awaitable[bool] | bool], what: str) -> None:
    """Ask until something is true. Raises `AssertionError` saying what was not."""
    try:
        async with asyncio.timeout(BOUND_S):
            while True:
                said = true()
                if said if isinstance(said, bool) else await said:
                    return
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise AssertionError(f"never came true: {what}") from None


@asynccontextmanager
async def watching(look: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Look again and again while the body runs, at least twice. What `look` raises fails the test."""

    async def watch() -> None:
        while True:
            await look()
            await asyncio.sleep(POLL_S)

    await look()
    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher
    await look()


@asynccontextmanager
async def llamas(processes: Processes, model: Callable[[int], Path]) -> AsyncIterator[Llamas]:
    """Replicas, a router and a session for one test; the replicas are killed at its end."""
    timeout = aiohttp.ClientTimeout(total=BOUND_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        ours = Llamas(processes, session, model)
        try:
            yield ours
        finally:
            ours.close()
