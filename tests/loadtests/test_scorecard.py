"""The score, definition by definition."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtests.replay import Outcome
from loadtests.scorecard import (
    FleetScore,
    ReplicaLife,
    Slo,
    Window,
    flap_times,
    flaps,
    fleet_score,
    gpu_hours,
    late_fraction,
    percentile,
    replicas_max,
    run_score,
    scorecard,
    write_scorecard,
)

KEYS = [
    *("law", "requests", "answered", "refused", "failed", "client_gone", "lost", "attainment", "late_fraction"),
    *("ttft_p50_s", "ttft_p99_s", "gpu_hours", "clairvoyant_gpu_hours", "regret", "flaps_per_hour", "flaps_worst_hour"),
    *("replicas_max", "cost"),
]
HOUR = Window(start_s=0.0, end_s=3600.0)


def outcome(kind: str = "answered", *, queue_s: float | None = 0.0, ttft_s: float | None = 1.0) -> Outcome:
    answered = kind == "answered"
    return Outcome(
        request_id="r",
        planned_s=10.0,
        sent_s=10.0,
        first_byte_s=10.0 + ttft_s if answered and ttft_s is not None else None,
        done_s=12.0,
        status=200 if answered else 0,
        queue_s=queue_s if answered else None,
        tokens=3,
        outcome=kind,
    )


@pytest.mark.parametrize(
    ("outcomes", "slo", "late"),
    [
        ([], Slo(), None),
        ([outcome("client_gone")], Slo(), None),
        ([outcome(queue_s=None)], Slo(), None),
        ([outcome("refused"), outcome("lost")], Slo(), 1.0),
        ([outcome(), outcome(queue_s=5.0)], Slo(), 0.0),
        ([outcome(), outcome(queue_s=5.1)], Slo(), 0.5),
        ([outcome(), outcome("refused"), outcome("failed"), outcome("lost")], Slo(), 0.75),
        ([outcome(), outcome("refused"), outcome("client_gone")], Slo(), 0.5),
        ([outcome(ttft_s=2.0), outcome(ttft_s=2.5)], Slo(ttft_s=2.0), 0.5),
        ([outcome(), outcome(queue_s=None, ttft_s=4.0)], Slo(), None),
        ([outcome(queue_s=5.1), *(outcome(queue_s=None, ttft_s=6.0) for _ in range(99))], Slo(), None),
    ],
)
def test_late(outcomes: list[Outcome], slo: Slo, late: float | None) -> None:
    assert late_fraction(outcomes, slo) == late


@pytest.mark.parametrize(
    ("values", "q", "answer"),
    [
        ([], 0.5, None),
        ([3.0], 0.99, 3.0),
        ([4.0, 1.0, 2.0, 3.0], 0.5, 2.5),
        ([float(n) for n in range(101)], 0.99, 99.0),
    ],
)
def test_percentile(values: list[float], q: float, answer: float | None) -> None:
    assert percentile(values, q) == answer


def test_gpu_hours_count_from_command_to_exit_inside_the_window() -> None:
    lives = [
        ReplicaLife(started_s=-1800.0, gone_s=1800.0),
        ReplicaLife(started_s=1800.0, gone_s=None),
        ReplicaLife(started_s=0.0, gone_s=3600.0, gpu_share=2 / 7),
        ReplicaLife(started_s=-100.0, gone_s=-50.0),
        ReplicaLife(started_s=3600.0),
    ]
    assert gpu_hours(lives, HOUR) == pytest.approx(0.5 + 0.5 + 2 / 7)
    assert replicas_max(lives, HOUR) == 2


def test_replicas_max_does_not_count_a_relay_twice() -> None:
    assert replicas_max([ReplicaLife(started_s=0, gone_s=10), ReplicaLife(started_s=10, gone_s=20)], HOUR) == 1
    assert replicas_max([ReplicaLife(started_s=0, gone_s=11), ReplicaLife(started_s=10, gone_s=20)], HOUR) == 2
    assert replicas_max([], HOUR) == 0


@pytest.mark.parametrize(
    ("totals", "turns"),
    [
        ([], []),
        ([3, 3, 3], []),
        ([1, 2, 2, 3], []),
        ([1, 2, 1], [2.0]),
        ([1, 2, 2, 1, 1, 2], [3.0, 5.0]),
        ([3, 1, 2, 2, 0, 5], [2.0, 4.0, 5.0]),
    ],
)
def test_a_flap_is_a_turn(totals: list[int], turns: list[float]) -> None:
    assert flap_times([(float(at), total) for at, total in enumerate(totals)]) == turns


def test_flaps_as_mean_and_worst_hour() -> None:
    steps = [
        (float(at), total) for at, total in ((0, 1), (100, 2), (200, 1), (3700, 2), (3750, 1), (3790, 2), (7300, 1))
    ]
    assert flap_times(steps) == [200.0, 3700.0, 3750.0, 3790.0, 7300.0]
    assert flaps(steps, Window(start_s=0.0, end_s=7200.0)) == (2.0, 4)
    assert flaps(steps, Window(start_s=3800.0, end_s=7400.0)) == (1.0, 1)
    assert flaps(steps, Window(start_s=150.0, end_s=300.0)) == (24.0, 1)


def test_a_run_that_sees_only_requests_leaves_the_rest_null() -> None:
    run = run_score(None, [outcome(), outcome("lost")], Slo())
    assert list(run) == KEYS
    assert (run["requests"], run["answered"], run["lost"], run["attainment"]) == (2, 1, 1, 0.5)
    unknown = ("law", "gpu_hours", "clairvoyant_gpu_hours", "regret", "flaps_per_hour", "replicas_max", "cost")
    assert all(run[name] is None for name in unknown)
    blind = run_score(None, [outcome(queue_s=None)], Slo())
    assert (blind["late_fraction"], blind["attainment"], blind["ttft_p50_s"]) == (None, None, 1.0)


def test_a_whole_run_and_its_file(tmp_path: Path) -> None:
    desired = [(0.0, 1), (60.0, 2), (1800.0, 1)]
    lives = [ReplicaLife(started_s=0.0), ReplicaLife(started_s=60.0, gone_s=1860.0)]
    fleet = fleet_score(lives, desired, HOUR, clairvoyant_gpu_hours=1.25, price_per_gpu_hour=2.0)
    assert fleet == FleetScore(
        gpu_hours=1.5, clairvoyant_gpu_hours=1.25, flaps_per_hour=1.0, flaps_worst_hour=1, replicas_max=2, cost=3.0
    )
    assert fleet_score(lives, [], HOUR).flaps_per_hour is None
    run = run_score("tidegate", [outcome(ttft_s=0.1 * n) for n in range(1, 102)], Slo(), fleet)
    assert (run["regret"], run["ttft_p50_s"], run["ttft_p99_s"]) == (1.2, pytest.approx(5.1), pytest.approx(10.0))
    path = write_scorecard(tmp_path / "new" / "folder", scorecard("generated", 2, [run], bad_rows=3))
    document = json.loads(path.read_text())
    assert path.name == "scorecard.json"
    assert (document["trace"], document["seed"], document["bad_rows"]) == ("generated", 2, 3)
    assert list(document["runs"][0]) == KEYS


def test_a_window_must_end_after_it_began() -> None:
    with pytest.raises(ValueError, match="later than its start"):
        Window(start_s=5.0, end_s=5.0)
