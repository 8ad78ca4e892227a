"""The control loop among fakes, told as stories in explicit time: one second a tick, starts take ten."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from autoscaler.decide.decider import decide
from autoscaler.model import DeciderState, Decision, Now, Observation, ReplicaState
from autoscaler.policy import ScalingPolicy
from forecasting.forecast import Forecast
from tests.autoscaler.controller_fakes import Story
from tests.builders import EPOCH_S, a_forecast, a_policy, at, variant_document


def story(**spec: Any) -> Story:
    return Story(a_policy(**spec))


async def test_it_starts_with_the_minimum_and_never_orders_twice_for_one_need() -> None:
    told = story()
    told.source.per_s = 35.0
    first = await told.tick()
    assert first.decision.desired == 4
    assert [row.command.action.value for row in first.applied] == ["start"] * 4
    later = await told.ticks(8)
    assert len(told.target.rows) == 4
    assert later.counts() == {"ready": 0, "starting": 4, "standby": 0, "draining": 0, "sleeping": 0}
    ready = await told.ticks(3)
    assert ready.counts()["ready"] == 4


async def test_it_starts_ahead_of_load_that_is_forecast() -> None:
    told = story()
    told.source.per_s = 5.0
    await told.ticks(15)
    assert len(told.target.rows) == 1
    told.forecasts.maximum = 28.0
    ahead = await told.tick()
    assert ahead.decision.desired == 3
    assert ahead.counts() == {"ready": 1, "starting": 2, "standby": 0, "draining": 0, "sleeping": 0}
    row = ahead.forecast_row()
    assert row is not None
    assert (row["horizon_s"], row["need"]) == (13.0, 28.0)  # P90 of the start and a tick


async def four_ready() -> Story:
    told = story()
    told.source.per_s = 35.0
    await told.ticks(13)
    return told


async def quiet(told: Story) -> None:
    """Load falls to a tenth, and the windows have seen it."""
    told.source.per_s = 5.0
    await told.ticks(65)


async def test_it_scales_down_through_the_drain_only() -> None:
    told = await four_ready()
    told.link.counts = dict.fromkeys(told.target.rows, 1)
    await quiet(told)
    assert told.target.stopped == []
    draining = [r for r in told.link.published[-1]["chat"] if r.state is ReplicaState.DRAINING]
    assert len(draining) == 3
    told.link.drained = {draining[0].id}
    await told.tick()  # its answer says drained
    await told.tick()  # so now it may be stopped
    assert told.target.stopped == [draining[0].id]
    told.link.drained = {r.id for r in draining}
    await told.ticks(2)
    assert sorted(told.target.stopped) == sorted(r.id for r in draining)


async def test_a_draining_replica_is_called_back_before_another_is_started() -> None:
    told = await four_ready()
    await quiet(told)
    told.source.per_s = 39.0
    back = await told.ticks(60)
    assert back.counts()["ready"] == 4
    assert len(told.target.rows) == 4
    assert told.target.stopped == []


async def test_a_drain_that_does_not_end_is_bounded() -> None:
    told = Story(a_policy(drain={"timeoutSeconds": 30}))
    told.source.per_s = 35.0
    await told.ticks(13)
    await quiet(told)
    since_s = {r.id: r.draining_s for r in told.link.published[-1]["chat"] if r.draining_s is not None}
    assert since_s
    await told.ticks(40)
    assert set(told.target.stopped) == set(since_s)


async def test_a_crash_is_replaced_at_the_next_tick() -> None:
    told = await four_ready()
    told.target.crash("chat-gpu-2")
    tick = await told.tick()
    assert [(row.command.action.value, row.detail) for row in tick.applied] == [("start", "chat-gpu-5")]
    assert tick.counts()["ready"] == 3
    assert (await told.ticks(11)).counts()["ready"] == 4


async def test_a_silent_router_holds_everything() -> None:
    told = await four_ready()
    told.source.per_s = None
    silent = await told.ticks(120)
    assert silent.decision.desired == 4
    assert silent.counts()["ready"] == 4
    assert not silent.observation.trusted
    assert any("no load report" in gap for gap in silent.observation.gaps)
    assert {c.type: c.status for c in silent.conditions}["MetricsTrusted"] == "False"
    assert told.target.stopped == []


async def test_a_true_zero_scales_down() -> None:
    told = await four_ready()
    told.source.per_s = 0.0
    await told.ticks(65)
    assert (await told.tick()).decision.desired == 1


async def test_seconds_that_a_router_missed_are_no_load_to_learn_from() -> None:
    told = story(prediction={"stepSeconds": 1})
    told.source.per_s = 3.0
    await told.ticks(2)
    told.source.fields = {"routers_missing": ("http://b",)}
    await told.ticks(2)
    newest = sorted(told.history.series)[-4:]
    assert [told.history.series[second] for second in newest] == [3.0, 3.0, None, None]
    assert newest[-1] == EPOCH_S + told.now_s - 1


async def test_a_restart_lowers_nothing_and_carries_on() -> None:
    told = Story(a_policy(behavior={"scaleDown": {"stabilizationWindowSeconds": 30}}))
    told.source.per_s = 35.0
    await told.ticks(13)
    told.source.per_s = 1.0  # the new controller sees no more than this, over its whole window
    told.loop = told.a_loop()
    await told.loop.begin(at(told.now_s))
    first = await told.tick()
    assert first.decision.desired == 4
    assert (await told.ticks(10)).decision.desired == 4
    assert (await told.ticks(30)).decision.desired == 1


async def test_a_decision_of_long_ago_says_nothing_about_now() -> None:
    told = await four_ready()
    told.target.rows.clear()
    told.source.per_s = 1.0
    told.now_s += 3600
    told.loop = told.a_loop()
    await told.loop.begin(at(told.now_s))
    assert (await told.tick()).decision.desired == 1


async def test_a_start_that_is_refused_is_said_and_tried_again() -> None:
    told = story()
    told.target.broken = True
    tick = await told.tick()
    assert [row.done for row in tick.applied] == [False]
    assert "no free device" in {c.type: c.message for c in tick.conditions}["CommandsFailed"]
    told.target.broken = False
    assert (await told.tick()).counts()["starting"] == 1


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"mode": "Advise"}, "mode Advise"),
        ({"mode": "Observe"}, "not valid"),
        ({"actuation": "External"}, "actuation External"),
    ],
)
async def test_only_auto_acts(spec: dict[str, object], reason: str) -> None:
    told = story(**spec)
    told.source.per_s = 35.0
    tick = await told.ticks(3)
    assert reason in tick.held
    assert told.target.rows == {}
    assert told.link.published  # the model is known to the routers all the same


async def test_standby_is_started_apart_and_promoted_when_load_comes() -> None:
    told = Story(a_policy(warmPool={"standby": 1}))
    told.source.per_s = 5.0
    warm = await told.ticks(13)
    assert warm.counts() == {"ready": 1, "starting": 0, "standby": 1, "draining": 0, "sleeping": 0}
    told.source.per_s = 15.0
    for _ in range(60):
        tick = await told.tick()
        if tick.counts()["ready"] == 2:
            break
    assert tick.counts()["starting"] == 1  # the next standby


async def test_devices_of_two_variants_are_planned_apart() -> None:
    told = Story(a_policy([variant_document("a", minReplicas=1), variant_document("b", minReplicas=1)]))
    await told.tick()
    assert sorted(row.variant for row in told.target.rows.values()) == ["a", "b"]


async def test_the_end_drains_everything_first() -> None:
    told = await four_ready()
    assert not await told.loop.drain_all(at(told.now_s))
    assert all(r.state is ReplicaState.DRAINING for r in told.link.published[-1]["chat"])
    told.link.drained = set(told.target.rows)
    assert await told.loop.drain_all(at(told.now_s + 1))
    assert told.target.stopped == []


async def test_decisions_are_kept_in_full_when_they_change_and_once_a_minute() -> None:
    told = story()
    told.source.per_s = 5.0
    await told.ticks(130)
    full = [record.epoch_s - EPOCH_S for record in told.history.records if record.inputs is not None]
    assert len(told.history.records) == 130
    assert full[0] == 101.0
    assert 3 <= len(full) <= 8
    assert all(later - earlier <= 60 for earlier, later in pairwise(full))


async def test_what_is_shown_of_the_forecast_is_what_was_decided_by() -> None:
    """The forecast was made a while ago: its window began then, the decision's begins now."""
    told = story(prediction={"quantile": 0.9})
    told.source.per_s = 1.0
    rising = {"horizons_s": (13.0, 53.0, 93.0), "window_max": ((1.0, 2.0, 3.0), (5.0, 41.0, 60.0), (9.0, 80.0, 90.0))}
    told.forecasts.fixed = a_forecast(0.0, at(told.now_s - 39), **rising)
    tick = await told.tick()
    row, record = tick.forecast_row(), told.history.records[-1]
    assert row is not None
    assert (row["horizon_s"], row["p50"], row["p90"], row["need"], row["age_s"]) == (13.0, 5.0, 41.0, 41.0, 40.0)
    assert (tick.decision.need, tick.decision.desired) == (41.0, 5)
    assert record.inputs is not None
    assert record.inputs["forecast"] == row


async def test_a_law_that_looks_at_no_forecast_shows_none() -> None:
    told = story()
    told.source.per_s = 1.0
    told.forecasts.maximum = 28.0
    told.law = unforeseeing
    told.loop = told.a_loop()
    assert (await told.tick()).forecast_row() is None


def unforeseeing(
    policy: ScalingPolicy, state: DeciderState, seen: Observation, forecast: Forecast | None, now: Now
) -> Decision:
    return decide(policy, state, seen, None, now)


async def test_a_restart_while_paused_leaves_every_replica_what_it_was() -> None:
    told = Story(a_policy(warmPool={"standby": 1}))
    told.source.per_s = 25.0
    await told.ticks(13)
    told.source.per_s = 5.0
    told.link.drained = set()
    await told.ticks(65)
    told.policy = a_policy(mode="Paused", warmPool={"standby": 1})
    intents = [(r.id, r.state, r.standby, r.draining_s) for r in told.link.published[-1]["chat"]]
    assert {state for _, state, _, _ in intents} == {ReplicaState.READY, ReplicaState.DRAINING}
    assert sum(standby for _, _, standby, _ in intents) == 1
    told.loop = told.a_loop()
    await told.loop.begin(at(told.now_s))
    for _ in range(3):
        await told.tick()
        assert [(r.id, r.state, r.standby, r.draining_s) for r in told.link.published[-1]["chat"]] == intents


async def test_a_router_that_is_missing_is_named_and_a_drain_does_not_wait_for_it_for_ever() -> None:
    told = Story(a_policy(drain={"timeoutSeconds": 30}))
    told.source.per_s = 35.0
    await told.ticks(13)
    await quiet(told)
    assert not [c for c in (await told.tick()).conditions if c.type == "RoutersMissing"]
    told.link.silent = {"http://127.0.0.1:9": "Cannot connect"}
    told.source.fields = {"routers_missing": ("http://127.0.0.1:9",)}
    since_s = min(r.draining_s for r in told.link.published[-1]["chat"] if r.draining_s is not None)
    while told.now_s < since_s + 29:
        tick = await told.tick()
        assert told.target.stopped == []
    (missing,) = [c for c in tick.conditions if c.type == "RoutersMissing"]
    assert missing.message == (
        "http://127.0.0.1:9: Cannot connect (drains wait for it until drain.timeoutSeconds, and nothing is scaled down"
        " while its load is missing)"
    )
    await told.ticks(2)
    assert len(told.target.stopped) == 3


async def test_replicas_that_every_router_has_ejected_are_named_and_nothing_is_done_about_them() -> None:
    told = await four_ready()
    before = await told.tick()
    told.source.fields = {"unhealthy": ("chat-gpu-2", "another-policys-1")}
    tick = await told.tick()
    (found,) = [c for c in tick.conditions if c.type == "ReplicasUnhealthy"]
    assert (found.status, found.reason) == ("True", "Ejected")
    assert "chat-gpu-2" in found.message
    assert "another" not in found.message
    assert (tick.counts(), tick.applied) == (before.counts(), ())
    record = told.history.records[-1]
    assert record.inputs is not None  # kept in full at once, so that `why` shows it
    assert "ReplicasUnhealthy" in str(record.inputs["conditions"])
    told.source.fields = {}
    assert "ReplicasUnhealthy" not in [c.type for c in (await told.tick()).conditions]
