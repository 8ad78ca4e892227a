"""What the control loop needs from the world, as Protocols. `tidegate.py` wires real ones; tests and the simulator wire fakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from autoscaler.model import (
    DeciderState,
    Decision,
    DecisionRecord,
    Now,
    Observation,
    Replica,
    Sample,
    StartTime,
)
from autoscaler.policy import ScalingPolicy
from forecasting.forecast import Forecast

Law = Callable[[ScalingPolicy, DeciderState, Observation, Forecast | None, Now], Decision]
"""`decide()` itself, or another law to compare it with."""


class LoadSource(Protocol):
    """Where load comes from."""

    async def read(self, policy: ScalingPolicy, now: Now) -> Sample | None:
        """The load since the last read, None when no router answered. Never raises for an unreachable router."""


class ReplicaTarget(Protocol):
    """Something that can start and stop replicas: processes here, pods on Kubernetes."""

    async def replicas(self, policy: ScalingPolicy, now: Now) -> tuple[Replica, ...]:
        """All replicas of the policy that are not gone, in order of start."""

    async def start(self, policy: ScalingPolicy, variant: str, standby: bool, now: Now) -> Replica:
        """Start one; returns at once. Raises `ControllerError` when it cannot be started."""

    async def mark(self, policy: ScalingPolicy, replica: str, *, standby: bool, draining: Now | None) -> None:
        """Keep what was decided about one where the next controller finds it: whether it waits unrouted, and since when
        it drains (None = it does not). Shown by `replicas` at once. One that is gone is left alone.
        """

    async def stop(self, policy: ScalingPolicy, replica: str, now: Now) -> None:
        """Stop one: SIGTERM, bound, SIGKILL. Idempotent; returns once the stop is under way."""

    async def close(self) -> None:
        """Stop everything that was started and wait for it."""


class RouterLink(Protocol):
    """Endpoint intents to every router, and its acknowledgements."""

    async def publish(
        self, policies: Sequence[ScalingPolicy], replicas: Mapping[str, Sequence[Replica]], now: Now
    ) -> Mapping[str, bool]:
        """Send the whole merged table to all routers; returns replica id -> drained on every router that is not confirmed gone."""

    def in_flight(self) -> Mapping[str, int]:
        """Requests in flight per replica over all routers, as last acknowledged; a replica nobody spoke of is left out."""

    def unacknowledged(self) -> Mapping[str, str]:
        """Routers that did not take the last table, and why."""


class History(Protocol):
    """What outlives the process."""

    def append_load(self, policy: str, step_s: float, first_epoch_s: float, values: Sequence[float | None]) -> None:
        """Store consecutive steps of arrivals per second; None = gap."""

    def load(self, policy: str, step_s: float, since_epoch_s: float) -> tuple[float, list[float]]:
        """(epoch of the first step, values with NaN for gaps) from `since_epoch_s` on."""

    def add_start_time(self, policy: str, variant: str, seconds: float) -> None:
        """One measured start."""

    def start_time(self, policy: str, variant: str, prior: StartTime) -> StartTime:
        """P50 and P90 of the last starts, blended with the prior while few."""

    def next_replica_number(self, policy: str, variant: str) -> int:
        """A number never given before for this policy and variant."""

    def record(self, record: DecisionRecord) -> None:
        """Append a decision to the journal."""

    def last_decision(self, policy: str | None, before_epoch_s: float | None = None) -> DecisionRecord | None:
        """The newest record (of one policy, at or before a moment), None when there is none."""


class ForecastSource(Protocol):
    """The newest forecast; never fits inside a tick."""

    def latest(self, policy: ScalingPolicy, now: Now) -> Forecast | None:
        """None while there is too little history or prediction is off."""
