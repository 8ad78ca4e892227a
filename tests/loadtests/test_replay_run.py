"""`tidegate replay` as a user runs it: what it prints, writes and exits with."""

from __future__ import annotations

import asyncio
import csv
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from aiohttp import web

import tidegate

BODY = {"choices": [{"message": {"content": "hi"}}], "usage": {"completion_tokens": 1}}


class ServerInThread:
    """An OpenAI-compatible server with its own loop in a thread; `models` and `hangs` may be changed while it runs."""

    def __init__(self) -> None:
        self.models = ["only"]
        self.hangs = 0
        self.asked: list[dict[str, Any]] = []
        self.url = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> ServerInThread:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        app = web.Application(client_max_size=2**24)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _models(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": name} for name in self.models]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        if len(self.asked) <= self.hangs:
            await asyncio.sleep(30)
        return web.json_response(BODY, headers={"server-timing": "queue;dur=3"})


@pytest.fixture
def server() -> Iterator[ServerInThread]:
    with ServerInThread() as running:
        yield running


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = "".join(f"{100 + number / 10},{number + 1},2\n" for number in range(8))
    path.write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    return path


def replay(trace: Path, url: str, *more: str) -> int:
    out = str(trace.parent / "out")
    return tidegate.main(["replay", "--trace", str(trace), "--url", url, "--out", out, "--speed", "10", *more])


def test_a_replay_writes_requests_and_score(
    server: ServerInThread, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(trace, server.url) == 0
    printed = capsys.readouterr().out
    assert "answered" in printed
    assert "100.00%" in printed
    (run,) = json.loads((trace.parent / "out" / "scorecard.json").read_text())["runs"]
    assert (run["requests"], run["answered"], run["attainment"], run["law"], run["gpu_hours"]) == (
        8,
        8,
        1.0,
        None,
        None,
    )
    rows = pq.read_table(trace.parent / "out" / "requests.parquet").to_pylist()
    assert [row["planned_s"] for row in rows] == [pytest.approx(number / 100) for number in range(8)]
    assert {row["outcome"] for row in rows} == {"answered"}
    assert {row["queue_s"] for row in rows} == {0.003}
    assert {body["model"] for body in server.asked} == {"only"}
    assert sorted(len(body["messages"][0]["content"].split()) for body in server.asked) == list(range(1, 9))


def test_limit_model_json_and_csv_without_pyarrow(
    server: ServerInThread, trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert replay(trace, server.url, "--limit", "3", "--model", "mine", "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["requests"] == 3
    assert {body["model"] for body in server.asked} == {"mine"}
    with (trace.parent / "out" / "requests.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["outcome"], row["status"]) for row in rows] == [("answered", "200")] * 3
    assert replay(trace, server.url, "--limit", "1") == 0
    assert "install tidegate[report] for Parquet" in capsys.readouterr().out


def test_a_lost_request_fails_the_run(server: ServerInThread, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.hangs = 1
    assert replay(trace, server.url, "--timeout-s", "1.5") == 1
    printed = capsys.readouterr().out
    assert "1 x no end within 1.5 s" in printed
    (run,) = json.loads((trace.parent / "out" / "scorecard.json").read_text())["runs"]
    assert (run["lost"], run["attainment"]) == (1, 1 - 1 / 8)


def test_rates_are_played_as_arrivals_and_bad_rows_are_counted(
    server: ServerInThread, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("t_s,count\n0,20\n1,20\nbroken,1\n2,20\n")
    assert replay(path, server.url, "--seed", "4", "--skip-bad-rows") == 0
    document = json.loads((tmp_path / "out" / "scorecard.json").read_text())
    assert (document["bad_rows"], document["seed"]) == (1, 4)
    assert 30 <= document["runs"][0]["requests"] <= 90
    capsys.readouterr()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--speed", "0"], "--speed: 0.0; allowed is a finite number above 0"),
        (["--timeout-s", "nan"], "--timeout-s: nan"),
        (["--limit", "0"], "--limit: 0; allowed is 1 or more"),
        (["--url", "nonsense"], "--url 'nonsense'"),
        (["--url", "http://127.0.0.1:1"], "127.0.0.1:1 cannot be reached"),
        (["--trace", "/nowhere/trace.csv"], "/nowhere/trace.csv: cannot be read: No such file or directory"),
        (["--out", "/dev/null/out"], "--out: /dev/null/out cannot be made: "),
        (["--trace-format", "zipkin"], "trace format 'zipkin'; allowed: azure"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    server: ServerInThread, trace: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert replay(trace, server.url, *more) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("tidegate replay: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not (trace.parent / "out").exists()


def test_several_models_ask_for_a_name(server: ServerInThread, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.models = ["a", "b"]
    assert replay(trace, server.url) == 2
    assert "--model: " in (err := capsys.readouterr().err)
    assert "has a, b; name one" in err
    server.models = []
    assert replay(trace, server.url) == 0
    assert "model" not in server.asked[-1]
    capsys.readouterr()
