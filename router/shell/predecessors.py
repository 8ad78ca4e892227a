"""Workers that were replaced and still have streams to finish: what they say about endpoints counts as ours.

A controller knows one admin address for each worker, and stops a replica when the router there says that nothing is
bound to it. A worker that took the place of another must not say so while the other still has a stream on the replica.
So each table is passed on to the predecessors, which obey it as well, and their acknowledgements are added to ours:
requests in flight are summed, and drained is what all say. One that does not answer has not said that anything is
drained; it is asked again with the next table, until its process is known to be gone (`gone`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import aiohttp
import msgspec

from router.model import EndpointAck, TableAck

BOUND_S = 1.0
"""They are on this machine; a controller itself waits 2 s for us."""

_ack = msgspec.json.Decoder(TableAck)


class Predecessors:
    """Private admin addresses of the workers before this one. `token`: what their admin API asks for."""

    def __init__(self, token: str | None) -> None:
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._urls: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._urls)

    def came(self, urls: Iterable[str]) -> None:
        """These are still at work."""
        self._urls.update(urls)

    def gone(self, url: str) -> None:
        """This one has ended."""
        self._urls.discard(url)

    async def with_theirs(self, table: bytes, ours: TableAck) -> TableAck:
        """Tell them the table; our acknowledgement and theirs as one."""
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=BOUND_S), headers=self._headers
        ) as session:
            theirs = await asyncio.gather(*(self._told(session, url, table) for url in sorted(self._urls)))
        for other in theirs:
            ours = merged(ours, other)
        return ours

    async def _told(self, session: aiohttp.ClientSession, url: str, table: bytes) -> TableAck | None:
        try:
            async with session.put(f"{url}/admin/v1/endpoints", data=table) as answer:
                body = await answer.read()
            return _ack.decode(body) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError):
            return None


def merged(ours: TableAck, theirs: TableAck | None) -> TableAck:
    """Both as one; None = they said nothing, so nothing is drained."""
    endpoints = dict(ours.endpoints)
    if theirs is None:
        endpoints = {id_: msgspec.structs.replace(ack, drained=False) for id_, ack in endpoints.items()}
    for id_, other in theirs.endpoints.items() if theirs is not None else ():
        own = endpoints.get(id_, EndpointAck(in_flight=0, drained=other.drained, health=other.health))
        in_flight, drained = own.in_flight + other.in_flight, own.drained and other.drained
        endpoints[id_] = msgspec.structs.replace(own, in_flight=in_flight, drained=drained)
    return msgspec.structs.replace(ours, endpoints=endpoints)
