"""`tidegate backtest` from its arguments to its files and exit codes."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import tidegate
from loadtests.backtest_cli import parse_slice
from loadtests.backtest_load import load_of
from loadtests.backtest_score import BacktestError, missed_gates, parse_gates
from tests.loadtests.backtest_loads import daily, rates

POLICY = """
apiVersion: tidegate.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: mine}
spec:
  model: m
  prediction: {seasonsSeconds: [], minHistorySeconds: 1800, quantile: QUANTILE}
  variants:
  - {name: gpu, scaleTargetRef: {name: x}, capacity: 40, costPerHour: 4.1, maxReplicas: 200,
     startTime: {p50Seconds: 90, p90Seconds: 120}}
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "load.csv"
    minutes = daily(3.0).rate_per_s.reshape(-1, 4).mean(axis=1)
    rows = [f"{60 * place},{value:.4f},{place not in (50, 51)}" for place, value in enumerate(minutes)]
    path.write_text("\n".join(["t_s,rate,valid", *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(POLICY.replace("QUANTILE", "0.95"), encoding="utf-8")
    return path


def run(tmp_path: Path, *words: object) -> int:
    out = ("--out", tmp_path / "out", "--cache", tmp_path / "cache")
    return tidegate.main(["backtest", *map(str, (*words, *out))])


def card(tmp_path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((tmp_path / "out" / "scorecard.json").read_text(encoding="utf-8"))
    return document


def test_a_whole_backtest(trace: Path, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gate = "late<=100%, regret<=9, attainment>0"
    assert run(tmp_path, "--trace", trace, "--policy", mine, "--start-time-s", 90, "--gate", gate) == 0
    printed = capsys.readouterr()
    assert "late requests" in printed.out
    assert printed.err == ""
    document = card(tmp_path)
    assert [entry["law"] for entry in document["runs"]] == ["tidegate", "hpa"]
    for entry in document["runs"]:
        assert entry["requests"] == entry["answered"] + entry["refused"] + entry["failed"] + entry["lost"]
        assert entry["regret"] == pytest.approx(entry["gpu_hours"] / entry["clairvoyant_gpu_hours"])
        assert entry["attainment"] == pytest.approx(1 - entry["late_fraction"])
        assert entry["ttft_p50_s"] is None
        assert entry["cost"] == pytest.approx(4.1 * entry["gpu_hours"])
    world = document["world"]
    assert (world["start_time_s"], world["replicas_mean"]) == (90.0, pytest.approx(20.0))
    assert world["steps_not_seen"] == 8
    for law in ("tidegate", "hpa"):
        check_timeline(tmp_path / "out" / f"timeline.{law}.csv", document, law)
    check_page(tmp_path / "out" / "report.html")


def check_timeline(path: Path, document: dict[str, Any], law: str) -> None:
    """The timeline holds what the scorecard was made of."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["t_s", "demand", "ready", "starting", "standby", "sleeping", "draining", "desired", "late"]
    entry = next(entry for entry in document["runs"] if entry["law"] == law)
    judged = [row for row in rows if float(row["t_s"]) >= document["world"]["judged_from_s"]]
    paid = sum(int(row["ready"]) + int(row["starting"]) + int(row["standby"]) for row in judged)
    assert paid * 15 / 3600 == pytest.approx(entry["gpu_hours"])
    late = sum(float(row["late"]) for row in judged)
    assert late == pytest.approx(entry["late_fraction"] * entry["requests"], rel=1e-3, abs=1.0)
    assert sum(float(row["demand"]) for row in judged) / len(judged) == pytest.approx(20.0, rel=1e-4)


def check_page(path: Path) -> None:
    """Whole, small and offline."""
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < 8_000_000
    head = text[: text.index("<script>")] + text[text.rindex("</script>") :]
    assert not re.search(r"(?:src|href)\s*=", head)
    assert "Lateness against cost" in text
    assert "needs" in text


def test_the_same_seed_gives_the_same_files(trace: Path, mine: Path, tmp_path: Path) -> None:
    made = []
    for _ in range(2):
        assert run(tmp_path, "--trace", trace, "--policy", mine, "--seed", 3) == 0
        made.append([(tmp_path / "out" / name).read_bytes() for name in ("scorecard.json", "timeline.tidegate.csv")])
    assert made[0] == made[1]
    assert run(tmp_path, "--trace", trace, "--policy", mine, "--seed", 4) == 0
    assert (tmp_path / "out" / "scorecard.json").read_bytes() != made[0][0]


def test_a_missed_gate_is_named(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--trace", trace, "--laws", "hpa", "--gate", "late<=90%,regret<=0.5,replicas_max<3")
    assert run(tmp_path, *words) == 1
    out = capsys.readouterr().out
    assert len(re.findall("gate missed by hpa", out)) == 2
    assert re.search(r"gate missed by hpa: regret<=0\.5, but regret is 1\.", out)


def test_json_is_the_scorecard(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--trace", trace, "--laws", "hpa,static_peak", "--json") == 0
    assert json.loads(capsys.readouterr().out) == card(tmp_path)


def test_a_sweep_finds_the_best_point_of_each_law(trace: Path, tmp_path: Path) -> None:
    assert run(tmp_path, "--trace", trace, "--slice", "1h:3h", "--laws", "keda", "--sweep") == 0
    sweep = card(tmp_path)["sweeps"]["keda"]
    assert sweep["ask_late_fraction"] == pytest.approx(0.005)
    assert sweep["best"]["late_fraction"] <= 0.005
    assert {row["value"] for row in sweep["pareto"]} <= {row["value"] for row in sweep["points"]}


def test_two_policies_are_compared_and_the_second_is_gated(
    trace: Path, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    safer = tmp_path / "safer.yaml"
    safer.write_text(POLICY.replace("QUANTILE", "0.99"), encoding="utf-8")
    assert run(tmp_path, "--trace", trace, "--compare", mine, safer, "--gate", "regret<0.1") == 1
    assert "gate missed by safer" in capsys.readouterr().out
    labels = [entry["law"] for entry in card(tmp_path)["runs"]]
    assert labels == ["mine", "safer"]
    assert (tmp_path / "out" / "timeline.safer.csv").exists()


def test_an_earlier_output_is_compared_with(trace: Path, mine: Path, tmp_path: Path) -> None:
    assert run(tmp_path, "--trace", trace, "--policy", mine, "--laws", "tidegate") == 0
    before = card(tmp_path)["runs"][0]
    (tmp_path / "out").rename(tmp_path / "before")
    assert run(tmp_path, "--trace", trace, "--compare", tmp_path / "before", mine) == 0
    old, new = card(tmp_path)["runs"]
    assert {**old, "law": ""} == {**before, "law": ""}
    assert new["late_fraction"] == old["late_fraction"]
    assert run(tmp_path, "--trace", trace, "--seed", 2, "--compare", tmp_path / "before", mine) == 2


BAD: list[tuple[str, str, str]] = [
    ("", "load.csv: empty", ""),
    ("t_s,rate\n", "0 usable rows", ""),
    ("t_s,rate\n0,4\n", "1 usable rows", ""),
    ("arrival_s,input_tokens,output_tokens\n1,2,3\n", "1 request", ""),
    ("t_s,rate\n0,4\n120,4\n60,4\n", "line 4: t_s 60 is not after the previous one", ""),
    ("t_s,rate\n0,4\n60,-4\n", "line 3: load -4.0; allowed is", ""),
    ("t_s,rate\n0,4\n60,nan\n", "line 3: rate is NaN on a valid row", ""),
    ("when,howmuch\n0,4\n60,4\n", "found columns when, howmuch", ""),
    ("t_s,rate\n0,0\n600,0\n", "there is no load in the judged span", ""),
    ("t_s,rate\n0,4\n600,4\n", "--judge-from-day", "--judge-from-day=3"),
    ("t_s,rate\n0,4\n600,4\n", "--judge-from-day: -1", "--judge-from-day=-1"),
    ("t_s,rate\n0,4\n600,4\n", "--start-time-s: 0", "--start-time-s=0"),
    ("t_s,rate\n0,4\n600,4\n", "--start-time-s: nan", "--start-time-s=nan"),
    ("t_s,rate\n0,4\n600,4\n", "--scale: -2", "--scale=-2"),
    ("t_s,rate\n0,4\n600,4\n", "--replicas-mean: many", "--replicas-mean=many"),
    ("t_s,rate\n0,4\n600,4\n", "--slice: '4d'", "--slice=4d"),
    ("t_s,rate\n0,4\n600,4\n", "--slice: '3h:2h'", "--slice=3h:2h"),
    ("t_s,rate\n0,4\n600,4\n", "leaves less than two steps", "--slice=4h:"),
    ("t_s,rate\n0,4\n600,4\n", "'hpaa' is not known", "--laws=hpaa"),
    ("t_s,rate\n0,4\n600,4\n", "none named", "--laws=,"),
    ("t_s,rate\n0,4\n600,4\n", "'late=1' is no comparison", "--gate=late=1"),
    ("t_s,rate\n0,4\n600,4\n", "'' is no comparison", "--gate="),
    ("t_s,rate\n0,4\n600,4\n", "'speed<=1' is no comparison", "--gate=late<=1%,speed<=1"),
    ("t_s,rate\n0,4\n600,4\n", "cost is not known", "--gate=cost<=1"),
]


@pytest.mark.parametrize(("text", "message", "option"), BAD, ids=[message for _, message, _ in BAD])
def test_bad_input_is_one_line_and_exit_2(
    text: str, message: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "load.csv"
    path.write_text(text, encoding="utf-8")
    assert run(tmp_path, "--trace", path, *([option] if option else [])) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_overlapping_files_and_absent_ones(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--trace", trace, "--trace", trace) == 2
    assert "files of one load must not overlap" in capsys.readouterr().err
    assert run(tmp_path, "--trace", tmp_path / "none.csv") == 2
    assert "none.csv: cannot be read" in capsys.readouterr().err
    assert run(tmp_path, "--trace", trace, "--policy", tmp_path / "none.yaml") == 2
    assert "none.yaml" in capsys.readouterr().err
    assert run(tmp_path, "--trace", trace, "--compare", tmp_path, tmp_path) == 2
    assert "no output of an earlier backtest" in capsys.readouterr().err


def test_a_file_of_two_policies(trace: Path, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = POLICY.replace("QUANTILE", "0.9").replace("name: mine", "name: other").replace("model: m", "model: n")
    mine.write_text(mine.read_text(encoding="utf-8") + "---" + other, encoding="utf-8")
    assert run(tmp_path, "--trace", trace, "--policy", mine) == 2
    assert "holds 2 policies" in capsys.readouterr().err


def test_slices_in_any_unit() -> None:
    assert parse_slice("2d:9d") == (172800.0, 777600.0)
    assert parse_slice("36h:") == (129600.0, math.inf)
    assert parse_slice(":90") == (0.0, 90.0)
    assert parse_slice("1m:2.5m") == (60.0, 150.0)
    for text in ("", "1", "5:4", "a:b", "-1:3", "1:2:3", "nan:4", "4:4"):
        with pytest.raises(BacktestError, match="--slice"):
            parse_slice(text)


def test_gates_are_judged_by_their_numbers() -> None:
    entry = {"law": "x", "late_fraction": 0.005, "regret": 1.2, "replicas_max": 30}
    assert missed_gates(parse_gates("late<=0.5%,regret<=1.2,replicas_max<31"), entry) == []
    assert missed_gates(parse_gates("late<0.5%"), entry) == [
        "gate missed by x: late<0.5%, but late is 0.500%",
    ]
    assert len(missed_gates(parse_gates("late >= 1e-2 , regret>1.2"), entry)) == 2


def test_rates_of_a_file_are_the_rates_of_the_world(trace: Path) -> None:
    from loadtests.trace import read_trace

    minutes = daily(3.0).rate_per_s.reshape(-1, 4).mean(axis=1).round(4)
    minutes[50:52] = math.nan
    assert load_of([read_trace(trace)]).rate_per_s == pytest.approx(load_of([rates(minutes.tolist())]).rate_per_s)
