"""Decision + replicas -> ordered commands: what to do to which replica.

Knows no load and no clock but the decision's own moment; starts nothing. It compares what is wanted with what is
there, so planning again after the commands took effect gives nothing, and a command that got lost is given again. For
each variant:

1. Failed replicas are stopped; they count for nothing, so others are started in their place.
2. Too few routed: call draining replicas back (one that was on standby comes back as such, so it is promoted as well),
   then promote standby, then wait for those that load, and only then start. Too few standby: demote surplus routed
   ones, then call draining ones back, then start.
3. Too many: cancel starts first (nothing is lost but time), then drain ready ones: standby before routed when standby
   is what there is too much of, fewest in flight first, newest first on ties.
4. A draining replica that is not called back is stopped when all routers say drained, or when the drain timeout has
   passed. A ready replica is never stopped without that.

Order of the commands: call back and promote (capacity at once), demote, drain, stop (frees devices), start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autoscaler.model import LOADING, Action, Command, Decision, Replica, ReplicaState, VariantTarget
from autoscaler.policy import ScalingPolicy

_ORDER = (Action.RESURRECT, Action.PROMOTE, Action.DEMOTE, Action.DRAIN, Action.STOP, Action.START)
_NOBODYS = (ReplicaState.STOPPING, ReplicaState.GONE, ReplicaState.SLEEPING)


def plan(policy: ScalingPolicy, decision: Decision, replicas: Sequence[Replica]) -> tuple[Command, ...]:
    """Commands that bring `replicas` to what `decision` wants, in the order to run them; none for a decision that is
    not valid."""
    if not decision.valid:
        return ()
    targets = {target.variant: target for target in decision.targets}
    names = list(dict.fromkeys([*targets, *(item.variant for item in replicas)]))
    commands: list[Command] = []
    for name in names:
        target = targets.get(name, VariantTarget(variant=name, active=0))
        crew = _Crew.of(name, [item for item in replicas if item.variant == name])
        commands += _stop_failed(crew)
        commands += _fill(crew, target)
        commands += _trim(crew, target)
        commands += _finish_drains(crew, policy, decision)
    return tuple(sorted(commands, key=lambda command: _ORDER.index(command.action)))


@dataclass(slots=True, kw_only=True)
class _Crew:
    """The replicas of one variant by what they are, as the commands given so far will leave them."""

    variant: str
    routed: list[Replica] = field(default_factory=list)
    standby: list[Replica] = field(default_factory=list)
    loading: list[Replica] = field(default_factory=list)
    draining: list[Replica] = field(default_factory=list)
    failed: list[Replica] = field(default_factory=list)

    @classmethod
    def of(cls, variant: str, replicas: Sequence[Replica]) -> _Crew:
        """Sort replicas; those that are stopping or gone, or asleep, are left alone."""
        crew = cls(variant=variant)
        for item in replicas:
            if item.state in _NOBODYS:
                continue
            if item.failed:
                crew.failed.append(item)
            elif item.state is ReplicaState.DRAINING:
                crew.draining.append(item)
            elif item.state in LOADING:
                crew.loading.append(item)
            elif item.state is ReplicaState.READY:
                (crew.standby if item.standby else crew.routed).append(item)
        crew.draining.sort(key=_dearest_first)
        crew.standby.sort(key=lambda item: (item.ready_s or 0.0, item.id))
        return crew

    @property
    def present(self) -> int:
        """Those that are there or on their way."""
        return len(self.routed) + len(self.standby) + len(self.loading)

    def command(self, action: Action, replica: Replica, why: str) -> Command:
        """A command for one of them."""
        return Command(action=action, variant=self.variant, replica=replica.id, why=why)


def _stop_failed(crew: _Crew) -> list[Command]:
    return [crew.command(Action.STOP, item, f"failed: {item.why or 'no reason known'}") for item in crew.failed]


def _fill(crew: _Crew, target: VariantTarget) -> list[Command]:
    """Rule 2 of the module's docstring."""
    commands: list[Command] = []
    wanted = target.active + target.standby
    back = min(len(crew.draining), max(target.active - len(crew.routed), wanted - crew.present))
    for _ in range(max(0, back)):
        item = crew.draining.pop(0)
        commands.append(crew.command(Action.RESURRECT, item, f"{wanted} wanted again before it had left"))
        if item.standby and len(crew.routed) >= target.active:
            crew.standby.append(item)
            continue
        crew.routed.append(item)
        if item.standby:
            commands.append(crew.command(Action.PROMOTE, item, f"{target.active} to be routed"))
    for _ in range(min(len(crew.standby), max(0, target.active - len(crew.routed)))):
        item = crew.standby.pop(0)
        crew.routed.append(item)
        commands.append(crew.command(Action.PROMOTE, item, f"{target.active} to be routed"))
    short = min(len(crew.routed) - target.active, target.standby - len(crew.standby))
    for _ in range(max(0, short)):
        item = min(crew.routed, key=_cheapest_first)
        crew.routed.remove(item)
        crew.standby.append(item)
        commands.append(crew.command(Action.DEMOTE, item, f"{target.standby} to wait on standby"))
    missing_active = target.active - len(crew.routed) - sum(not item.standby for item in crew.loading)
    for index in range(wanted - crew.present):
        standby = index >= missing_active
        why = f"{target.active} routed and {target.standby} standby wanted, {crew.present} there or on their way"
        commands.append(Command(action=Action.START, variant=crew.variant, standby=standby, why=why))
    return commands


def _trim(crew: _Crew, target: VariantTarget) -> list[Command]:
    """Rule 3 of the module's docstring."""
    commands: list[Command] = []
    surplus = crew.present - target.active - target.standby
    for item in sorted(crew.loading, key=_least_advanced_first)[: max(0, surplus)]:
        crew.loading.remove(item)
        commands.append(crew.command(Action.STOP, item, "its start is no longer needed"))
    surplus = crew.present - target.active - target.standby
    for _ in range(max(0, surplus)):
        group = crew.standby if len(crew.standby) > target.standby else crew.routed
        item = min(group, key=_cheapest_first)
        group.remove(item)
        commands.append(
            crew.command(Action.DRAIN, item, f"{target.active} routed and {target.standby} standby are enough")
        )
    return commands


def _finish_drains(crew: _Crew, policy: ScalingPolicy, decision: Decision) -> list[Command]:
    """Rule 4 of the module's docstring."""
    commands: list[Command] = []
    timeout_s = policy.spec.drain.timeout_seconds
    for item in crew.draining:
        since_s = decision.at.monotonic_s - item.draining_s if item.draining_s is not None else 0.0
        if item.drained:
            commands.append(crew.command(Action.STOP, item, "drained on every router"))
        elif since_s >= timeout_s:
            commands.append(crew.command(Action.STOP, item, f"still not drained after the timeout of {timeout_s:g} s"))
    return commands


def _load(item: Replica) -> float:
    """Requests in flight; unknown counts as more than any known number."""
    return float("inf") if item.in_flight is None else item.in_flight


def _cheapest_first(item: Replica) -> tuple[float, float, str]:
    """Fewest in flight, then newest: its caches are the coldest."""
    return (_load(item), -item.started_s, item.id)


def _dearest_first(item: Replica) -> tuple[float, float, str]:
    """Most in flight first: it would take longest to leave."""
    return (-_load(item), item.started_s, item.id)


def _least_advanced_first(item: Replica) -> tuple[bool, float, str]:
    """Overdue ones first, then the newest, which has most of its start before it."""
    return (not item.overdue, -item.started_s, item.id)
