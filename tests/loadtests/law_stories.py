"""How the tests of laws tell time: a story calls a law tick by tick as the controller would, a fleet also starts and stops
the replicas that it asks for. Capacity is 10 and service takes 1 s throughout.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from autoscaler.model import DeciderState, Decision, Observation, Replica
from autoscaler.policy import ScalingPolicy
from autoscaler.ports import Law
from tests.builders import a_policy, a_replica, an_observation, at, ready, variant_document

RATES = [{"type": "Percent", "value": 100, "periodSeconds": 15}, {"type": "Pods", "value": 4, "periodSeconds": 15}]
BEHAVIOR = {"scaleUp": {"policies": RATES}, "scaleDown": {"stabilizationWindowSeconds": 300}}


def policy(lowest: int = 1, highest: int = 40, **spec: object) -> ScalingPolicy:
    """One variant of capacity 10 with HPA's own behavior."""
    variants = [variant_document(minReplicas=lowest, maxReplicas=highest)]
    return a_policy(variants, **{"behavior": BEHAVIOR, **spec})


def observed(second: float, load: float | None, replicas: Sequence[Replica], queued: int = 0) -> Observation:
    """`load` requests in flight, arriving at that rate as service takes 1 s; None = unknown."""
    seen = an_observation(at(second), load, replicas)
    return seen if load is None else replace(seen, in_flight=round(load), backlog=queued)


@dataclass
class Story:
    """One law over time. `at(second, load)` is one tick; the replicas ready are those it decided last, unless said."""

    law: Law
    policy: ScalingPolicy = field(default_factory=policy)
    state: DeciderState = field(default_factory=DeciderState)

    def decide(self, second: float, load: float | None, ready_now: int | None = None, queued: int = 0) -> Decision:
        there = (self.state.last_desired or 0) if ready_now is None else ready_now
        seen = observed(second, load, ready(there), queued)
        decision = self.law(self.policy, self.state, seen, None, at(second))
        self.state = decision.next_state
        return decision

    def at(self, second: float, load: float | None, ready_now: int | None = None, queued: int = 0) -> int:
        return self.decide(second, load, ready_now, queued).desired

    def during(self, first: int, last: int, tick: int, load: float | None, ready_now: int | None = None) -> list[int]:
        """The totals at first, first + tick, ... last."""
        return [self.at(second, load, ready_now) for second in range(first, last + 1, tick)]


@dataclass
class Fleet:
    """A world of replicas that are ready `start_s` after their start; the newest is stopped first, at once."""

    story: Story
    start_s: float
    started: list[float] = field(default_factory=list)

    def run(self, load: Callable[[float], float | None], seconds: int, tick: int = 15) -> list[int]:
        """The totals desired, one a tick."""
        totals = []
        for second in range(0, seconds, tick):
            replicas = [
                a_replica(f"r{index}", "ready" if second - since >= self.start_s else "starting", started_s=since)
                for index, since in enumerate(self.started)
            ]
            seen = observed(second, load(second), replicas)
            decision = self.story.law(self.story.policy, self.story.state, seen, None, at(second))
            self.story.state = decision.next_state
            del self.started[decision.desired :]
            self.started += [float(second)] * (decision.desired - len(self.started))
            totals.append(decision.desired)
        return totals


def constant(load: float) -> Callable[[float], float]:
    """The same load at all times."""
    return lambda _: load


def walk(seed: int, steps: int) -> list[float | None]:
    """A rough load with bursts, nights and gaps."""
    rng, load, loads = random.Random(seed), 40.0, list[float | None]()
    for _ in range(steps):
        load = (
            max(0.0, load * rng.uniform(0.8, 1.25) + rng.uniform(-3, 3)) if rng.random() > 0.03 else rng.uniform(0, 300)
        )
        loads.append(None if rng.random() < 0.1 else load)
    return loads
