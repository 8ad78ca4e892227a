"""A real Triton behind a real router: the Open Inference Protocol, its binary tensors, its streams and its ways to fail."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.engines import triton
from tests.engines.llama import eventually
from tests.engines.test_llama_bytes import exchange
from tests.engines.triton import Triton
from tests.processes import Processes
from tests.router.fleet import Fleet, Stream, fleet

pytestmark = pytest.mark.processes

TARGETS = (
    "GET /v2/models/echo",
    "GET /v2/models/echo/",
    "GET /v2/models/echo/versions/1",
    "GET /v2/models/echo/versions/1/ready",
    "GET /v2/models/echo/versions/2/ready",
    "GET /v2/models/echo/versions/1%2Fready",
    "GET /v2/models/echo/versions/1/config?a=%2F&b",
    "GET /v2/models/%65cho/versions/1/ready",
    "GET /v2/models/echo/versions/../ready",
    "GET /v2/models//echo/ready",
    "GET /v2/models/echo/versions/1/stats",
    "GET /v2",
    "HEAD /v2/models/echo/ready",
    "POST /v2/repository/index",
    "PUT /v2/models/echo/infer",
)


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    """Skips all of this file, in one line, where there is no Triton. Its tests are collected all the same."""
    if triton.packages() is None:
        pytest.skip("real Triton is not installed here: make engines-triton")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    """A Triton that no test harms."""
    processes = Processes(tmp_path_factory.mktemp("triton"))
    started = triton.start(processes, "shared")
    try:
        yield started
    finally:
        started.kill()
        processes.close()


@asynccontextmanager
async def routed(processes: Processes, engine: Triton, *models: str, **limits: Any) -> AsyncIterator[Fleet]:
    """A router with some models of a Triton, ready. `limits`: changes to the rows of its endpoints."""
    async with fleet(processes) as ours:
        await ours.start_router()
        await tell(ours, engine, *models, **limits)
        await ours.healths(**{f"{engine.id}-{model}": "ready" for model in models})
        yield ours


async def tell(ours: Fleet, engine: Triton, *models: str, queue: int = 100, **changes: Any) -> dict[str, Any]:
    """Send the table of one Triton; gives the answer."""
    ours.revision += 1
    return await tell_again(ours, engine, *models, queue=queue, **changes)


async def tell_again(ours: Fleet, engine: Triton, *models: str, queue: int = 100, **changes: Any) -> dict[str, Any]:
    """The same under the last revision."""
    routing = {"queue": {"max_requests": queue}, "retries": {"max_attempts": 8, "budget_percent": 100}}
    table = {
        "version": 1,
        "source": "test",
        "epoch": 1,
        "revision": ours.revision,
        "models": [{"name": model, "routing": routing} for model in models],
        "endpoints": [engine.endpoint(model, **changes) for model in models],
    }
    async with ours.session.put(f"{ours.router.admin}/admin/v1/endpoints", json=table) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == 200, answer
        return answer


def numbers(*values: float, wait_s: float = 0) -> dict[str, Any]:
    """An inference request for `echo`."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, len(values)], "data": list(values)}
    return {"parameters": {"wait_s": wait_s}, "inputs": [tensor]}


async def infer(ours: Fleet, body: dict[str, Any], path: str = "/v2/models/echo/infer") -> tuple[int, Any, Any]:
    """Status, headers and JSON of one inference."""
    async with ours.session.post(f"{ours.router.data}{path}", json=body) as response:
        return response.status, response.headers, await response.json(content_type=None)


async def listen(ours: Fleet, into: Stream, count: int, wait_s: float) -> None:
    """One `generate_stream`, read to its end."""
    body = {"text_input": "hello", "count": count, "wait_s": wait_s}
    async with ours.session.post(f"{ours.router.data}/v2/models/tokens/generate_stream", json=body) as response:
        into.status, into.headers = response.status, dict(response.headers)
        async for piece in response.content.iter_any():
            into.body += piece
            into.begun.set()
    into.begun.set()


@pytest.mark.fault("R16")
async def test_paths_of_models_and_versions_mean_to_triton_what_the_client_wrote(
    processes: Processes, shared: Triton
) -> None:
    async with routed(processes, shared, "echo") as ours:
        statuses = {}
        for target in TARGETS:
            request = f"{target} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()
            (status, _, body), direct = await exchange(ours.router.data, request), await exchange(shared.url, request)
            statuses[target] = int(status.split()[1])
            # Triton answers HEAD with a body, against the rules; the router keeps it from its client.
            assert (status, body) == (direct[0], b"" if target.startswith("HEAD") else direct[2]), target
        assert statuses["GET /v2/models/echo/versions/1/ready"] == 200
        assert statuses["GET /v2/models/echo/versions/2/ready"] == 400
        assert statuses["GET /v2/models/echo/versions/1%2Fready"] != 200
        _, _, answer = await infer(ours, numbers(1, 2), "/v2/models/echo/versions/1/infer")
        assert answer["outputs"][0]["data"] == [2, 4]


@pytest.mark.fault("R17")
@pytest.mark.parametrize("coding", ["plain", "gzip"])
async def test_binary_tensors_pass_both_ways(processes: Processes, shared: Triton, coding: str) -> None:
    values = tuple(number / 7 for number in range(5000))
    tensor = struct.pack(f"<{len(values)}f", *values)
    asked = {
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": [1, len(values)],
                "parameters": {"binary_data_size": len(tensor)},
            }
        ],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }
    head = json.dumps(asked).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    headers["Accept-Encoding"] = "gzip" if coding == "gzip" else "identity"
    body = head + tensor
    if coding == "gzip":
        body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
    async with routed(processes, shared, "echo") as ours:
        url = f"{ours.router.data}/v2/models/echo/versions/1/infer"
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.post(url, data=body, headers=headers) as response,
        ):
            raw, told = await response.read(), response.headers
        assert response.status == 200, raw
        assert told.get("Content-Encoding") == ("gzip" if coding == "gzip" else None)
        answer = gzip.decompress(raw) if coding == "gzip" else raw
        size = int(told["Inference-Header-Content-Length"])
        assert json.loads(answer[:size])["outputs"][0]["parameters"]["binary_data_size"] == len(tensor)
        doubled = struct.unpack(f"<{len(values)}f", answer[size:])
        assert doubled == tuple(2 * value for value in struct.unpack(f"<{len(values)}f", tensor))


@pytest.mark.fault("R18")
async def test_refusals_have_the_form_of_the_open_inference_protocol(processes: Processes, shared: Triton) -> None:
    async with routed(processes, shared, "echo", limit=1, queue=0) as ours:
        status, _, body = await infer(ours, numbers(1), "/v2/models/nobody/infer")
        assert (status, list(body)) == (404, ["error"])
        assert "'nobody'" in body["error"]
        running = asyncio.create_task(infer(ours, numbers(1, wait_s=1)))
        await ours.until(lambda report: report["endpoints"]["shared-echo"]["in_flight"] == 1)
        status, headers, body = await infer(ours, numbers(1))
        assert (status, list(body)) == (429, ["error"])
        assert isinstance(body["error"], str)
        assert 1 <= int(headers["retry-after"]) <= 60
        assert (await running)[0] == 200


@pytest.mark.fault("R3", "R6")
async def test_triton_says_that_its_queue_is_full_and_the_requests_wait_in_the_router(
    processes: Processes, shared: Triton
) -> None:
    before = len(shared.log("echo"))
    async with routed(processes, shared, "echo", limit=6) as ours:  # more than it takes: one runs, one waits
        answers = await asyncio.gather(*(infer(ours, numbers(number, wait_s=0.1)) for number in range(6)))
        report = await ours.load()
    assert [(status, body["outputs"][0]["data"]) for status, _, body in answers] == [
        (200, [2 * number]) for number in range(6)
    ]
    endpoint = report["endpoints"]["shared-echo"]
    assert endpoint["outcomes"]["saturated"] >= 1
    assert endpoint["outcomes"]["success"] == 6
    assert endpoint["health"] == "ready"
    assert endpoint["limit"] < 6
    ids = [row["id"].partition("-a")[0] for row in shared.log("echo")[before:]]
    assert len(ids) == len(set(ids)) == 6


@pytest.mark.fault("R5", "R23")
async def test_the_500_that_triton_gives_for_bad_json_does_not_eject_it(processes: Processes, shared: Triton) -> None:
    async with routed(processes, shared, "echo") as ours:
        for _ in range(6):
            async with ours.session.post(f"{ours.router.data}/v2/models/echo/infer", data=b"{bad") as response:
                assert response.status in (400, 500)
                assert "parse" in (await response.json(content_type=None))["error"]
            assert (await ours.load())["endpoints"]["shared-echo"]["health"] == "ready"
        assert (await infer(ours, numbers(1)))[0] == 200


@pytest.mark.fault("R1")
async def test_a_client_that_leaves_its_stream_stops_it_in_triton(processes: Processes, shared: Triton) -> None:
    before = len(shared.log("tokens"))
    async with routed(processes, shared, "tokens") as ours:
        stream = Stream()
        leaving = asyncio.create_task(listen(ours, stream, 2000, 0.02))
        await stream.begun.wait()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await eventually(lambda: len(shared.log("tokens")) == before + 2, "the stream ended")
        last = shared.log("tokens")[-1]
        assert last["gone"] is True
        assert last["given"] < 2000
        assert (await ours.load())["endpoints"]["shared-tokens"]["in_flight"] == 0


@pytest.mark.fault("R22")
async def test_triton_has_its_metrics_on_another_port_and_is_served_without(
    processes: Processes, shared: Triton
) -> None:
    async with routed(processes, shared, "echo") as ours:
        said = await asyncio.to_thread(ours.router.process.wait_log, r".*engine metrics missing.*")
        assert json.loads(said[0])["endpoint"] == "shared-echo"
        engine = (await ours.load())["endpoints"]["shared-echo"]["engine"]
        assert (engine["running"], engine["waiting"]) == (None, None)
        assert (await infer(ours, numbers(1)))[0] == 200


@pytest.mark.fault("R11")
async def test_a_triton_killed_in_the_middle_of_a_stream_ends_it_with_an_error_of_its_protocol(
    processes: Processes,
) -> None:
    doomed = triton.start(processes, "doomed")
    async with routed(processes, doomed, "tokens") as ours:
        stream = Stream()
        reading = asyncio.create_task(listen(ours, stream, 2000, 0.02))
        await stream.begun.wait()
        doomed.kill()
        await reading
        assert stream.status == 200
        *before, last = stream.events()
        assert all("text_output" in json.loads(event.removeprefix(b"data: ")) for event in before)
        told = json.loads(last.removeprefix(b"data: "))
        assert list(told) == ["error"]
        assert isinstance(told["error"], str)
        assert bytes(stream.body).endswith(b"}\n\n")
        assert b"[DONE]" not in stream.body
        await ours.until(lambda report: report["endpoints"]["doomed-tokens"]["health"] == "ejected")


@pytest.mark.fault("R9")
async def test_a_triton_that_is_drained_and_stopped_finishes_its_streams(processes: Processes) -> None:
    old = triton.start(processes, "old")
    async with routed(processes, old, "tokens") as ours:
        stream = Stream()
        reading = asyncio.create_task(listen(ours, stream, 40, 0.05))
        await stream.begun.wait()
        answer = await tell(ours, old, "tokens", intent="draining")
        assert answer["endpoints"]["old-tokens"] == {"in_flight": 1, "drained": False, "health": "ready"}
        old.terminate()  # not waiting for the drain, which Triton allows where others cut
        await reading
        assert len(stream.events()) == 40
        assert b"error" not in stream.body
        answer = await tell_again(ours, old, "tokens", intent="draining")
        assert answer["endpoints"]["old-tokens"]["drained"] is True
        await eventually(lambda: "given" in old.log("tokens")[-1], "the stream ended in Triton too")
        assert (old.log("tokens")[-1]["given"], old.log("tokens")[-1]["gone"]) == (40, False)
    old.kill()  # it would wait for a while for connections that stay open
