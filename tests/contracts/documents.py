"""The two documents that travel, as both ends must read them, and generators of many more.

Our own fixtures of the shapes in `docs/`: an intent table (controller to router), the answer to it, and a load report
(router to controller). Written out by hand, so that a field renamed on both sides at once still breaks a test.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

TABLE: dict[str, Any] = {
    "version": 1,
    "source": "serving/tidegate",
    "epoch": 12,
    "revision": 345,
    "share": 0.5,
    "models": [
        {
            "name": "llama",
            "aliases": ["llama-latest"],
            "slo": {"queue_s": 4.0, "ttft_s": 8.0},
            "routing": {
                "policy": "least-load",
                "queue": {"max_requests": 100, "max_bytes": 1048576, "timeout_s": 20.0},
                "retries": {"budget_percent": 10.0, "max_attempts": 2, "idempotent": False},
                "timeouts": {
                    "connect_s": 1.0,
                    "first_byte_s": 60.0,
                    "between_bytes_s": 30.0,
                    "total_s": 600.0,
                    "progress_s": 15.0,
                },
                "tenants": {"header": "x-tenant", "weights": {"gold": 3.0}, "default": 1.0},
                "priorities": None,
                "session": {"header": "x-session-id"},
                "ramp_s": 5.0,
            },
            "supply": {"eta_s": 41.0},
            "versions": {"v1": 0.95, "v2": 0.05},
            "mirror": {"v2": 0.01},
        }
    ],
    "endpoints": [
        {
            "id": "llama-full-7",
            "url": "http://127.0.0.1:8001",
            "model": "llama",
            "version": "v1",
            "variant": "full",
            "engine": "vllm",
            "capacity": 16.0,
            "limit": 16,
            "intent": "active",
            "starting": False,
            "max_input_tokens": None,
            "served_model": None,
        },
        {
            "id": "llama-slice-8",
            "url": "http://[::1]:8002",
            "model": "llama",
            "version": "v2",
            "variant": "slice",
            "engine": "llamacpp",
            "capacity": 2.5,
            "limit": 4,
            "intent": "draining",
            "starting": True,
            "max_input_tokens": 4096,
            "served_model": "llama-2",
        },
    ],
}

ACK: dict[str, Any] = {
    "applied": [12, 345],
    "endpoints": {
        "llama-full-7": {"in_flight": 3, "drained": False, "health": "ready"},
        "llama-slice-8": {"in_flight": 0, "drained": True, "health": "unknown"},
    },
}

REPORT: dict[str, Any] = {
    "version": 1,
    "router": "router-9190",
    "boot": "9f86d081884c",
    "seq": 17,
    "second": 3,
    "held": {"serving/tidegate": [12, 345]},
    "accepting": True,
    "models": {
        "llama": {
            "arrived": [0, 4, 2],
            "tokens_in": [0, 400, 180],
            "tokens_out": [0, 0, 33],
            "shed": [0, 0, 1],
            "in_flight": 4,
            "queued": 2,
            "queued_tokens": 210,
            "oldest_s": 0.75,
            "held_from_zero": 1,
            "service_s": {"count": 9, "sum": 20.25},
            "ttft_s": {"le": [0.1, 1.0], "count": [3, 8, 9]},
            "itl_s": {"le": [], "count": []},
        }
    },
    "endpoints": {
        "llama-full-7": {
            "intent": "active",
            "health": "half-open",
            "in_flight": 4,
            "limit": 8,
            "outcomes": {"answered": 9, "failed": 1},
            "engine": {"running": None, "waiting": 3.0, "kv": 0.4, "age_s": 1.1},
        }
    },
}

names = st.text(min_size=1, max_size=40)
ids = st.from_regex(r"[a-z0-9]{1,12}-[a-z0-9]{1,8}-[0-9]{1,4}", fullmatch=True)
counts = st.integers(min_value=0, max_value=2**53)
seconds = st.floats(min_value=0.0, max_value=1e7, allow_nan=False)
positive = st.floats(min_value=1e-3, max_value=1e6, allow_nan=False)
fractions = st.floats(min_value=0.0, max_value=1.0, allow_nan=False)
per_second = st.lists(counts, max_size=5)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The value or null."""
    return st.one_of(st.none(), strategy)


routings = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(["least-load", "prefix", "session", "round-robin"]),
        "queue": st.fixed_dictionaries({"max_requests": counts, "max_bytes": counts, "timeout_s": positive}),
        "retries": st.fixed_dictionaries(
            {"budget_percent": seconds, "max_attempts": st.integers(1, 10), "idempotent": st.booleans()}
        ),
        "timeouts": st.fixed_dictionaries(
            dict.fromkeys(("connect_s", "first_byte_s", "between_bytes_s", "total_s", "progress_s"), positive)
        ),
        "tenants": maybe(
            st.fixed_dictionaries(
                {"header": names, "weights": st.dictionaries(names, positive, max_size=2), "default": positive}
            )
        ),
        "priorities": maybe(st.fixed_dictionaries({"header": names, "bands": st.lists(names, min_size=1, max_size=3)})),
        "session": st.fixed_dictionaries({"header": names}),
        "ramp_s": seconds,
    }
)


def model_of(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """One model under a given name; no aliases, so that names stay unique over the table."""
    return st.fixed_dictionaries(
        {
            "name": st.just(name),
            "aliases": st.just([]),
            "slo": st.fixed_dictionaries({"queue_s": positive, "ttft_s": maybe(positive)}),
            "routing": routings,
            "supply": st.fixed_dictionaries({"eta_s": maybe(seconds)}),
            "versions": st.dictionaries(st.sampled_from(["v1", "v2"]), fractions, max_size=2),
            "mirror": st.dictionaries(st.sampled_from(["v1", "v2"]), fractions, max_size=2),
        }
    )


def endpoint_of(models: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    """One endpoint of one of the models."""
    ports = st.integers(1, 65535)
    return st.fixed_dictionaries(
        {
            "id": ids,
            "url": ports.map(lambda port: f"http://127.0.0.1:{port}"),
            "model": st.sampled_from(models),
            "version": names,
            "variant": names,
            "engine": st.sampled_from(["generic", "vllm", "sglang", "tgi", "triton", "llamacpp"]),
            "capacity": positive,
            "limit": st.integers(1, 10_000),
            "intent": st.sampled_from(["active", "standby", "draining"]),
            "starting": st.booleans(),
            "max_input_tokens": maybe(st.integers(1, 10**6)),
            "served_model": maybe(names),
        }
    )


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    """Whole tables whose parts fit together."""
    models = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    return {
        "version": 1,
        "source": draw(names),
        "epoch": draw(counts),
        "revision": draw(counts),
        "share": draw(st.floats(min_value=0.001, max_value=1.0)),
        "models": [draw(model_of(name)) for name in models],
        "endpoints": draw(st.lists(endpoint_of(models), max_size=4, unique_by=lambda endpoint: endpoint["id"])),
    }


healths = st.sampled_from(["unknown", "ready", "ejected", "half-open"])
histograms = st.fixed_dictionaries({"le": st.lists(positive, max_size=4), "count": per_second})
pairs = st.tuples(counts, counts).map(list)

model_loads = st.fixed_dictionaries(
    {
        **dict.fromkeys(("arrived", "tokens_in", "tokens_out", "shed"), per_second),
        **dict.fromkeys(("in_flight", "queued", "queued_tokens", "held_from_zero"), counts),
        "oldest_s": seconds,
        "service_s": st.fixed_dictionaries({"count": counts, "sum": seconds}),
        "ttft_s": histograms,
        "itl_s": histograms,
    }
)
endpoint_loads = st.fixed_dictionaries(
    {
        "intent": st.sampled_from(["active", "standby", "draining", "absent"]),
        "health": healths,
        "in_flight": counts,
        "limit": counts,
        "outcomes": st.dictionaries(names, counts, max_size=3),
        "engine": st.fixed_dictionaries({name: maybe(seconds) for name in ("running", "waiting", "kv", "age_s")}),
    }
)
reports = st.fixed_dictionaries(
    {
        "version": st.just(1),
        "router": names,
        "boot": names,
        "seq": counts,
        "second": counts,
        "held": st.dictionaries(names, pairs, max_size=2),
        "accepting": st.booleans(),
        "models": st.dictionaries(names, model_loads, max_size=2),
        "endpoints": st.dictionaries(ids, endpoint_loads, max_size=3),
    }
)
acks = st.fixed_dictionaries(
    {
        "applied": pairs,
        "endpoints": st.dictionaries(
            ids, st.fixed_dictionaries({"in_flight": counts, "drained": st.booleans(), "health": healths}), max_size=3
        ),
    }
)
