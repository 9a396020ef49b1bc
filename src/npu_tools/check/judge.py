"""Derives findings, figures and the checklist of the migration guide from the measurements."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Finding", "judge"]

ERROR = 0.01  # the guide's tolerance for results
LOSS_ERROR = 0.01
UNSTABLE_FACTOR = 4.0  # times the framework's own run-to-run difference
MEMORY_SHARE = 0.8
SPEEDUP_OF_FOUR = 3.0
GROWTH = 32 << 10  # bytes per step: a leak, if a container grows
UNNAMED_GROWTH = 256 << 10  # without one: allocators' own warm-up takes up to this much
INPUT_SHARE = 0.3
_ROUND_TRIP = ("EagerPyFunc", "PyFunc", "PyFuncStateless")
_BY_NATURE = ("Iterator", "Dataset", "Summary", "Print", "Assert", "NoOp", "Const", "Optional", "Identity", "Variable",
              "VarHandle", "Placeholder")  # fmt: skip
_MOST_OVERFLOWS = 5
_LEVELS = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """A finding for the user: what, severity, where, and the remedy."""

    id: str
    level: str  # "error" | "warning" | "note"
    title: str
    detail: str = ""
    location: str = ""
    remedy: str = ""


def judge(report: dict[str, Any], limits: Mapping[str, float], source: Path | None) -> None:
    """Add findings, figures and the checklist to a report."""
    report["figures"] = figures(report)
    found = [f for rule in _RULES for f in rule(report, limits, source)]
    found.sort(key=lambda f: _LEVELS.index(f.level))
    report["findings"] = [asdict(f) for f in found]
    report["checklist"] = checklist(report, limits)


# -- figures ------------------------------------------------------------------------------------------------------


def figures(report: Mapping[str, Any]) -> dict[str, float | None]:
    """The figures used by rules, comparisons and the summary."""
    plain, npu = (report["speed"].get(side, {}) for side in ("plain", "npu"))
    errors = [row["error"] for row in report["outputs"] if row.get("error") is not None]
    steps = npu.get("steps", 0)
    nodes = [
        row
        for row in report["operators"]
        if not row["eager"] and (row["place"] == "none" or row["calls"] >= often(steps))
    ]
    host = [row for row in nodes if row["place"] != "NPU" and not _by_nature(row["operator"])]
    flops = sum(row["flops"] for row in nodes)
    device = report["memory"].get("npu", {}).get("device", {})
    return {
        "speedup": _ratio(plain.get("step_seconds"), npu.get("step_seconds")),
        "step_ms": _times(npu.get("step_seconds"), 1e3),
        "plain_step_ms": _times(plain.get("step_seconds"), 1e3),
        "first_step_s": npu.get("first_step_seconds"),
        "plain_first_step_s": plain.get("first_step_seconds"),
        "output_error": max(errors, default=None),
        "loss_error": loss_error(report["losses"].get("plain", []), report["losses"].get("npu", [])),
        "framework_loss_error": loss_error(report["losses"].get("plain", []), report["other_losses"]),
        "operators": float(sum(row["count"] for row in nodes)),
        "host_operators": float(sum(row["count"] for row in host)),
        "host_flops_share": sum(row["flops"] for row in host) / flops if flops else 0.0,
        "peak_memory_mib": _times(report["memory"].get("npu", {}).get("peak"), 2**-20),
        "plain_peak_memory_mib": _times(report["memory"].get("plain", {}).get("peak"), 2**-20),
        "device_memory_share": _ratio(device.get("peak"), device.get("limit")),
        "memory_growth_kib": _times(report["memory"].get("npu", {}).get("growth_per_step"), 2**-10),
        "input_share": _input_share(report),
    }


def often(steps: int) -> int:
    """Number of calls from which a function counts as part of the steps, not of their preparation.

    >>> often(0), often(4), often(20)
    (0, 2, 6)
    """
    return max(min(2, steps), steps // 3)


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _by_nature(operator: str) -> bool:
    return any(word in operator for word in _BY_NATURE)


def loss_error(plain: list[float], npu: list[float]) -> float | None:
    """Maximum difference of two loss curves relative to the magnitude of the losses."""
    pairs = list(zip(plain, npu, strict=False))
    if not pairs:
        return None
    scale = statistics.fmean(abs(a) for a, _ in pairs) or 1.0
    return max(abs(a - b) for a, b in pairs) / scale


def _input_share(report: Mapping[str, Any]) -> float | None:
    spent = report["spent"]
    return spent["input"] / spent["total"] if spent.get("total") else None


# -- findings -----------------------------------------------------------------------------------------------------


def _environment(
    report: Mapping[str, Any], limits: Mapping[str, float], source: Path | None
) -> Iterator[Finding]:
    del limits, source
    for fault in report["environment_findings"]:
        yield Finding("environment", fault["severity"], fault["text"], "", "", fault["remedy"])


def _failures(
    report: Mapping[str, Any], limits: Mapping[str, float], source: Path | None
) -> Iterator[Finding]:
    del limits, source
    for side, run in report["runs"].items():
        error = run.get("error")
        if not error:
            continue
        where = "on the NPU" if side == "npu" else "without the NPU"
        both = side == "plain" or not report["runs"].get("plain", {}).get("error")
        remedy = (
            "the script has to run by itself before it can be checked"
            if side == "plain"
            else "it runs without the NPU: see the message"
            if both
            else "mend the plain run first"
        )
        yield Finding(
            f"{side}-failed",
            "error",
            f"Fails {where}: {error['type']}",
            error["message"],
            error["location"],
            remedy,
        )
    if report["runs"].get("npu", {}).get("incomplete"):
        yield Finding(
            "incomplete", "warning", "Part of the check failed", report["runs"]["npu"]["incomplete"]
        )


def _placement(
    report: Mapping[str, Any], limits: Mapping[str, float], source: Path | None
) -> Iterator[Finding]:
    """One finding per line of the script and cause."""
    del limits, source
    steps = report["speed"].get("npu", {}).get("steps", 0)
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in report["operators"]:
        concerns = row["place"] != "NPU" and not row["eager"] and not _by_nature(row["operator"])
        if concerns and (row["place"] == "none" or row["calls"] >= often(steps)):
            groups.setdefault(tuple(row["locations"][:1]), []).append(row)
    for place, rows in groups.items():
        yield _host_part(place[0] if place else "", rows)


def _host_part(location: str, rows: list[Mapping[str, Any]]) -> Finding:
    names = list(dict.fromkeys(row["operator"] for row in rows))
    missing = rows[0]["place"] == "none"
    python = any(name in _ROUND_TRIP for name in names)
    roots = [row for row in rows if row["remedy"]] or rows
    reasons = dict.fromkeys(f"{row['operator']} ×{row['count']}: {row['reason']}" for row in rows)
    verb = "run" if len(names) > 1 else "runs"
    how = (
        "not supported on the NPU"
        if missing
        else f"{verb} Python on the host in every step"
        if python
        else f"{verb} on the host"
    )
    remedies = dict.fromkeys(row["remedy"] or _REMEDIES.get(row["operator"], _REPLACE) for row in roots)
    return Finding(
        "unsupported-operator" if missing else "host-round-trip" if python else "host-operator",
        "error" if missing else "warning",
        f"{', '.join(names[:6])}{' …' if len(names) > 6 else ''} {how}",
        "; ".join(list(reasons)[:8]) + f" [{', '.join(rows[0]['nodes'][:3])}]",
        location,
        "; ".join(list(remedies)[:2]),
    )


_REPLACE = (
    "replace it by operators that the NPU has, write it as a custom operator (docs/custom_operators.md), or leave it: "
    "mixed computing runs it on the host"
)
_REMEDIES = dict.fromkeys(
    _ROUND_TRIP, "write the function with TensorFlow's operators, so that it stays on the NPU"
)


def _round_trips(
    report: Mapping[str, Any], limits: Mapping[str, float], source: Path | None
) -> Iterator[Finding]:
    del limits, source
    steps = report["speed"].get("npu", {}).get("steps", 0)
    for read in report["reads"]:
        if steps >= 4 and read["steps"] >= 0.8 * steps:
            yield Finding(
                "read-in-every-step",
                "warning",
                f"A device value is read by the script in every step ({read['what']})",
                f"{read['count']} reads in {steps} steps: each waits for the device, and the next step with it",
                read["location"],
                "keep the value on the device and read it every few steps, or after the loop",
            )


def _input(report: Mapping[str, Any], limits: Mapping[str, float], source: Path | None) -> Iterator[Finding]:
    del limits, source
    step = report["speed"].get("npu", {}).get("step_seconds")
    share = report["figures"]["input_share"]
    for pipeline in report["pipelines"]:
        slowest = max(pipeline["stages"], key=lambda s: s["seconds"])
        bound = step is not None and pipeline["seconds"] > (1 - INPUT_SHARE) * step
        if bound and (pipeline["seconds"] > 0.002 if share is None else share > INPUT_SHARE):
            yield Finding(
                "slow-input",
                "warning",
                f"The input pipeline does not keep up: {_ms(pipeline['seconds'])} a batch, {_ms(step)} a step",
                f"stage {slowest['stage']} takes {_ms(slowest['seconds'])} of it",
                slowest["location"],
                "map with num_parallel_calls=tf.data.AUTOTUNE, move work before batch() into vectorised operators, "
                "cache() what does not change, and end with prefetch(tf.data.AUTOTUNE)",
            )
            return
    if share is not None and share > INPUT_SHARE and report["pipelines"] and step is not None:
        alone = report["pipelines"][0]["seconds"]
        yield Finding(
            "input-wait",
            "note",
            f"A step waits {share:.0%} of its time for input, although the pipeline alone needs {_ms(alone)} a batch",
            "the pipeline shares its cores with the kernels or with other programs",
            "",
            "fewer threads for the device (NPU_NUM_THREADS), more batches ahead (NPU_PREFETCH), or more cores",
        )
    lines = [line["location"] for line in report["lines"].get("npu", []) if not line["inside"]]
    if share is not None and share > INPUT_SHARE and not report["pipelines"]:
        yield Finding(
            "slow-input",
            "warning",
            f"A step waits {share:.0%} of its time for its batch",
            "the loader prepares batches more slowly than the device uses them",
            lines[0] if lines else "",
            "give the DataLoader workers (num_workers), and do the work for a whole batch at once",
        )
    spent = report["spent"]
    if (
        spent.get("total")
        and spent["between"] > 0.5 * spent["total"]
        and spent["total"] / spent["steps"] > 0.002
    ):
        yield Finding(
            "slow-input",
            "warning",
            f"The script spends {spent['between'] / spent['total']:.0%} of a step between the calls of the model",
            "the device waits while Python prepares the next batch",
            lines[0] if lines else "",
            "prepare batches with tf.data or a DataLoader with workers, ahead of the step",
        )


def _leak(report: Mapping[str, Any], limits: Mapping[str, float], source: Path | None) -> Iterator[Finding]:
    del limits
    memory = report["memory"].get("npu", {})
    growing = memory.get("growing", [])
    if memory.get("growth_per_step", 0.0) < (GROWTH if growing else UNNAMED_GROWTH):
        return
    also = report["memory"].get("plain", {}).get("growth_per_step", 0.0) >= GROWTH
    name = growing[0]["name"] if growing else ""
    detail = f"{memory['growth_per_step'] / 2**20:.2f} MiB a step" + (", without the NPU too" if also else "")
    if name:
        detail += f"; '{name}' gets longer in every step and has {growing[0]['size']} entries"
    yield Finding(
        "memory-growth",
        "warning",
        "Memory grows with every step",
        detail,
        line_of(source, name) if source is not None and name else "",
        "keep numbers (float(x)) instead of tensors, and drop what is no longer needed"
        if name
        else "look for lists and caches that keep tensors of every step",
    )


def line_of(source: Path, name: str) -> str:
    """The line of a script that grows a container: an append or an assignment to a key."""
    tree = ast.parse(source.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            grows = node.func.attr in (
                "append",
                "extend",
                "add",
                "insert",
                "update",
                "setdefault",
                "appendleft",
            )
            if grows and _same(ast.unparse(node.func.value), name):
                return f"{source.name}:{node.lineno}"
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                base = target.value if isinstance(target, ast.Subscript) else target
                if (isinstance(target, ast.Subscript) or isinstance(node, ast.AugAssign)) and _same(
                    ast.unparse(base), name
                ):
                    return f"{source.name}:{node.lineno}"
    return ""


def _same(text: str, name: str) -> bool:
    """True if an expression refers to a container by name or as an attribute of `self`."""
    return text == name or ("." in name and text == f"self.{name.partition('.')[2]}")


def _overflows(
    report: Mapping[str, Any], limits: Mapping[str, float], source: Path | None
) -> Iterator[Finding]:
    """Operators that overflow in the script's own mode, if it enables overflow detection."""
    del limits, source
    first: dict[str, Mapping[str, Any]] = {}
    for row in report.get("dump", {}).get("overflows", ()):
        first.setdefault(row["node"], row)
    for row in list(first.values())[:_MOST_OVERFLOWS]:
        yield Finding(
            "operator-overflow", "error", f"{row['operators']} ({row['node']}) overflows",
            f"{row['not_finite']} of {row['size']} values ({row['dtype']}) are not finite in step {row['step']}; "
            f"the greatest finite value that it reads is {row['largest_input']:.3g}",
            row["location"], "keep it in float32 (--mixlist finds which operators), or scale what it reads",
        )  # fmt: skip


def _results(
    report: Mapping[str, Any], limits: Mapping[str, float], source: Path | None
) -> Iterator[Finding]:
    del source
    allowed = limits.get("error", ERROR)
    for row in report["outputs"]:
        if row.get("mismatch"):
            yield Finding("outputs-differ", "error", f"{row['name']} has another shape", row["mismatch"])
        elif row["not_finite"]:
            yield Finding(
                "overflow", "error", f"{row['name']} has {row['not_finite']} values that are not finite on the NPU",
                "", "", "run with --layers to find the first layer, and keep it in float32 (--mixlist)",
            )  # fmt: skip
        elif row["error"] > allowed:
            yield Finding(
                "outputs-differ", "error", f"{row['name']} differs by {row['error']:.2%} (allowed: {allowed:.2%})",
                f"greatest difference {row['largest']:.3g} at a scale of {row['scale']:.3g}", "",
                "--layers finds the first layer that departs; precision_mode=must_keep_origin_dtype keeps float32",
            )  # fmt: skip
    error = report["figures"]["loss_error"]
    if error is not None and not error <= limits.get("loss", LOSS_ERROR):
        yield _loss_curves(report, error)


def _loss_curves(report: Mapping[str, Any], error: float) -> Finding:
    """Diverging loss curves; harmless if the framework diverges as much with other kernels."""
    losses, own = report["losses"], report["figures"]["framework_loss_error"]
    first = abs(losses["plain"][0] - losses["npu"][0]) / (abs(losses["plain"][0]) or 1.0)
    detail = f"the first losses differ by {first:.2%}"
    detail += "" if first > LOSS_ERROR else ", so the first step agrees"
    if own is not None:
        detail += f"; without the NPU, other kernels of the framework's change the curve by up to {own:.2%}"
    if first <= LOSS_ERROR and own is not None and error <= UNSTABLE_FACTOR * own:
        return Finding(
            "loss-unstable", "note",
            f"The loss curves differ by up to {error:.2%}: the training itself is that unstable", detail, "",
            "nothing is wrong with the NPU; a lower learning rate makes runs comparable, --layers compares one step",
        )  # fmt: skip
    return Finding(
        "loss-differs", "warning" if first <= LOSS_ERROR else "error",
        f"The loss curves differ by up to {error:.2%}", detail, "",
        "a script whose order of data or random numbers are not fixed differs from run to run: fix them to compare",
    )  # fmt: skip


def _layers(report: Mapping[str, Any], limits: Mapping[str, float], source: Path | None) -> Iterator[Finding]:
    del limits, source
    for mode, found in report["precision"].get("modes", {}).items():
        first = found.get("first_overflow")
        if first:
            yield Finding(
                "layer-overflow", "warning", f"{first['layer']} ({first['operator']}) overflows in {mode}",
                f"its greatest value is {first['largest']:.4g}; {first['not_finite']} values are lost",
                first["location"],
                f"keep it in float32: --mixlist finds the operators to keep for {mode}",
            )  # fmt: skip
        departs = found.get("first_departing")
        if departs and mode == "must_keep_origin_dtype":
            yield Finding(
                "layer-departs", "warning", f"{departs['layer']} ({departs['operator']}) departs from float64",
                f"relative error {departs['error']:.2g}, {_without_npu(departs, report)}",
                departs["location"],
                "op_select_implmode=high_precision avoids products that save arithmetic",
            )  # fmt: skip


def _without_npu(row: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    """Describe a layer's error without the NPU, and its local error if the reference is unstable."""
    if row.get("local") is not None:
        theirs = f"from what it reads on the NPU {row['local']:.2g}, float32 by itself {row['local_reference']:.2g}"
        return f"the reference itself is unstable there; {theirs}"
    if row.get("framework") is None:
        return f"float32 by itself {row['reference']:.2g}"
    return f"{report['precision'].get('framework') or 'the framework'} {row['framework']:.2g}"


def _speed(report: Mapping[str, Any], limits: Mapping[str, float], source: Path | None) -> Iterator[Finding]:
    del source
    speedup = report["figures"]["speedup"]
    steps = report["speed"].get("npu", {}).get("steps", 0)
    if speedup is not None and speedup < 0.95 and steps > 2:  # a single step includes compiling
        yield Finding(
            "slower", "note", f"A step takes {1 / speedup:.2f} times as long as without the NPU",
            "small models are bound by the framework; see where the time goes", "",
            "larger batches, steps_per_execution (or NPU_LOOP_SIZE), fewer host operators",
        )  # fmt: skip
    wanted, step = limits.get("latency"), report["figures"]["step_ms"]
    if wanted and step is not None and step > wanted:
        yield Finding(
            "latency", "error", f"A step takes {step:.2f} ms, more than the {wanted:g} ms that are allowed"
        )
    share = report["figures"]["device_memory_share"]
    if share is not None and share > MEMORY_SHARE:
        yield Finding(
            "memory-high", "warning", f"{share:.0%} of the device's memory is used", "", "",
            "a smaller batch, gradient accumulation, or NPU_RECOMPUTE=full",
        )  # fmt: skip


_RULES = (
    _environment,
    _failures,
    _placement,
    _round_trips,
    _input,
    _leak,
    _results,
    _overflows,
    _layers,
    _speed,
)


def _counted(count: int, name: str) -> str:
    """A number with its noun.

    >>> _counted(1, "NPU"), _counted(4, "NPU")
    ('1 NPU', '4 NPUs')
    """
    return f"{count} {name}{'' if count == 1 else 's'}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


# -- the checklist ------------------------------------------------------------------------------------------------


def checklist(report: Mapping[str, Any], limits: Mapping[str, float]) -> list[dict[str, str]]:
    """The guide's checklist: each item is `pass`, `fail` or `open`, with the evidence."""
    figures = report["figures"]
    return [
        _item("The NPU is there", *_devices(report)),
        _item("Every operator runs on the NPU", *_operators(report)),
        _item("Results agree with the original (error below 1 %)", *_agree(report, limits)),
        _item("The training loss decreases", *_decreases(report)),
        _item("Four NPUs are more than three times as fast as one", *_scales(report)),
        _item("Less than 80 % of the device's memory is used", *_memory(figures)),
        _item("The latency is as required", *_latency(figures, limits)),
        _item("The input keeps up with the NPU", *_keeps_up(report)),
    ]


def _item(text: str, state: str, evidence: str) -> dict[str, str]:
    return {"item": text, "state": state, "evidence": evidence}


def _devices(report: Mapping[str, Any]) -> tuple[str, str]:
    npus = [d for d in report["devices"] if "NPU" in d.upper()]
    if not report["devices"]:
        return "open", "the NPU run did not end"
    return ("pass", ", ".join(npus)) if npus else ("fail", "no NPU among " + ", ".join(report["devices"]))


def _operators(report: Mapping[str, Any]) -> tuple[str, str]:
    figures = report["figures"]
    if not figures["operators"] and not figures["host_operators"]:
        return _eager_operators(report)
    host = int(figures["host_operators"])
    if not host:
        return "pass", _counted(int(figures["operators"]), "operator")
    return (
        "fail",
        f"{host} of {int(figures['operators'])} are not ({figures['host_flops_share']:.1%} of the arithmetic)",
    )


def _eager_operators(report: Mapping[str, Any]) -> tuple[str, str]:
    """Finding for a script without functions, whose operators ran one by one."""
    calls = {"NPU": 0, "host": 0}
    for row in report["operators"]:
        if row["eager"] and not _by_nature(row["operator"]):
            calls[row["place"]] += row["count"]
    if not sum(calls.values()):
        return "open", "no function was compiled"
    said = f"{calls['NPU']} calls of eager operators on the NPU, {calls['host']} on the host"
    return ("open" if calls["host"] else "pass"), said


def _agree(report: Mapping[str, Any], limits: Mapping[str, float]) -> tuple[str, str]:
    rows = [row for row in report["outputs"] if row.get("error") is not None or row.get("mismatch")]
    if not rows:
        error = report["figures"]["loss_error"]
        if error is None:
            return "open", "no results of both runs could be compared"
        first = report["losses"]["plain"][0], report["losses"]["npu"][0]
        state = "pass" if abs(first[0] - first[1]) <= ERROR * abs(first[0]) else "fail"
        return state, f"loss of the first step {first[1]:.6g}, without the NPU {first[0]:.6g}"
    if any(row.get("mismatch") or row["not_finite"] for row in rows):
        return "fail", "shapes differ or values are not finite"
    worst = max(rows, key=lambda row: row["error"])
    state = "pass" if worst["error"] <= limits.get("error", ERROR) else "fail"
    return state, f"greatest relative error {worst['error']:.2g} ({worst['name']})"


def _decreases(report: Mapping[str, Any]) -> tuple[str, str]:
    losses = report["losses"].get("npu", [])
    if len(losses) < 4:
        return "open", "no training loop with at least four losses was seen"
    third = max(1, len(losses) // 3)
    before, after = statistics.fmean(losses[:third]), statistics.fmean(losses[-third:])
    plain = report["losses"].get("plain", [])
    text = f"from {before:.4g} to {after:.4g} in {len(losses)} steps"
    if after < before:
        return "pass", text
    if len(plain) >= 4 and statistics.fmean(plain[-third:]) >= statistics.fmean(plain[:third]):
        return "open", f"{text}; without the NPU it does not decrease in so few steps either"
    return "fail", text


def _scales(report: Mapping[str, Any]) -> tuple[str, str]:
    rows = {row["npus"]: row["speedup"] for row in report["scaling"] if row.get("speedup")}
    notes = [row["note"] for row in report["scaling"] if row.get("note")]
    if notes or not rows:
        return "open", notes[0] if notes else "run with --npus 1,2,4 to measure it"
    text = ", ".join(f"{_counted(n, 'NPU')}: {s:.2f}×" for n, s in rows.items())
    if 4 not in rows:
        return "open", text
    return ("pass" if rows[4] > SPEEDUP_OF_FOUR else "fail"), text


def _keeps_up(report: Mapping[str, Any]) -> tuple[str, str]:
    """Check whether the data channel has the next batch when a step ends."""
    share, step = report["figures"]["input_share"], report["speed"].get("npu", {}).get("step_seconds")
    if any(f["id"] == "slow-input" for f in report["findings"]):
        return "fail", "see the finding slow-input"
    alone = [f"{_ms(p['seconds'])} a batch without a model" for p in report["pipelines"][:1]]
    if step is None or (share is None and not alone):
        return "open", "no input pipeline was seen"
    if share is not None and share > INPUT_SHARE:
        return "open", f"a step waits {share:.0%} of its time; see the finding input-wait"
    waits = [] if share is None else [f"a step of {_ms(step)} waits {share:.0%} of its time"]
    return "pass", ", ".join([*waits, *alone])


def _memory(figures: Mapping[str, Any]) -> tuple[str, str]:
    share = figures["device_memory_share"]
    if share is None:
        return "open", "the device's memory was not measured"
    return ("pass" if share < MEMORY_SHARE else "fail"), f"{share:.1%} at the peak"


def _latency(figures: Mapping[str, Any], limits: Mapping[str, float]) -> tuple[str, str]:
    step, wanted = figures["step_ms"], limits.get("latency")
    if step is None:
        return "open", "no step was seen"
    if wanted is None:
        return "open", f"a step takes {step:.3g} ms; --latency MS says what is required"
    return ("pass" if step <= wanted else "fail"), f"{step:.3g} ms, required {wanted:g} ms"
