"""Expected refusals of the control plane. The command line exits with `exit_code`; a policy shows them as a condition."""

from __future__ import annotations


class ControllerError(Exception):
    """Base of the hierarchy."""

    exit_code = 1


class BadInput(ControllerError):
    """A value the user gave cannot be used; the message names the field, the value and what is allowed."""

    exit_code = 2


class BadReport(ControllerError):
    """A load report that cannot be read; it counts as missing, never as zero."""


class RouterUnreachable(ControllerError):
    """A router did not answer; its load is missing and its drains are not acknowledged."""


class StaleRevision(ControllerError):
    """The router holds a newer table; `held` is its (epoch, revision)."""

    def __init__(self, held: tuple[int, int]) -> None:
        super().__init__(f"the router holds epoch {held[0]} revision {held[1]}")
        self.held = held
