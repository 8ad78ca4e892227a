"""One policy's control loop: read -> observe -> forecast -> decide -> plan -> act -> publish -> tell.

The stages know nothing of each other and meet here. The loop keeps what one tick hands to the next (windows, the
law's state) and nothing else; time comes in with each tick. What it cannot do now (a start that fails, a router that
is silent) it tries again at the next tick, because every tick begins from what there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from autoscaler.actuate.actuator import Actuator
from autoscaler.actuate.plan import plan
from autoscaler.controller.forecasts import Run
from autoscaler.controller.load_steps import LoadSteps
from autoscaler.controller.tick import Tick
from autoscaler.decide.conditions import conditions
from autoscaler.model import (
    Action,
    Applied,
    Command,
    Condition,
    DeciderState,
    Decision,
    Now,
    Replica,
    ReplicaState,
    Sample,
    StartTime,
)
from autoscaler.observe.observation import Windows, fold
from autoscaler.policy import ScalingPolicy
from autoscaler.ports import ForecastSource, History, Law, LoadSource, ReplicaTarget, RouterLink
from autoscaler.settings import DEFAULT_LAW

RECORD_EVERY_S = 60.0
"""An unchanged decision is kept in full this often."""

CARRY_ON_S = 60.0
"""A decision of an earlier controller older than this (and than the scale-down window) says nothing about now."""


class Forecasting(ForecastSource, Protocol):
    """A forecast source that is told of each completed step."""

    def take(self, policy: ScalingPolicy, runs: Sequence[Run], start_times: Mapping[str, StartTime], now: Now) -> None:
        """Steps that are in the history already."""


class Board:
    """The merged table of all policies: each loop puts its replicas here, and every publication carries all of them.

    A policy must be put here (with the replicas it has) before the first publication, or the routers would drop what
    they know of it.
    """

    def __init__(self, link: RouterLink) -> None:
        self._link = link
        self._policies: dict[str, ScalingPolicy] = {}
        self._replicas: dict[str, Sequence[Replica]] = {}
        self._one_at_a_time = asyncio.Lock()

    def put(self, policy: ScalingPolicy, replicas: Sequence[Replica]) -> None:
        """What the next publication says of this policy."""
        self._policies[policy.key] = policy
        self._replicas[policy.key] = replicas

    async def publish(self, now: Now) -> tuple[Mapping[str, bool], Mapping[str, int]]:
        """Send it all; (replica id -> drained everywhere, replica id -> requests in flight)."""
        async with self._one_at_a_time:
            drained = await self._link.publish(tuple(self._policies.values()), dict(self._replicas), now)
            return drained, self._link.in_flight()

    def unacknowledged(self) -> Mapping[str, str]:
        """Routers that did not take the last table, and why."""
        return self._link.unacknowledged()

    async def withdraw(self, now: Now) -> None:
        """For the end, when every replica has gone: the models stay known, so requests are held or refused with a
        reason.
        """
        for key in self._replicas:
            self._replicas[key] = ()
        await self.publish(now)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a loop needs from outside, shared by all loops of a controller."""

    source: LoadSource
    target: ReplicaTarget
    board: Board
    history: History
    forecasts: Forecasting


class ControlLoop:
    """The loop of one policy under one law. Raises `AssertionError` on bugs; the caller backs this policy off then."""

    def __init__(self, policy: ScalingPolicy, world: World, law: Law, law_name: str = DEFAULT_LAW) -> None:
        self.policy = policy
        self._world = world
        self._law = law
        self.law_name = law_name
        self._actuator = Actuator(world.target)
        self._windows = Windows()
        self._state = DeciderState()
        self._steps = LoadSteps(policy.spec.prediction.step_seconds)
        self._recorded: tuple[object, ...] = ()
        self._recorded_s = float("-inf")
        self._ticking = asyncio.Lock()

    async def begin(self, now: Now) -> None:
        """Put what runs already on the board, and carry on from a recent decision, so that a restart lowers nothing."""
        self._world.board.put(self.policy, await self._actuator.replicas(self.policy, now))
        last = self._world.history.last_decision(self.policy.key)
        window_s = max(CARRY_ON_S, self.policy.spec.behavior.scale_down.stabilization_window_seconds)
        if last is None or now.epoch_s - last.epoch_s > window_s:
            return
        desired = last.decision.get("desired")
        if isinstance(desired, int):
            self._state = DeciderState(recommendations=((now.monotonic_s, desired),), last_desired=desired)

    async def tick(self, now: Now) -> Tick:
        """Once around. One tick never overlaps another of the same policy."""
        async with self._ticking:
            return await self._tick(now)

    async def drain_all(self, now: Now) -> bool:
        """For the end: every replica leaves the routers. True once all are drained; call again until then."""
        async with self._ticking:
            replicas = await self._actuator.replicas(self.policy, now)
            await self._actuator.apply(self.policy, [_drain(replica) for replica in replicas], now)
            left = await self._publish(now)
            return all(replica.drained or replica.ready_s is None for replica in left)

    async def _tick(self, now: Now) -> Tick:
        policy, world = self.policy, self._world
        sample = await world.source.read(policy, now)
        before = await self._actuator.replicas(policy, now)
        start_times = self._start_times()
        self._windows, observation = fold(self._windows, sample, before, start_times, policy, now)
        world.forecasts.take(policy, self._remember(sample, now), start_times, now)
        forecast = world.forecasts.latest(policy, now)
        decision = self._law(policy, self._state, observation, forecast, now)
        self._state = decision.next_state
        held = _held(policy, decision)
        commands: tuple[Command, ...] = () if held else plan(policy, decision, observation.replicas)
        applied = await self._actuator.apply(policy, commands, now)
        after = await self._publish(now)
        tick = Tick(
            policy=policy,
            law=self.law_name,
            at=now,
            sample=sample,
            observation=observation,
            forecast=forecast,
            decision=decision,
            applied=applied,
            replicas=_overdue_kept(after, observation.replicas),
            conditions=(
                *conditions(policy, decision, observation, forecast),
                *_refused(applied),
                *_unhealthy(sample, after),
                *_routers_missing(world.board.unacknowledged()),
            ),
            held=held,
        )
        self._record(tick)
        return tick

    async def _publish(self, now: Now) -> tuple[Replica, ...]:
        """Tell the routers, and take in what they answer."""
        self._world.board.put(self.policy, await self._actuator.replicas(self.policy, now))
        drained, in_flight = await self._world.board.publish(now)
        self._actuator.acknowledged(drained, in_flight)
        replicas = await self._actuator.replicas(self.policy, now)
        self._world.board.put(self.policy, replicas)
        return replicas

    def _start_times(self) -> dict[str, StartTime]:
        policy = self.policy
        return {
            variant.name: self._world.history.start_time(policy.key, variant.name, variant.prior)
            for variant in policy.spec.variants
        }

    def _remember(self, sample: Sample | None, now: Now) -> list[Run]:
        """Put the new seconds into the history; the steps they completed. What only some routers saw is no load to
        learn from.
        """
        if sample is None:
            return []
        seconds = tuple(None for _ in sample.arrivals) if sample.routers_missing else sample.arrivals
        runs: list[Run] = list(self._steps.add(seconds, now.epoch_s))
        for first_s, values in runs:
            self._world.history.append_load(self.policy.key, self._steps.step_s, first_s, values)
        return runs

    def _record(self, tick: Tick) -> None:
        """In full when it changed or a minute has passed, else the numbers."""
        decision = tick.decision
        unhealthy = [condition.message for condition in tick.conditions if condition.type == "ReplicasUnhealthy"]
        acted = bool(tick.applied)
        said = (decision.desired, decision.targets, decision.bound_by, decision.valid, tick.held, acted, *unhealthy)
        complete = said != self._recorded or tick.at.monotonic_s - self._recorded_s >= RECORD_EVERY_S
        if complete:
            self._recorded, self._recorded_s = said, tick.at.monotonic_s
        self._world.history.record(tick.record(complete))


def _held(policy: ScalingPolicy, decision: Decision) -> str:
    """Why nothing is done; empty when the decision is to be acted on."""
    if not decision.valid:
        return "the decision is not valid"
    if policy.spec.mode not in ("Auto", "Paused"):  # paused: nothing is decided, but drains under way are finished
        return f"mode {policy.spec.mode} acts on nothing"
    if policy.spec.actuation != "Scale":
        return f"actuation {policy.spec.actuation} leaves acting to another"
    return ""


def _overdue_kept(after: Sequence[Replica], seen: Sequence[Replica]) -> tuple[Replica, ...]:
    """The flag is the observation's; the target does not know it."""
    overdue = {replica.id for replica in seen if replica.overdue}
    return tuple(replace(replica, overdue=True) if replica.id in overdue else replica for replica in after)


def _refused(applied: Sequence[Applied]) -> tuple[Condition, ...]:
    """A condition for what could not be carried out: no device, a crash loop, a program that is missing."""
    details = dict.fromkeys(row.detail for row in applied if not row.done)
    if not details:
        return ()
    return (Condition(type="CommandsFailed", status="True", reason="Refused", message="; ".join(details)),)


def _unhealthy(sample: Sample | None, replicas: Sequence[Replica]) -> tuple[Condition, ...]:
    """A condition for replicas that are ready by their process and useless to the traffic, such as frozen ones."""
    ejected = () if sample is None else sample.unhealthy
    names = [replica.id for replica in replicas if replica.state is ReplicaState.READY and replica.id in ejected]
    if not names:
        return ()
    message = f"{', '.join(names)}: ejected by every router, yet counted as ready; this version does not replace them"
    return (Condition(type="ReplicasUnhealthy", status="True", reason="Ejected", message=message),)


def _routers_missing(unacknowledged: Mapping[str, str]) -> tuple[Condition, ...]:
    """A condition for routers that do not take the table; it says what that means, as nothing else shows it."""
    if not unacknowledged:
        return ()
    names = "; ".join(f"{router}: {why}" for router, why in unacknowledged.items())
    meaning = "drains wait for it until drain.timeoutSeconds, and nothing is scaled down while its load is missing"
    return (Condition(type="RoutersMissing", status="True", reason="NotTaken", message=f"{names} ({meaning})"),)


def _drain(replica: Replica) -> Command:
    return Command(action=Action.DRAIN, variant=replica.variant, replica=replica.id, why="the controller is stopping")
