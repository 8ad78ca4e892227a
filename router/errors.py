"""Expected refusals of the router, a small closed hierarchy: `exit_code` is for the command line, `status` for the admin API."""

from __future__ import annotations


class RouterError(Exception):
    """Base. `exit_code` is for the command line, `status` for HTTP."""

    exit_code = 1
    status = 500


class BadInput(RouterError):
    """A value the user gave cannot be used; the message names the field, the value and what is allowed."""

    exit_code = 2
    status = 400


class BadTable(BadInput):
    """An intent table that cannot be applied; nothing of it was."""


class StaleTable(RouterError):
    """A table older than the one held; `held` is the (epoch, revision) in force."""

    status = 409

    def __init__(self, held: tuple[int, int]) -> None:
        super().__init__(f"held is epoch {held[0]} revision {held[1]}, which is newer")
        self.held = held


class TableMismatch(RouterError):
    """Another body under the (epoch, revision) already held."""

    status = 422


class PortInUse(BadInput):
    """The port to listen on is taken."""
