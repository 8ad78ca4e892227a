"""How client connections are brought to their end without one being cut or reset, while the router leaves.

Three steps. At once (`announce`), every answer whose head is not written yet says `connection: close`; requests that
come from now on do so by themselves, for the dispatcher no longer accepts. Streams and answers under way are left
alone. Then (`close_idle`, again and again) a connection on which nothing has happened for a given time, and on which
nothing has arrived that was not read yet, is closed in order: with a FIN, which no client takes for a failure.

What remains is the race that every idle keep-alive connection has: a request sent at the very moment in which its
connection is closed finds it closed. It was not begun, and a client that was idle for that long has to expect it.
"""

from __future__ import annotations

import select

from router.shell.client import BUSY, WAITING, Client
from router.shell.driver import BEAT_S
from router.shell.http import DataPlane


def announce(plane: DataPlane) -> None:
    """Let each answer that has not begun say that it is the last on its connection."""
    for client in plane.clients:
        exchange = client.exchange
        if exchange is not None and not exchange.status:
            exchange.keep = False


def close_idle(plane: DataPlane, since: int, idle_s: float) -> None:
    """Close connections that have been without a request for `idle_s`, counted from the tick `since` at the
    earliest."""
    idle = [client for client in plane.clients if client.state == WAITING and not client.receiving]
    for client in idle:
        still_s = (plane.tick - max(client.stamp, since)) * BEAT_S
        if still_s >= idle_s and not unread(client):
            client.close()


def busy(plane: DataPlane) -> int:
    """Connections with a request under way."""
    return sum(client.state == BUSY or client.receiving for client in plane.clients)


def unread(client: Client) -> bool:
    """Has something arrived on this connection that the loop did not hand over yet."""
    socket = client.transport.get_extra_info("socket")
    if socket is None or socket.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLIN)
    return bool(poll.poll(0))
