"""The HTTP face of the emulated engine: vLLM's paths and forms, and every fault of `engine_faults`.

A request becomes a `Ticket` in the driver; its handler only turns tokens into bytes. aiohttp cancels the handler when
the client leaves (`handler_cancellation`), which aborts the generation in the same pass of the loop. Headers of a
stream go out at once, before the first token, as vLLM sends them. While `loading` every path gets llama.cpp's 503.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import orjson
from aiohttp import web

from loadtests.engine_answers import DONE, ENGINE_DIED, LOADING, Answer, Asked, Head, Refused, error_body, read_request
from loadtests.engine_batch import Generation
from loadtests.engine_driver import EngineDriver, Ticket
from loadtests.engine_faults import changed
from loadtests.errors import BadInput

BODY_BYTES_MAX = 256 * 1024 * 1024
_JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The one model of this engine. `seed` moves the words of its answers."""

    model: str
    context_tokens: int
    kv_tokens: int
    seed: int = 0


class EngineHandlers:
    """Handlers for one engine. `loading` may be switched off once."""

    def __init__(self, driver: EngineDriver, served: Served) -> None:
        self.driver = driver
        self.loading = False
        self._served = served
        self._counter = itertools.count(1)

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._front])
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completion)
        app.router.add_get("/v1/models", self.models, allow_head=False)
        app.router.add_get("/health", self.health, allow_head=False)
        app.router.add_get("/metrics", self.metrics, allow_head=False)
        app.router.add_get("/fault", self.fault, allow_head=False)
        app.router.add_post("/fault", self.set_fault)
        return app

    @web.middleware
    async def _front(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Loading answers, and errors of routing in vLLM's form."""
        if self.loading and request.path != "/fault":
            return web.Response(status=503, body=LOADING, content_type=_JSON)
        try:
            return await handler(request)
        except Refused as refusal:
            return web.Response(status=refusal.status, body=refusal.body, content_type=_JSON)
        except web.HTTPException as error:
            allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            return web.json_response({"detail": error.reason}, status=error.status, headers=allow)

    async def health(self, request: web.Request) -> web.Response:
        """200 with an empty body, as vLLM."""
        return web.Response(status=503 if self.driver.faults.unhealthy else 200)

    async def models(self, request: web.Request) -> web.Response:
        """The one model there is."""
        row = {
            "id": self._served.model,
            "object": "model",
            "created": int(self.driver.now_epoch_s),
            "owned_by": "tidegate",
        }
        return web.json_response({"object": "list", "data": [{**row, "max_model_len": self._served.context_tokens}]})

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text under vLLM's names."""
        return web.Response(text=self._metrics_text(), content_type="text/plain", charset="utf-8")

    async def fault(self, request: web.Request) -> web.Response:
        """All faults as they are now."""
        faults = self.driver.faults
        return web.json_response({name: getattr(faults, name) for name in faults.__dataclass_fields__})

    async def set_fault(self, request: web.Request) -> web.Response:
        """Change some faults; answers with all."""
        try:
            self.driver.obey(changed(self.driver.faults, orjson.loads(await request.read())))
        except (BadInput, orjson.JSONDecodeError) as error:
            return web.Response(status=400, body=error_body(400, str(error), "BadRequestError"), content_type=_JSON)
        return await self.fault(request)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        return await self._generate(request, chat=True)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        return await self._generate(request, chat=False)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        body = await request.read()
        driver = self.driver
        if (failure := self._failure(request)) is not None:
            return failure
        await driver.thawed.wait()
        if driver.faults.first_byte_delay_s:
            await asyncio.sleep(driver.faults.first_byte_delay_s)
        asked = read_request(body, chat=chat, model=self._served.model, context_tokens=self._served.context_tokens)
        ticket = self._ticket(request, asked)
        head = Head(
            request_id=ticket.request_id,
            model=self._served.model,
            created=int(driver.now_epoch_s),
            input_tokens=ticket.generation.input_tokens,
            seed=self._served.seed,
        )
        answer = Answer(asked, head)
        driver.submit(ticket)
        try:
            if asked.stream:
                return await self._stream(request, ticket, answer)
            tokens = await ticket.tokens(asked.output_tokens - 1)
            return web.Response(body=answer.document(tokens), content_type=_JSON)
        finally:
            if asked.stream or not driver.faults.run_on:
                driver.leave(ticket)

    def _failure(self, request: web.Request) -> web.Response | None:
        """The answer of the faults that concern the next requests."""
        driver, faults = self.driver, self.driver.faults
        if faults.drop_next:
            driver.obey(replace(faults, drop_next=faults.drop_next - 1))
            if request.transport is not None:
                request.transport.close()
            return web.Response()
        if faults.fail_next:
            driver.obey(replace(faults, fail_next=faults.fail_next - 1))
            headers = {} if faults.retry_after_s is None else {"Retry-After": f"{faults.retry_after_s:g}"}
            body = error_body(faults.fail_status, "asked to fail by POST /fault", "InternalServerError")
            return web.Response(status=faults.fail_status, body=body, content_type=_JSON, headers=headers)
        return None

    def _ticket(self, request: web.Request, asked: Asked) -> Ticket:
        said = request.headers.get("x-input-tokens")
        if said is not None and not said.isdecimal():
            text = f"header x-input-tokens = {said!r}: must be a whole number"
            raise Refused(400, text, "BadRequestError", "x-input-tokens")
        return Ticket(
            generation=Generation(
                input_tokens=asked.words if said is None else int(said),
                output_tokens=asked.output_tokens,
                arrived_s=asyncio.get_running_loop().time(),
            ),
            request_id=request.headers.get("x-request-id") or f"engine-{next(self._counter)}",
            client_request_id=request.headers.get("x-client-request-id"),
            stream=asked.stream,
        )

    async def _stream(self, request: web.Request, ticket: Ticket, answer: Answer) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        sent, events = 0, [answer.role()]
        while not ticket.generation.finished or sent < ticket.generation.tokens:
            tokens = await ticket.tokens(sent)
            for number in range(sent + 1, tokens + 1):
                events.append(answer.token(number))
                if await self._broke_off(response, request, events, number):
                    return response
            sent = tokens
            if not self.driver.faults.burst:
                await self._write(response, events)
                events = []
        await self._write(response, [*events, answer.end(sent)])
        await response.write_eof()
        return response

    async def _broke_off(
        self, response: web.StreamResponse, request: web.Request, events: list[bytes], number: int
    ) -> bool:
        """Faults that end a stream at this token. True when it has ended."""
        faults = self.driver.faults
        if faults.die_after_tokens is not None and number >= faults.die_after_tokens:
            await self._write(response, events)
            self.driver.die()
        if faults.error_after_tokens is not None and number > faults.error_after_tokens:
            await self._write(response, [*events[:-1], ENGINE_DIED, DONE])
            await response.write_eof()
            return True
        if faults.cut_after_tokens is not None and number > faults.cut_after_tokens:
            await self._write(response, [*events[:-1], events[-1][: len(events[-1]) // 2]])
            if request.transport is not None:
                request.transport.close()
            return True
        return False

    async def _write(self, response: web.StreamResponse, events: list[bytes]) -> None:
        data = b"".join(events)
        size = self.driver.faults.split_bytes
        if not size:
            await response.write(data)
            return
        for start in range(0, len(data), size):
            await response.write(data[start : start + size])
            await asyncio.sleep(0)

    def _metrics_text(self) -> str:
        batch, totals, mode = self.driver.batch, self.driver.totals, self.driver.faults.metrics
        if mode == "absent":
            return "# TYPE python_info gauge\npython_info 1.0\n"
        labels = f'{{engine="0",model_name="{self._served.model}"}}'
        prefix = "vllm:" if mode != "renamed" else "engine_v2:"
        rows = []
        gauges = {
            "num_requests_running": batch.running,
            "num_requests_waiting": batch.waiting,
            "kv_cache_usage_perc": min(1.0, batch.tokens_held / self._served.kv_tokens),
        }
        for name, value in gauges.items():
            shown = "NaN" if mode == "nan" else f"{float(value)}"
            rows.append(f"# TYPE {prefix}{name} gauge\n{prefix}{name}{labels} {shown}\n")
        counters = {
            "prompt_tokens_total": totals.prompt_tokens,
            "generation_tokens_total": totals.generation_tokens,
            "num_preemptions_total": 0,
        }
        for name, value in counters.items():
            rows.append(f"# TYPE {prefix}{name} counter\n{prefix}{name}{labels} {float(value)}\n")
        name = f"{prefix}request_success_total"
        rows.append(f"# TYPE {name} counter\n")
        # vLLM's abort row stays 0 although it aborts; so does ours.
        for reason, value in (("stop", 0), ("length", totals.finished), ("abort", 0)):
            rows.append(
                f'{name}{{engine="0",finished_reason="{reason}",model_name="{self._served.model}"}} {float(value)}\n'
            )
        return "".join(rows)
