"""A model for a real Triton (its Python backend runs this file): y = 2 x, after a wait if the request asks for one.

Each request leaves a line in the model's log: its `x-request-id`, which Triton hands on as a parameter.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import triton_python_backend_utils as triton


class TritonPythonModel:
    """What the backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        """`args["model_config"]`: the model's configuration as JSON."""
        self._log = Path(json.loads(args["model_config"])["parameters"]["log"]["string_value"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a batch."""
        answers = []
        for request in requests:
            told = json.loads(request.parameters() or "{}")
            with self._log.open("a", encoding="utf-8") as log:
                log.write(json.dumps({"id": told.get("x-request-id")}) + "\n")
            threading.Event().wait(float(told.get("wait_s", 0)))
            x = triton.get_input_tensor_by_name(request, "x").as_numpy()
            answers.append(triton.InferenceResponse([triton.Tensor("y", 2 * x)]))
        return answers
