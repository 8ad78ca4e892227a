"""Timing of several loops: periods, early wakes, back-off of one policy alone, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from autoscaler.controller.loop import Board, ControlLoop, World
from autoscaler.controller.manager import Manager
from autoscaler.controller.tick import Tick
from autoscaler.decide.decider import decide
from autoscaler.model import DeciderState, Decision, Now, Observation, Replica
from autoscaler.policy import ScalingPolicy
from forecasting.forecast import Forecast
from tests.autoscaler.controller_fakes import FakeForecasts, FakeHistory, FakeLink, FakeReplicas, FakeSource
from tests.builders import policy_document


def clock() -> Now:
    now_s = asyncio.get_running_loop().time()
    return Now(monotonic_s=now_s, epoch_s=1_700_000_000 + now_s)


def named(name: str, period_s: float) -> ScalingPolicy:
    document = policy_document(pollingIntervalSeconds=period_s, model=name)
    document["metadata"] = {"name": name}
    return ScalingPolicy.model_validate(document)


class Tellers:
    """Counts ticks and failures; `news` is set at each."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.errors: list[str] = []
        self.news = asyncio.Event()

    def tick(self, tick: Tick) -> None:
        self.done.append(tick.policy.key)
        self.news.set()

    def failed(self, policy: str) -> None:
        self.errors.append(policy)
        self.news.set()


class Store:
    def __init__(self) -> None:
        self.commits = 0
        self.prunes = 0

    async def commit(self) -> None:
        self.commits += 1

    def prune(self, epoch_s: float) -> None:
        self.prunes += 1


class Floor:
    """A manager with the given policies over the fakes; policies called `bad` have a law with a bug."""

    def __init__(self, *policies: ScalingPolicy) -> None:
        self.link = FakeLink()
        self.target = FakeReplicas(start_s=0.0)
        self.tellers = Tellers()
        self.store = Store()
        self.world = World(
            source=FakeSource(),
            target=self.target,
            board=Board(self.link),
            history=FakeHistory(),
            forecasts=FakeForecasts(),
        )
        loops = [ControlLoop(policy, self.world, self.law) for policy in policies]
        self.manager = Manager(loops, self.store, self.tellers, clock)

    def law(
        self, policy: ScalingPolicy, state: DeciderState, seen: Observation, forecast: Forecast | None, now: Now
    ) -> Decision:
        assert policy.key != "bad", "a bug"
        return decide(policy, state, seen, forecast, now)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.tellers.done) < count:
                self.tellers.news.clear()
                await self.tellers.news.wait()


async def test_it_ticks_at_once_wakes_early_and_drains_at_the_end() -> None:
    floor = Floor(named("a", 3600))
    running = asyncio.create_task(floor.manager.run())
    await floor.until(1)
    floor.manager.wake()
    await floor.until(2)
    floor.link.drained = set(floor.target.rows)
    floor.manager.stop()
    await running
    assert floor.tellers.done == ["a", "a"]
    assert floor.store.commits == 2
    assert floor.store.prunes == 1
    assert {name: row.state.value for name, row in floor.target.rows.items()} == {"chat-gpu-1": "draining"}
    assert not floor.manager.hurried


async def test_a_second_stop_does_not_wait_for_the_drain() -> None:
    floor = Floor(named("a", 3600))
    running = asyncio.create_task(floor.manager.run())
    await floor.until(1)
    floor.manager.stop()
    floor.manager.stop()
    async with asyncio.timeout(2):  # far below the bound of the drain
        await running
    assert floor.manager.hurried


async def test_a_failing_policy_backs_off_alone() -> None:
    floor = Floor(named("bad", 0.2), named("good", 0.2))
    running = asyncio.create_task(floor.manager.run())
    await floor.until(4)
    floor.manager.stop()
    floor.manager.stop()
    await running
    assert set(floor.tellers.done) == {"good"}
    assert set(floor.tellers.errors) == {"bad"}
    assert len(floor.tellers.errors) < 4


async def test_every_policy_is_on_the_board_before_the_first_table_is_sent() -> None:
    floor = Floor(named("a", 3600), named("b", 3600))
    running = asyncio.create_task(floor.manager.run())
    await floor.until(2)
    floor.manager.stop()
    floor.manager.stop()
    await running
    assert all(set(table) == {"a", "b"} for table in floor.link.published)


async def test_withdrawing_keeps_the_models_and_drops_the_replicas() -> None:
    floor = Floor(named("a", 3600))
    floor.world.board.put(named("a", 3600), (await floor.target.start(named("a", 3600), "gpu", False, clock()),))
    await floor.world.board.withdraw(clock())
    last: Mapping[str, Sequence[Replica]] = floor.link.published[-1]
    assert dict(last) == {"a": ()}


async def test_only_our_own_law_is_woken_early() -> None:
    """Others are compared as they are: an HPA syncs by its period."""
    floor = Floor(named("a", 3600), named("b", 3600))
    other = ControlLoop(named("b", 3600), floor.world, floor.law, "hpa")
    ours = ControlLoop(named("a", 3600), floor.world, floor.law)
    manager = Manager([other, ours], floor.store, floor.tellers, clock)
    running = asyncio.create_task(manager.run())
    await floor.until(2)
    for count in (3, 4):
        manager.wake()
        await floor.until(count)
    manager.stop()
    manager.stop()
    async with asyncio.timeout(2):
        await running
    assert floor.tellers.done.count("b") == 1
