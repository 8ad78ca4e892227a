"""How many replicas wait loaded but not routed, so that a surge is met at once.

A number, a percentage of the total (rounded up), or auto: one while anything is wanted. Sizing by forecast and price,
and the tiers of sleeping and cached replicas, are not part of this version.
"""

from __future__ import annotations

import math

from autoscaler.decide.proposal import Proposal, Situation


def standby_for(setting: int | str, total: int) -> int:
    """Standby replicas beside `total`; `setting` as in the policy: number, `"25%"` or `"auto"`."""
    if isinstance(setting, int):
        return setting
    if setting == "auto":
        return min(1, total)
    return math.ceil(total * float(setting.removesuffix("%")) / 100 - 1e-9)


def warm_pool(situation: Situation, proposal: Proposal) -> Proposal:
    """Set the standby; the first tick keeps what is there."""
    setting = situation.policy.spec.warm_pool.standby
    wanted = standby_for(setting, proposal.total)
    why = f"standby {setting}: {wanted} beside {proposal.total}"
    there = sum(item.standby for item in situation.replicas)
    if situation.first_tick and there > wanted:
        wanted, why = there, f"{why}; {there} are there, and the first tick lowers nothing"
    return proposal.stepped("warm pool", proposal.total, why, standby=wanted)
