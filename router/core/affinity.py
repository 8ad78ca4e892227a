"""Where a key is at home: a ring of points, so that equal keys meet the same endpoint on every router, and few keys
move when an endpoint comes or goes.

The ring holds all endpoints of a model that are to serve, routable or not, so a replica that is ejected for a moment does not
move the others' keys: a walk from the key's point simply passes it by. Points are in proportion to capacity. Building
costs about 40 us an endpoint the first time and 5 us after (1,000 endpoints: 40 ms, then 5), once per table, when the
first key asks; a walk costs 1 us.

Source: D. Karger et al., Consistent hashing and random trees (1997); V. Mirrokni, M. Thorup and M. Zadimoghaddam,
Consistent hashing with bounded loads (2016) for the bound that `picking.py` puts on it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final

from router.core.endpoints import Endpoint

POINTS: Final = 40
"""Points of an endpoint of mean capacity: shares of the ring then differ by about 1/sqrt(40) = 16 %, which the bound
on load evens out."""
POINTS_MAX: Final = 400
WALK_MAX: Final = 16
"""Different endpoints that a walk offers at most."""


def hash_of(text: bytes) -> int:
    """64 bits, equal in every process."""
    return int.from_bytes(blake2b(text, digest_size=8).digest())


class Ring:
    """Points and their owners, both in the order of the ring."""

    __slots__ = ("_owners", "_points")

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        placed = list(endpoints)
        mean = sum(endpoint.capacity for endpoint in placed) / len(placed) if placed else 1.0
        marks: list[tuple[int, str, Endpoint]] = []
        for endpoint in placed:
            count = min(POINTS_MAX, max(1, round(POINTS * endpoint.capacity / mean)))
            if len(endpoint.points) != count:
                endpoint.points = tuple(hash_of(b"%b-%d" % (endpoint.id.encode(), each)) for each in range(count))
            marks += [(point, endpoint.id, endpoint) for point in endpoint.points]
        marks.sort(key=lambda mark: mark[:2])
        self._points = [mark[0] for mark in marks]
        self._owners = [mark[2] for mark in marks]

    def walk(self, key: int) -> Iterator[Endpoint]:
        """Endpoints in the order in which a key prefers them, each once."""
        owners = self._owners
        count = len(owners)
        start = bisect_right(self._points, key)
        seen: set[Endpoint] = set()
        for step in range(count):
            owner = owners[(start + step) % count]
            if owner not in seen:
                seen.add(owner)
                yield owner
                if len(seen) == WALK_MAX:
                    return
