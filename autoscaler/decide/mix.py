"""Which variants carry a total: cheapest cost per capacity first, each within its own bounds.

A greedy answer, exact for one variant and good for several; knows no load and no time. Because the order of filling
never changes, the split of N + 1 replicas is that of N plus one, so more load never takes a replica from a variant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autoscaler.decide.proposal import NO_DEAD, Proposal, Situation, number
from autoscaler.policy import Variant

_ROUNDING = 1e-9
"""Arithmetic noise must not order a GPU: 30 x 0.1 of capacity holds a load of 3."""


def ranked(variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """Cheapest per unit of capacity first; ties in the policy's order."""
    if len(variants) == 1:
        return tuple(variants)
    return tuple(sorted(variants, key=lambda variant: variant.price / variant.capacity))


def rooms(variants: Sequence[Variant], dead: Mapping[str, int] = NO_DEAD) -> dict[str, int]:
    """How many living replicas each variant can have beside its dead ones."""
    return {variant.name: max(0, variant.max_replicas - dead.get(variant.name, 0)) for variant in variants}


def floors(variants: Sequence[Variant], dead: Mapping[str, int] = NO_DEAD) -> dict[str, int]:
    """minReplicas of each variant, as far as there is room."""
    return _floors_within(variants, rooms(variants, dead))


def _floors_within(variants: Sequence[Variant], room: Mapping[str, int]) -> dict[str, int]:
    return {variant.name: min(variant.min_replicas, room[variant.name]) for variant in variants}


def spread(variants: Sequence[Variant], total: int, dead: Mapping[str, int] = NO_DEAD) -> dict[str, int]:
    """`total` replicas as a number per variant: the minimum of each, then the cheapest up to its room, then the next.

    Gives the minima when `total` is below their sum and all rooms when it is above theirs.
    """
    room = rooms(variants, dead)
    counts = _floors_within(variants, room)
    rest = total - sum(counts.values())
    for variant in ranked(variants):
        more = max(0, min(rest, room[variant.name] - counts[variant.name]))
        counts[variant.name] += more
        rest -= more
    return counts


def capacity_of(variants: Sequence[Variant], counts: Mapping[str, int]) -> float:
    """Signal units that these replicas hold."""
    return sum(variant.capacity * counts.get(variant.name, 0) for variant in variants)


def replicas_for(variants: Sequence[Variant], need: float, dead: Mapping[str, int] = NO_DEAD) -> int:
    """Replicas that cover `need` signal units, filled as `spread` does.

    Zero need takes zero replicas. Beyond all rooms it goes on in replicas of the cheapest variant, so that a limited
    policy still says what it would take.
    """
    if need <= 0:
        return 0
    room = rooms(variants, dead)
    counts = _floors_within(variants, room)
    rest = need - capacity_of(variants, counts)
    if rest <= 0:
        return _fewest(variants, need, counts)
    for variant in ranked(variants):
        more = min(math.ceil(rest / variant.capacity - _ROUNDING), room[variant.name] - counts[variant.name])
        counts[variant.name] += more
        rest -= more * variant.capacity
        if rest <= _ROUNDING:
            return sum(counts.values())
    return sum(counts.values()) + math.ceil(rest / ranked(variants)[0].capacity - _ROUNDING)


def _fewest(variants: Sequence[Variant], need: float, counts: Mapping[str, int]) -> int:
    """How many of the minimal replicas the need would take, largest first: what to say when the minimum is more than
    enough."""
    rest, used = need, 0
    for variant in sorted(variants, key=lambda variant: -variant.capacity):
        more = min(math.ceil(rest / variant.capacity - _ROUNDING), counts[variant.name])
        used += more
        rest -= more * variant.capacity
        if rest <= _ROUNDING:
            break
    return used


def in_words(variants: Sequence[Variant], counts: Mapping[str, int]) -> str:
    """`4 x 24`, or `8 x 24 + 2 x 9`: replicas times capacity."""
    parts = [
        f"{counts[variant.name]} x {number(variant.capacity)}"
        for variant in ranked(variants)
        if counts.get(variant.name)
    ]
    return " + ".join(parts) or "no replica"


def mix(situation: Situation, proposal: Proposal) -> Proposal:
    """Say how the total is placed; later steps may change the total, and it is placed again in the same way."""
    counts = spread(situation.variants, proposal.total + proposal.standby, proposal.dead)
    placed = ", ".join(f"{counts[variant.name]} {variant.name}" for variant in situation.variants)
    return proposal.stepped("mix", proposal.total, f"cheapest per capacity first: {placed}")
