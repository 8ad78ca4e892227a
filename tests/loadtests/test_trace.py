"""Reading traces: every public form, gzip, and what is said about a row that is broken."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from array import array
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadtests.trace import RateTrace, Trace, TraceError, read_trace

AZURE_HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE_2023 = AZURE_HEAD + "2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:08.2945390,396,109\n"
AZURE_2024 = AZURE_HEAD + "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:00.017335+00:00,2399,6\n"
BURSTGPT = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,1,3.2,ChatGPT,472,18,490,Conversation log\n45,,1.0,GPT-4,1087,230,1317,API log\n"
)
BURSTGPT_OLD = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
    '{"timestamp": 3000, "input_length": 7322, "output_length": 490, "hash_ids": [0, 2]}\n'
)
OWN = "arrival_s,input_tokens,output_tokens,session,tenant,model,priority\n0,10,5,s1,t1,m1,2\n1.5,20.0,0,s2,,m2,0\n"


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def requests_of(trace: Trace | RateTrace) -> list[tuple[float, int, int]]:
    assert isinstance(trace, Trace)
    return list(zip(trace.arrival_s, trace.input_tokens, trace.output_tokens, strict=True))


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [
        (AZURE_2023, "azure", [(0.0, 374, 44), (4.314579, 396, 109)]),
        (AZURE_2024, "azure", [(0.0, 2162, 5), (0.007405, 2399, 6)]),
        (BURSTGPT, "burstgpt", [(5.0, 472, 18), (45.0, 1087, 230)]),
        (BURSTGPT_OLD, "burstgpt", [(5.0, 472, 18)]),
        (MOONCAKE, "mooncake", [(0.0, 6758, 500), (3.0, 7322, 490)]),
        (OWN, "requests", [(0.0, 10, 5), (1.5, 20, 0)]),
        ("\ufeff" + OWN.replace("\n", "\r\n"), "requests", [(0.0, 10, 5), (1.5, 20, 0)]),
    ],
)
def test_public_forms_are_recognised_by_their_content(
    tmp_path: Path, text: str, form: str, expected: list[object]
) -> None:
    trace = read_trace(written(tmp_path, text, "anything.bin"))
    assert trace.form == form
    assert [(pytest.approx(at, abs=1e-6), *tokens) for at, *tokens in requests_of(trace)] == expected


def test_gzip_is_recognised_by_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "no-suffix"
    path.write_bytes(gzip.compress(MOONCAKE.encode()))
    assert requests_of(read_trace(path)) == [(0.0, 6758, 500), (3.0, 7322, 490)]


def test_optional_columns_are_kept(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, OWN))
    assert isinstance(trace, Trace)
    assert (trace.session, trace.tenant, trace.model, trace.priority) == (
        ["s1", "s2"],
        ["t1", ""],
        ["m1", "m2"],
        [2, 0],
    )
    burst = read_trace(written(tmp_path, BURSTGPT))
    assert isinstance(burst, Trace)
    assert (burst.session, burst.model, burst.tenant) == (["1", ""], ["ChatGPT", "GPT-4"], None)


def test_parquet_ignores_columns_it_does_not_know(tmp_path: Path) -> None:
    table = pa.table(
        {"arrival_s": [0.0, 2.0], "input_tokens": [7, 8], "output_tokens": [1, 2], "hash_ids": [[1], [2, 3]]}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    assert requests_of(read_trace(tmp_path / "t.parquet")) == [(0.0, 7, 1), (2.0, 8, 2)]


@pytest.mark.parametrize("name", ["rates.csv", "rates.parquet"])
def test_rates_come_onto_a_grid_and_gaps_are_not_zero(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("csv"):
        path.write_text("t_s,count,valid\n0,60,true\n60,0,true\n120,0,false\n240,30,1\n", encoding="utf-8")
    else:
        columns = {"t_s": [0, 60, 120, 240], "count": [60, 0, 0, 30], "valid": [True, True, False, True]}
        pq.write_table(pa.table(columns), path)
    trace = read_trace(path)
    assert isinstance(trace, RateTrace)
    assert (trace.step_s, list(trace.t_s), bytes(trace.valid)) == (60.0, [0, 60, 120, 180, 240], b"\1\1\0\0\1")
    assert [rate for rate in trace.rate_per_s if not math.isnan(rate)] == [1.0, 0.0, 0.5]
    assert all(math.isnan(rate) == (not valid) for rate, valid in zip(trace.rate_per_s, trace.valid, strict=True))


def test_prometheus_range_answer(tmp_path: Path) -> None:
    values = [[1700000000, "2.5"], [1700000015, "NaN"], [1700000030, "0"]]
    document = {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "values": values}]}}
    trace = read_trace(written(tmp_path, json.dumps(document, indent=1)))
    assert isinstance(trace, RateTrace)
    assert (trace.form, trace.step_s, list(trace.t_s)) == ("prometheus", 15.0, [0.0, 15.0, 30.0])
    assert (trace.rate_per_s[0], bytes(trace.valid)) == (2.5, b"\1\0\1")
    document["data"]["result"] *= 2  # type: ignore[index]  # a literal's type is too narrow for this
    with pytest.raises(TraceError, match="2 series; allowed is one"):
        read_trace(written(tmp_path, json.dumps(document)))


@pytest.mark.parametrize(
    ("row", "line", "reason"),
    [
        ("3,abc,1", 3, "'abc' is not a number"),
        ("3,1.5,1", 3, "'1.5' is not a whole number"),
        ("3,-4,1", 3, "input tokens -4; allowed is a whole number >= 0"),
        ("3,4,-1", 3, "output tokens -1"),
        ("nan,4,1", 3, "'nan' is not a finite number"),
        ("inf,4,1", 3, "'inf' is not a finite number"),
        ("-1,4,1", 3, "arrival time -1.0; allowed is a finite number of seconds >= 0"),
        ("0.5,4,1", 3, "is before the previous one (1.000000 s); sort the file"),
        ("3,4", 3, "2 cells where the header has 3"),
        ("3,,1", 3, "'' is not a number"),
    ],
)
def test_a_broken_row_is_named_or_counted(tmp_path: Path, row: str, line: int, reason: str) -> None:
    path = written(tmp_path, f"arrival_s,input_tokens,output_tokens\n1,1,1\n{row}\n4,2,2\n")
    with pytest.raises(TraceError) as refused:
        read_trace(path)
    assert str(refused.value).startswith(f"{path}, line {line}: ")
    assert reason in str(refused.value)
    assert refused.value.exit_code == 2
    trace = read_trace(path, skip_bad_rows=True)
    assert (requests_of(trace), trace.bad_rows) == ([(1.0, 1, 1), (4.0, 2, 2)], 1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (MOONCAKE + "not json\n", "line 3: not a JSON object"),
        (MOONCAKE + '{"timestamp": 4000, "input_length": 1}\n', "line 3: output_length is missing"),
        (MOONCAKE + '{"timestamp": 4000, "input_length": null, "output_length": 3}\n', "line 3: None is not a number"),
        (AZURE_2023 + "yesterday,1,1\n", "line 4: 'yesterday' is not a date and time"),
        ("t_s,count\n0,1\n60,-2\n", "line 3: load -2.0; allowed is a finite number >= 0"),
        ("t_s,count\n0,1\n60,nan\n", "line 3: count is NaN on a valid row; say valid = false for a gap"),
        ("t_s,rate\n0,1\n0,2\n", "line 3: t_s 0 is not after the previous one (0)"),
        ("t_s,rate\n0,1\n60,2\n85,1\n", "t_s 60 does not lie on the grid of 25 s steps from 0"),
        ("t_s,rate\n0,1\n", "1 usable rows; a trace of rates needs two"),
        ("t_s,rate,count\n0,1,1\n", "rates need t_s and one of count and rate"),
        ("arrival_s,input_tokens,output_tokens\n", "no requests in it"),
        ("a,b\n1,2\n", "found columns a, b; allowed: arrival_s,input_tokens,output_tokens"),
        ("", "empty"),
        (" \n", "empty"),
        ("{\n", "neither one JSON document nor JSON lines"),
        ('{"status": "error", "error": "query timed out"}', "Prometheus answered with an error: query timed out"),
        ('{"a": 1}', "no data.result of type matrix"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path: Path, text: str, reason: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TraceError) as refused:
        read_trace(path)
    assert str(path) in str(refused.value)
    assert reason in str(refused.value)


def test_files_that_are_no_trace_at_all(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file or directory"):
        read_trace(tmp_path / "missing.csv")
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00\x01" * 10)
    with pytest.raises(TraceError, match="neither text in UTF-8 nor Parquet"):
        read_trace(binary)
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(OWN.encode() * 50)[:60])
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(cut)
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1" + b"\0" * 40)
    with pytest.raises(TraceError, match="broken Parquet"):
        read_trace(broken)


def test_a_form_can_be_said_and_is_then_held_to(tmp_path: Path) -> None:
    assert read_trace(written(tmp_path, OWN), form="requests").form == "requests"
    with pytest.raises(TraceError, match="azure needs TIMESTAMP, ContextTokens, GeneratedTokens too"):
        read_trace(written(tmp_path, OWN), form="azure")
    with pytest.raises(TraceError, match=r"trace format 'zipkin'; allowed: azure, burstgpt, mooncake, requests, rates"):
        read_trace(written(tmp_path, OWN), form="zipkin")
    with pytest.raises(TraceError, match="not JSON"):
        read_trace(written(tmp_path, OWN), form="prometheus")


def test_slice_scale_and_first() -> None:
    trace = Trace(
        arrival_s=array("d", [0, 1, 2, 3]),
        input_tokens=array("q", [1, 2, 3, 4]),
        output_tokens=array("q", [5, 6, 7, 8]),
        session=["a", "b", "c", "d"],
    )
    part = trace.slice(1.0, 3.0)
    assert (requests_of(part), part.session) == ([(0.0, 2, 6), (1.0, 3, 7)], ["b", "c"])
    assert list(trace.scale(2.0).arrival_s) == [0.0, 0.5, 1.0, 1.5]
    assert (len(trace.first(3)), len(trace.first(9)), trace.duration_s) == (3, 4, 3.0)
    with pytest.raises(TraceError, match="speed: 0"):
        trace.scale(0)
    rates = RateTrace(
        step_s=60.0, t_s=array("d", [0, 60, 120]), rate_per_s=array("d", [1, 2, 3]), valid=bytearray(b"\1\1\1")
    )
    fast = rates.slice(60.0).scale(60.0)
    assert (fast.step_s, list(fast.t_s), list(fast.rate_per_s), fast.duration_s) == (1.0, [0, 1], [120, 180], 2.0)


def test_reading_text_needs_neither_numpy_nor_pyarrow(tmp_path: Path) -> None:
    path = written(tmp_path, AZURE_2023)
    program = (
        "import sys\nsys.modules['numpy'] = sys.modules['pyarrow'] = None\n"
        "from loadtests.trace import TraceError, read_trace\n"
        f"print(len(read_trace({str(path)!r})))\n"
        f"open({str(tmp_path / 'p')!r}, 'wb').write(b'PAR1')\n"
        f"try: read_trace({str(tmp_path / 'p')!r})\nexcept TraceError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[0] == "2"
    assert "pip install 'tidegate[report]'" in done.stdout
