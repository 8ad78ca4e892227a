"""A real router, a real controller and emulated engines as processes: they scale, replace what dies, and leave
nothing behind.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoscaler.adapters.processes import group_members
from tests.builders import policy_document, variant_document
from tests.processes import Processes, Running

pytestmark = pytest.mark.processes

BOUND_S = 45.0
"""Ten times what anything here takes on an idle machine."""


TOKEN = "a-token-that-is-long-enough-for-a-router"


def get(url: str) -> Any:
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


def until(true: Callable[[], Any], what: str) -> Any:
    """Look until it holds; gives what was seen."""
    pause, ends_s = threading.Event(), time.perf_counter() + BOUND_S
    while time.perf_counter() < ends_s:
        found = true()
        if found:
            return found
        pause.wait(0.1)
    raise AssertionError(f"{what}: not within {BOUND_S} s")


NEVER_DOWN = {"scaleUp": {"policies": []}, "scaleDown": {"stabilizationWindowSeconds": 600}}


class Stack:
    """A router, a controller with one policy, and a client. `variant` and `spec` change the policy."""

    def __init__(self, processes: Processes, folder: Path, variant: dict[str, Any], **spec: Any) -> None:
        self.processes = processes
        self.folder = folder
        engine = ["{python}", "-m", "tidegate", "engine", "--port", "{port}", "--model", "m"]
        engine += ["--load-seconds", "0.5", "--slots", "4", "--decode-tokens-per-s", "40"]
        start_time = {"p50Seconds": 1, "p90Seconds": 2}
        fields = {"capacity": 4, "maxReplicas": 3, "startTime": start_time, "process": {"command": engine}, **variant}
        document = policy_document([variant_document("v", **fields)], **{"prediction": {"enabled": False}, **spec})
        (folder / "policy.yaml").write_text(yaml.safe_dump(document))
        (folder / "token").write_text(TOKEN)
        words = ["--port", "0", "--admin-port", "0", "--name", "r", "--admin-token-file", str(folder / "token")]
        self.router = processes.start("router", *words)
        found = self.router.wait_ready(r"tidegate router ready: data (\S+) admin (\S+)")
        self.data, self.admin = found.groups()
        self.pool = ThreadPoolExecutor(max_workers=64)
        self.controller = self.start_controller()

    def start_controller(self) -> Running:
        words = ["--local", "-f", str(self.folder / "policy.yaml"), "--state-dir", str(self.folder / "state")]
        words += ["--router", self.admin, "--router-token-file", str(self.folder / "token")]
        started = self.processes.start("controller", *words, "--web-port", "0")
        self.web = started.wait_ready(r"tidegate controller ready: web (\S+)").group(1)
        return started

    def status(self) -> Any:
        policies = get(f"{self.web}/api/v1/status")["policies"]
        return policies[0] if policies else None

    def ready(self, count: int) -> Any:
        def there() -> Any:
            status = self.status()
            return status if status is not None and status["counts"]["ready"] == count else None

        return until(there, f"{count} ready replicas")

    def ask(self, tokens: int = 20) -> Future[int]:
        """One request in the background; its status, 0 for a broken connection."""

        def work() -> int:
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens})
            request = urllib.request.Request(
                f"{self.data}/v1/chat/completions", body.encode(), {"content-type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=BOUND_S) as answer:
                    answer.read()
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                error.close()
                return error.code
            except (OSError, ValueError):
                return 0

        return self.pool.submit(work)

    def endpoints(self) -> list[Any]:
        return list(get(f"{self.admin}/admin/v1/load")["endpoints"].values())

    def idle(self) -> bool:
        """Whether nothing is in flight or queued anywhere, by the router's own word."""
        report = get(f"{self.admin}/admin/v1/load")
        model, rows = report["models"]["m"], report["endpoints"].values()
        return model["in_flight"] == model["queued"] == 0 and all(row["in_flight"] == 0 for row in rows)

    def replicas(self) -> Any:
        return get(f"{self.web}/api/v1/replicas")

    def ends(self, pids: list[int]) -> None:
        """The controller has ended well and its replicas with it."""
        assert self.controller.wait(BOUND_S) == 0
        assert [pid for pid in pids if group_members(pid)] == []

    def close(self) -> None:
        self.pool.shutdown()
        self.controller.stop()
        self.router.stop()


@pytest.fixture
def make(processes: Processes, tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    made: list[Stack] = []

    def one(variant: dict[str, Any] | None = None, **spec: Any) -> Stack:
        made.append(Stack(processes, tmp_path, variant or {}, **spec))
        return made[0]

    yield one
    for stack in made:
        stack.close()


def pids_of(status: Any) -> list[int]:
    return [row["pid"] for row in status["replicas"]]


def test_it_scales_up_replaces_what_dies_and_leaves_nothing(make: Callable[..., Stack]) -> None:
    stack = make(behavior=NEVER_DOWN)
    stack.ready(1)
    burst = [stack.ask() for _ in range(40)]
    grown = stack.ready(3)
    assert [future.result() for future in burst] == [200] * 40
    assert grown["start_times"]["v"]["samples"] >= 2

    long = [stack.ask(tokens=80) for _ in range(12)]
    until(lambda: get(f"{stack.admin}/admin/v1/load")["models"]["m"]["in_flight"] == 12, "all in flight")
    victim = grown["replicas"][0]
    os.kill(victim["pid"], signal.SIGKILL)
    row = until(
        lambda: next((r for r in stack.replicas() if r["id"] == victim["id"] and r["gone_epoch_s"]), None), "its end"
    )
    assert row["exit"] == -signal.SIGKILL
    assert row["why"].startswith("killed by SIGKILL")
    until(lambda: len(stack.replicas()) == 4, "a replacement")
    replaced = stack.ready(3)
    assert victim["id"] not in [r["id"] for r in replaced["replicas"]]
    assert [future.result() for future in long].count(200) >= 8  # only the victim's own streams were lost
    until(stack.idle, "gauges at 0")

    stack.controller.signal(signal.SIGTERM)
    stack.ends(pids_of(replaced))
    assert get(f"{stack.admin}/admin/v1/load")["endpoints"] == {}


def test_a_killed_controller_is_followed_by_one_that_takes_over(make: Callable[..., Stack]) -> None:
    stack = make()
    (before,) = stack.ready(1)["replicas"]
    words = ["--local", "-f", str(stack.folder / "policy.yaml"), "--state-dir", str(stack.folder / "state")]
    second = stack.processes.start("controller", *words, "--web-port", "0")
    assert second.wait() == 2
    assert "held by another controller" in second.stderr[0]
    stack.controller.kill()
    assert stack.ask().result() == 200  # the router goes on by its last table
    stack.controller = stack.start_controller()
    (after,) = stack.ready(1)["replicas"]
    assert (after["id"], after["pid"]) == (before["id"], before["pid"])
    assert stack.ask().result() == 200
    stack.controller.signal(signal.SIGTERM)
    stack.ends([after["pid"]])


def test_a_second_signal_does_not_wait_for_streams(make: Callable[..., Stack]) -> None:
    stack = make()
    status = stack.ready(1)
    long = stack.ask(tokens=4000)
    until(lambda: sum(row["in_flight"] for row in stack.endpoints()) == 1, "a stream")
    stack.controller.signal(signal.SIGTERM)
    until(lambda: any(row["intent"] == "draining" for row in stack.endpoints()), "a drain")
    stack.controller.signal(signal.SIGTERM)
    stack.ends(pids_of(status))
    assert long.result() != 200


def test_from_zero_and_back_through_the_drain(make: Callable[..., Stack]) -> None:
    panic = {"windowSeconds": 1, "stableWindowSeconds": 2}
    down = {"scaleUp": {"policies": []}, "scaleDown": {"stabilizationWindowSeconds": 0, "policies": []}, "panic": panic}
    stack = make({"minReplicas": 0}, scaleToZero={"enabled": True, "retentionSeconds": 1}, behavior=down)
    until(lambda: (found := stack.status()) and found["desired"] == 0 and not found["replicas"], "nothing left")
    before = len(stack.replicas())  # until the load is known one replica is kept
    assert stack.ask(tokens=200).result() == 200  # held, woken, answered over five seconds, not cut by the drain
    row = until(lambda: next((r for r in stack.replicas()[before:] if r["gone_epoch_s"]), None), "none left")
    assert row["started_epoch_s"] < row["ready_epoch_s"] < row["draining_epoch_s"] < row["gone_epoch_s"]
    assert row["why"] == ""
    assert stack.status()["desired"] == 0


def test_a_terminal_that_closes_ends_it_as_sigterm_does(make: Callable[..., Stack]) -> None:
    stack = make()
    status = stack.ready(1)
    stack.controller.signal(signal.SIGHUP)
    stack.ends(pids_of(status))


def test_under_nohup_it_outlives_its_terminal(make: Callable[..., Stack]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited, as nohup does it
    try:
        stack = make()
    finally:
        signal.signal(signal.SIGHUP, before)
    status = stack.ready(1)
    stack.controller.signal(signal.SIGHUP)
    assert stack.ask(tokens=80).result() == 200
    assert pids_of(stack.ready(1)) == pids_of(status)
    stack.controller.signal(signal.SIGTERM)
    stack.ends(pids_of(status))
