"""Dead supply: what was ordered, should have arrived and has not.

A loading replica is future supply with an ETA, so the need it was ordered for is not ordered again: `desired` is a
total, and the plan starts only what is neither ready nor loading. A replica that loads for longer than the P99 of its
start time is dead supply: it is not counted, another is ordered in its place (of another variant when its own has no
room), and it is kept until enough are ready, as it may still arrive. Dead supply never blocks scaling down.
"""

from __future__ import annotations

from collections import Counter

from autoscaler.decide.mix import replicas_for, rooms
from autoscaler.decide.proposal import Proposal, Situation


def supply(situation: Situation, proposal: Proposal) -> Proposal:
    """Order in place of dead supply while it is missed, and only then."""
    words = situation.supply_in_words
    overdue = Counter(item.variant for item in situation.overdue)
    missed = len(situation.ready) < proposal.total
    if not overdue or not missed:
        return proposal.stepped("supply", proposal.total, f"{words}; loading replicas are not ordered again")
    known = rooms(situation.variants)
    dead = {name: min(count, known[name]) for name, count in overdue.items() if name in known}
    total = proposal.total
    if proposal.need is not None:
        total = max(total, replicas_for(situation.variants, proposal.need, dead))
    why = f"{words}; longer than 99% of starts, so {sum(dead.values())} more wanted in their place"
    return proposal.stepped("supply", total, why, dead)
