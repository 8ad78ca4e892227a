"""A model for a real Triton (its Python backend runs this file): streams `count` pieces of text, `wait_s` apart.

Streams run side by side. Each leaves two lines in the model's log, at its beginning and its end, with its `x-request-id`,
how many pieces it gave and whether Triton said that its client had gone.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton


class TritonPythonModel:
    """What the backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        """`args["model_config"]`: the model's configuration as JSON."""
        self._log = Path(json.loads(args["model_config"])["parameters"]["log"]["string_value"])
        self._lock = threading.Lock()
        self._streams: list[threading.Thread] = []

    def execute(self, requests: list[Any]) -> None:
        """Begin the streams of a batch."""
        for request in requests:
            told = json.loads(request.parameters() or "{}")
            stream = threading.Thread(target=self._stream, args=(request.get_response_sender(), told))
            self._streams = [other for other in self._streams if other.is_alive()] + [stream]
            stream.start()

    def finalize(self) -> None:
        """Triton stops: let the streams end first."""
        for stream in self._streams:
            stream.join()

    def _stream(self, sender: Any, told: dict[str, Any]) -> None:
        self._say(id=told.get("x-request-id"), begun=True)
        gone, given = False, 0
        for number in range(int(told.get("count", 4))):
            gone = sender.is_cancelled()
            if gone:
                break
            piece = triton.Tensor("text_output", np.array([f"piece {number} "], dtype=np.object_))
            sender.send(triton.InferenceResponse([piece]))
            given += 1
            threading.Event().wait(float(told.get("wait_s", 0)))
        sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self._say(id=told.get("x-request-id"), given=given, gone=gone)

    def _say(self, **row: Any) -> None:
        with self._lock, self._log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")
