"""Whatever the router waits for can be cancelled there: each place has a story that does it.

`test_every_place_has_a_story` fails when an `await` is added that no story names; `test_cancelled_at_each_place` fails
when a story is not cancelled at every place that it names, when a cancellation is swallowed, or when something is left.
"""

from __future__ import annotations

import gc

import pytest

from tests.router import cancel_admin, cancel_server, cancel_sides
from tests.router.cancelling import PLACES, STORIES, WAYS, Place, Story, at_each

assert cancel_sides
assert cancel_admin
assert cancel_server

NEVER_WAITS = {
    Place(
        "shell/admin_site.py:admin_site", "await runner.setup()"
    ): "aiohttp only makes its objects; no start-up hooks",
    Place("shell/admin_site.py:AdminSite.move", "await public.stop()"): "aiohttp only closes the listener",
    Place(
        "shell/server.py:Server._serve",
        "await self._loop.create_server(self._plane.protocol, sock=self._data, backlog=BACKLOG)",
    ): "uvloop listens on a bound socket at once",
    Place(
        "shell/server.py:Server._hand_over", "await site.move(private)"
    ): "for that reason; waited at on asyncio's loop",
    Place("shell/server.py:Server._leave", "await self._hand_over(site)"): "as above",
    Place("shell/server.py:Server._leave", "await site.move(None)"): "it only closes the listener",
}
"""Places that give the loop no turn, so nothing can be cancelled there, and why."""


def test_every_place_has_a_story() -> None:
    covered = {place for told in STORIES for place in told.places()}
    bare = sorted({place for place, _ in PLACES} - covered - NEVER_WAITS.keys())
    lines = "\n".join(f"router/{place.function}: {place.text}" for place in bare)
    assert not bare, f"places where nothing shows what a cancellation does; add a story (cancelling.py):\n{lines}"


def test_every_story_names_places_that_are_there() -> None:
    known = {place.function for place, _ in PLACES}
    for told in STORIES:
        for named in told.covers:
            function, _, text = named.partition("|")
            assert function in known, f"{told.name}: {function} waits for nothing"
            assert any(p.function == function and text in p.text for p, _ in PLACES), f"{told.name}: {named}"


@pytest.mark.parametrize("told", STORIES, ids=lambda told: told.name)
def test_cancelled_at_each_place(told: Story) -> None:
    tried = {way: at_each(told, way) for way in WAYS}
    gc.collect()  # what was left open says so now
    missed = told.places() - told.cancelled - NEVER_WAITS.keys()
    assert not missed, f"never cancelled there: {missed}; waits tried: {tried}"
    strange = told.cancelled & NEVER_WAITS.keys()
    assert not strange, f"it waits there after all: {strange}"
