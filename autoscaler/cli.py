"""`tidegate controller`, `tidegate validate` and `tidegate why`: flags and what they call. Heavy parts are imported
when they run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from autoscaler.errors import BadInput
from autoscaler.settings import DEFAULT_LAW, ControllerSettings, default_state_dir, read_token

if TYPE_CHECKING:
    from autoscaler.ports import Law

CONTROLLER_EXAMPLE = """\
example:
  tidegate router --port 8080 --admin-port 9190 &
  tidegate controller --local -f policy.yaml --router http://127.0.0.1:9190

It runs until SIGTERM, SIGINT or SIGHUP (its terminal was closed; not under nohup): then it drains its replicas
(a few seconds at most), stops them all and exits with 0. A second signal skips the drain.
A router that does not answer is waited for: drains end at the policy's drain.timeoutSeconds, and nothing is scaled down
while its load is missing. One that is gone for good is left out by starting the controller again without it."""

VALIDATE_EXAMPLE = """\
example:
  tidegate validate -f policy.yaml

Exit code 0 when the file can be used, 2 with every problem, one a line, when it cannot."""

WHY_EXAMPLE = """\
examples:
  tidegate why
  tidegate why llama-8b --at 1767225600
  tidegate why llama-8b --at 2026-01-01T00:00:00Z --json"""


def controller_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `tidegate controller`."""
    parser.epilog = CONTROLLER_EXAMPLE
    parser.add_argument(
        "--local", action="store_true", help="replicas are processes on this machine (the only kind so far)"
    )
    parser.add_argument(
        "-f", "--file", type=Path, required=True, metavar="FILE", help="ScalingPolicy documents, YAML or JSON"
    )
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR", help=f"history and logs (default {_shown(default_state_dir())})"
    )
    parser.add_argument(
        "--router",
        action="append",
        metavar="URL",
        help="a router's admin address; repeat for several (default http://127.0.0.1:9190)",
    )
    parser.add_argument(
        "--router-token-file",
        type=Path,
        metavar="FILE",
        help="the admin token of routers that were started with --admin-token-file, the same for all (default none)",
    )
    parser.add_argument("--web-host", default="127.0.0.1", help="address of the status API (default 127.0.0.1)")
    parser.add_argument("--web-port", type=int, default=9089, help="its port, 0 = any free one (default 9089)")
    parser.add_argument(
        "--law",
        default=DEFAULT_LAW,
        help="who decides: tidegate, or a law to compare it with, such as hpa (default tidegate)",
    )
    parser.add_argument(
        "--stop-seconds", type=float, default=10.0, help="from SIGTERM to SIGKILL of a replica (default 10)"
    )


def controller(args: argparse.Namespace) -> int:
    """Run the local controller. Raises `BadInput` (exit code 2) when it cannot start as asked."""
    if not args.local:
        raise BadInput("--local: missing; this version starts replicas as processes on this machine only")
    from autoscaler.policy_file import read_policies

    policies = read_policies(args.file)
    settings = ControllerSettings(
        file=args.file,
        state_dir=args.state_dir or default_state_dir(),
        routers=tuple(args.router or ("http://127.0.0.1:9190",)),
        router_token=read_token(args.router_token_file) if args.router_token_file else None,
        web_host=args.web_host,
        web_port=args.web_port,
        law=args.law,
        stop_bound_s=args.stop_seconds,
    )
    law = law_named(args.law, args.injected)
    from autoscaler.controller.run import run

    return run(settings, policies, law)


def law_named(name: str, others: Callable[[], Mapping[str, Law]] | None) -> Law:
    """Our own law, or one that was handed in. Raises `BadInput` naming the known ones."""
    if name == DEFAULT_LAW:
        from autoscaler.decide.decider import decide

        return decide
    laws = others() if others is not None else {}
    if name not in laws:
        known = ", ".join([DEFAULT_LAW, *sorted(laws)])
        raise BadInput(f"--law: {name!r} is not known; allowed: {known}")
    return laws[name]


def validate_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `tidegate validate`."""
    parser.epilog = VALIDATE_EXAMPLE
    parser.add_argument(
        "-f", "--file", type=Path, required=True, metavar="FILE", help="ScalingPolicy documents, YAML or JSON"
    )
    parser.add_argument("--json", action="store_true", help="the outcome as JSON")
    parser.add_argument(
        "--no-host-checks",
        action="store_true",
        help="skip what depends on this machine: whether the program is there, what nvidia-smi says, its devices",
    )


def validate(args: argparse.Namespace) -> int:
    """Print what is wrong with a file (exit code 2), or that it can be used, with notes on fields that nothing reads
    yet.
    """
    from autoscaler.adapters.launch import host_problems, launch_problems
    from autoscaler.policy_file import not_acted_on, read_policies

    try:
        policies = read_policies(args.file)
        problems = [f"{args.file}: {problem}" for problem in launch_problems(policies, required=False)]
        if not args.no_host_checks:
            skips = "; --no-host-checks skips this"
            problems += [f"{args.file}: {problem}{skips}" for problem in host_problems(policies)]
        if problems:
            raise BadInput("\n".join(problems))
    except BadInput as error:
        if not args.json:
            raise
        print(json.dumps({"valid": False, "problems": str(error).splitlines()}))
        return error.exit_code
    notes = [
        f"{policy.key}: {field}: accepted, not acted on by this version"
        for policy in policies
        for field in not_acted_on(policy)
    ]
    if args.json:
        print(json.dumps({"valid": True, "policies": [policy.key for policy in policies], "notes": notes}))
        return 0
    for note in notes:
        print(f"note: {note}")
    print(f"{args.file}: OK ({', '.join(policy.key for policy in policies)})")
    return 0


def why_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `tidegate why`."""
    parser.epilog = WHY_EXAMPLE
    parser.add_argument(
        "policy", nargs="?", metavar="POLICY", help="name of the policy (default: the one decided last)"
    )
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR", help=f"the controller's (default {_shown(default_state_dir())})"
    )
    parser.add_argument(
        "--at", metavar="TIME", help="the decision in force then: seconds since 1970, or ISO 8601 (default: now)"
    )
    parser.add_argument("--json", action="store_true", help="the record as JSON")


def why(args: argparse.Namespace) -> int:
    """Print the decision in force at a moment. Raises `BadInput` when there is none."""
    from autoscaler.controller.explain import explanation
    from autoscaler.controller.history import SqliteHistory
    from autoscaler.controller.stderr_log import log_to_stderr

    at_s = None if args.at is None else moment(args.at)
    now_s = datetime.now(UTC).timestamp()
    log_to_stderr()
    history = SqliteHistory(args.state_dir or default_state_dir(), read_only=True)
    try:
        newest = history.last_decision(args.policy, at_s)
        if newest is None:
            raise BadInput(_nothing_found(args.policy, args.at, history.policies()))
        record = history.last_decision(newest.policy, newest.epoch_s, complete=True) or newest
    finally:
        history.close()
    if args.json:
        document = {
            "policy": record.policy,
            "epoch_s": record.epoch_s,
            "decision": record.decision,
            "inputs": record.inputs,
        }
        print(json.dumps({**document, "commands": record.commands, "confirmed_epoch_s": newest.epoch_s}))
    else:
        past = at_s is not None and at_s < now_s
        print(explanation(record, newest, at_s if past else now_s, past=past))
    return 0


def moment(text: str) -> float:
    """Seconds since 1970 from a number or an ISO 8601 date with a zone. Raises `BadInput`."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadInput(
            f"--at: {text!r} is not a time; allowed: seconds since 1970, or a date such as 2026-01-01T00:00:00Z"
        )
    return found.timestamp()


def _nothing_found(policy: str | None, at: str | None, known: list[str]) -> str:
    if policy is not None and policy not in known:
        return f"POLICY: {policy!r} has no decision in this history; known: {', '.join(known) or 'none'}"
    when = f" at or before {at}" if at is not None else " yet"
    return f"no decision{when}"


def _shown(path: Path) -> str:
    """A path in a help text, where % is special."""
    try:
        return f"~/{path.relative_to(Path.home())}".replace("%", "%%")
    except ValueError:
        return str(path).replace("%", "%%")
