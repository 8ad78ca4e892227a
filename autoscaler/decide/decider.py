"""`decide`: the spine. How many replicas of each variant, from what is seen, what is expected, and what is on its way.

A decision is a fold over the named steps of `STEPS`; each takes the proposal of the one before and says what it
changed and why. The result is a value: nothing is started here, equal inputs give equal decisions, and the same
function serves the live controller and the backtest. `tidegate why` tells what it said, out of the history, and does
not decide again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autoscaler.decide.bounds import bounds
from autoscaler.decide.mix import in_words, mix, replicas_for, rooms, spread
from autoscaler.decide.predictive import expected, predictive
from autoscaler.decide.proposal import Proposal, Situation
from autoscaler.decide.reactive import reactive
from autoscaler.decide.stabilise import kept, longest_period_s, longest_window_s, stabilise
from autoscaler.decide.supply import supply
from autoscaler.decide.warmpool import warm_pool
from autoscaler.model import LOADING, DeciderState, Decision, Now, Observation, ReplicaState, Step, VariantTarget
from autoscaler.policy import ScalingPolicy
from forecasting.forecast import Forecast

Decide = Callable[[Situation, Proposal], Proposal]

STEPS: tuple[Decide, ...] = (reactive, predictive, supply, warm_pool, mix, stabilise, bounds)
"""In this order: what load asks for, what is on its way, what waits, where it goes, how fast, and within which
bounds."""


def decide(
    policy: ScalingPolicy, state: DeciderState, observation: Observation, forecast: Forecast | None, now: Now
) -> Decision:
    """The decision of one tick.

    `forecast`: newest forecast of arrivals per second, None while there is none. Modes Observe and Paused hold what is
    there; Advise decides in full, and it is the caller who does not act.
    """
    situation = Situation(policy=policy, state=state, observation=observation, forecast=forecast, now=now)
    if policy.spec.mode in ("Observe", "Paused"):
        return _held(situation)
    proposal = Proposal(total=situation.current)
    for step in STEPS:
        proposal = step(situation, proposal)
    return _concluded(situation, proposal)


def _concluded(situation: Situation, proposal: Proposal) -> Decision:
    targets = _targets(situation, proposal)
    return Decision(
        at=situation.now,
        desired=sum(target.active for target in targets),
        targets=targets,
        steps=proposal.steps,
        next_state=_next_state(situation, proposal),
        reason=_reason(situation, proposal),
        bound_by=proposal.bound_by,
        need=proposal.need,
        expected=proposal.expected,
    )


def _targets(situation: Situation, proposal: Proposal) -> tuple[VariantTarget, ...]:
    """Living and dead replicas of each variant; variants that do not serve get none.

    Standby is the difference between the split of total + standby and that of the total, so neither moves the other.
    """
    variants, dead = situation.variants, proposal.dead
    room = sum(rooms(variants, dead).values())
    active = spread(variants, proposal.total, dead) if proposal.total else {}
    loaded = spread(variants, min(proposal.total + proposal.standby, room), dead) if proposal.standby else active
    return tuple(
        VariantTarget(
            variant=variant.name,
            active=active.get(variant.name, 0) + dead.get(variant.name, 0),
            standby=loaded.get(variant.name, 0) - active.get(variant.name, 0),
            dead=dead.get(variant.name, 0),
        )
        for variant in situation.policy.spec.variants
    )


def _next_state(situation: Situation, proposal: Proposal) -> DeciderState:
    now_s, state = situation.now.monotonic_s, situation.state
    asked = (*state.recommendations, (now_s, proposal.asked))
    totals = state.totals
    if not totals or totals[-1][1] != proposal.decided:
        totals = (*totals, (now_s, proposal.decided))
    memory = {
        "backlog_units": proposal.backlog_units,
        "idle_since_s": proposal.idle_since_s,
        "unknown_ticks": float(proposal.unknown_ticks) or None,
    }
    return DeciderState(
        recommendations=kept(asked, now_s, longest_window_s(situation)),
        totals=kept(totals, now_s, longest_period_s(situation)),
        last_desired=proposal.decided,
        panic_since_s=proposal.panic_since_s,
        memory=tuple((name, value) for name, value in memory.items() if value is not None),
    )


def _reason(situation: Situation, proposal: Proposal) -> str:
    """One sentence: what load needs, what waits, what bound it; then what there is."""
    words = proposal.cause
    if proposal.need is not None:
        count = replicas_for(situation.variants, proposal.need)
        within = min(count, sum(rooms(situation.variants).values()))
        needs = in_words(situation.variants, _counts(situation, within)) if count == within else f"{count} replicas"
        words = f"{words} needs {needs}"
    if proposal.standby:
        words = f"{words}, plus {proposal.standby} standby"
    for note in proposal.notes:
        words = f"{words}, {note}"
    return f"{words}; {situation.supply_in_words}"


def _counts(situation: Situation, total: int) -> dict[str, int]:
    """The split of a total in words' terms: without the minima when it is less than they are."""
    variants = situation.variants
    counts = spread(variants, total)
    if sum(counts.values()) == total:
        return counts
    free = tuple(variant.model_copy(update={"min_replicas": 0}) for variant in variants)
    return spread(free, total)


def _held(situation: Situation) -> Decision:
    """Observe and Paused: exactly what is there, variant by variant; a replica that failed is still wanted."""
    mode = situation.policy.spec.mode
    staying = (*LOADING, ReplicaState.READY)
    there = [item for item in situation.observation.replicas if item.state in staying]
    targets = tuple(
        VariantTarget(
            variant=variant.name,
            active=sum(item.variant == variant.name and not item.standby for item in there),
            standby=sum(item.variant == variant.name and item.standby for item in there),
        )
        for variant in situation.policy.spec.variants
    )
    desired = sum(target.active for target in targets)
    why = f"mode {mode} holds what is there"
    return Decision(
        at=situation.now,
        desired=desired,
        targets=targets,
        steps=(Step(name="mode", before=situation.current, after=desired, why=why),),
        next_state=replace(situation.state, last_desired=desired),
        reason=f"{why}; {situation.supply_in_words}",
        bound_by="mode",
        need=situation.observation.demand,
        expected=expected(situation),
        valid=mode != "Observe",
    )
