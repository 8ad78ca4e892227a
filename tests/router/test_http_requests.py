"""Requests over real sockets: what reaches the engine, what comes back, which model is meant."""

from __future__ import annotations

import asyncio
import json

import pytest

from router.shell.http import Limits
from tests.router.wire import Received, Site, json_answer, on_uvloop, post, raw_answer


@on_uvloop
async def test_a_request_reaches_the_engine_with_our_id_and_the_answer_carries_the_clients() -> None:
    async with Site(json_answer(more=b"x-request-id: engines-own\r\nkeep-alive: timeout=5\r\n")) as site:
        caller = await site.call()
        body = b'{"messages":[],"model":"m","stream":false}'
        answer = await caller.ask(post(body, "X-Request-Id: mine-1", "Connection: keep-alive", "X-Custom: kept"))
        (received,) = site.engines[0].received
        assert (answer.status, answer.body) == (200, b'{"ok":true}')
        assert answer.fields["x-request-id"] == "mine-1"
        assert answer.fields["server-timing"] == "queue;dur=0.0"
        assert "keep-alive" not in answer.fields
        assert received.body == body
        assert received.head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
        assert received.field("x-request-id") == ["boot-1"]
        assert received.field("x-client-request-id") == ["mine-1"]
        assert received.field("x-custom") == ["kept"]
        assert received.field("x-forwarded-for") == ["127.0.0.1"]
        assert received.field("host") == ["x"]
        answer = await caller.ask(post(b'{"model":"m"}', "X-Forwarded-For: 10.0.0.1"))
        assert answer.fields["x-request-id"] == "boot-2"
        assert site.engines[0].received[1].field("x-forwarded-for") == ["10.0.0.1, 127.0.0.1"]
        assert site.engines[0].received[1].field("x-client-request-id") == []
        assert site.engines[0].connections == 1
        await site.settled()


@on_uvloop
async def test_hop_by_hop_headers_are_dropped_both_ways() -> None:
    more = b"connection: x-private\r\nx-private: 1\r\nproxy-authenticate: y\r\nupgrade: h2c\r\n"
    async with Site(json_answer(more=more)) as site:
        hop = ("TE: trailers", "Upgrade: h2c", "Proxy-Authorization: a", "X-Named: gone", "Connection: close, X-Named")
        caller = await site.call()
        answer = await caller.ask(post(b'{"model":"m"}', *hop, "Content_Length: 5"))
        (received,) = site.engines[0].received
        for name in ("te", "upgrade", "proxy-authorization", "x-named", "connection", "content_length"):
            assert received.field(name) == []
        assert answer.fields.keys().isdisjoint({"x-private", "proxy-authenticate", "upgrade"})
        assert answer.fields["connection"] == "close"
        assert await caller.closed() == b""


@pytest.mark.parametrize(
    ("request_bytes", "model"),
    [
        (post(b'{"model":"n","max_tokens":null,"stream":1}'), "n"),
        (post(b'{"messages":[{"content":"\\"model\\": \\"m\\""}],"model":"n"}'), "n"),
        (post(b'{"model":"m","model":"n"}'), "n"),
        (post(b'{"model":"m"}', "X-Model: n"), "n"),
        (post(b'{"x":1}', path="/v2/models/n/infer"), "n"),
        (post(b'{"x":1}', path="/v2/models/n%2Fo/versions/1/infer"), "n/o"),
        (post(b"\x1f\x8b...", "Content-Encoding: gzip", "X-Model: n"), "n"),
        (b"GET /v1/models/n/o HTTP/1.1\r\nHost: x\r\n\r\n", "n/o"),
        (
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=zz\r\n"
            b'Content-Length: 121\r\n\r\n--zz\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\n'
            b'\x00\x01\r\n--zz\r\nContent-Disposition: form-data; name="model"\r\n\r\nn\r\n--zz--\r\n',
            "n",
        ),
    ],
)
@on_uvloop
async def test_which_model_is_meant(request_bytes: bytes, model: str) -> None:
    head, _, body = request_bytes.partition(b"\r\n\r\n")
    if b"multipart" in head:
        head = head.replace(b"Content-Length: 121", b"Content-Length: %d" % len(body))
    request_bytes = head + b"\r\n\r\n" + body
    async with Site() as site:
        seen: list[str | None] = []
        arrived = site.dispatcher.arrived

        def spy(made, now):  # type: ignore[no-untyped-def]
            seen.append(made.asked)
            return arrived(made, now)

        site.dispatcher.arrived = spy  # type: ignore[method-assign]
        await site.ask(request_bytes)
        assert seen == [model]


@on_uvloop
async def test_unknown_unnamed_and_unreadable_models() -> None:
    async with Site() as site:
        answer = await site.ask(post())
        assert (answer.status, answer.fields["retry-after"]) == (503, "5")
    async with Site(json_answer()) as site:
        answer = await site.ask(post(b'{"model":"other"}'))
        assert answer.status == 404
        assert json.loads(answer.body)["error"] == {
            "message": "the model 'other' does not exist here",
            "type": "not_found_error",
            "param": None,
            "code": "model_not_found",
        }
        answer = await site.ask(post(b'{"x":1}', path="/v2/models/other/infer"))
        assert json.loads(answer.body) == {"error": "the model 'other' does not exist here"}
        for body in (b"{}", b"not json", b"[1]", b"[" * 5000, b'{"model":5}'):  # one known model: the engine judges it
            assert (await site.ask(post(body))).status == 200


@on_uvloop
async def test_local_pages() -> None:
    async with Site() as site:
        caller = await site.call()
        get = "GET {} HTTP/1.1\r\nHost: x\r\n\r\n"
        assert (await caller.ask(get.format("/health").encode())).status == 200
        assert (await caller.ask(get.format("/ready").encode())).status == 503
        site.tell()
        assert (await caller.ask(get.format("/ready?x=1").encode())).status == 200
        answer = await caller.ask(get.format("/v1/models").encode())
        assert [row["id"] for row in json.loads(answer.body)["data"]] == ["alias", "m"]
        answer = await caller.ask(b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", head_only=True)
        assert int(answer.fields["content-length"]) > 0
        site.dispatcher.accepting = False
        assert (await caller.ask(get.format("/ready").encode())).status == 503
        caller = await site.call()  # while draining each answer closes its connection
        assert (await caller.ask(get.format("/health").encode())).status == 200


@pytest.mark.fault("R16")
@on_uvloop
async def test_paths_and_queries_pass_byte_for_byte() -> None:
    async with Site(json_answer()) as site:
        target = "/v1//x/%2F%2e/../y/?a=%20b&c=#d"
        await site.ask(post(b"{}", path=target))
        assert site.engines[0].received[0].head.split(b" ")[1] == target.encode()


@on_uvloop
async def test_served_model_is_rewritten_and_the_length_with_it() -> None:
    async with Site(json_answer()) as site:
        site.tell(served_model="the-served-name")
        bodies = [
            (
                b'{"messages":[{"content":"\\"model\\""}], "model" : "m" ,"n":1.0}',
                b'"model" : "the-served-name" ,"n":1.0}',
            ),
            (b'{"x":{"model":"m"},"model":"m"}', b'"x":{"model":"m"},"model":"the-served-name"'),
            (b'{"mod\\u0065l":"m","x":{"model":"m"}}', b'"x":{"model":"m"}'),
        ]
        for sent, part in bodies:
            await site.ask(post(sent))
            received = site.engines[0].received[-1]
            assert part in received.body
            assert json.loads(received.body)["model"] == "the-served-name"
            assert received.field("content-length") == [str(len(received.body))]


@on_uvloop
async def test_head_requests_and_answers_without_a_body() -> None:
    async def behave(received: Received, writer: asyncio.StreamWriter) -> None:
        if received.head.startswith(b"HEAD"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n")

    async with Site(behave) as site:
        caller = await site.call()
        answer = await caller.ask(b"HEAD /x HTTP/1.1\r\nHost: x\r\n\r\n", head_only=True)
        assert answer.fields["content-length"] == "500"
        answer = await caller.ask(b"DELETE /x HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.status == 204
        assert "content-length" not in answer.fields
        assert site.engines[0].connections == 1
        await site.settled()


@on_uvloop
async def test_http_1_0_clients_get_an_answer_that_ends_with_the_connection() -> None:
    answers = raw_answer(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"
    )
    async with Site(answers) as site:
        caller = await site.call()
        caller.writer.write(b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        raw = await caller.closed()
        assert raw.endswith(b"connection: close\r\n\r\nabcde")
        assert b"transfer-encoding" not in raw
        assert site.engines[0].received[0].field("host") == [f"127.0.0.1:{site.engines[0].port}"]


@on_uvloop
async def test_pipelined_requests_are_answered_in_order() -> None:
    async def behave(received: Received, writer: asyncio.StreamWriter) -> None:
        await json_answer(received.body)(received, writer)

    async with Site(behave) as site:
        caller = await site.call()
        bodies = [b'{"model":"m","n":%d}' % number for number in range(50)]
        caller.writer.write(b"".join(post(body) for body in bodies))
        assert [(await caller.answer()).body for _ in bodies] == bodies
        await site.settled()


@on_uvloop
async def test_a_request_fed_byte_by_byte() -> None:
    async with Site(json_answer()) as site:
        caller = await site.call()
        for byte in post(b'{"model":"m"}'):
            caller.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await caller.answer()).status == 200


@pytest.mark.fault("R29")
@on_uvloop
async def test_expect_100_continue() -> None:
    async with Site(json_answer()) as site:
        caller = await site.call()
        head, _, body = post(b'{"model":"m"}', "Expect: 100-continue").partition(b"\r\n\r\n")
        caller.writer.write(head + b"\r\n\r\n")
        assert await caller.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await caller.ask(body)).status == 200
        assert site.engines[0].received[0].field("expect") == []


@on_uvloop
async def test_chunked_uploads_arrive_with_a_length() -> None:
    async with Site(json_answer()) as site:
        caller = await site.call()
        head = b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n"
        parts = (head, b'8;ext=1\r\n{"model"', b'\r\n5\r\n:"m"}\r\n0\r\nTrailer: x\r\n', b"\r\n")
        for _ in range(2):
            for part in parts:
                caller.writer.write(part)
                await asyncio.sleep(0.002)
            assert (await caller.answer()).status == 200
        for received in site.engines[0].received:
            assert received.body == b'{"model":"m"}'
            assert received.field("content-length") == ["13"]
            assert received.field("transfer-encoding") == []


@on_uvloop
async def test_large_bodies_small_ones_and_large_ones_on_one_connection() -> None:
    async with Site(json_answer()) as site:
        caller = await site.call()
        large = b'{"model":"m","x":"%b"}' % (b"y" * (3 << 20))
        for body in (large, b'{"model":"m"}', large[:700_000] + b'"}', large):
            answer = await caller.ask(post(body))
            assert answer.status == 200
            assert site.engines[0].received[-1].body == body
        await site.settled()


@pytest.mark.fault("R14")
@on_uvloop
async def test_limits_are_named_in_the_answer() -> None:
    limits = Limits(body_bytes=1000, bodies_total_bytes=10)
    async with Site(json_answer(), limits=limits) as site:
        answer = await site.ask(post(b"x" * 1001))
        assert (answer.status, answer.fields["connection"]) == (413, "close")
        assert b"the body of 1001 bytes is larger than 1000 bytes" in answer.body
        answer = await site.ask(
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"400\r\n%b\r\n0\r\n\r\n" % (b"x" * 1024)
        )
        assert answer.status == 413
        answer = await site.ask(b"GET / HTTP/1.1\r\nHost: x\r\nX: %b\r\n\r\n" % (b"x" * 70_000))
        assert answer.status == 431
        assert b"65536 bytes" in answer.body
        await site.settled()
        assert site.dispatcher.refused_by_code == {"request_too_large": 3}
    async with Site(json_answer(), limits=Limits(bodies_total_bytes=10)) as site:
        answer = await site.ask(post(b"x" * 600_000))
        assert (answer.status, answer.fields["retry-after"]) == (503, "1")
        await site.settled()
    async with Site(json_answer(), limits=Limits(connections=1)) as site:
        first = await site.call()
        assert (await first.ask(post())).status == 200
        assert await (await site.call()).closed() == b""
        assert (await first.ask(post())).status == 200


@on_uvloop
async def test_an_alias_reaches_the_engine_as_the_models_own_name() -> None:
    async with Site(json_answer()) as site:
        caller = await site.call()
        assert (await caller.ask(post(b'{"model":"alias","messages":[]}'))).status == 200
        assert (await caller.ask(post(b'{"model": "m"}'))).status == 200
        assert [json.loads(received.body)["model"] for received in site.engines[0].received] == ["m", "m"]
        assert site.engines[0].received[0].field("content-length") == [str(len(b'{"model":"m","messages":[]}'))]
        site.tell(served_model="theirs")
        assert (await caller.ask(post(b'{"model":"alias"}'))).status == 200
        assert json.loads(site.engines[0].received[2].body)["model"] == "theirs"


@on_uvloop
async def test_trace_headers_pass_untouched_each_way_and_at_each_attempt() -> None:
    context = (
        "TraceParent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate: congo=t61rcWkgMzE,rojo=00f067aa0ba902b7",
        "tracestate: more=1",
        "baggage: userId=a%20b",
    )
    refused = raw_answer(b"", abort=True)
    async with Site(refused, refused, json_answer(), routing={"retries": {"idempotent": True}}) as site:
        for _ in range(4):
            await site.ask(post(b'{"model":"m"}', *context))
        got = [received for engine in site.engines for received in engine.received]
        assert len(got) > 4
        for received in got:
            lines = received.head.decode().split("\r\n")
            assert [line for line in lines if line.lower().startswith(("trace", "baggage"))] == list(context)


@pytest.mark.fault("R9")
@on_uvloop
async def test_while_draining_each_answer_closes_its_connection() -> None:
    """Else clients that keep their connections send on until the bound, and then lose what is in flight."""
    async with Site(json_answer()) as site:
        caller = await site.call()
        assert "connection" not in (await caller.ask(post(b'{"model":"m"}'))).fields
        site.dispatcher.accepting = False
        answer = await caller.ask(post(b'{"model":"m"}'))
        assert (answer.status, answer.fields["connection"]) == (200, "close")
        assert await caller.closed() == b""
        await site.settled()
