"""Listening sockets and the limit of open files: what a router takes from its machine before it serves."""

from __future__ import annotations

import errno
import resource
import socket
from contextlib import suppress

from router.errors import BadInput, PortInUse

BACKLOG = 2048
"""Connections that may wait to be accepted; the kernel cuts it to its own bound (4,096 on a current Linux)."""

FILES_WANTED = 1 << 20
"""Soft limit asked for: a stream takes two descriptors, so the usual 1,024 would end at 500 streams."""


def listening(host: str, port: int, flag: str) -> socket.socket:
    """A socket that listens; port 0 = any free one. Raises `PortInUse` or `BadInput` naming the flag."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise BadInput(f"{flag}: {host!r} is not an address of this machine: {error}") from error
    family, kind, protocol, _, place = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(place)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"{flag}: {port} on {host} is in use; allowed: a free port, or 0 for any") from error
        raise BadInput(f"{flag}: cannot listen on {host} port {port}: {error.strerror}") from error
    return listener


def address(listener: socket.socket) -> str:
    """`http://HOST:PORT` of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def raise_file_limit() -> int:
    """Allow as many open files as the hard limit does; returns the limit then in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES_WANTED if soft == resource.RLIM_INFINITY else soft
