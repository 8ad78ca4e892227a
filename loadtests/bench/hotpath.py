"""What the router's own Python costs per request and per streamed event, without network or loop, beside llhttp in
the same process.

One process drives the data plane's protocols directly: a client protocol gets the bytes of an 18-header request of
the OpenAI SDK (about 700 bytes of JSON, another x-request-id each time), the pooled engine protocol the bytes of a
JSON answer; then chunks of an event stream. Transports swallow what is written. Everything is on: strict heads, JSON,
ids, limits, pick over 8 endpoints, metering, framing, slots, the access log. Lines of the log are made in a beat and not
where a request ends, so they are a figure of their own.

The yardstick is httptools (llhttp) reading the same request with all callbacks and feeding the same chunk: it moves
with the machine as we do, so the ratio may be compared between runs where the figures may not. Each figure is the
best of `--rounds`, for other work on the machine only ever adds.

    python -m loadtests.bench.hotpath [--rounds 80] [--requests 2000] [--profile]
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import pstats
import random
from collections import deque
from collections.abc import Callable
from time import process_time
from typing import Any

import httptools
import uvloop

from router.core.dispatcher import Dispatcher
from router.core.requests import Request
from router.model import table_from
from router.shell.access_log import AccessLog, LineWriter
from router.shell.client import Client
from router.shell.framing import ANSWER_PRIME, chunk
from router.shell.http import DataPlane
from router.shell.upstream import Upstream

ENDPOINTS = 8
BODY = b'{"messages": [{"role": "user", "content": "%b"}], "model": "m", "stream": true, "max_tokens": 100}' % (
    b"hello " * 100
)
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n"
    b"Accept: application/json\r\nContent-Type: application/json\r\nUser-Agent: OpenAI/Python 1.99.9\r\nX-Stainless-Lang: python\r\n"
    b"X-Stainless-Package-Version: 1.99.9\r\nX-Stainless-OS: Linux\r\nX-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\n"
    b"X-Stainless-Runtime-Version: 3.11.7\r\nAuthorization: Bearer sk-abcdef0123456789abcdef0123456789\r\nX-Stainless-Async: false\r\n"
    b"x-stainless-retry-count: 0\r\nx-stainless-read-timeout: 600\r\nx-request-id: %016x\r\nContent-Length: %d\r\n\r\n"
)
ANSWER = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 20:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: 300\r\n"
    b"content-type: application/json\r\n\r\n" + b"x" * 300
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 20:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
EVENT = (
    b'data: {"id": "cmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{"index": 0, '
    b'"delta": {"content": "tok"}, "finish_reason": null}]}\n\n'
)


class Sink:
    """A transport that swallows everything."""

    __slots__ = ()

    def write(self, data: bytes) -> None:
        """Swallow."""

    def writelines(self, data: Any) -> None:
        """Swallow."""

    def close(self) -> None:
        """Nothing to close."""

    abort = pause_reading = resume_reading = close

    def get_write_buffer_size(self) -> int:
        """Always empty."""
        return 0

    def get_extra_info(self, name: str) -> tuple[str, int]:
        """The peer."""
        return ("127.0.0.1", 1)


class Nowhere(LineWriter):
    """A log's writer that throws lines away."""

    def put(self, lines: bytes, count: int) -> None:
        """Throw them away."""


class Kept(AccessLog):
    """An access log that makes no lines until `lines` is called."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(Nowhere("-"), "r", now)
        self.last = list(self._ended)

    def flush(self) -> None:
        """What would become lines now."""
        self.last, self._ended = self._ended, []

    def lines(self) -> None:
        """Make lines of the last that were kept."""
        self._ended = self.last
        super().flush()


class AllCallbacks:
    """What a server on llhttp has to listen to at least."""

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        """llhttp: target."""
        self.url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        """llhttp: header."""
        self.fields.append((name, value))

    def on_body(self, body: bytes) -> None:
        """llhttp: body bytes."""
        self.body = body

    def on_message_complete(self) -> None:
        """llhttp: the end."""
        self.fields.clear()


def plane_with_idle_connections(loop: asyncio.AbstractEventLoop) -> tuple[DataPlane, Client]:
    """A data plane whose endpoints each have one pooled connection, and one client of it."""
    dispatcher = Dispatcher(router="r", boot="0123456789ab", random=random.Random(1).random, now=loop.time())
    endpoints = [
        {"id": f"e{n}", "url": f"http://127.0.0.1:{n + 1}", "model": "m", "limit": 64, "capacity": 1 + n % 2}
        for n in range(ENDPOINTS)
    ]
    dispatcher.apply(table_from({"source": "bench", "models": [{"name": "m"}], "endpoints": endpoints}), loop.time())
    plane = DataPlane(dispatcher, loop)
    plane.access_log = Kept(loop.time)
    sink: Any = Sink()
    for endpoint in dispatcher.endpoints.values():
        dispatcher.probed(endpoint.id, True, loop.time())
        nobody: Any = Request()
        upstream = Upstream(plane, endpoint, nobody)
        upstream.exchange, upstream.state, upstream.transport = None, 0, sink
        endpoint.pool = deque([upstream])
        plane.pooled.add(endpoint)
    client = Client(plane)
    client.connection_made(sink)
    return plane, client


def current(client: Client) -> Upstream:
    """The engine connection that the client's request is on."""
    assert client.exchange is not None
    assert client.exchange.upstream is not None
    return client.exchange.upstream


def best(rounds: int, count: int, work: Callable[[], None]) -> float:
    """Microseconds for one of `count` things that `work` does, the best of `rounds`."""
    least = float("inf")
    for _ in range(rounds):
        start = process_time()
        work()
        least = min(least, (process_time() - start) / count * 1e6)
    return least


def measure(rounds: int, requests: int, profile: bool) -> dict[str, float]:
    """The figures in microseconds: request, event, the same bytes in llhttp, and a line of the access log."""
    loop = uvloop.new_event_loop()
    plane, client = plane_with_idle_connections(loop)
    access_log = plane.access_log
    assert isinstance(access_log, Kept)
    sent = [HEAD % (n * 0x9E3779B97F4A7C15 & (2**64 - 1), len(BODY)) + BODY for n in range(requests)]

    def serve() -> None:
        for data in sent:
            client.data_received(data)
            current(client).data_received(ANSWER)

    parser = httptools.HttpRequestParser(AllCallbacks())

    def parse() -> None:
        feed = parser.feed_data
        for data in sent:
            feed(data)

    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    figures = {"request": best(rounds, requests, serve), "request_llhttp": best(rounds, requests, parse)}
    figures["line"] = best(rounds, len(access_log.last), access_log.lines)
    client.data_received(sent[0])
    stream = current(client)
    stream.data_received(STREAM_HEAD)
    read = chunk(EVENT)

    def events() -> None:
        receive = stream.data_received
        for _ in range(requests * 5):
            receive(read)

    bare = httptools.HttpResponseParser(AllCallbacks())
    bare.feed_data(ANSWER_PRIME)

    def chunks() -> None:
        feed = bare.feed_data
        for _ in range(requests * 5):
            feed(read)

    figures |= {"event": best(rounds, requests * 5, events), "event_llhttp": best(rounds, requests * 5, chunks)}
    if profile:
        stream.data_received(b"0\r\n\r\n")
        profiler = cProfile.Profile()
        profiler.runcall(serve)
        pstats.Stats(profiler).sort_stats("tottime").print_stats(20)
    loop.close()
    return figures


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench.hotpath", description="hot path in process")
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--profile", action="store_true", help="print where the time of a request goes as well")
    args = parser.parse_args()
    figures = measure(args.rounds, args.requests, args.profile)
    print(f"best of {args.rounds}; {len(HEAD.splitlines()) - 2} headers, {len(BODY)} B JSON; {ENDPOINTS} endpoints")
    for what in ("request", "event"):
        ours, llhttp = figures[what], figures[f"{what}_llhttp"]
        print(f"{what:8} {ours:7.3f} us   llhttp alone {llhttp:6.3f} us   ratio {ours / llhttp:5.2f}")
    print(f"log line {figures['line']:7.3f} us   made four times a second, beside the requests")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
