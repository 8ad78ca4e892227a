"""One conformance suite for all laws of `loadtests.peer_laws`; a new law is picked up by its row in the registry."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from autoscaler.model import DeciderState
from autoscaler.ports import Law
from loadtests import peer_laws
from loadtests.laws import hpa
from loadtests.peer_laws import LAWS, TUNABLE
from loadtests.peer_laws.aibrix import aibrix
from loadtests.peer_laws.dynamo import dynamo
from loadtests.peer_laws.keda import keda
from loadtests.peer_laws.knative import knative
from loadtests.peer_laws.ray_serve import ray_serve
from loadtests.peer_laws.skyserve import skyserve
from loadtests.peer_laws.static_peak import static_peak
from tests.loadtests.law_stories import Fleet, Story, constant, policy, walk

HOLDING = sorted(set(LAWS) - {"ray_serve"})
"""Laws that change nothing while the load is unknown."""


@pytest.mark.parametrize("name", LAWS)
class TestEveryLaw:
    """The conformance suite."""

    @pytest.mark.parametrize("start_s", [0, 120])
    @pytest.mark.parametrize(("lowest", "highest"), [(0, 9), (3, 25)])
    def test_stays_within_bounds_and_is_deterministic(self, name: str, start_s: int, lowest: int, highest: int) -> None:
        loads = walk(7, 400)
        runs = [
            Fleet(Story(LAWS[name], policy(lowest, highest)), start_s).run(
                lambda second: loads[int(second) // 15], 6000
            )
            for _ in range(2)
        ]
        assert runs[0] == runs[1]
        assert lowest <= min(runs[0])
        assert max(runs[0]) <= highest

    def test_equal_inputs_give_equal_decisions_and_whole_ones(self, name: str) -> None:
        story, loads = Story(LAWS[name], policy()), walk(11, 60)
        for index, load in enumerate(loads):
            state = story.state
            decision = story.decide(index * 15.0, load, ready_now=3)
            again = Story(LAWS[name], story.policy, state).decide(index * 15.0, load, ready_now=3)
            assert again == decision
            assert hash(decision.next_state) == hash(again.next_state)
            assert decision.next_state.last_desired == decision.desired == decision.targets[0].active
            assert decision.steps[-1].after == decision.desired
            assert all(a.after == b.before for a, b in zip(decision.steps, decision.steps[1:], strict=False))
            assert decision.reason.startswith(f"{name}: ")

    @pytest.mark.parametrize(("start_s", "tick"), [(60, 2), (0, 15), (600, 15)])
    def test_constant_load_settles_covers_it_and_stays(self, name: str, start_s: int, tick: int) -> None:
        fleet = Fleet(Story(LAWS[name], policy(1, 40)), start_s)
        totals = fleet.run(constant(77), 7200 if tick == 15 else 2400, tick)
        settled = totals[2 * len(totals) // 3 :]
        assert len(set(settled)) == 1
        assert settled[0] * 10 >= 77

    def test_more_load_settles_at_no_fewer(self, name: str) -> None:
        ends = [
            Fleet(Story(LAWS[name], policy(1, 40)), 60).run(constant(load), 1800)[-1]
            for load in (0.0, 5.0, 40.0, 41.0, 90.0, 200.0, 1000.0)
        ]
        assert ends == sorted(ends)

    def test_unknown_load(self, name: str) -> None:
        """All hold, as their originals do; Ray Serve takes silence for no requests."""
        story = Story(LAWS[name], policy(1, 40), DeciderState(last_desired=5))
        assert story.at(0, 40) in (5, 6, 40)
        before = story.at(15, 40)
        totals = story.during(30, 3600, 15, None)
        assert set(totals) == ({before} if name in HOLDING else {before, 1})

    def test_its_first_tick_keeps_what_is_there(self, name: str) -> None:
        """A controller that restarts over 6 busy replicas keeps them; HPA's state begins at the minimum and its rate
        allows 4 more at once."""
        total = Story(LAWS[name], policy(1, 40)).at(0, 48, ready_now=6)
        assert total >= (5 if name == "hpa" else 6)


FACTORIES: dict[str, Callable[..., Law]] = {
    made.__name__: made for made in (hpa, keda, knative, aibrix, ray_serve, skyserve, dynamo, static_peak)
}


@pytest.mark.parametrize("name", TUNABLE)
def test_every_knob_is_named_ascending_and_at_work(name: str) -> None:
    tunable = TUNABLE[name]
    assert list(tunable.grid) == sorted(set(tunable.grid))
    assert tunable.knob in FACTORIES[name].__annotations__
    ends = [
        Fleet(Story(tunable.make(value), policy(1, 200)), 60).run(constant(77), 1800)[-1]
        for value in (tunable.grid[0], tunable.grid[-1])
    ]
    assert (ends[0] > ends[1]) == (tunable.knob == "target")
    assert ends[0] != ends[1]


def test_every_law_can_be_tuned_and_hpa_on_a_fine_grid() -> None:
    assert list(TUNABLE) == list(LAWS)
    assert TUNABLE["hpa"].grid == tuple(number / 100 for number in range(20, 101))


LAW_MODULES = sorted(set(LAWS) - {"hpa"})


@pytest.mark.parametrize("name", LAW_MODULES)
def test_a_law_names_its_source_and_fits_in_sixty_lines(name: str) -> None:
    """Lines of code: without the docstrings, the imports and what is empty."""
    text = (Path(peer_laws.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert "Source: " in (ast.get_docstring(tree) or "")
    aside = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    skipped = {line for node in aside for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    code = [line for number, line in enumerate(text.splitlines(), 1) if line.strip() and number not in skipped]
    assert len(code) <= 60
