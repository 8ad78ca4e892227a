"""A real Triton Inference Server for one test: the one in the `nvidia-pytriton` wheel, in an environment of its own.

It needs another numpy than ours, so it lives in `.venv-triton` (or where TIDEGATE_TRITON says), which `make
engines-triton` makes; nothing of it is imported here. `Triton` serves two models, `echo` and `tokens`, whose code stands
beside this file; each request leaves a line in a log, with the id that the router gave it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.processes import Processes, Running, free_port

HERE = Path(__file__).resolve().parent
ENVIRONMENT = Path(os.environ.get("TIDEGATE_TRITON", HERE.parent.parent / ".venv-triton"))

ECHO = """
backend: "python"
max_batch_size: 1
input [{{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }}]
dynamic_batching {{ default_queue_policy {{ max_queue_size: 2 }} }}
parameters {{ key: "log" value {{ string_value: "{log}" }} }}
"""
TOKENS = """
backend: "python"
max_batch_size: 0
model_transaction_policy {{ decoupled: true }}
input [{{ name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }}]
output [{{ name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }}]
parameters {{ key: "log" value {{ string_value: "{log}" }} }}
"""


def packages() -> Path | None:
    """Where the environment has its packages; None = it was not made, or not by a Python that Triton has a backend for."""
    for folder in sorted((ENVIRONMENT / "lib").glob("python3.*/site-packages")):
        if (folder / "pytriton/tritonserver/bin/tritonserver").exists() and stub(folder).exists():
            return folder
    return None


def stub(folder: Path) -> Path:
    """The program that runs the models' code, for the environment's version of Python."""
    version = folder.parent.name.removeprefix("python")
    return folder / "pytriton/tritonserver/python_backend_stubs" / version / "triton_python_backend_stub"


class Triton:
    """One Triton. `id`: its name, also as an endpoint."""

    def __init__(self, name: str, url: str, folder: Path, process: Running) -> None:
        self.id = name
        self.url = url
        self.process = process
        self._folder = folder

    def endpoint(self, model: str, **changes: Any) -> dict[str, Any]:
        """One of its two models as a row in an intent table."""
        row = {"id": f"{self.id}-{model}", "url": self.url, "model": model, "engine": "triton"}
        return {**row, "limit": 8, "capacity": 8, **changes}

    def log(self, model: str) -> list[dict[str, Any]]:
        """What a model did, oldest first."""
        log = self._folder / f"{model}.log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def kill(self) -> None:
        """SIGKILL to it and to the processes of its models, which would outlive it for a while."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self.process.signal(signal.SIGTERM)


def start(processes: Processes, name: str) -> Triton:
    """Start one; whether it is ready is for the router to find out, which takes 2 s. Raises when there is none to start."""
    found = packages()
    assert found is not None, f"no Triton in {ENVIRONMENT}"
    folder = processes.folder / name
    for model, configuration in (("echo", ECHO), ("tokens", TOKENS)):
        version = folder / "models" / model / "1"
        version.mkdir(parents=True)
        shutil.copy(HERE / f"triton_{model}.py", version / "model.py")
        (version.parent / "config.pbtxt").write_text(configuration.format(log=folder / f"{model}.log"))
    server, port = found / "pytriton/tritonserver", free_port()
    backend = folder / "backends/python"
    backend.mkdir(parents=True)
    for part in (*(server / "backends/python").iterdir(), stub(found)):
        (backend / part.name).symlink_to(part)
    flags = {
        "model-repository": folder / "models",
        "backend-directory": folder / "backends",
        "http-address": "127.0.0.1",
        "http-port": port,
        "http-thread-count": 16,
        "http-header-forward-pattern": "x-request-id",
        "metrics-address": "127.0.0.1",
        "metrics-port": free_port(),
        "allow-grpc": "false",
        "exit-timeout-secs": 5,
    }
    program = (str(server / "bin/tritonserver"), *(f"--{flag}={value}" for flag, value in flags.items()))
    libraries = f"LD_LIBRARY_PATH={found / 'nvidia_pytriton.libs'}"
    process = processes.start_program("/usr/bin/env", f"PATH={ENVIRONMENT / 'bin'}:/usr/bin:/bin", libraries, *program)
    return Triton(name, f"http://127.0.0.1:{port}", folder, process)
