"""A target of real processes for tests: a small server that does what it is told, and a yard to start it in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoscaler.adapters.local import LocalReplicas
from autoscaler.adapters.processes import (
    group_members,
)
from autoscaler.controller.history import SqliteHistory
from autoscaler.model import Now, Replica
from autoscaler.policy import ScalingPolicy
from tests.builders import a_policy, variant_document

SERVER = """
import http.server, os, signal, subprocess, sys, time
port, how = int(sys.argv[1]), sys.argv[2]
print("loading", how, os.environ.get("DEVICE", ""), flush=True)
if how == "crash":
    print("out of memory", flush=True)
    sys.exit(3)
if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if how == "children":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
if how == "never":
    time.sleep(600)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 404)
        self.end_headers()
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


def clock() -> Now:
    now_s = asyncio.get_running_loop().time()
    return Now(monotonic_s=now_s, epoch_s=1_700_000_000 + now_s)


class Yard:
    """A target with its history, and the news it gives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "server.py"
        self.script.write_text(SERVER)
        self.history = SqliteHistory(folder / "state")
        self.target = LocalReplicas(self.history, folder / "logs", clock, stop_bound_s=5.0)
        self.news = asyncio.Event()
        self.target.on_change = self.news.set

    def policy(self, how: str = "ok", **process: Any) -> ScalingPolicy:
        command = ["{python}", str(self.script), "{port}", how, "{id}"]
        whole = {"command": command, "readiness": {"path": "/ready"}, **process}
        return a_policy([variant_document("v", process=whole)])

    async def start(self, policy: ScalingPolicy) -> Replica:
        return await self.target.start(policy, "v", False, clock())

    async def there(self, policy: ScalingPolicy) -> tuple[Replica, ...]:
        return await self.target.replicas(policy, clock())

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for news until the condition holds; ten times what it should take."""
        async with asyncio.timeout(30):
            while not true():
                self.news.clear()
                await self.news.wait()

    def life(self, replica: Replica) -> Any:
        return next(run for run in self.target.lives() if run.id == replica.id)

    async def ready(self, replica: Replica) -> None:
        await self.until(lambda: self.life(replica).ready is not None)

    async def gone(self, replica: Replica) -> None:
        await self.until(lambda: self.life(replica).gone is not None)

    def group(self, replica: Replica) -> list[int]:
        return group_members(self.life(replica).process.identity.pid)
