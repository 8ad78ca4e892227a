"""File descriptors: how many clients they suffice for, and which failed connections are the want of them.

A stream takes two, one to its client and one to its engine, and a process that has none left can connect to no engine.
That is this process' trouble and says nothing about the engine: such a failure must not eject it, or a crowd of clients
would eject all of them. The cap on clients, well below the limit of open files, is what keeps it from happening.
"""

from __future__ import annotations

import errno
import resource
import socket
from typing import Final

from router.core.refusals import Refusal

OUR_WANT: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL))
"""Files of the process, of the machine, buffers, memory, local ports: all on this side of the connection."""
NAMES_WANT: Final = frozenset((socket.EAI_SYSTEM, socket.EAI_MEMORY))
"""How a look-up of a name fails for want of the same."""

NO_CONNECTION: Final = Refusal(
    status=503,
    code="out_of_connections",
    message="the router has no file descriptor or local port left for a connection to a replica",
    retry_after_s=1,
)


def is_our_want(error: OSError) -> bool:
    """Did a connection fail for something that this process or machine lacks."""
    return error.errno in (NAMES_WANT if isinstance(error, socket.gaierror) else OUR_WANT)


def clients_within(files: int) -> int:
    """How many clients `files` descriptors suffice for: an eighth is kept for listeners, probes, the admin side and idle
    engine connections, and each client may need two.
    """
    return max((files - files // 8) // 2, 1)


def clients_allowed(wanted: int) -> int:
    """`wanted` clients, or as many as the limit of open files suffices for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else min(wanted, clients_within(files))
