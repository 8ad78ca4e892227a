"""Settings: every refusal names the flag, the value and what is allowed."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest

from router.errors import BadInput
from router.settings import Settings, WorkerTable, is_loopback, read_token
from router.shell.control import Line, Message


def test_the_defaults_listen_on_loopback_only() -> None:
    settings = Settings()
    assert (settings.host, settings.port, settings.admin_host, settings.admin_port) == (
        "127.0.0.1",
        8080,
        "127.0.0.1",
        9190,
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"port": 70000}, "--port: 70000 is not a port; allowed: 0 to 65535"),
        ({"admin_port": -1}, "--admin-port: -1 is not a port; allowed: 0 to 65535"),
        ({"log_level": "loud"}, "--log-level: 'loud' is not a level; allowed: debug, info, warning, error"),
        ({"admin_host": "0.0.0.0"}, "--admin-host: '0.0.0.0' is not loopback; allowed without --admin-token-file"),
        ({"admin_host": "router.example"}, "--admin-host: 'router.example' is not loopback"),
        ({"shutdown_grace_s": -1.0}, "--shutdown-grace-secs: -1.0 is out of bounds; allowed: 0 to 3600"),
        ({"shutdown_timeout_s": float("nan")}, "--shutdown-timeout-secs: nan is out of bounds"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        Settings(**given)
    assert message in str(caught.value)


def test_a_token_opens_the_admin_port_to_the_network(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123\n")
    settings = Settings(admin_host="0.0.0.0", admin_token=read_token(token))
    assert settings.admin_token == "0123456789abcdef0123"


@pytest.mark.parametrize("content", ["", "short", "two words of enough length"])
def test_a_token_that_protects_nothing_is_refused(tmp_path: Path, content: str) -> None:
    token = tmp_path / "token"
    token.write_text(content)
    with pytest.raises(BadInput, match="allowed: one word of at least 16"):
        read_token(token)


def test_a_missing_token_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--admin-token-file: .* cannot be read"):
        read_token(tmp_path / "absent")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("me", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_worker_urls_make_a_table() -> None:
    table = WorkerTable(
        urls=("http://127.0.0.1:8000", "http://127.0.0.1:8001/"),
        model="m",
        engine="vllm",
        max_concurrent_requests=4,
        queue_size=7,
        queue_timeout_s=3.0,
        request_timeout_s=60.0,
    ).table()
    assert [(e.id, e.model, e.engine, e.limit, e.capacity) for e in table.endpoints] == [
        ("127.0.0.1:8000", "m", "vllm", 4, 4.0),
        ("127.0.0.1:8001", "m", "vllm", 4, 4.0),
    ]
    routing = table.models[0].routing
    assert (routing.queue.max_requests, routing.queue.timeout_s) == (7, 3.0)
    assert (routing.timeouts.total_s, routing.timeouts.first_byte_s) == (60.0, 60.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": None}, "--model: missing"),
        ({"engine": "vlm"}, "--engine: 'vlm' is not known; allowed: generic, vllm"),
        ({"max_concurrent_requests": 0}, "--max-concurrent-requests: 0 is out of bounds; allowed: 1 and more"),
        ({"queue_size": -1}, "--queue-size: -1 is out of bounds"),
        ({"queue_timeout_s": 0.0}, "--queue-timeout-secs: 0.0 is out of bounds; allowed: more than 0"),
        ({"request_timeout_s": float("nan")}, "--request-timeout-secs: nan is out of bounds"),
        ({"urls": ("127.0.0.1:8000",)}, "--worker-urls: '127.0.0.1:8000' is not of the form http://HOST:PORT"),
        ({"urls": ("http://h:1", "http://h:1")}, "--worker-urls: h:1 given twice"),
    ],
)
def test_worker_flags_that_cannot_be_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        WorkerTable(**{"urls": ("http://127.0.0.1:8000",), "model": "m", **given}).table()
    assert message in str(caught.value)


def test_a_file_and_worker_urls_exclude_each_other(tmp_path: Path) -> None:
    table = WorkerTable(urls=("http://127.0.0.1:8000",), model="m").table()
    with pytest.raises(BadInput, match="--worker-urls: not together with -f"):
        Settings(file=tmp_path / "router.yaml", table=table)


def test_a_worker_has_a_name_a_port_a_folder_and_a_share_of_its_own() -> None:
    settings = Settings(workers=4, name="edge", admin_port=0)
    told = settings.for_worker(2, 9192, Path("state/worker-2"))
    assert (told.name, told.admin_port, told.state_dir, told.share, told.workers) == (
        "edge-2",
        9192,
        Path("state/worker-2"),
        0.25,
        1,
    )
    assert Settings(workers=4).for_worker(0, 9190, Path("s")).name == "router-9190"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 0}, "--workers: 0 is out of bounds; allowed: 1 to 256"),
        ({"workers": 257}, "--workers: 257 is out of bounds"),
        (
            {"workers": 2, "admin_port": 65535},
            "--admin-port: 65535 leaves no room for 2 workers, who take one port each",
        ),
        ({"access_log": ""}, "--access-log: '' is no file; allowed: a file, - "),
    ],
)
def test_workers_and_the_log_have_bounds(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        Settings(**changes)


async def test_settings_reach_a_worker_as_they_are() -> None:
    ours, theirs = socket.socketpair()
    table = WorkerTable(urls=("http://127.0.0.1:1",), model="m").table()
    told = Settings(name="w", state_dir=Path("a/b"), table=table, admin_token="x" * 20, share=0.5)
    parent, worker = await Line.over(ours), await Line.over(theirs)
    parent.say_settings(told)
    parent.say("go", "http://127.0.0.1:2")
    assert await worker.hear_settings() == told
    assert await worker.hear() == Message(what="go", urls=("http://127.0.0.1:2",))
    parent.close()
    assert await worker.hear() is None
    worker.say("ready")
    worker.close()
