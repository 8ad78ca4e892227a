"""Parts of the composition that need no whole router: sockets, side tasks, the health log."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from router.errors import BadInput, PortInUse
from router.shell.logs import HealthLog
from router.shell.server import kept_running
from router.shell.sockets import address, listening, raise_file_limit


def test_a_taken_port_is_named_with_its_flag() -> None:
    with listening("127.0.0.1", 0, "--port") as first:
        port = first.getsockname()[1]
        with pytest.raises(PortInUse, match=f"--admin-port: {port} on 127.0.0.1 is in use; allowed: a free port"):
            listening("127.0.0.1", port, "--admin-port")
        assert address(first) == f"http://127.0.0.1:{port}"


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(BadInput, match=r"--port: cannot listen on 192\.0\.2\.1 port 0"):
        listening("192.0.2.1", 0, "--port")
    with pytest.raises(BadInput, match=r"--port: 'a\.\.b' is not an address of this machine"):
        listening("a..b", 0, "--port")


class OnIpv6(socket.socket):
    """A socket as on a machine that has IPv6."""

    def getsockname(self) -> tuple[str, int, int, int]:
        return "::1", 8080, 0, 0


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    with OnIpv6() as listener:
        assert address(listener) == "http://[::1]:8080"


def test_the_file_limit_is_at_the_hard_limit_afterwards() -> None:
    assert raise_file_limit() == raise_file_limit() > 0


async def test_a_side_task_that_fails_is_logged_and_started_again() -> None:
    starts = 0
    third = asyncio.Event()

    async def side() -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            raise ValueError("a bug")
        if starts == 3:
            third.set()
            await asyncio.Event().wait()

    with capture_logs() as logs:
        keeper = asyncio.create_task(kept_running("probe", side, restart_s=0.0))
        await third.wait()
        keeper.cancel()
        with pytest.raises(asyncio.CancelledError):
            await keeper
    assert [(line["task"], repr(line["exc_info"])) for line in logs] == [
        ("probe", "ValueError('a bug')"),
        ("probe", "None"),
    ]


@dataclass
class Known:
    """An endpoint as the log sees it."""

    health: str = "unknown"
    outcomes: dict[str, int] = field(default_factory=dict)


@dataclass
class Holder:
    """A dispatcher as the log sees it."""

    endpoints: dict[str, Known]


def test_one_line_per_change_of_health() -> None:
    holder = Holder({"a": Known(), "b": Known("ready")})
    watcher = HealthLog(holder)
    with capture_logs() as logs:
        watcher.look()
        watcher.look()
        holder.endpoints["a"].health = "ready"
        holder.endpoints["b"].health = "ejected"
        watcher.look()
        del holder.endpoints["b"]
        watcher.look()
        holder.endpoints["b"] = Known("ready")
        watcher.look()
    assert [(line["log_level"], line["endpoint"], line["before"], line["after"]) for line in logs] == [
        ("info", "b", "unknown", "ready"),
        ("info", "a", "unknown", "ready"),
        ("warning", "b", "ready", "ejected"),
        ("info", "b", "unknown", "ready"),
    ]
