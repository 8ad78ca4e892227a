"""The HTTP face of the emulated engine: every path that generates, and every fault of `engine_faults` that shows in an
answer. `engine_pages` has the other paths, `engine_door` the faults of connections.

A request becomes a `Ticket` in the driver; its handler only turns tokens into bytes. aiohttp cancels the handler when
the client leaves (`handler_cancellation`), which aborts the generation in the same pass of the loop. Headers of a
stream go out at once, before the first token, as vLLM sends them. While `loading` every path gets llama.cpp's 503.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from aiohttp import web

from loadtests.engine_answers import (
    LOADING,
    Answer,
    Asked,
    Head,
    Refused,
    Speech,
    error_body,
    read_request,
)
from loadtests.engine_batch import Generation
from loadtests.engine_dialects import DIALECTS, Dialect
from loadtests.engine_door import Door, reset
from loadtests.engine_driver import EngineDriver, Ticket
from loadtests.engine_pages import JSON, EnginePages, Served
from loadtests.engine_refusals import openai_error

BODY_BYTES_MAX = 256 * 1024 * 1024
INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: </early>\r\n\r\n"
GARBAGE = {
    "text": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "head": b"HTTP/1.1 200 OK\r\ncontent-ty",
    "lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
    "chunks": (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        b'13\r\ndata: {"choices":[]}\r\nzz\r\n'
    ),
}
"""Answers that break HTTP, by the name of the fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """How one path is read, spoken and refused. `read`: (body, model name or None for any) -> what is asked."""

    read: Callable[[bytes, str | None], Asked]
    speech: Callable[[Asked, Head], Speech]
    error: Callable[[int, str], bytes]


class EngineHandlers:
    """Handlers for one engine. `loading` may be switched off once; `refusing`: new requests get 500."""

    def __init__(self, driver: EngineDriver, served: Served, door: Door | None = None) -> None:
        self.driver = driver
        self.loading = False
        self.refusing = False
        self.pages = EnginePages(driver, served)
        self._door = door or Door(driver)
        self._served = served
        self._counter = itertools.count(1)

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._front])
        context_tokens = self._served.context_tokens
        for path, chat in (("/v1/chat/completions", True), ("/v1/completions", False)):

            def read(body: bytes, model: str | None, chat: bool = chat) -> Asked:
                return read_request(body, chat=chat, model=model, context_tokens=context_tokens)

            app.router.add_post(path, partial(self._generate, Call(read=read, speech=Answer, error=openai_error)))
        for dialect in DIALECTS:
            app.router.add_post(dialect.path, partial(self._generate, self._call(dialect)))
        self.pages.add_to(app)
        return app

    def _call(self, dialect: Dialect) -> Call:
        def read(body: bytes, model: str | None) -> Asked:
            return dialect.read(body, model, self._served.context_tokens)

        return Call(read=read, speech=dialect.speech, error=dialect.error)

    @web.middleware
    async def _front(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Loading answers, errors of routing in vLLM's form, and when the connection is idle."""
        transport = request.transport
        if self._door.closes(transport):
            return web.Response()
        self._door.began(transport)
        try:
            if self.loading and request.path != "/fault":
                return web.Response(status=503, body=LOADING, content_type=JSON)
            return await handler(request)
        except Refused as refusal:
            return web.Response(status=refusal.status, body=refusal.body, content_type=JSON)
        except web.HTTPException as error:
            allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            return web.json_response({"detail": error.reason}, status=error.status, headers=allow)
        finally:
            self._door.answered(transport)

    async def _generate(self, call: Call, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        driver = self.driver
        if (failure := self._failure(call, request)) is not None:
            return failure
        await driver.awake.wait()
        if driver.faults.first_byte_delay_s:
            await asyncio.sleep(driver.faults.first_byte_delay_s)
        asked = self._asked(call, request, body)
        if (full := self._full(call)) is not None:
            return full
        if driver.faults.interim and request.transport is not None:
            request.transport.write(INTERIM * driver.faults.interim)
        ticket = self._ticket(request, asked)
        head = Head(
            request_id=ticket.request_id,
            model=self._served.model,
            created=int(driver.now_epoch_s),
            input_tokens=ticket.generation.input_tokens,
            seed=self._served.seed,
            utf8=driver.faults.utf8,
        )
        speech = call.speech(asked, head)
        driver.submit(ticket)
        try:
            if asked.stream:
                return await self._stream(request, ticket, speech)
            return await self._whole(call, request, ticket, speech)
        finally:
            if asked.stream or not driver.faults.run_on:
                driver.leave(ticket)

    async def _body(self, request: web.Request) -> bytes:
        """The request's body, read as slowly as the faults say."""
        rate = self.driver.faults.read_bytes_per_s
        if not rate:
            return await request.read()
        parts = []
        while part := await request.content.read(max(1, int(rate / 20))):
            parts.append(part)
            await asyncio.sleep(len(part) / rate)
        return b"".join(parts)

    def _asked(self, call: Call, request: web.Request, body: bytes) -> Asked:
        """What is asked for. Raises `Refused`."""
        faults, own = self.driver.faults, self._served.model
        named = request.match_info.get("model", own)
        if faults.unloaded and "model" in request.match_info:
            text = f"Request for unknown model: '{named}' is not ready"
            raise self._refused(call, 400, text)
        if named != own and not faults.any_model:
            raise self._refused(call, 404, f"Request for unknown model: '{named}' is not found")
        binary = request.headers.get("inference-header-content-length", "")
        if binary.isdecimal():
            body = body[: int(binary)]
        return call.read(body, None if faults.any_model else own)

    def _refused(self, call: Call, status: int, message: str) -> Refused:
        refusal = Refused(status, message, "", None)
        refusal.body = call.error(status, message)
        return refusal

    def _failure(self, call: Call, request: web.Request) -> web.Response | None:
        """The answer of the faults that concern the next requests."""
        driver, faults = self.driver, self.driver.faults
        if faults.drop_next:
            driver.obey(replace(faults, drop_next=faults.drop_next - 1))
            return self._closed(request)
        if faults.garbage != "none" and request.transport is not None:
            request.transport.write(GARBAGE[faults.garbage])
            return self._closed(request)
        if faults.core_dead or self.refusing:
            text = "EngineCore encountered an issue." if faults.core_dead else "the engine is shutting down"
            return web.Response(status=500, body=call.error(500, text), content_type=JSON)
        if faults.fail_next:
            driver.obey(replace(faults, fail_next=faults.fail_next - 1))
            body = error_body(faults.fail_status, "asked to fail by POST /fault", "InternalServerError")
            return web.Response(status=faults.fail_status, body=body, content_type=JSON, headers=self._retry_after())
        return None

    def _closed(self, request: web.Request) -> web.Response:
        """The answer to a request whose connection is closed: nobody gets it."""
        if request.transport is not None:
            request.transport.close()
        return web.Response()

    def _full(self, call: Call) -> web.Response | None:
        """The answer when no more requests may wait."""
        faults, batch = self.driver.faults, self.driver.batch
        if faults.queue_limit is None or batch.running < batch.rates.slots or batch.waiting < faults.queue_limit:
            return None
        text = f"the queue is full: {batch.waiting} requests wait"
        body = call.error(faults.queue_status, text)
        return web.Response(status=faults.queue_status, body=body, content_type=JSON, headers=self._retry_after())

    def _retry_after(self) -> dict[str, str]:
        said = self.driver.faults.retry_after_s
        return {} if said is None else {"Retry-After": f"{said:g}"}

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

    async def _whole(self, call: Call, request: web.Request, ticket: Ticket, speech: Speech) -> web.StreamResponse:
        """An answer that is not streamed."""
        tokens = await ticket.tokens(speech.asked.output_tokens - 1)
        if ticket.stopped == "error":
            return web.Response(status=500, body=call.error(500, "EngineCore encountered an issue."), content_type=JSON)
        body = speech.document(tokens, "abort" if ticket.stopped else "length")
        fields = self.pages.load_fields(request.headers.get("endpoint-load-metrics-format"))
        if self.driver.faults.stall_after_tokens is not None:
            silent = web.StreamResponse(headers={"Content-Type": JSON, "Content-Length": str(len(body)), **fields})
            await silent.prepare(request)
            await asyncio.Event().wait()  # until the client leaves, which cancels it
        return web.Response(body=body, content_type=JSON, headers=fields)

    async def _stream(self, request: web.Request, ticket: Ticket, speech: Speech) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        if self.driver.faults.stall_after_tokens == 0:
            await asyncio.Event().wait()
        sent, events = 0, [speech.opening()]
        while not ticket.generation.finished or sent < ticket.generation.tokens:
            tokens = await ticket.tokens(sent)
            if not sent and events[0] and not (self.driver.faults.join_first or self.driver.faults.burst):
                await self._write(response, events)
                events = []
            for number in range(sent + 1, tokens + 1):
                if await self._broke_off(response, request, events, (number, speech)):
                    return response
                events.append(speech.token(number))
                if number == self.driver.faults.stall_after_tokens:
                    await self._write(response, events)
                    await asyncio.Event().wait()
            sent = tokens
            if ticket.stopped is not None:
                break
            if not self.driver.faults.burst:
                await self._write(response, events)
                events = []
        last = speech.died() if ticket.stopped == "error" else speech.end(sent, ticket.stopped or "length")
        await self._write(response, [*events, last])
        await response.write_eof()
        return response

    async def _broke_off(
        self, response: web.StreamResponse, request: web.Request, events: list[bytes], at: tuple[int, Speech]
    ) -> bool:
        """Faults that end a stream at this token; `events` stand before it. True when it has ended."""
        faults, (number, speech) = self.driver.faults, at
        if faults.die_after_tokens is not None and number >= faults.die_after_tokens:
            await self._write(response, [*events, speech.token(number)])
            self.driver.die()
        if faults.error_after_tokens is not None and number > faults.error_after_tokens:
            await self._write(response, [*events, speech.died()])
            await response.write_eof()
            return True
        if faults.cut_after_tokens is not None and number > faults.cut_after_tokens:
            event = speech.token(number)
            parts = {"event": event[: len(event) // 2], "utf8": speech.torn(number), "between": b""}
            await self._write(response, [*events, parts[faults.cut_at]])
            if faults.cut_how == "reset":
                await asyncio.sleep(0.01)  # what was written leaves first
                reset(request.transport)
            elif request.transport is not None:
                request.transport.close()
            return True
        return False

    async def _write(self, response: web.StreamResponse, events: list[bytes]) -> None:
        data = b"".join(events)
        size = self.driver.faults.split_bytes
        if not data:
            return
        if not size:
            await response.write(data)
            return
        for start in range(0, len(data), size):
            await response.write(data[start : start + size])
            await asyncio.sleep(0)
