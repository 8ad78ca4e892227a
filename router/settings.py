"""What one router process is told at its start, read once; nothing here changes while it runs.

What changes at run time (models, endpoints, bounds of each model's queue) is in the intent table, `router.model`. This
module opens no socket and knows no flag's spelling beyond the names it puts into messages.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from pathlib import Path

from router.errors import BadInput
from router.model import (
    EndpointIntent,
    IntentTable,
    ModelIntent,
    QueueBounds,
    Routing,
    Timeouts,
    checked,
    host_and_port,
)

WORKER_SOURCE = "worker-urls"
"""Source name of the table that `--worker-urls` makes."""

LOG_LEVELS = ("debug", "info", "warning", "error")
ENGINES = ("generic", "vllm", "sglang", "tgi", "triton", "llamacpp")
WORKERS_MAX = 256
TOKEN_MIN_CHARS = 16
"""A shorter bearer token could be guessed over the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Process settings of the router. Raises `BadInput` on construction, naming the flag, its value and what is
    allowed."""

    host: str = "127.0.0.1"
    """Address of the data port. Loopback by default: nothing is open to the network unless asked."""

    port: int = 8080
    """Data port; 0 = any free one, printed in the ready line."""

    admin_host: str = "127.0.0.1"
    """Address of the admin port. Anything but loopback needs `admin_token`: who may write the table decides where
    requests go."""

    admin_port: int = 9190
    """Admin and metrics port; 0 = any free one, printed in the ready line."""

    admin_token: str | None = None
    """Bearer token that the admin API (all but /health and /ready) asks for; None = no token, loopback only."""

    name: str | None = None
    """Name in load reports and logs; None = `router-ADMINPORT`. Routers of one controller need different names."""

    file: Path | None = None
    """Static intent table, YAML or JSON, reloaded on change and on SIGHUP; None = no file."""

    table: IntentTable | None = None
    """A table made from flags (`--worker-urls`); None = none. Excludes `file`."""

    state_dir: Path | None = None
    """Where the last tables of controllers are kept, so that a restarted router starts from them; None = not kept."""

    log_level: str = "info"
    """Least level that is logged, one of `LOG_LEVELS`."""

    access_log: str = "-"
    """Where a line for each request goes: a file, `-` for standard output, `off` for nowhere."""

    workers: int = 1
    """Router processes on one data port. Each is a router of its own: limits are shared out, queues are not."""

    share: float = 1.0
    """Part of each limit in `file` or `table` that this process may use: 1 / `workers`. A controller says its own."""

    shutdown_grace_s: float = 1.0
    """Seconds between SIGTERM (/ready turns 503) and the closing of the listener, so that balancers stop sending first:
    a closed listener resets connections that wait in its backlog. 0 = close at once. One second is enough on one
    machine; behind a balancer that asks every 5 s take 10."""

    shutdown_timeout_s: float = 30.0
    """Seconds that requests in flight get to end after the grace; then they are cut. 30 s is what Kubernetes gives by
    default."""

    def __post_init__(self) -> None:
        for flag, port in (("--port", self.port), ("--admin-port", self.admin_port)):
            if not 0 <= port <= 65535:
                raise BadInput(f"{flag}: {port} is not a port; allowed: 0 to 65535, 0 = any free one")
        if not 1 <= self.workers <= WORKERS_MAX:
            raise BadInput(f"--workers: {self.workers} is out of bounds; allowed: 1 to {WORKERS_MAX}")
        if self.admin_port and self.admin_port + self.workers > 65536:
            raise BadInput(
                f"--admin-port: {self.admin_port} leaves no room for {self.workers} workers, who take one port each; "
                f"allowed: at most {65536 - self.workers}, 0 = any free ones"
            )
        if not self.access_log:
            raise BadInput("--access-log: '' is no file; allowed: a file, - (standard output) or off")
        if self.log_level not in LOG_LEVELS:
            raise BadInput(f"--log-level: {self.log_level!r} is not a level; allowed: {', '.join(LOG_LEVELS)}")
        if self.file is not None and self.table is not None:
            raise BadInput("--worker-urls: not together with -f; the file already says which endpoints there are")
        for flag, seconds in (("grace", self.shutdown_grace_s), ("timeout", self.shutdown_timeout_s)):
            if not 0 <= seconds <= 3600:
                raise BadInput(f"--shutdown-{flag}-secs: {seconds} is out of bounds; allowed: 0 to 3600 seconds")
        if self.admin_token is None and not is_loopback(self.admin_host):
            raise BadInput(
                f"--admin-host: {self.admin_host!r} is not loopback; "
                "allowed without --admin-token-file: 127.0.0.1, ::1, localhost"
            )

    def for_worker(self, index: int, admin_port: int, state_dir: Path) -> Settings:
        """What one of several workers is told: a name, an admin port, a folder and a share of its own."""
        name = f"router-{admin_port}" if self.name is None else f"{self.name}-{index}"
        return replace(
            self, name=name, admin_port=admin_port, state_dir=state_dir, workers=1, share=self.share / self.workers
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address; a name other than `localhost` could be anything, so it is not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(path: Path) -> str:
    """The bearer token in a file, without surrounding blanks. Raises `BadInput`."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--admin-token-file: {path} cannot be read: {error}") from error
    if len(token) < TOKEN_MIN_CHARS or not token.isprintable() or " " in token:
        raise BadInput(
            f"--admin-token-file: {path} holds {len(token)} characters; allowed: one word of at least {TOKEN_MIN_CHARS}"
        )
    return token


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTable:
    """The flags that describe endpoints without a file, under the names that users of other routers know."""

    urls: tuple[str, ...]
    model: str | None
    engine: str = "generic"
    max_concurrent_requests: int = 256
    queue_size: int = 2000
    queue_timeout_s: float = 30.0
    request_timeout_s: float = 1800.0

    def table(self) -> IntentTable:
        """One model with all URLs as its endpoints; an endpoint's id is its HOST:PORT. Raises `BadInput`."""
        if not self.model:
            raise BadInput("--model: missing; with --worker-urls it says which model name the endpoints serve")
        if self.engine not in ENGINES:
            raise BadInput(f"--engine: {self.engine!r} is not known; allowed: {', '.join(ENGINES)}")
        if self.max_concurrent_requests < 1:
            raise BadInput(
                f"--max-concurrent-requests: {self.max_concurrent_requests} is out of bounds; allowed: 1 and more"
            )
        if self.queue_size < 0:
            raise BadInput(f"--queue-size: {self.queue_size} is out of bounds; allowed: 0 (never queue) and more")
        for flag, seconds in (("queue", self.queue_timeout_s), ("request", self.request_timeout_s)):
            if not 0 < seconds < float("inf"):
                raise BadInput(f"--{flag}-timeout-secs: {seconds} is out of bounds; allowed: more than 0")
        places = [host_and_port(url, "--worker-urls") for url in self.urls]
        twice = sorted({f"{host}:{port}" for host, port in places if places.count((host, port)) > 1})
        if twice:
            raise BadInput(f"--worker-urls: {', '.join(twice)} given twice; allowed: each endpoint once")
        routing = Routing(
            queue=QueueBounds(max_requests=self.queue_size, timeout_s=self.queue_timeout_s),
            timeouts=Timeouts(
                total_s=self.request_timeout_s, first_byte_s=min(Timeouts().first_byte_s, self.request_timeout_s)
            ),
        )
        endpoints = tuple(
            EndpointIntent(
                id=f"{host}:{port}",
                url=url,
                model=self.model,
                engine=self.engine,
                capacity=float(self.max_concurrent_requests),
                limit=self.max_concurrent_requests,
            )
            for url, (host, port) in zip(self.urls, places, strict=True)
        )
        return checked(
            IntentTable(
                source=WORKER_SOURCE, models=(ModelIntent(name=self.model, routing=routing),), endpoints=endpoints
            )
        )
