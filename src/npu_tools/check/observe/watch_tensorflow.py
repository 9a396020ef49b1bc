"""Observes a TensorFlow 2 or Keras script, with or without the NPU."""

from __future__ import annotations

import os
import re
import runpy
from collections import defaultdict
from pathlib import Path
from typing import Any

from npu_tools.check.observe.batch_sizes import Repeatable
from npu_tools.check.observe.watcher import Watcher
from npu_tools.check.recorder import Recorder
from npu_tools.check.request import Request

__all__ = ["TensorFlowWatcher"]

_OURS = re.compile(r"^\s*(?:import|from)\s+(tf_adapter|npu_device)\b", re.MULTILINE)
_NUMBERED = re.compile(r"NPU:(\d+)")


class TensorFlowWatcher(Watcher):
    """Sets up TensorFlow for one side, runs the script and collects the NPU's work."""

    def __init__(self, request: Request, recorder: Recorder) -> None:
        super().__init__(request, recorder)
        text = Path(request.path).read_text()
        self.devices = 1 + max((int(n) for n in _NUMBERED.findall(text)), default=0)
        npu = request.side == "npu"
        if npu and self.devices > 1:
            os.environ.setdefault("NPU_DEVICE_COUNT", str(self.devices))
        if not npu:
            os.environ["NPU_AS_DEFAULT"] = "0"
        import tensorflow as tf

        if npu or _OURS.search(text):
            import tf_adapter

            if not npu:
                _stay_on_host(tf_adapter)
        from npu_tools.check.observe import tensorflow2

        if not npu:
            tensorflow2.on_host(self.devices)
        tf.keras.utils.set_random_seed(request.seed)
        self.hooks = tensorflow2.TensorFlowHooks(recorder)
        self.hooks.install()
        if npu:
            from npu_tools.check.observe import npu_tensorflow, recorded
            from npu_tools.check.observe.capture import Capture

            npu_tensorflow.start()
            recorded.start()
            self.captured = Capture(request).watch_tensorflow()

    def run(self, path: str) -> None:
        """Run the script as `python path` would."""
        runpy.run_path(path, run_name="__main__")

    def measure(self, found: dict[str, Any]) -> None:
        """Models and datasets of several NPUs belong to the threads of their devices, and are not measured."""
        if not (int(os.environ.get("NPU_DEVICE_COUNT") or 1) > 1 or self.devices > 1):
            found["pipelines"] = self._pipelines()
            super().measure(found)

    def line(self, node: str) -> str:
        """The user's line of a node."""
        return self.hooks.location_of(node)

    location = line

    def repeatable(self) -> Repeatable | None:
        """The step in a form that can be repeated with another batch."""
        return self.hooks.repeatable()

    def _pipelines(self) -> list[dict[str, Any]]:
        from npu_tools.check.observe.input_pipeline import measure

        measured = [measure(dataset) for dataset in self.hooks.datasets[:2]]
        return [m for m in measured if m is not None]

    def seen(self) -> dict[str, Any]:
        """The NPU's work so far: devices, operators, memory, times."""
        import tensorflow as tf

        from npu_runtime import tensorflow as native
        from npu_tools.check.observe import npu_tensorflow as npu
        from npu_tools.check.observe.recorded import Recorded, last_steps

        timeline = native.take_timeline()
        spans = npu.spans(timeline, self.recorder.began)
        return {
            "devices": [d.name for d in tf.config.list_logical_devices()],
            "operators": npu.operators(self.hooks.location_of, timeline),
            "graph": npu.groups(self.hooks.location_of),
            "drawing": npu.drawing(self.hooks.location_of),
            "spans": last_steps(spans, self.recorder),
            "spent": _spent(spans, self.recorder),
            "npu_memory": npu.memory(),
            "kernels": Recorded(self.recorder).kernels(),
        }


def _spent(spans: list[dict[str, Any]], recorder: Recorder) -> dict[str, float]:
    """Breakdown of the seconds of the later half of the main series."""
    series = recorder.main_series()
    if series is None or len(series.steps) < 2:
        return {}
    steps, begin = recorder.later_steps(series)
    end = steps[-1].end
    spent: dict[str, float] = defaultdict(float)
    for span in spans:
        if span["begin"] >= begin and span["end"] <= end:
            spent[span["kind"]] += span["end"] - span["begin"]
    total = end - begin
    waited = sum(s.waited for s in steps)
    spent["input"] += waited
    inside = sum(s.end - s.begin for s in steps)
    return {
        "total": total,
        "NPU": spent["NPU"],
        "input": spent["input"],
        "host": spent["host"],
        "between": max(0.0, total - inside - waited),
        "steps": float(len(steps)),
    }


def _stay_on_host(adapter: Any) -> None:
    """The script's own import of the adapter must not move the plain run to the NPU."""
    from tf_adapter import device

    owners: list[Any] = [adapter, device]
    for owner in owners:
        owner.as_default = lambda on=True: None
    owners[1].is_default = lambda: False
