"""From load reports and replicas to one `Observation`: what is known at a tick, and what is not.

Knows windows, units and staleness, nothing of decisions or sockets. Each tick's new seconds go into two sliding
windows; a missing second is a gap in both, never a zero. What only some routers saw of a second is a gap too, and is
kept beside: the load is at least the mean of the whole seconds, and at least that of whole and partly seen ones
together. The service time is an average in which a request's weight
falls by e every `signal.serviceWindowSeconds`, starting from the policy's prior. A load that was not reported for more
than three ticks is unknown; until then the last known one holds. True zero from a living source is zero.

| newest report | seconds seen by all routers | routers missing | load is | trusted |
|---|---|---|---|---|
| none ever, or older than 3 ticks | any | any | unknown (None) | False |
| fresh | none, and none by some | any | unknown (None) | False |
| fresh | any | some | a lower bound | False |
| fresh | less than half of those there should be | none | a lower bound | False |
| fresh | at least half | none | their mean | True |

There should be as many as the window is long, or as have passed since the first report. A lower bound may raise and
never lowers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoscaler.model import LOADING, Now, Observation, Replica, ReplicaState, Sample, StartTime
from autoscaler.observe.window import SlidingWindow
from autoscaler.policy import ScalingPolicy, Signal

KNOWN_SHARE = 0.5
"""Of the seconds that should be known, the share that must be before a load may lower anything: one zero after a minute
without a word says nothing about that minute, while a lost report or a restarted router must not hold everything."""
STALE_TICKS = 3
"""Reports missed before the load is unknown: one may be lost, two may be slow."""
PRIOR_WEIGHT = 10.0
"""The policy's service time counts like this many finished requests: enough to outlive one odd request, gone within
seconds of load."""

_NO_WINDOW = SlidingWindow(1)
"""Replaced by windows of the policy's lengths at the first `fold`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """What `fold` remembers of a policy's load. `Windows()` is the beginning.

    `stable` and `panic` hold seconds that all routers saw, `stable_partly` and `panic_partly` beside them those that
    only some saw (None while there are none, which is nearly always). `service_s` and `service_weight`: mean service
    time and the number of requests it stands for. `last`: the newest report, `heard_s` the monotonic moment its oldest
    part speaks of, `first_s` that of the first report ever.
    """

    stable: SlidingWindow = _NO_WINDOW
    panic: SlidingWindow = _NO_WINDOW
    stable_partly: SlidingWindow | None = None
    panic_partly: SlidingWindow | None = None
    service_s: float | None = None
    service_weight: float = PRIOR_WEIGHT
    service_at_s: float | None = None
    last: Sample | None = None
    heard_s: float | None = None
    first_s: float | None = None


def fold(  # noqa: PLR0913  the seam agreed with the control loop
    windows: Windows,
    sample: Sample | None,
    replicas: Sequence[Replica],
    start_times: Mapping[str, StartTime],
    policy: ScalingPolicy,
    now: Now,
) -> tuple[Windows, Observation]:
    """Take in one tick's report (None = nobody answered) and say what is known.

    `replicas` come back in the observation with `overdue` set on those that load for longer than the P99 of their
    variant's start time, and `failed` beyond its timeout; variants without an entry in `start_times` have the policy's
    prior. Rates are requests per second.
    """
    gaps: list[str] = []
    windows = _sized(windows, policy)
    if sample is not None:
        windows = _taken_in(windows, sample, policy.spec.signal, gaps)
    load_known, trusted = _standing(windows, policy, now, gaps)
    times = _with_priors(start_times, policy)
    marked = tuple(_marked(replica, policy, times, now) for replica in replicas)
    stable_per_s = _at_least(windows.stable, windows.stable_partly) if load_known else None
    panic_per_s = _at_least(windows.panic, windows.panic_partly) if load_known else None
    service_s = windows.service_s or policy.spec.signal.service_seconds
    last = windows.last if load_known else None
    observation = Observation(
        at=now,
        stable_per_s=stable_per_s,
        panic_per_s=panic_per_s,
        service_s=service_s,
        demand=policy.spec.signal.units(stable_per_s, service_s),
        panic_demand=policy.spec.signal.units(panic_per_s, service_s),
        in_flight=_count(last.in_flight, "in flight", gaps) if last else None,
        backlog=_count(last.queued, "queued", gaps) if last else None,
        oldest_s=last.oldest_s if last else None,
        held_from_zero=max(0, last.held_from_zero) if last else 0,
        replicas=marked,
        start_times=times,
        gaps=tuple(gaps),
        trusted=trusted,
    )
    return windows, observation


def _sized(windows: Windows, policy: ScalingPolicy) -> Windows:
    """Windows of the lengths that the policy asks for; a changed length begins anew (unknown, so nothing is lowered by
    it)."""
    panic = policy.spec.behavior.panic
    stable_length = max(1, round(panic.stable_window_seconds))
    panic_length = max(1, round(panic.window_seconds))
    if windows.stable.length != stable_length:
        windows = replace(windows, stable=SlidingWindow(stable_length), stable_partly=None)
    if windows.panic.length != panic_length:
        windows = replace(windows, panic=SlidingWindow(panic_length), panic_partly=None)
    return windows


def _taken_in(windows: Windows, sample: Sample, signal: Signal, gaps: list[str]) -> Windows:
    seconds = tuple(
        second if second is None or (math.isfinite(second) and second >= 0) else None for second in sample.arrivals
    )
    windows = _pushed(windows, seconds, partly=bool(sample.routers_missing))
    absurd = seconds.count(None) - sample.arrivals.count(None)
    if absurd:
        gaps.append(f"{absurd} s of arrivals were negative or not a number and count as missing")
    windows = _served(windows, sample, signal, gaps)
    heard_s = sample.at.monotonic_s - max(0.0, sample.age_s)
    first_s = heard_s if windows.first_s is None else windows.first_s
    return replace(windows, last=sample, heard_s=heard_s, first_s=first_s)


def _pushed(windows: Windows, seconds: Sequence[float | None], partly: bool) -> Windows:
    """New seconds in both pairs of windows; `partly`: only some routers saw them."""
    nothing = (None,) * len(seconds)
    whole = nothing if partly else seconds
    stable, panic = windows.stable.push_all(whole), windows.panic.push_all(whole)
    if not partly and windows.stable_partly is None:
        return replace(windows, stable=stable, panic=panic)
    some = seconds if partly else nothing
    beside = [
        (held or SlidingWindow(whole_window.length)).push_all(some)
        for held, whole_window in ((windows.stable_partly, stable), (windows.panic_partly, panic))
    ]
    stable_partly, panic_partly = beside if beside[0].summary.valid else (None, None)
    return replace(windows, stable=stable, panic=panic, stable_partly=stable_partly, panic_partly=panic_partly)


def _at_least(whole: SlidingWindow, partly: SlidingWindow | None) -> float | None:
    """Mean of the seconds that are known; when some were seen by a part of the routers, the greater of the mean
    without them (the load from before they fell away) and with them (what is there for certain).
    """
    mean = whole.mean
    if partly is None:
        return mean
    known, seen = whole.summary, partly.summary
    if not seen.valid:
        return mean
    together = (known.total + seen.total) / (known.valid + seen.valid)
    return together if mean is None else max(mean, together)


def _served(windows: Windows, sample: Sample, signal: Signal, gaps: list[str]) -> Windows:
    """The service time after the requests that finished since the last report.

    mean' = (w mean + sum) / (w + count), w' = w + count, after w has decayed by exp(-elapsed / window). Without
    finished requests the mean stays.
    """
    at_s = sample.at.monotonic_s
    elapsed_s = max(0.0, at_s - windows.service_at_s) if windows.service_at_s is not None else 0.0
    weight = windows.service_weight * math.exp(-elapsed_s / signal.service_window_seconds)
    mean = windows.service_s if windows.service_s is not None else signal.service_seconds
    count, total = sample.service_count, sample.service_sum_s
    if count < 0 or total < 0 or not math.isfinite(total):
        gaps.append(f"service times of {count} requests summing to {total} s make no sense and are ignored")
    elif count > 0 and total > 0:
        mean = (weight * mean + total) / (weight + count)
        weight += count
    return replace(windows, service_s=mean, service_weight=weight, service_at_s=at_s)


def _standing(windows: Windows, policy: ScalingPolicy, now: Now, gaps: list[str]) -> tuple[bool, bool]:
    """(is the load known, is it trusted), by the table above; says why not."""
    stable, partly = windows.stable.summary, windows.stable_partly
    seen = partly.summary.valid if partly is not None else 0
    if policy.spec.signal.type in ("tokenRate", "prometheus"):
        gaps.append(f"signal {policy.spec.signal.type} is not read by this version, so demand is unknown")
        return False, False
    if windows.heard_s is None or windows.last is None:
        gaps.append("no router has reported load yet")
        return False, False
    silent_s = now.monotonic_s - windows.heard_s
    if silent_s > STALE_TICKS * policy.tick_s:
        gaps.append(f"no load report for {silent_s:.0f} s")
        return False, False
    if not stable.valid and not seen:
        gaps.append(f"no second of the last {windows.stable.length} s is known")
        return False, False
    missing = windows.last.routers_missing
    if missing:
        gaps.append(f"no answer from {', '.join(missing)}: the load is at least what the others saw")
    elif seen:
        gaps.append(f"{seen} of the last {stable.size} s were not seen by all routers")
    if stable.size > stable.valid + seen:
        gaps.append(f"{stable.size - stable.valid - seen} of the last {stable.size} s are missing")
    since_s = windows.heard_s - (windows.heard_s if windows.first_s is None else windows.first_s)
    due = min(float(windows.stable.length), max(float(stable.size), since_s))
    enough = stable.valid >= KNOWN_SHARE * due
    if not enough and not missing:
        gaps.append(f"only {stable.valid} of {due:.0f} s are known: the load is at least that")
    return True, enough and not missing


def _count(value: int | None, what: str, gaps: list[str]) -> int | None:
    """A gauge, or None when it is missing or negative."""
    if value is not None and value < 0:
        gaps.append(f"{value} requests {what} makes no sense and counts as missing")
        return None
    return value


def _with_priors(start_times: Mapping[str, StartTime], policy: ScalingPolicy) -> dict[str, StartTime]:
    return {
        **{variant.name: variant.prior for variant in policy.spec.variants if variant.name not in start_times},
        **start_times,
    }


def _marked(replica: Replica, policy: ScalingPolicy, times: Mapping[str, StartTime], now: Now) -> Replica:
    """The replica; overdue if it loads for longer than nearly all before it, failed if it ran into the start timeout.

    The timeout counts for what runs (starting), not for what still waits for a place (requested).
    """
    if replica.failed or replica.variant not in times or replica.state not in LOADING:
        return replica
    age_s = now.monotonic_s - replica.started_s
    variant = next((item for item in policy.spec.variants if item.name == replica.variant), None)
    if variant and replica.state is ReplicaState.STARTING and age_s > variant.start_time.timeout_seconds:
        return replace(
            replica, failed=True, why=f"not ready after {age_s:.0f} s, which is longer than startTime allows"
        )
    late = age_s > times[replica.variant].p99_s
    return replace(replica, overdue=True) if late else replica
