"""One of several workers: a whole router of its own on sockets that its parent made, started by `workers.py` as
`python -m router.shell.worker CONTROL DATA ADMIN`, three inherited descriptors.

It is told what to do by its parent (`control.py`). SIGTERM stops it as well, once: a process manager that signals every
process of a group must not hurry those that the parent has just told to stop. SIGINT is the parent's alone.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys

import uvloop

from router.errors import RouterError
from router.shell.control import Line
from router.shell.logs import configure_logs
from router.shell.server import Server
from router.shell.sockets import raise_file_limit


async def work(control: socket.socket, data: socket.socket, admin: socket.socket) -> int:
    """The whole life of a worker on the running loop."""
    line = await Line.over(control)
    try:
        settings = await line.hear_settings()
        configure_logs(settings.log_level, router=settings.name)
        return await Server(settings, data, admin, line).run()
    except RouterError as error:
        line.say("failed", why=str(error))
        return error.exit_code
    finally:
        line.close()
        data.close()
        admin.close()
        await asyncio.sleep(0)  # what was said last leaves


def main(words: list[str]) -> int:
    """Run on the descriptors named."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control, data, admin = (socket.socket(fileno=int(word)) for word in words)
    for listener in (data, admin):
        listener.setblocking(False)
    raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work(control, data, admin))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
