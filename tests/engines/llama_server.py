"""A process that is a real llama.cpp server: `python tests/engines/llama_server.py MODEL PORT [flags]`.

The server is the one inside the `xllamacpp` wheel, on loopback, with one thread a core of work so that several fit on two
cores. SIGTERM stops it as it stops llama-server: the listener closes, streams get no more tokens, and the process ends
when the server has let go of them. The port answers 503 while the model loads. It says `llama.cpp ready: URL` on stdout
when it serves, and its own log goes to stderr.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

PROMPTS_IN_SLOTS = "LLAMA_SERVER_SLOTS_DEBUG"
"""With this in its environment llama.cpp's /slots page says which prompt each slot is working on."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("port", type=int, help="port of 127.0.0.1")
    parser.add_argument("--name", default="tide-1", help="model name in its answers")
    parser.add_argument("--slots", type=int, default=2, help="requests at a time; further ones wait inside")
    parser.add_argument("--context", type=int, default=2048, help="tokens a slot holds; large ones take long to load")
    parser.add_argument("--ping-s", type=int, default=30, help="silence after which a stream gets a comment")
    parser.add_argument("--no-metrics", action="store_true", help="/metrics answers 501")
    return parser.parse_args()


def main() -> int:
    """Serve until SIGTERM."""
    told = arguments()
    os.environ[PROMPTS_IN_SLOTS] = "1"
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # before the server's threads start: they inherit it
    import xllamacpp

    wanted = xllamacpp.CommonParams()
    wanted.model.path = told.model
    wanted.model_alias = {told.name}
    wanted.hostnames = ["127.0.0.1"]
    wanted.port = told.port
    wanted.n_parallel = told.slots
    wanted.n_ctx = told.slots * told.context
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = 1
    wanted.endpoint_metrics = not told.no_metrics
    wanted.endpoint_slots = True
    wanted.sse_ping_interval = told.ping_s
    wanted.cache_ram_mib = 0
    server = xllamacpp.Server(wanted)
    print(f"llama.cpp ready: {server.listening_address}", flush=True)
    signal.sigwait({signal.SIGTERM})
    del server
    return 0


if __name__ == "__main__":
    sys.exit(main())
