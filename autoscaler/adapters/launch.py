"""From a variant's `process` to a command line: placeholders, environment and what is wrong with them.

Pure but for one look at the PATH. Placeholders are `{port}` (chosen by the controller), `{device}` (one entry of
`devices`), `{python}` (the interpreter that runs the controller), `{model}` and `{id}` (the replica's). Braces that
hold anything else than a word are left alone, so JSON in an argument needs no quoting.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from autoscaler.errors import BadInput
from autoscaler.policy import Process, ScalingPolicy

ALLOWED = ("port", "device", "python", "model", "id")

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is run for one replica."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


def filled(text: str, values: Mapping[str, str], where: str) -> str:
    """`text` with its placeholders replaced. Raises `BadInput` for one that is not allowed."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in values:
            allowed = ", ".join("{" + known + "}" for known in ALLOWED)
            raise BadInput(f"{where}: unknown placeholder {{{name}}} in {text!r}; allowed: {allowed}")
        return values[name]

    return _PLACEHOLDER.sub(value, text)


def launch(policy: ScalingPolicy, variant: str, replica: str, port: int, device: str | None) -> Launch:
    """The command and environment of one replica. Raises `BadInput` for an unknown placeholder or a variant without
    `process`.
    """
    index, spec = next((i, v) for i, v in enumerate(policy.spec.variants) if v.name == variant)
    where = f"spec.variants[{index}].process"
    if spec.process is None:
        raise BadInput(f"{where}: missing; a replica on this machine needs process.command")
    values = {
        "port": str(port),
        "device": device or "",
        "python": sys.executable,
        "model": policy.spec.model,
        "id": replica,
    }
    return Launch(
        command=tuple(filled(word, values, f"{where}.command") for word in spec.process.command),
        environment={key: filled(text, values, f"{where}.env.{key}") for key, text in spec.process.env.items()},
    )


def launch_problems(policies: Sequence[ScalingPolicy], required: bool = True) -> tuple[str, ...]:
    """Everything that would keep a variant from starting on any machine, one line each: an unknown placeholder, and, if
    it is `required`, no `process` at all.
    """
    problems = []
    for policy in policies:
        for spec in policy.spec.variants:
            if spec.process is None and not required:
                continue
            try:
                launch(policy, spec.name, "id", 1, "device")
            except BadInput as error:
                problems.append(f"{policy.key}: {error}")
    return tuple(problems)


def host_problems(policies: Sequence[ScalingPolicy]) -> tuple[str, ...]:
    """Everything that would keep a variant from starting on this machine, one line each: a program that is not there,
    devices nobody can name. What `launch_problems` tells of is left out.
    """
    problems = []
    for policy in policies:
        for index, spec in enumerate(policy.spec.variants):
            if spec.process is None:
                continue
            where = f"{policy.key}: spec.variants[{index}].process"
            try:
                program = launch(policy, spec.name, "id", 1, "device").command[0]
            except BadInput:
                continue
            if not _is_program(program):
                allowed = "allowed is a program on the PATH or a file to run"
                problems.append(f"{where}.command: {program!r} not found ({allowed}) on this machine")
            if not devices_of(spec.process) and spec.process.devices:
                problems.append(f"{where}.devices: auto, but nvidia-smi names no device on this machine")
    return tuple(problems)


def check_launches(policies: Sequence[ScalingPolicy]) -> None:
    """Raises `BadInput` with all of `launch_problems` and `host_problems`."""
    problems = launch_problems(policies) + host_problems(policies)
    if problems:
        raise BadInput("\n".join(problems))


def devices_of(process: Process) -> tuple[str, ...]:
    """The device names that replicas may hold, () = none needed. `auto` asks the driver, once per process."""
    return _driver_devices() if isinstance(process.devices, str) else process.devices


@cache
def _driver_devices() -> tuple[str, ...]:
    """UUIDs of the MIG slices where a GPU has them, else of the GPU, in the driver's order; () without a driver."""
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return device_names(listing)


def device_names(listing: str) -> tuple[str, ...]:
    """Names out of `nvidia-smi -L`: a GPU that lists slices is used by its slices only."""
    found: list[str] = []
    for name in re.findall(r"UUID: ([A-Za-z0-9-]+)", listing):
        if name.startswith("MIG-") and found and found[-1].startswith("GPU-"):
            found.pop()
        found.append(name)
    return tuple(found)


def _is_program(word: str) -> bool:
    return shutil.which(word) is not None
