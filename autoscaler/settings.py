"""Settings of the controller's process, parsed once from the command line."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from autoscaler.errors import BadInput

DEFAULT_LAW = "tidegate"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """What `tidegate controller` was asked. Raises `BadInput` for values that cannot be."""

    file: Path
    """One or more ScalingPolicy documents."""
    state_dir: Path
    """History, replica logs and the lock that keeps a second controller out."""
    routers: tuple[str, ...] = ("http://127.0.0.1:9190",)
    """Admin addresses of all routers; each gets the whole table and is asked for load."""
    router_token: str | None = field(default=None, repr=False)
    """What the routers' admin API asks for; None = nothing. Not shown."""
    web_host: str = "127.0.0.1"
    """Where the status API listens; loopback unless told, as it has no password."""
    web_port: int = 9089
    """0 = any free port."""
    law: str = DEFAULT_LAW
    """Who decides: `tidegate`, or another law to compare it with."""
    stop_bound_s: float = 10.0
    """How long a replica has after SIGTERM before its group is killed: engines hang there when streams run."""

    def __post_init__(self) -> None:
        if not 0 <= self.web_port <= 65535:
            raise BadInput(f"--web-port: {self.web_port} is not a port; allowed is 0 (any free one) to 65535")
        if not self.stop_bound_s >= 0:
            raise BadInput(f"--stop-seconds: {self.stop_bound_s} is not allowed; must be 0 or more")
        if not self.routers:
            raise BadInput(
                "--router: missing; at least one router's admin address is needed, such as http://127.0.0.1:9190"
            )


def read_token(path: Path) -> str:
    """The routers' admin token in a file, without surrounding blanks. Raises `BadInput`."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--router-token-file: {path} cannot be read: {error}") from error
    if not token or not token.isprintable() or " " in token:
        raise BadInput(f"--router-token-file: {path} holds no token; allowed is one word, as in --admin-token-file")
    return token


def default_state_dir() -> Path:
    """`$XDG_STATE_HOME/tidegate`, else `~/.local/state/tidegate`."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "tidegate"
