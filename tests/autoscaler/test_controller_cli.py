"""What the commands refuse, each with one line that names it and exit code 2, and what they say when all is well."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoscaler.adapters.launch import device_names, filled
from autoscaler.controller.history import SqliteHistory
from autoscaler.errors import BadInput
from tests.builders import policy_document, variant_document
from tidegate import main


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's own state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))


def written(folder: Path, document: Any) -> str:
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def with_command(*words: str) -> dict[str, Any]:
    return policy_document([variant_document(process={"command": list(words)})])


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a refusal."""
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return error


BAD_FILES = {
    "an unknown key": (
        policy_document([variant_document(capactiy=3)]),
        "capactiy: unknown key; did you mean capacity?",
    ),
    "a negative capacity": (policy_document([variant_document(capacity=-3)]), "capacity: -3 is not allowed"),
    "a missing program": (with_command("no-such-program", "{port}"), "'no-such-program' not found"),
    "an unknown placeholder": (with_command("{python}", "{port}", "{gpu}"), "unknown placeholder {gpu}"),
}


@pytest.mark.parametrize(("document", "message"), BAD_FILES.values(), ids=BAD_FILES)
@pytest.mark.parametrize("words", [["validate"], ["controller", "--local"]], ids=["validate", "controller"])
def test_bad_files(
    tmp_path: Path, document: Any, message: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused([*words, "-f", written(tmp_path, document)], capsys)


HOST_FILES = {
    "a program": with_command("no-such-program", "{port}"),
    "devices": policy_document(
        [variant_document(process={"command": ["{python}", "{port}", "{device}"], "devices": "auto"})]
    ),
}


@pytest.mark.parametrize("document", HOST_FILES.values(), ids=HOST_FILES)
def test_what_depends_on_the_machine_can_be_left_out(
    tmp_path: Path, document: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no driver either
    file = written(tmp_path, document)
    assert refused(["validate", "-f", file], capsys).endswith("on this machine; --no-host-checks skips this\n")
    assert "--no-host-checks" not in refused(["controller", "--local", "-f", file], capsys)
    assert main(["validate", "-f", file, "--no-host-checks"]) == 0


def test_placeholders_are_no_matter_of_the_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, with_command("{python}", "{port}", "{gpu}"))
    assert "unknown placeholder {gpu}" in refused(["validate", "-f", file, "--no-host-checks"], capsys)


def test_validate_lists_every_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, policy_document([variant_document(capacity=-3)], mode="Fast"))
    assert main(["validate", "-f", file]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert main(["validate", "-f", file, "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["valid"], len(document["problems"])) == (False, 2)


def test_validate_says_what_is_fine_and_what_nothing_reads_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, policy_document(priority=3))
    assert main(["validate", "-f", file]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "note: chat: spec.priority: accepted, not acted on by this version",
        f"{file}: OK (chat)",
    ]
    assert main(["validate", "-f", file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policies"] == ["chat"]


def test_a_policy_for_kubernetes_alone_is_valid_and_not_for_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variant = {"name": "gpu", "scaleTargetRef": {"name": "llama"}}
    file = written(tmp_path, policy_document([variant]))
    assert main(["validate", "-f", file]) == 0
    capsys.readouterr()
    assert "spec.variants[0].process: missing" in refused(["controller", "--local", "-f", file], capsys)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_web_port_in_use(tmp_path: Path, taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["controller", "--local", "-f", written(tmp_path, policy_document()), "--web-port", str(taken)]
    assert f"--web-port {taken}: in use by another process" in refused(words, capsys)


def test_a_state_folder_that_is_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = SqliteHistory(tmp_path / "state")
    words = [
        "controller",
        "--local",
        "-f",
        written(tmp_path, policy_document()),
        "--state-dir",
        str(tmp_path / "state"),
    ]
    assert "held by another controller" in refused([*words, "--web-port", "0"], capsys)
    history.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--local", "--law", "nobody"], "--law: 'nobody' is not known; allowed: tidegate"),
        (["--local", "--router", "127.0.0.1:9190"], "--router: '127.0.0.1:9190' is not a router's admin address"),
        (["--local", "--web-port", "70000"], "--web-port: 70000 is not a port"),
        (["--local", "--stop-seconds", "-1"], "--stop-seconds: -1.0 is not allowed"),
        ([], "--local: missing"),
    ],
)
def test_bad_flags(tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(["controller", "-f", written(tmp_path, policy_document()), *words], capsys)


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "cannot be read"), (" \n", "holds no token"), ("a b", "one word")]
)
def test_a_bad_token_file(
    tmp_path: Path, content: str | None, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    words = ["controller", "--local", "-f", written(tmp_path, policy_document()), "--router-token-file", str(file)]
    error = refused(words, capsys)
    assert "--router-token-file" in error
    assert problem in error


@pytest.mark.parametrize(
    ("text", "result"),
    [("--port={port}", "--port=80"), ('{"a": {"b": 1}}', '{"a": {"b": 1}}'), ("{}", "{}"), ("{port}{port}", "8080")],
)
def test_placeholders(text: str, result: str) -> None:
    assert filled(text, {"port": "80"}, "here") == result


def test_an_unknown_placeholder_names_the_known_ones() -> None:
    with pytest.raises(
        BadInput, match=r"here: unknown placeholder \{prt\} in 'x\{prt\}'; allowed: \{port\}, \{device\}"
    ):
        filled("x{prt}", {"port": "80"}, "here")


@pytest.mark.parametrize(
    ("listing", "names"),
    [
        ("", ()),
        ("GPU 0: A (UUID: GPU-1)\nGPU 1: A (UUID: GPU-2)\n", ("GPU-1", "GPU-2")),
        (
            "GPU 0: A (UUID: GPU-1)\n  MIG 3g Device 0: (UUID: MIG-a)\n  MIG 3g Device 1: (UUID: MIG-b)\nGPU 1: A (UUID: GPU-2)\n",
            ("MIG-a", "MIG-b", "GPU-2"),
        ),
    ],
    ids=["no driver", "whole GPUs", "a GPU that is cut is used by its slices"],
)
def test_devices_of_the_driver(listing: str, names: tuple[str, ...]) -> None:
    assert device_names(listing) == names
