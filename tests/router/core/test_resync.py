"""Tables are level-triggered: what a living source omits goes, a silent source expires nothing, failures eject anyway."""

from __future__ import annotations

import pytest

from router.core.endpoints import SUCCESS, UNREACHABLE, Endpoint
from tests.router.core.story import Story, endpoint

A_DAY_S = 86_400.0


@pytest.mark.fault("R8")
def test_an_endpoint_whose_end_was_never_told_goes_with_the_next_table() -> None:
    story = Story(endpoint("ghost"), endpoint("real"))
    story.tell(endpoint("real"))
    assert set(story.dispatcher.endpoints) == {"real"}
    for _ in range(2):
        made = story.sent()
        assert made.endpoint is story.at("real")


@pytest.mark.fault("R8")
def test_a_source_that_falls_silent_expires_nothing() -> None:
    story = Story(endpoint("a"), endpoint("b", intent="standby"), supply={"eta_s": 5.0})
    told = {id_: (each.intent, each.health) for id_, each in story.dispatcher.endpoints.items()}
    for _ in range(24):
        story.later(A_DAY_S / 24)
    assert {id_: (each.intent, each.health) for id_, each in story.dispatcher.endpoints.items()} == told
    story.end(story.sent(), SUCCESS)
    assert story.dispatcher.report(story.now).held == {"test": (1, 1)}


@pytest.mark.fault("R8")
def test_an_endpoint_that_is_gone_is_ejected_by_its_failures_though_its_source_says_nothing() -> None:
    story = Story(endpoint("ghost"), endpoint("real", limit=20))
    for _ in range(20):
        made = story.sent()
        first = made.endpoint
        assert first is not None
        if first.id == "ghost":
            verdict = story.fail(made, UNREACHABLE, sent=False)
            assert isinstance(verdict, Endpoint)
            assert verdict.id == "real"
            break
        story.end(made)
    assert story.at("ghost").health == "ejected"
    for _ in range(10):
        made = story.sent()
        assert made.endpoint is story.at("real")
        story.end(made)
