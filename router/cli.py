"""`tidegate router`: its flags and how they become `Settings`. What is heavy (loop, server) is imported only when the
router runs."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLE = """\
examples:
  tidegate router -f router.yaml
  tidegate router --worker-urls http://127.0.0.1:8000 http://127.0.0.1:8001 --model llama-3 --engine vllm
  tidegate router --state-dir state --admin-port 9190        (endpoints come from a controller)
  tidegate router -f router.yaml --workers 2 --access-log access.jsonl

It serves until SIGTERM: then /ready answers 503, requests in flight end, and it exits with 0.
With several workers SIGUSR2 replaces them one after the other without cutting a request."""


def router_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `tidegate router`."""
    parser.epilog = EXAMPLE
    parser.add_argument(
        "-f", "--file", type=Path, metavar="FILE", help="intent table, YAML or JSON; reloaded on change and on SIGHUP"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address of the data port (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8080, help="data port, 0 = any free one (default 8080)")
    parser.add_argument("--admin-host", default="127.0.0.1", help="address of the admin port (default 127.0.0.1)")
    parser.add_argument(
        "--admin-port", type=int, default=9190, help="admin API and metrics, 0 = any free one (default 9190)"
    )
    parser.add_argument(
        "--admin-token-file",
        type=Path,
        metavar="FILE",
        help="bearer token of the admin API; needed when --admin-host is not loopback",
    )
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="keep the last tables here; a restarted router starts from them"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="router processes on the data port; worker i has admin port ADMIN+i and 1/N of each limit (default 1)",
    )
    parser.add_argument(
        "--access-log",
        default="-",
        metavar="FILE",
        help="one JSON line for each request: a file, - for standard output, or off (default -)",
    )
    parser.add_argument("--name", help="name in load reports (default router-ADMINPORT)")
    parser.add_argument(
        "--log-level", default="info", help="debug, info, warning or error (default info); JSON lines on stderr"
    )
    parser.add_argument(
        "--shutdown-grace-secs",
        type=float,
        default=1.0,
        help="still accept this long after SIGTERM, with /ready at 503 (default 1)",
    )
    parser.add_argument(
        "--shutdown-timeout-secs",
        type=float,
        default=30.0,
        help="then give requests in flight this long to end (default 30)",
    )
    _endpoint_arguments(parser)


def _endpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that describe endpoints without a file."""
    workers = parser.add_argument_group("endpoints without a file")
    workers.add_argument(
        "--worker-urls", nargs="+", metavar="URL", help="engines, each http://HOST:PORT; needs --model"
    )
    workers.add_argument("--model", metavar="NAME", help="the model name that clients ask for")
    workers.add_argument(
        "--engine",
        default="generic",
        help="generic, vllm, sglang, tgi, triton or llamacpp (default generic: no metrics read)",
    )
    workers.add_argument(
        "--max-concurrent-requests",
        type=int,
        default=256,
        help="most requests in flight at one endpoint; its slots (default 256)",
    )
    workers.add_argument(
        "--queue-size", type=int, default=2000, help="most requests waiting, 0 = never queue (default 2000)"
    )
    workers.add_argument(
        "--queue-timeout-secs", type=float, default=30.0, help="a request waits at most this long (default 30)"
    )
    workers.add_argument(
        "--request-timeout-secs", type=float, default=1800.0, help="a request takes at most this long (default 1800)"
    )


def router(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; 0 then. Raises `BadInput` (exit code 2) when the router cannot start as asked."""
    from router.errors import BadInput
    from router.settings import Settings, WorkerTable, read_token

    table = None
    if args.worker_urls:
        table = WorkerTable(
            urls=tuple(args.worker_urls),
            model=args.model,
            engine=args.engine,
            max_concurrent_requests=args.max_concurrent_requests,
            queue_size=args.queue_size,
            queue_timeout_s=args.queue_timeout_secs,
            request_timeout_s=args.request_timeout_secs,
        ).table()
    elif args.model:
        raise BadInput(f"--worker-urls: missing; --model {args.model!r} is only for it")
    settings = Settings(
        host=args.host,
        port=args.port,
        admin_host=args.admin_host,
        admin_port=args.admin_port,
        admin_token=read_token(args.admin_token_file) if args.admin_token_file else None,
        name=args.name,
        file=args.file,
        table=table,
        state_dir=args.state_dir,
        workers=args.workers,
        access_log=args.access_log,
        log_level=args.log_level,
        shutdown_grace_s=args.shutdown_grace_secs,
        shutdown_timeout_s=args.shutdown_timeout_secs,
    )
    if settings.workers > 1:  # imported after the checks, so that a bad flag is answered in 0.1 s
        from router.shell.workers import run
    else:
        from router.shell.server import run
    return run(settings)
