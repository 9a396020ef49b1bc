"""The check without a framework: what is checked, rules, comparisons, judgements, the page."""

from __future__ import annotations

import copy
import json
import math
import signal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from npu_tools.check import assemble, child, compare, judge, largest, page, processes, session
from npu_tools.check.processes import Finished
from npu_tools.check.request import Request
from npu_tools.check.rules import FIGURES, broken, parse_rules
from npu_tools.check.scratch import Scratch
from npu_tools.check.subject import Subject, subject_of
from npu_tools.main import main
from npu_tools.outcome import Failure

SCHEMA = json.loads(Path(assemble.__file__).with_name("report.schema.json").read_text())


def series(count: int, seconds: float, losses: bool = True, growth: int = 0) -> dict[str, Any]:
    """A series of steps of a training loop."""
    steps = [
        {
            "begin": i * seconds,
            "end": (i + 1) * seconds,
            "loss": 1.0 / (i + 1) if losses else None,
            "waited": 0.0,
            "resident": (100 << 20) + i * growth,
        }
        for i in range(count)
    ]
    return {"kind": "function", "name": "train_step", "location": "train.py:9", "steps": steps}


def record(seconds: float, **more: Any) -> dict[str, Any]:
    """The record of a run."""
    made = {
        "seconds": 1.0,
        "error": {},
        "main": ["function", "train_step"],
        "series": [series(20, seconds, growth=more.pop("growth", 0))],
        "memory": {"over_time": [(0.0, 1 << 20), (1.0, 2 << 20)], "peak": 2 << 20, "growing": []},
        "lines": [],
    }
    return made | more


def operator(name: str, place: str, location: str = "", **more: Any) -> dict[str, Any]:
    """A row of the operator table."""
    row = {
        "operator": name,
        "place": place,
        "reason": "no plugin maps it" if place == "host" else "",
        "remedy": "",
    }
    lists = {"nodes": [f"node/{name}"], "locations": [location] if location else []}
    return row | lists | {"count": 1, "flops": 10.0, "eager": False, "calls": 20} | more


def report(
    npu: dict[str, Any] | None = None, plain: dict[str, Any] | None = None, **limits: float
) -> dict[str, Any]:
    """A judged report of two runs."""
    found = {"devices": ["/device:NPU:0"], "operators": [operator("MatMul", "NPU")]}
    runs = {"plain": plain or record(0.02), "npu": npu or record(0.01, **found)}
    outputs = {side: {"y[0]": np.ones(4, np.float32)} for side in runs}
    subject = {"name": "train.py", "kind": "script", "framework": "tensorflow", "arguments": []}
    made = assemble.assemble(subject, {"tf-adapter": "0"}, runs, outputs, {"complete": True})
    judge.judge(made, limits, None)
    made["broken_rules"] = []
    return made


def ids(found: dict[str, Any]) -> list[str]:
    return [f["id"] for f in found["findings"]]


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("import tensorflow as tf\nmodel = tf.keras.Sequential()", "tensorflow"),
        ("import tensorflow as tf\nx = tf.placeholder(tf.float32)", "tensorflow1"),
        ("import tensorflow.compat.v1 as tf", "tensorflow1"),
        ("from npu_bridge.npu_init import *", "tensorflow1"),
        ("import torch", "torch"),
        ("import helper", "torch"),
    ],
)
def test_the_framework_of_a_script_is_found(tmp_path: Path, text: str, framework: str) -> None:
    (tmp_path / "helper.py").write_text("import torch_npu")
    (tmp_path / "train.py").write_text(text)
    assert subject_of(tmp_path / "train.py").framework == framework


@pytest.mark.parametrize("name", ["missing.py", "notes.txt", "folder", "plain.py"])
def test_what_cannot_be_checked_is_refused_with_a_remedy(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain.py").write_text("print(1)")
    with pytest.raises(Failure) as failure:
        subject_of(tmp_path / name)
    assert failure.value.remedy


def test_a_script_runs_in_a_copy_of_its_folder(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "train.py").write_text("x")
    (project / "data" / "small.txt").write_text("small")
    (project / "data" / "large.bin").write_bytes(b"0" * (5 << 20))
    scratch = Scratch.mirror(tmp_path / "scratch", project, project / "train.py")
    assert scratch.script.read_text() == "x" and not scratch.script.is_relative_to(project)
    (scratch.folder / "data" / "small.txt").write_text("changed")
    assert (project / "data" / "small.txt").read_text() == "small"
    assert (scratch.folder / "data" / "large.bin").is_symlink()
    assert dict(scratch.roots)[f"{scratch.folder}/"] == f"{project}/"


def test_a_good_run_ticks_the_checklist() -> None:
    found = report(latency=50.0)
    states = {item["item"]: item["state"] for item in found["checklist"]}
    assert [state for state in states.values() if state == "fail"] == []
    assert sum(state == "pass" for state in states.values()) == 5
    assert found["figures"]["speedup"] == pytest.approx(2.0)
    assert ids(found) == []


def test_operators_on_the_host_are_named_by_line_and_only_if_a_step_has_them() -> None:
    rows = [
        operator("FFT", "host", "train.py:8"),
        operator("Real", "host", "train.py:8"),
        operator("MatMul", "NPU"),
        operator("Assign", "host", "train.py:3", calls=1),
        operator("IteratorGetNext", "host", "train.py:4"),
    ]
    found = report(record(0.01, operators=rows))
    (finding,) = found["findings"]
    assert (finding["id"], finding["location"]) == ("host-operator", "train.py:8")
    assert "FFT" in finding["title"] and finding["remedy"]
    assert found["figures"]["host_operators"] == 2


def test_python_on_the_host_is_a_round_trip() -> None:
    found = report(record(0.01, operators=[operator("EagerPyFunc", "host", "train.py:5")]))
    assert ids(found) == ["host-round-trip"]


def test_growing_memory_is_a_finding_and_names_the_line(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("history = []\nfor i in range(9):\n    history.append(i)\n")
    growing = {"over_time": [], "peak": 1, "growing": [{"name": "history", "per_step": 1.0, "size": 20}]}
    found = report(record(0.01, growth=1 << 20, memory=growing))
    judge.judge(found, {}, source)
    (finding,) = [f for f in found["findings"] if f["id"] == "memory-growth"]
    assert finding["location"] == "train.py:3" and "history" in finding["detail"]
    assert "memory-growth" not in ids(report())


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        ("a = {}\na[1] = 2", "a", 2),
        ("a = []\na += [1]", "a", 2),
        ("class K:\n    def f(self):\n        self.kept.append(1)", "k.kept", 3),
        ("a = []", "a", 0),
    ],
)
def test_the_line_that_makes_a_container_longer(tmp_path: Path, text: str, name: str, line: int) -> None:
    source = tmp_path / "s.py"
    source.write_text(text)
    assert judge.line_of(source, name) == (f"s.py:{line}" if line else "")


def test_a_slow_input_pipeline_names_its_slowest_stage() -> None:
    stages = [
        {"stage": "Map", "location": "train.py:7", "seconds": 0.03},
        {"stage": "Batch", "location": "", "seconds": 0.001},
    ]
    found = report(record(0.02, pipelines=[{"seconds": 0.031, "stages": stages}]))
    (finding,) = [f for f in found["findings"] if f["id"] == "slow-input"]
    assert finding["location"] == "train.py:7"


def test_a_slow_loader_is_found_by_the_time_that_steps_wait() -> None:
    spent = {"total": 1.0, "NPU": 0.2, "input": 0.7, "host": 0.0, "between": 0.1, "steps": 10.0}
    lines = [
        {"location": "train.py:30", "inside": True, "share": 0.6},
        {"location": "data.py:5", "inside": False, "share": 0.4},
    ]
    found = report(record(0.1, spent=spent, lines=lines))
    (finding,) = [f for f in found["findings"] if f["id"] == "slow-input"]
    assert finding["location"] == "data.py:5"
    fast = [{"seconds": 0.001, "stages": [{"stage": "Map", "location": "", "seconds": 0.001}]}]
    assert ids(report(record(0.1, spent=spent, pipelines=fast))) == ["input-wait", "slower"]


def test_results_that_differ_are_errors() -> None:
    made = report()
    made["outputs"] = assemble.compare_outputs({"y": np.ones(4)}, {"y": np.array([1.0, 1.0, 1.0, 2.0])})
    judge.judge(made, {}, None)
    assert "outputs-differ" in ids(made)
    made["outputs"] = assemble.compare_outputs({"y": np.ones(4)}, {"y": np.array([1.0, 1.0, 1.0, np.inf])})
    judge.judge(made, {}, None)
    assert "overflow" in ids(made)
    made["outputs"] = assemble.compare_outputs({"y": np.ones(4)}, {"y": np.ones(3)})
    judge.judge(made, {}, None)
    assert "outputs-differ" in ids(made)


def test_curves_that_the_framework_does_not_repeat_either_are_unstable() -> None:
    made = report()
    made["losses"] = {"plain": [1.0, 0.5, 0.4], "npu": [1.0, 0.6, 0.3]}
    judge.judge(made, {}, None)
    (finding,) = [f for f in made["findings"] if f["id"].startswith("loss")]
    assert (finding["id"], finding["level"]) == ("loss-differs", "warning")
    made["other_losses"] = [1.0, 0.45, 0.5]
    judge.judge(made, {}, None)
    (finding,) = [f for f in made["findings"] if f["id"].startswith("loss")]
    assert (finding["id"], finding["level"]) == ("loss-unstable", "note")
    assert made["figures"]["framework_loss_error"] == pytest.approx(0.1 / (1.9 / 3))
    made["losses"]["npu"][0] = 1.5  # the first step differs: that is no instability
    judge.judge(made, {}, None)
    assert [(f["id"], f["level"]) for f in made["findings"]] == [("loss-differs", "error")]
    assert "other kernels" in page.render(made)


def test_an_interruption_after_the_run_keeps_what_was_found_before_it() -> None:
    class Watcher:
        def finish(self, found: dict[str, Any]) -> None:
            found |= self.seen()
            raise KeyboardInterrupt

        def seen(self) -> dict[str, Any]:
            return {"operators": [operator("MatMul", "NPU")]}

    kept = record(0.01, interrupted=False)
    child._finish(Watcher(), kept, "npu")
    assert kept["interrupted"] and kept["series"] and report(kept)["operators"]
    during = record(0.01, interrupted=True)
    child._finish(Watcher(), during, "npu")
    assert during["interrupted"] and report(during)["operators"]


@pytest.mark.parametrize(("place", "state"), [("NPU", "pass"), ("host", "open")])
def test_eager_operators_are_counted_by_their_calls(place: str, state: str) -> None:
    rows = [operator("Conv2D", "NPU", eager=True, count=53), operator("Mean", place, eager=True, count=2)]
    (item,) = [i for i in report(record(0.01, operators=rows))["checklist"] if "Every operator" in i["item"]]
    assert item["state"] == state and item["evidence"].startswith("55" if place == "NPU" else "53")


def test_what_is_wrong_with_the_environment_is_a_finding() -> None:
    made = report()
    made["environment_findings"] = [
        {"severity": "warning", "text": "NPU_X has no effect", "remedy": "NPU_Y?"}
    ]
    judge.judge(made, {}, None)
    assert [(f["id"], f["remedy"]) for f in made["findings"]] == [("environment", "NPU_Y?")]


def test_whether_the_input_keeps_up_is_on_the_checklist() -> None:
    def state(**given: Any) -> str:
        (item,) = [i for i in report(record(0.01, **given))["checklist"] if "input" in i["item"]]
        return str(item["state"])

    def pipeline(seconds: float) -> list[dict[str, Any]]:
        return [{"seconds": seconds, "stages": [{"stage": "Map", "location": "", "seconds": seconds}]}]

    spent = {"total": 1.0, "NPU": 0.2, "input": 0.4, "host": 0.0, "between": 0.0, "steps": 10.0}
    assert state() == "open"
    assert state(pipelines=pipeline(0.001)) == "pass"
    assert state(pipelines=pipeline(0.02)) == "fail"
    assert state(pipelines=pipeline(0.001), spent=spent) == "open"


@pytest.mark.parametrize(
    ("used", "speedup", "state"), [(4, 4.0, "pass"), (1, None, "open"), (0, 4.0, "pass")]
)
def test_npus_that_a_script_does_not_use_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: int, speedup: float | None, state: str
) -> None:
    runs = iter([record(0.04, npus_used=1), record(0.01, npus_used=used)])
    monkeypatch.setattr(session.Check, "_run", lambda *_: Finished(next(runs), {}, ""))
    made = session.Check(Subject(tmp_path / "train.py", "script"), session.Settings(npus=(1, 4)))
    made._scale(tmp_path)
    assert made.scaling[1]["speedup"] == (speedup and pytest.approx(speedup))
    found = report() | {"scaling": made.scaling}
    judge.judge(found, {}, None)
    (item,) = [i for i in found["checklist"] if "NPUs" in i["item"]]
    assert item["state"] == state and (speedup or "uses 1 of 4 NPUs" in item["evidence"])


def test_batches_of_both_runs_and_the_largest_that_fits() -> None:
    rows = [{"batch": 8, "seconds": 0.1, "arena": 1 << 20}, {"batch": 16, "seconds": 0.1, "arena": 3 << 20}]
    memory = {"limit": 13 << 20, "constants": 0, "peak": 1 << 20}
    npu = record(0.01, batches=rows, npu_memory=memory)
    made = report(npu, record(0.02, batches=[{"batch": 8, "seconds": 0.3}]))
    assert [row.get("plain_seconds") for row in made["batches"]] == [0.3, None]
    assert largest.computed(npu) == 56 and "Throughput by batch size" in page.render(made)


def test_the_largest_batch_is_tried_and_a_smaller_one_if_it_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [{"batch": 8, "seconds": 0.1, "arena": 1 << 20}, {"batch": 16, "seconds": 0.1, "arena": 3 << 20}]
    npu = record(0.01, batches=rows, npu_memory={"limit": 13 << 20, "constants": 0, "peak": 1 << 20})

    def outcome(limit: int) -> largest.Trial:
        found = largest.search(
            npu, lambda b: {"seconds": 0.5} if b <= limit else {"refused": "out of memory"}
        )
        assert found is not None
        return found

    fits = outcome(56)
    assert fits.largest == 56 and fits.text() == "The largest batch that fits: 56, tried (0.5 s a step)."
    smaller = outcome(50)
    assert smaller.largest == 44 and "56 does not: out of memory" in smaller.text()
    assert "does not run" in outcome(0).text()
    monkeypatch.setattr(largest, "MOST_SECONDS", 0.2)
    late = outcome(56)
    assert late.largest == 56 and late.rows == [{"batch": 32, "seconds": 0.5}]
    assert late.text() == (
        "A batch that fits: 32, tried (0.5 s a step). The largest would be 56 by the memory of the measured batches; "
        "more was not tried because a step of more would take over 0.2 s."
    )
    assert largest.search(record(0.01), lambda b: {}) is None


def test_a_failure_on_the_npu_is_an_error_with_its_line() -> None:
    error = {"type": "ValueError", "message": "no", "location": "train.py:4", "traceback": "…"}
    found = report({"error": error, "series": [], "side": "npu"})
    assert found["findings"][0]["id"] == "npu-failed" and found["findings"][0]["location"] == "train.py:4"
    assert page.render(found)


def test_a_run_that_was_interrupted_before_its_first_record_has_not_failed(tmp_path: Path) -> None:
    (tmp_path / "output.txt").write_text("KeyboardInterrupt")
    asked = Request("npu", "script", "tensorflow", "train.py", (), (), str(tmp_path))
    found = report(processes._read(tmp_path, -signal.SIGINT, asked, interrupted=True).record)
    assert not [f for f in found["findings"] if f["level"] == "error"]
    assert found["checklist"][0] == {
        "item": "The NPU is there", "state": "open", "evidence": "the NPU run did not end",
    }  # fmt: skip
    assert page.render(found)
    killed = report(processes._read(tmp_path, -signal.SIGKILL, asked, interrupted=False).record)
    assert killed["findings"][0]["detail"] == "the process was killed by SIGKILL"


def test_rules_decide_about_the_exit_status() -> None:
    found = report(record(0.01, operators=[operator("FFT", "host", "train.py:8")]))
    for text, hits in [("error", 0), ("warning", 1), ("checklist", 1), ("host-operator", 1), ("memory-growth", 0),
                       ("speedup<1", 0), ("speedup<3", 1), ("host_operators>0", 1),
                       ("input_share>0.5", 1)]:  # fmt: skip
        assert len(broken(found, parse_rules([text]))) == hits, text
    for text in ("speed<1", "Warning!", "speedup<"):
        with pytest.raises(Failure):
            parse_rules([text])


def test_a_comparison_shows_what_changed(tmp_path: Path) -> None:
    old = report(record(0.01, operators=[operator("FFT", "host", "train.py:8")]))
    new = report(record(0.04, operators=[operator("IFFT", "host", "train.py:9")]))
    changed = compare.changes(old, new)
    assert "step_ms" in [row["figure"] for row in changed["figures"]]
    assert [f["title"] for f in changed["gone_findings"]] == ["FFT runs on the host"]
    assert "IFFT runs on the host" in [f["title"] for f in changed["new_findings"]]
    assert {row["operator"] for row in changed["operators"]} == {"FFT", "IFFT"}
    same = copy.deepcopy(old)
    assert not any(
        compare.changes(old, same)[key] for key in ("figures", "new_findings", "operators", "checklist")
    )
    session.write(old | {"figures": old["figures"] | {"loss_error": math.nan}}, tmp_path / "old.html")
    (row,) = compare.changes(compare.load(tmp_path / "old.json"), old)["figures"]
    assert (row["figure"], row["verdict"]) == ("loss_error", "better") and math.isnan(row["old"])
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(Failure, match="schema"):
        compare.load(tmp_path / "other.json")


class _Structure(HTMLParser):
    """Checks that tags are closed in order, and remembers what the page loads and shows."""

    VOID = frozenset({"meta", "input", "line", "rect", "circle", "polyline", "path", "br", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.loads += [
            value for name, value in attrs if name in ("src", "href") and value and not value.startswith("#")
        ]
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag == "svg":
            self.images.append(given)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"


def test_the_page_stands_alone_and_is_well_formed(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    found = report(record(0.01, operators=[operator(hostile, "host", "train.py:8")]))
    written, data = session.write(found, tmp_path / "r.html")
    text = written.read_text()
    assert hostile not in text
    structure = _Structure()
    structure.feed(text)
    assert structure.open == [] and structure.loads == []
    assert len(structure.ids) == len(set(structure.ids))
    assert structure.images and all(
        image.get("aria-hidden") == "true" or (image["role"] == "img" and image["aria-label"])
        for image in structure.images
    )
    assert json.loads(data.read_text())["schema"] == assemble.SCHEMA


def problems(data: Any) -> list[str]:
    """What the schema says about a report."""
    return [f"{e.json_path}: {e.message}" for e in jsonschema.Draft202012Validator(SCHEMA).iter_errors(data)]


def test_a_report_is_what_its_schema_says(tmp_path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"] == SCHEMA["properties"]["schema"]["const"] == assemble.SCHEMA
    assert SCHEMA["properties"]["figures"]["required"] == list(FIGURES)
    old, new = report(), report(record(0.04, operators=[operator("FFT", "host", "train.py:8")]))
    new["losses"]["npu"] = [1.0, float("nan")]
    new["changes"] = compare.changes(old, new)
    error = {"type": "ValueError", "message": "no", "location": "train.py:4", "traceback": "…"}
    for made in (old, new, report({"error": error, "series": [], "side": "npu"})):
        _, data = session.write(made, tmp_path / "r.html")
        assert problems(json.loads(data.read_text())) == []
    del new["findings"]
    assert problems(new) != []


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA


def test_numbers_that_are_not_finite_are_written_as_text(tmp_path: Path) -> None:
    found = report()
    found["losses"]["npu"] = [1.0, float("nan")]
    _, data = session.write(found, tmp_path / "r.html")
    assert json.loads(data.read_text())["losses"]["npu"] == [1.0, "nan"]
