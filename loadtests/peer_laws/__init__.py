"""Other people's control laws as `ports.Law`, to run beside ours on the same load: one module each, source named there.

`LAWS` has each with its documented defaults, by the name a user types, which is that of its factory. `TUNABLE` has the
one knob that a user would tune, so that a law can be judged at its best: `make(value)` is the law with the knob at that
value. A new law is one module and a row in both; the conformance suite picks it up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autoscaler.ports import Law
from loadtests.laws import hpa
from loadtests.peer_laws.aibrix import aibrix
from loadtests.peer_laws.dynamo import dynamo
from loadtests.peer_laws.keda import keda
from loadtests.peer_laws.knative import knative
from loadtests.peer_laws.ray_serve import ray_serve
from loadtests.peer_laws.skyserve import skyserve
from loadtests.peer_laws.static_peak import static_peak

LAWS: dict[str, Law] = {
    "hpa": hpa(),
    "keda": keda(),
    "knative": knative(),
    "aibrix": aibrix(),
    "ray_serve": ray_serve(),
    "skyserve": skyserve(),
    "dynamo": dynamo(),
    "static_peak": static_peak(),
}
"""Each with its documented defaults; static_peak stands at the policy's maxReplicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunable:
    """A law over one knob: `make(value)` for each `value` of `grid`, ascending; `knob` is the factory's argument."""

    make: Callable[[float], Law]
    knob: str
    grid: tuple[float, ...]


def _hundredths(first: int, last: int, step: int) -> tuple[float, ...]:
    return tuple(number / 100 for number in range(first, last + 1, step))


FINE = _hundredths(20, 100, 1)
COARSE = _hundredths(20, 100, 5)

TUNABLE: dict[str, Tunable] = {
    "hpa": Tunable(make=lambda target: hpa(target), knob="target", grid=FINE),
    "keda": Tunable(make=lambda target: keda(target), knob="target", grid=COARSE),
    "knative": Tunable(make=lambda target: knative(target), knob="target", grid=COARSE),
    "aibrix": Tunable(make=lambda target: aibrix(target), knob="target", grid=COARSE),
    "ray_serve": Tunable(make=lambda target: ray_serve(target), knob="target", grid=COARSE),
    "skyserve": Tunable(make=lambda target: skyserve(target), knob="target", grid=COARSE),
    "dynamo": Tunable(make=lambda target: dynamo(target), knob="target", grid=COARSE),
    "static_peak": Tunable(
        make=lambda replicas: static_peak(round(replicas)),
        knob="replicas",
        grid=tuple(float(number) for number in range(20, 161, 5)),
    ),
}
"""HPA on a 0.01 grid, as the benchmark's gate asks; the rest coarser. Static: 1 to 8 times a mean of 20 replicas."""
