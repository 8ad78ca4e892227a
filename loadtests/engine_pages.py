"""The pages of an emulated engine that generate nothing: health, models, metrics, faults, sleep, and Triton's readiness
and repository.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import orjson
from aiohttp import web

from loadtests.engine_answers import error_body
from loadtests.engine_driver import EngineDriver
from loadtests.engine_faults import changed
from loadtests.engine_refusals import triton_error
from loadtests.errors import BadInput

JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The one model of this engine. `seed` moves the words of its answers."""

    model: str
    context_tokens: int
    kv_tokens: int
    seed: int = 0


class EnginePages:
    """Handlers for one engine."""

    def __init__(self, driver: EngineDriver, served: Served) -> None:
        self.driver = driver
        self._served = served
        self._stale: str | None = None

    def add_to(self, app: web.Application) -> None:
        """Put the paths into an application. HEAD is 405, as in vLLM."""
        pages = {
            "/v1/models": self.models,
            "/health": self.health,
            "/metrics": self.metrics,
            "/fault": self.fault,
            "/is_sleeping": self.is_sleeping,
            "/v2/health/live": self.live,
            "/v2/health/ready": self.loaded,
            "/v2/models/{model}/ready": self.loaded,
        }
        for path, handler in pages.items():
            app.router.add_get(path, handler, allow_head=False)
        app.router.add_post("/fault", self.set_fault)
        app.router.add_post("/sleep", self.sleep)
        app.router.add_post("/wake_up", self.wake_up)
        app.router.add_post("/v2/repository/models/{model}/{action:load|unload}", self.repository)

    async def health(self, request: web.Request) -> web.Response:
        """200 with an empty body, as vLLM."""
        faults = self.driver.faults
        return web.Response(status=503 if faults.unhealthy or faults.core_dead else 200)

    async def models(self, request: web.Request) -> web.Response:
        """The one model there is."""
        row = {
            "id": self._served.model,
            "object": "model",
            "created": int(self.driver.now_epoch_s),
            "owned_by": "tidegate",
        }
        return web.json_response({"object": "list", "data": [{**row, "max_model_len": self._served.context_tokens}]})

    async def fault(self, request: web.Request) -> web.Response:
        """All faults as they are now."""
        faults = self.driver.faults
        return web.json_response({name: getattr(faults, name) for name in faults.__dataclass_fields__})

    async def set_fault(self, request: web.Request) -> web.Response:
        """Change some faults; answers with all."""
        try:
            self.driver.obey(changed(self.driver.faults, orjson.loads(await request.read())))
        except (BadInput, orjson.JSONDecodeError) as error:
            return web.Response(status=400, body=error_body(400, str(error), "BadRequestError"), content_type=JSON)
        return await self.fault(request)

    async def sleep(self, request: web.Request) -> web.Response:
        """vLLM's POST /sleep?level=1|2: what runs is aborted, what comes hangs."""
        level = request.query.get("level", "1")
        if level not in ("1", "2"):
            text = f"level = {level!r}: must be 1 or 2"
            return web.Response(status=400, body=error_body(400, text, "BadRequestError"), content_type=JSON)
        self.driver.obey(replace(self.driver.faults, asleep=True))
        return web.Response()

    async def wake_up(self, request: web.Request) -> web.Response:
        """Its end."""
        self.driver.obey(replace(self.driver.faults, asleep=False))
        return web.Response()

    async def is_sleeping(self, request: web.Request) -> web.Response:
        """Whether."""
        return web.json_response({"is_sleeping": self.driver.faults.asleep})

    async def live(self, request: web.Request) -> web.Response:
        """Triton: the process is there."""
        return web.Response()

    async def loaded(self, request: web.Request) -> web.Response:
        """Triton: 400 when the model is unloaded, or not the one there is."""
        named = request.match_info.get("model", self._served.model)
        if self.driver.faults.unloaded or named != self._served.model:
            body = triton_error(400, "Model version not ready") if "model" in request.match_info else b""
            return web.Response(status=400, body=body, content_type=JSON)
        return web.Response()

    async def repository(self, request: web.Request) -> web.Response:
        """Triton's load and unload."""
        if request.match_info["model"] != self._served.model:
            text = f"failed to load '{request.match_info['model']}', no such model"
            return web.Response(status=400, body=triton_error(400, text), content_type=JSON)
        self.driver.obey(replace(self.driver.faults, unloaded=request.match_info["action"] == "unload"))
        return web.Response()

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text under vLLM's names, or what the faults make of it."""
        mode = self.driver.faults.metrics
        if mode == "missing":
            raise web.HTTPNotFound
        if mode == "error":
            return web.Response(status=500, text="Internal Server Error")
        if mode == "stale":
            self._stale = self._stale or self._text()
        else:
            self._stale = None
        return web.Response(text=self._stale or self._text(), content_type="text/plain", charset="utf-8")

    def load_fields(self, wanted: str | None) -> dict[str, str]:
        """vLLM's header about its load, for those who ask for it as JSON or TEXT."""
        batch = self.driver.batch
        named = {
            "num_requests_waiting": float(batch.waiting),
            "kv_cache_usage_perc": min(1.0, batch.tokens_held / self._served.kv_tokens),
        }
        if wanted == "JSON":
            return {"endpoint-load-metrics": f"JSON {orjson.dumps({'named_metrics': named}).decode()}"}
        if wanted == "TEXT":
            rows = ", ".join(f"named_metrics.{name}={value}" for name, value in named.items())
            return {"endpoint-load-metrics": f"TEXT {rows}"}
        return {}

    def _text(self) -> str:
        batch, totals, mode = self.driver.batch, self.driver.totals, self.driver.faults.metrics
        if mode == "absent":
            return "# TYPE python_info gauge\npython_info 1.0\n"
        labels = f'{{engine="0",model_name="{self._served.model}"}}'
        prefix = "vllm:" if mode != "renamed" else "engine_v2:"
        rows = []
        gauges = {
            "num_requests_running": batch.running,
            "num_requests_waiting": batch.waiting,
            "kv_cache_usage_perc": min(1.0, batch.tokens_held / self._served.kv_tokens),
        }
        for name, value in gauges.items():
            shown = "NaN" if mode == "nan" else f"{float(value)}"
            rows.append(f"# TYPE {prefix}{name} gauge\n{prefix}{name}{labels} {shown}\n")
        counters = {
            "prompt_tokens_total": totals.prompt_tokens,
            "generation_tokens_total": totals.generation_tokens,
            "num_preemptions_total": 0,
        }
        for name, value in counters.items():
            rows.append(f"# TYPE {prefix}{name} counter\n{prefix}{name}{labels} {float(value)}\n")
        name = f"{prefix}request_success_total"
        rows.append(f"# TYPE {name} counter\n")
        # vLLM's abort row stays 0 although it aborts; so does ours.
        for reason, value in (("stop", 0), ("length", totals.finished), ("abort", 0)):
            rows.append(
                f'{name}{{engine="0",finished_reason="{reason}",model_name="{self._served.model}"}} {float(value)}\n'
            )
        return "".join(rows)
