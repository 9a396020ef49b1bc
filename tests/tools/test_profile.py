"""`tf-adapter profile`: recorded runs, sums by kernel, the trace, the page."""

from __future__ import annotations

import html.parser
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge
import npu_runtime
from ge.profile import recorded_tasks
from npu_tools import tensorboard
from npu_tools.profile_data import Profile, trace_events
from npu_tools.profile_page import page
from tests.tools.command_line import run_command

SCRIPT = """
import sys
import numpy as np
import ge
g = ge.Graph("net")
x = g.input("x", (32, 64), "float32")
weights = np.ones((64, 64), np.float32)
g.output(ge.ops.softmax(ge.ops.matmul(ge.ops.relu(ge.ops.matmul(x, weights)), weights)), "y")
model = ge.compile(g)
for _ in range(5):
    model(np.ones((32, 64), np.float32))
print("printed by the script", sys.argv[1:])
sys.exit(int(sys.argv[1]))
"""
TENSORFLOW_SCRIPT = """
import numpy as np
import keras
model = keras.Sequential([keras.Input([8]), keras.layers.Dense(4, activation="softmax")])
model.compile("sgd", "sparse_categorical_crossentropy")
model.fit(np.ones((64, 8), np.float32), np.zeros(64, np.int64), batch_size=8, epochs=1, verbose=0)
"""


@pytest.fixture
def recording() -> Iterator[None]:
    npu_runtime.set_recording(True)
    yield
    npu_runtime.set_recording(False)
    npu_runtime.take_recording()


def small_model() -> ge.Model:
    g = ge.Graph("small")
    x = g.input("x", (8, 16), "float32")
    g.output(ge.ops.softmax(ge.ops.matmul(x, np.ones((16, 16), np.float32))), "y")
    return ge.compile(g, name="small")


def test_runs_are_recorded_with_their_tasks_inside(recording: None) -> None:
    model = small_model()
    for _ in range(3):
        model(np.ones((8, 16), np.float32))
    programs, spans, dropped = npu_runtime.take_recording()
    ((number, name, runs, nanoseconds, calls, self_times),) = [p for p in programs if p[1] == "small"]
    assert (name, runs, dropped, number) == ("small", 3, 0, model.program.number)
    assert calls == [3] * len(model.plan.tasks) == [3] * len(recorded_tasks[number])
    assert 0 < sum(self_times) <= nanoseconds
    own = spans[spans[:, 0] == number]
    (whole,) = [own[own[:, 1] == -1]]
    assert len(whole) == 3 and len(own) == 3 * (1 + len(calls))
    for _, _, _, start, end in whole:
        inside = own[(own[:, 1] >= 0) & (own[:, 3] >= start) & (own[:, 4] <= end)]
        assert sorted(inside[:, 1]) == list(range(len(calls)))
        assert (inside[1:, 3] >= inside[:-1, 4]).all(), "tasks follow one another"


def test_runs_that_are_too_short_to_time_all_are_counted_all_the_same(recording: None) -> None:
    """Some of them are timed, by their own time; what was measured stands for all."""
    model, x = small_model(), np.ones((8, 16), np.float32)
    for _ in range(2000):
        model(x)
    programs, spans, dropped = npu_runtime.take_recording()
    ((number, _, runs, nanoseconds, calls, self_times),) = [p for p in programs if p[1] == "small"]
    assert runs == 2000 and calls == [2000] * len(model.plan.tasks)
    own = spans[spans[:, 0] == number]
    assert len(own) + dropped == 2000 * (1 + len(calls)), "what is not in the timeline is said"
    assert len(own) >= 64 * (1 + len(calls)) and 0 < sum(self_times) <= nanoseconds * 1.001


def test_a_loop_does_not_count_what_runs_inside_of_it(recording: None) -> None:
    """The self times of all tasks add up to no more than the runs, although a loop's span holds those of its body."""
    import onnx
    from onnx import TensorProto, helper

    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Tanh", ["state"], ["activated"]),
            helper.make_node("MatMul", ["activated", "w"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [8, 8]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [8, 8]),
        ],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 8]) for name in "xy"]
    weights = onnx.numpy_helper.from_array(np.full((8, 8), 0.1, np.float32), "w")
    number = helper.make_tensor_value_info("n", TensorProto.INT64, [])
    graph = helper.make_graph([loop], "loop", [number, ports[0]], ports[1:], [weights])
    model = ge.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    model(np.array(5), np.ones((8, 8), np.float32))
    programs, _, _ = npu_runtime.take_recording()
    ((_, _, runs, nanoseconds, calls, self_times),) = [p for p in programs if p[0] == model.program.number]
    assert runs == 1 and max(calls) == 5 and min(self_times) >= 0
    assert sum(self_times) <= nanoseconds


def test_nothing_is_recorded_otherwise() -> None:
    npu_runtime.take_recording()
    small_model()(np.ones((8, 16), np.float32))
    programs, spans, _ = npu_runtime.take_recording()
    assert programs == [] and len(spans) == 0


def recorded() -> dict[str, Any]:
    """A recording of two kernels and of calls on the host; the machine makes 100 operations or 10 bytes a second."""

    def task(
        name: str, engine: str, calls: int, seconds: float, flops: float, nbytes: float
    ) -> dict[str, Any]:
        rest = {"kind": "matmul", "implementation": "", "layout": "", "shape": [2, 3], "dtype": "float32"}
        return {
            "name": name,
            "engine": engine,
            "calls": calls,
            "seconds": seconds,
            "flops": flops,
            "nbytes": nbytes,
        } | rest

    tasks = [task("product", "AI Core", 2, 4.0, 100.0, 5.0), task("<b>copy", "Vector", 1, 2.0, 1.0, 10.0)]
    return {
        "framework": "torch", "began": 1000, "ended": 10_000_001_000, "target": "avx2", "dropped": 0,
        "roof": {"flops": 100.0, "bytes": 10.0},
        "programs": [{"number": 7, "name": "net", "runs": 2, "seconds": 6.5, "tasks": tasks}],
        "spans": [[7, -1, 1, 1000, 9000], [7, 0, 1, 1000, 4000], [7, 1, 1, 4000, 9000]],
        "calls": [["Print", False, 0, 2000, 1_000_002_000], ["step", True, 0, 1000, 9000]],
        "host": [["aten.fft", 3000, 500_003_000]],
    }  # fmt: skip


def test_times_are_summed_and_compared_with_the_roof() -> None:
    profile = Profile.of(recorded())
    assert (profile.wall, profile.busy, profile.host) == pytest.approx((10.0, 6.5, 1.5))
    assert [kernel.name for kernel in profile.kernels] == ["product", "<b>copy"]
    product, copy = profile.kernels
    assert profile.roof(product) == pytest.approx(2 * 1.0 / 4.0), "limited by arithmetic: 1 s a call at best"
    assert profile.roof(copy) == pytest.approx(1.0 / 2.0), "limited by memory"
    assert product.flops_rate == pytest.approx(50.0) and product.intensity == pytest.approx(20.0)
    assert profile.operators() == [("AI Core", "matmul", 2, 4.0), ("Vector", "matmul", 1, 2.0)]


def test_the_trace_has_every_span_on_its_track() -> None:
    events = [event for event in trace_events(recorded()) if event["ph"] == "X"]
    found = {(event["pid"], event["name"]): (event["ts"], event["dur"]) for event in events}
    assert found[1, "net"] == (0.0, 8.0) and found[1, "product"] == (0.0, 3.0)
    assert {pid for pid, _ in found} == {1, 2, 3} and len(events) == 6
    assert all(event["tid"] > 0 for event in events)


def test_tensorboards_profile_plug_in_finds_every_span_on_its_line() -> None:
    space = tensorboard._TRACE["XSpace"].FromString(tensorboard.xspace(recorded(), "machine"))
    assert list(space.hostnames) == ["machine"]
    found = {}
    for plane in space.planes:
        names = {entry.key: entry.value.name for entry in plane.event_metadata}
        for line in plane.lines:
            assert line.timestamp_ns == 1000
            for event in line.events:
                found[line.name, names[event.metadata_id]] = (event.offset_ps, event.duration_ps)
    assert [plane.name for plane in space.planes] == ["/host:CPU"] and len(found) == 6
    assert found["NPU: runs, thread 1", "net"] == (0, 8_000_000)
    assert found["NPU: tasks, thread 1", "b>copy:Matmul"] == (3_000_000, 5_000_000)
    assert found["calls of the framework, thread 1", "step"] == (0, 8_000_000)


def test_tensorboards_profile_plug_in_sums_up_operators(tmp_path: Path) -> None:
    """With the plug-in's own converter, where it is installed."""
    converter = pytest.importorskip("xprof.convert.raw_to_tool_data")
    trace = tmp_path / "host.xplane.pb"
    trace.write_bytes(tensorboard.xspace(recorded(), "host"))
    data, _ = converter.xspace_to_tool_data([str(trace)], "framework_op_stats", {})
    rows = [[cell["v"] for cell in row["c"]] for row in json.loads(data)[0]["rows"]]
    assert {tuple(row[2:6]) for row in rows} >= {
        ("Matmul", "product", 1.0, 3.0),
        ("Matmul", "b>copy", 1.0, 5.0),
    }


def test_tensorboards_graph_plug_in_finds_tasks_their_devices_and_edges() -> None:
    data = recorded()
    data["programs"][0]["tasks"][1]["feeds"] = [0]
    graph = tensorboard.graph_of(data, Profile.of(data))
    first, second = graph.node
    assert (first.name, second.name, list(second.input)) == ("net/product", "net/_b_copy", ["net/product"])
    assert first.op == "matmul" and first.device.endswith("NPU:0/AI_Core")
    assert first.attr["milliseconds"].s == b"4000.000" and second.attr["calls"].s == b"1"


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "br", "rect", "line", "polyline", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("rect", "line", "polyline", "path"):
            return
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_is_well_formed() -> None:
    text = page("train.py", Profile.of(recorded()), recorded())
    tags = _Tags()
    tags.feed(text)
    assert tags.open == [] and tags.seen.count("circle") == 2 and "b" not in tags.seen
    assert "&lt;b&gt;copy" in text and not re.search(r"src=|href=.[^#]|https?://", text)
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', text)
    assert [block[3] for block in json.loads(data)["blocks"]].count("<b>copy") == 1


def test_a_page_without_kernels_says_so() -> None:
    empty = recorded() | {"programs": [], "spans": [], "calls": [], "host": []}
    text = page("train.py", Profile.of(empty), empty)
    assert "0 µs" in text and "<circle" not in text


def test_a_script_is_profiled(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run_command(
        "profile", "--json", "--output", "out", "--tensorboard", "logs", script, "4", "--flag", cwd=tmp_path
    )
    assert done.returncode == 4, done.stderr
    data = json.loads(done.stdout)
    assert data["status"] == 4 and "printed by the script ['4', '--flag']" in done.stderr
    assert {kernel["calls"] for kernel in data["kernels"]} == {5}
    products = [kernel for kernel in data["kernels"] if kernel["flops"] >= 2 * 32 * 64 * 64]
    assert len(products) == 2 and all(
        kernel["share_of_roof"] > 0 and kernel["bytes"] > 0 for kernel in products
    )
    trace = json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"]
    assert sum(event.get("cat") == "run" for event in trace) == 5
    assert json.loads((tmp_path / "out" / "profile.json").read_text())["kernels"] == data["kernels"]
    assert products[0]["name"] in (tmp_path / "out" / "profile.html").read_text()
    assert len(list((tmp_path / "logs" / "plugins" / "profile").glob("*/*.xplane.pb"))) == 1
    assert len(list((tmp_path / "logs").glob("events.out.tfevents.*"))) == 1
    assert "tensorboard --logdir logs" in done.stderr


@pytest.mark.slow
def test_a_keras_script_is_profiled(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TENSORFLOW_SCRIPT)
    done = run_command("profile", "--json", "--tensorboard", "logs", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["framework"] == "tensorflow" and any(kernel["calls"] == 8 for kernel in data["kernels"])
    trace = json.loads((tmp_path / "tf-adapter-profile" / "trace.json").read_text())["traceEvents"]
    assert any(event["pid"] == 2 and event.get("cat") == "NPU" for event in trace)
    graph = written_graph(tmp_path / "logs")
    assert {node.op for node in graph.node} and any(node.input for node in graph.node)


def written_graph(folder: Path) -> Any:
    """The graph of an event file, as TensorFlow reads it."""
    import tensorflow as tf

    (path,) = folder.glob("events.out.tfevents.*")
    graph = tf.compat.v1.GraphDef()
    (data,) = [event.graph_def for event in tf.compat.v1.train.summary_iterator(str(path)) if event.graph_def]
    graph.ParseFromString(data)
    return graph
