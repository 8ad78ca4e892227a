"""Expected refusals of the load tests. The command line prints the message as one line and exits with `exit_code`."""

from __future__ import annotations


class BadInput(Exception):
    """A value the user gave cannot be used; the message names it and what is allowed."""

    exit_code = 2
