"""Renders the report as one self-contained HTML file: summary first, details below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from npu_tools.pages.charts import Bar, Line, Span, bars, graph, lines, stacked, timeline
from npu_tools.pages.parts import (
    Cell,
    card,
    cards,
    document,
    escape,
    folded,
    number,
    scrolled,
    seconds,
    size,
    table,
    tile,
)
from npu_tools.profile_data import operators_of

__all__ = ["render"]

_MARKS = {"pass": ("✓", "passed"), "fail": ("✗", "failed"), "open": ("–", "not decided")}
_TOP_KERNELS = 12
_HEADLINES = 7
_MOST_PARTS = 60
_LANES = ("NPU", "host", "input")


def render(report: Mapping[str, Any]) -> str:
    """The whole page."""
    subject = report["subject"]
    name = " ".join([subject["name"], *subject.get("arguments", ())])
    kind = subject["kind"] + (f" for {subject['framework']}" if subject.get("framework") else "")
    when = f"checked {report.get('started', '')} in {report.get('seconds', 0.0):.0f} s"
    sections = [
        ("summary", "Summary", _summary(report)),
        ("changes", "Changes", _changes(report)),
        ("findings", "Findings", _findings(report)),
        ("operators", "Operators", _operators(report)),
        ("precision", "Precision", _precision(report)),
        ("speed", "Speed", _speed(report)),
        ("memory", "Memory", _memory(report)),
        ("scaling", "Batches and NPUs", _scaling(report)),
        ("environment", "Environment", _environment(report)),
    ]
    return document(
        f"Check of {name}",
        name,
        f"<p>{_verdict(report)}</p><p>{escape(kind)}, {escape(when)}</p>",
        sections,
        f"Written by tf-adapter {escape(report['environment'].get('tf-adapter', ''))}; the same data as JSON: "
        f"{escape(report.get('json', 'report.json'))}.",
    )


def _verdict(report: Mapping[str, Any]) -> str:
    levels = [f["level"] for f in report["findings"]]
    failed = [i for i in report["checklist"] if i["state"] == "fail"]
    count = f"{_count(levels.count('error'), 'error')}, {_count(levels.count('warning'), 'warning')}.".capitalize()
    if not report.get("complete", True):
        return f'<span class="verdict warn">Interrupted: a partial report.</span> {count}'
    if "error" in levels:
        return f'<span class="verdict bad">Not ready for the NPU.</span> {count}'
    if failed or "warning" in levels:
        return f'<span class="verdict warn">Runs on the NPU, with room for improvement.</span> {count}'
    return '<span class="verdict good">Ready for the NPU.</span> No errors, no warnings.'


def _count(number: int, name: str) -> str:
    """A number with its noun.

    >>> _count(0, "error"), _count(1, "error"), _count(2, "warning")
    ('no errors', '1 error', '2 warnings')
    """
    return f"{number or 'no'} {name}{'' if number == 1 else 's'}"


# -- sections -----------------------------------------------------------------------------------------------------


def _summary(report: Mapping[str, Any]) -> str:
    f = report["figures"]
    total, host = f["operators"] or 0, f["host_operators"] or 0
    first = f"without the NPU {seconds(f['plain_first_step_s'])}"
    tiles = [
        tile("Speed of a step", "–" if f["speedup"] is None else f"{f['speedup']:.2f}×",
              f"{seconds(_milli(f['step_ms']))}, without the NPU {seconds(_milli(f['plain_step_ms']))}"),
        tile("First step", seconds(f["first_step_s"]), first),
        tile("Difference of results", number(f["output_error"], ".1e"), "relative; 1 % is allowed"),
        tile("Difference of the loss", number(f["loss_error"], ".1e"), "greatest of the curve, relative"),
        tile("Operators on the NPU", f"{(total - host) / total:.1%}" if total else "–",
              f"{int(total - host)} of {int(total)}"),
        tile("Peak memory", f"{number(f['peak_memory_mib'], '.0f')} MiB",
              f"without the NPU {number(f['plain_peak_memory_mib'], '.0f')} MiB"),
    ]  # fmt: skip
    items = "".join(
        f'<li class="check {i["state"]}"><span class="mark" aria-hidden="true">{_MARKS[i["state"]][0]}</span>'
        f'<span>{escape(i["item"])} <span class="soft">({_MARKS[i["state"]][1]})</span></span>'
        f"<small>{escape(i['evidence'])}</small></li>"
        for i in report["checklist"]
    )
    found = report["findings"]
    worst = "".join(f'<li class="finding {f["level"]}">{_headline(f)}</li>' for f in found[:_HEADLINES])
    said = (
        f"<ul class=plainlist>{worst}</ul>"
        if worst
        else '<p class="soft">Nothing was found that needs attention.</p>'
    )
    more = "Details and remedies" if len(found) <= _HEADLINES else f"All {len(found)} findings, with remedies"
    said += f'<p><a href="#findings">{more}</a></p>' if found else ""
    return (
        f'<dl class="tiles">{"".join(tiles)}</dl><div class="cards below">'
        f"{card('Checklist', f'<ul class=plainlist>{items}</ul>')}{card('What matters most', said)}</div>"
    )


def _milli(value: float | None) -> float | None:
    return None if value is None else value / 1e3


def _headline(f: Mapping[str, Any]) -> str:
    where = f' <span class="where">{escape(f["location"])}</span>' if f["location"] else ""
    return f'<p><span class="level">{f["level"]}</span>: {escape(f["title"])}{where}</p>'


def _finding(f: Mapping[str, Any]) -> str:
    detail = f"<p>{escape(f['detail'])}</p>" if f["detail"] else ""
    remedy = f'<p class="remedy">→ {escape(f["remedy"])}</p>' if f["remedy"] else ""
    return f'<div class="finding {f["level"]}">{_headline(f)}{detail}{remedy}</div>'


def _findings(report: Mapping[str, Any]) -> str:
    body = "".join(_finding(f) for f in report["findings"]) or '<p class="soft">None.</p>'
    broken = report.get("broken_rules", [])
    if broken:
        body += (
            "<h3>Rules of --fail-on that are broken</h3><ul>"
            + "".join(f"<li>{escape(b)}</li>" for b in broken)
            + "</ul>"
        )
    for side, run in report["runs"].items():
        if run.get("error", {}).get("traceback"):
            body += folded(f"Traceback of the {side} run", f"<pre>{escape(run['error']['traceback'])}</pre>")
    return f'<div class="card">{body}</div>'


def _changes(report: Mapping[str, Any]) -> str:
    changed = report.get("changes")
    if not changed:
        return ""
    rows = [
        (r["figure"], number(r["old"], ".4g"), number(r["new"], ".4g"), r["verdict"])
        for r in changed["figures"]
    ]
    body = (
        table(
            ["figure", "before", "now", "change"], rows, name="Figures that changed", numbers=" nn",
            classes=[r["verdict"] for r in changed["figures"]],
        )
        if rows
        else "<p>No figure changed by more than 5 %.</p>"
    )  # fmt: skip
    for key, title in (("new_findings", "New findings"), ("gone_findings", "No longer found")):
        if changed[key]:
            body += f"<h3>{title}</h3>" + "".join(_finding(f) for f in changed[key])
    if changed["checklist"]:
        words = {state: word for state, (_, word) in _MARKS.items()}
        ticked = [(r["item"], words[r["old"]], words[r["new"]]) for r in changed["checklist"]]
        body += "<h3>Checklist</h3>" + table(["item", "before", "now"], ticked, name="Checklist that changed")
    if changed["operators"]:
        moved = [(r["operator"], r["place"], str(r["old"]), str(r["new"])) for r in changed["operators"]]
        body += "<h3>Operators</h3>" + table(
            ["operator", "place", "before", "now"], moved, name="Operators that changed", numbers="  nn"
        )
    return card(f"Since {changed['since'] or 'the older report'}", body)


def _operators(report: Mapping[str, Any]) -> str:
    rows = report["operators"]
    if not rows:
        return '<div class="card"><p class="none">No operator was seen on the NPU.</p></div>'
    cells = [
        (r["operator"], r["place"] + (f" ({r['engine']})" if r.get("engine") else ""), (str(r["count"]), r["count"]),
         (f"{r['flops']:,.0f}", r["flops"]), ", ".join(r["locations"]),
         r["reason"] + (f" → {r['remedy']}" if r["remedy"] else ""))
        for r in rows
    ]  # fmt: skip
    rowed = table(
        ["operator", "place", "count", "operations", "line", "why there"],
        cells, name="Operators", classes=[r["place"] for r in rows], numbers="  nn",
    )  # fmt: skip
    search = (
        '<input type="search" hidden data-filter="operator-table" aria-label="Filter operators" '
        'placeholder="Filter: operator, line, reason…">'
        f'<p class="soft" id="operator-table-count" role="status">{len(rows)} of {len(rows)} rows</p>'
    )
    return (
        f'{_graph(report)}<div class="card below" id="operator-table"><h3>By name</h3>{search}{rowed}</div>'
    )


def _graph(report: Mapping[str, Any]) -> str:
    """The layers as a picture, and the parts in words."""
    flow = "".join(_group(g) for g in report["graph"][:_MOST_PARTS])
    parts = f'<ol class="flow">{flow}</ol>' if flow else ""
    if not report["drawing"].get("layers"):
        note = "Parts of the largest function in the order in which they run."
        return card("The graph by placement", parts, note) if flow else ""
    keys = '<div class="legend"><span class="key npu">on the NPU</span><span class="key host">on the host</span></div>'
    drawn = scrolled("Layers and their connections", graph("The graph by placement", report["drawing"]))
    more = folded(f"Parts in the order in which they run: {len(report['graph'])}", parts) if flow else ""
    note = "Layers of the largest function or model; what feeds a layer is above it."
    return card("The graph by placement", keys + drawn + more, note)


def _group(group: Mapping[str, Any]) -> str:
    place = group["place"]
    side = "host" if place == "host" else "NPU"
    inside = ", ".join(
        f"{name} ×{count}" if count > 1 else str(name) for name, count in group["operators"][:6]
    )
    where = (
        f'<span class="where">{escape(", ".join(group["locations"]))}</span>' if group["locations"] else ""
    )
    engine = f" · {escape(group['engine'])}" if group.get("engine") else ""
    return (
        f'<li class="{side}"><strong>{escape(place)}{engine}</strong>'
        f"<span>{group['nodes']} nodes: {escape(inside)}</span>{where}</li>"
    )


def _precision(report: Mapping[str, Any]) -> str:
    made: list[str] = []
    plain, npu = (list(enumerate(report["losses"].get(side, []), 1)) for side in ("plain", "npu"))
    if plain or npu:
        curves = [Line("without the NPU", "plain", plain), Line("on the NPU", "npu", npu)]
        if report.get("other_losses"):
            other = list(enumerate(report["other_losses"], 1))
            curves.append(Line("without the NPU, other kernels", "host", other))
        made.append(card("Loss", lines("Loss", curves, "step", "loss")))
    if report["outputs"]:
        made.append(_results(report))
    found = report["precision"]
    for mode, data in found.get("modes", {}).items():
        made.append(_layers(mode, data))
    if found.get("verdict"):
        said = [found["verdict"], *found.get("notes", ())]
        made.insert(0, card("Against float64", "".join(f"<p>{escape(text)}</p>" for text in said)))
    if report.get("dump"):
        made += _dump(report["dump"])
    if report["mixlist"]:
        made.append(_mixlist(report["mixlist"]))
    if not made:
        return '<div class="card"><p class="none">No results of both runs could be compared.</p></div>'
    return cards(made)


def _results(report: Mapping[str, Any]) -> str:
    """The results of both runs, with their distances from float64 where those are known."""
    rows = report["outputs"]
    head = ["result", "shape", "relative error", "greatest difference", "remark"]
    cells: list[list[Cell]] = [
        [r["name"], "×".join(map(str, r["shape"])) or "scalar", number(r.get("error"), ".2e"),
         number(r.get("largest"), ".2e"), _remark(r)]
        for r in rows
    ]  # fmt: skip
    note = "Relative error in the 2-norm against the run without the NPU."
    if any("npu_to_float64" in r for r in rows):
        head[3:4] = ["NPU to float64", "reference to float64"]
        for row, r in zip(cells, rows, strict=True):
            row[3:4] = [
                number(r.get("npu_to_float64"), ".2e"),
                number(r.get("framework_to_float64"), ".2e"),
            ]
        worst = [max(r.get(f"{side}_to_float64", 0.0) for r in rows) for side in ("npu", "framework")]
        name = report["runs"].get("plain", {}).get("reference") or "the framework"
        near = worst[0] <= max(2 * worst[1], 1e-6)
        note += f" The NPU is {'as near to' if near else 'farther from'} float64 {'as' if near else 'than'} {name} is."
    shown = table(head, cells, name="Results", numbers="  nnn"[: len(head)])
    return card("Results of both runs", shown, note, "wide" if any(map(_remark, rows)) else "")


def _remark(row: Mapping[str, Any]) -> str:
    """What is wrong with a result besides its error."""
    return row.get("mismatch", "") or (f"{row['not_finite']} not finite" if row["not_finite"] else "")


def _layers(mode: str, data: Mapping[str, Any]) -> str:
    rows = data["layers"]
    curves = [
        Line(f"NPU, {mode}", "npu", [(i, r["error"]) for i, r in enumerate(rows)]),
        Line("float32 by itself", "plain", [(i, r["reference"]) for i, r in enumerate(rows)]),
    ]
    if any(r.get("framework") is not None for r in rows):
        theirs = [(i, r["framework"]) for i, r in enumerate(rows) if r.get("framework") is not None]
        curves.append(Line("the framework", "copies", theirs))
    chart = lines(f"Error by layer in {mode}", curves, "layer", "relative error against float64", log=True)
    rowed = table(
        ["layer", "operator", "error", "framework's error", "NPU to framework", "float32 by itself",
         "greatest value", "line"],
        [(r["layer"].removeprefix("StatefulPartitionedCall/"), r["operator"],
          (number(r["error"], ".1e"), r["error"] if math.isfinite(r["error"]) else 1e300),
          (number(r.get("framework"), ".1e"), r.get("framework") or 0.0),
          (number(r.get("to_framework"), ".1e"), r.get("to_framework") or 0.0),
          (number(r["reference"], ".1e"), r["reference"]), number(r["largest"], ".3g"), r["location"]) for r in rows],
        name=f"Layers in {mode}", numbers="  nnnnn",
    )  # fmt: skip
    first = data.get("first_departing")
    said = data.get("verdict", "")
    if first:
        where = f" at {first['location']}" if first["location"] else ""
        said += f" First layer that departs: {first['layer']} ({first['operator']}){where}."
    return card(f"Layers in {mode}", chart + folded(f"{len(rows)} layers", rowed), said)


def _dump(found: Mapping[str, Any]) -> list[str]:
    """Tables for the script's own dump and overflow options."""
    asked = f"The script asks for it: {', '.join(found['asked'])}."
    made = []
    if found["overflows"]:
        rows = [
            (r["node"], r["operators"], str(r["step"]), r["dtype"], f"{r['not_finite']} of {r['size']}",
             number(r["largest_input"], ".3g"), r["location"])
            for r in found["overflows"]
        ]  # fmt: skip
        head = ["node", "operator", "step", "type", "not finite", "greatest that it reads", "line"]
        shown = table(head, rows, name="Operators that overflow", numbers="  n nn")
        note = f"In the script's own precision mode. {asked}"
        made.append(card("Operators that overflow", shown, note, "wide"))
    elif "enable_dump_debug" in found["asked"]:
        made.append(card("Operators that overflow", "<p>None in the script's own precision mode.</p>", asked))
    if found["tensors"]:
        cells: list[Sequence[Cell]] = [
            (r["node"], r["operators"], r["side"], f"{r['dtype']} {r['shape']}", number(r["least"], ".3g"),
             number(r["greatest"], ".3g"), number(r["mean"], ".3g"), (str(r["not_finite"]), r["not_finite"]),
             r["location"])
            for r in found["tensors"]
        ]  # fmt: skip
        head = ["node", "operator", "side", "tensor", "least", "greatest", "mean", "not finite", "line"]
        shown = table(head, cells, name="Tensors of operators", numbers="    nnnn")
        note = f"Of the first step that is written. {asked}"
        made.append(card("Tensors of operators", folded(f"{len(cells)} tensors", shown), note))
    return made


def _mixlist(found: Mapping[str, Any]) -> str:
    rows: list[Sequence[Cell]] = [
        (
            row["keep"],
            "yes" if row["keep"] in found["keep"] else "no",
            number(row["error"], ".2e"),
            row.get("location", ""),
        )
        for row in found["rows"]
    ]
    body = f"<p>Error of the results with all of them lowered: {number(found['error_before'], '.2e')}; with the list: "
    body += f"{number(found['error'], '.2e')}.</p>"
    if rows:
        head = ["needed in float32", "in the list", "error if it is lowered too", "line"]
        body += table(head, rows, name="Search", numbers="  n")
    tried = [
        (e["mode"], number(e["error"], ".2e"), seconds(e["seconds"])) for e in found.get("experiments", ())
    ]
    body += table(["mode", "error of the results", "time"], tried, name="Precision modes", numbers=" nn")
    return card(f"Operators to keep in float32 ({found['mode']})", body, found["verdict"], "wide")


def _speed(report: Mapping[str, Any]) -> str:
    made: list[str] = []
    curves = [
        Line(name, style, list(enumerate(report["speed"].get(side, {}).get("milliseconds", [])[1:], 2)))
        for side, name, style in (("plain", "without the NPU", "plain"), ("npu", "on the NPU", "npu"))
    ]
    if any(c.points for c in curves):
        made.append(
            card(
                "Time of a step",
                lines("Time of a step", curves, "step", "ms"),
                "Without the first step, which compiles.",
            )
        )
    spent = report["spent"]
    if spent.get("total"):
        count = spent["steps"]
        moved = sum(k["seconds"] * k["calls"] for k in report["kernels"] if k["kind"] in ("copy", "reorder"))
        whole = sum(k["seconds"] * k["calls"] for k in report["kernels"]) or 1.0
        copies = spent["NPU"] * moved / whole
        rest = max(0.0, spent["total"] - spent["NPU"] - spent["input"] - spent["host"] - spent["between"])
        parts = [
            ("kernels on the NPU", spent["NPU"] - copies, "npu"), ("copies and layouts", copies, "copies"),
            ("input pipeline", spent["input"], "input"), ("host parts", spent["host"], "host"),
            ("the framework", rest, "between"), ("the script between steps", spent["between"], "between"),
        ]  # fmt: skip
        rows = [Bar(name, value, style, seconds(value / count)) for name, value, style in parts]
        made.append(card("Where the time of a step goes", stacked("Where the time goes", rows)))
    made += _kernels(report["kernels"])
    if report["timeline"]:
        made.append(
            card(
                "Timeline",
                _timeline(report),
                "The last steps on the NPU.",
                "wide",
            )
        )
    if report["pipelines"]:
        stages = [
            (s["stage"], (seconds(s["seconds"]), s["seconds"]), s["location"])
            for s in report["pipelines"][0]["stages"]
        ]
        total = report["pipelines"][0]["seconds"]
        shown = table(["stage", "time a batch", "line"], stages, name="Input", numbers=" n")
        made.append(card("Input pipeline", shown, f"{seconds(total)} a batch without a model."))
    hot = [
        (r["location"], (f"{r['share']:.0%}", r["share"]), "in a step" if r["inside"] else "between steps")
        for r in report["lines"].get("npu", [])
    ]
    if hot:
        made.append(
            card(
                "Lines of the script by time",
                table(["line", "share", "when"], hot, name="Lines", numbers=" n"),
                "Sampled on the main thread of the NPU run.",
            )
        )
    return cards(made)


def _kernels(kernels: Sequence[Mapping[str, Any]]) -> list[str]:
    if not kernels:
        return []
    total = sum(k["seconds"] * k["calls"] for k in kernels) or 1.0
    operators: dict[tuple[str, str], float] = {}
    for k in kernels:
        key = (operators_of(k["name"], k["kind"]), _style(k))
        operators[key] = operators.get(key, 0.0) + k["seconds"] * k["calls"]
    ranked = sorted(operators.items(), key=lambda item: -item[1])[:_TOP_KERNELS]
    grouped = [Bar(name, time, style, f"{time / total:.0%}") for (name, style), time in ranked]
    longest = [
        Bar(k["name"], k["seconds"] * k["calls"], _style(k),
            f"{seconds(k['seconds'])} ({k['seconds'] * k['calls'] / total:.0%})")
        for k in kernels[:_TOP_KERNELS]
    ]  # fmt: skip
    rowed = table(
        ["task", "engine", "implementation", "result", "time", "calls", "GFLOP/s", "GB/s"],
        [(k["name"], k["engine"], k["implementation"], f"{k['dtype']}[{'×'.join(map(str, k['shape']))}]",
          (seconds(k["seconds"]), k["seconds"]), (str(k["calls"]), k["calls"]),
          number(_rate(k["flops"], k)), number(_rate(k["bytes"], k)))
         for k in kernels],
        name="Tasks", numbers="    nnnn",
    )  # fmt: skip
    by_task = bars("Time by task", longest) + folded(f"{len(kernels)} tasks", rowed)
    return [
        card(
            "Time by operator", bars("Time by operator", grouped), "Share of the time of all tasks of a step."
        ),
        card("Time by task", by_task, "Operators that run as one kernel are one task."),
    ]


def _style(task: Mapping[str, Any]) -> str:
    return "copies" if task["kind"] in ("copy", "reorder") else "npu"


def _rate(amount: float, task: Mapping[str, Any]) -> float | None:
    """Rate in units of 1e9 per second."""
    return amount / task["seconds"] / 1e9 if task["seconds"] else None


def _timeline(report: Mapping[str, Any]) -> str:
    spans = [Span(s["kind"], s["name"], s["begin"], s["end"], s["kind"].lower()) for s in report["timeline"]]
    return timeline(
        "Timeline", "timeline", [lane for lane in _LANES if any(s.row == lane for s in spans)], spans
    )


def _memory(report: Mapping[str, Any]) -> str:
    sides = (("plain", "without the NPU", "plain"), ("npu", "on the NPU", "npu"))
    curves = [
        Line(name, style, [(t, b / 2**20) for t, b in report["memory"].get(side, {}).get("over_time", [])])
        for side, name, style in sides
    ]
    if not any(c.points for c in curves):
        return ""
    made = [card("Resident memory over time (MiB)", lines("Resident memory", curves, "seconds", "MiB"))]
    steps = [
        Line(
            name,
            style,
            [(i, b / 2**20) for i, b in enumerate(report["memory"].get(side, {}).get("by_step", []), 1)],
        )
        for side, name, style in sides
    ]
    if any(len(c.points) > 1 for c in steps):
        made.append(
            card(
                "Resident memory after each step (MiB)",
                lines("Resident memory by step", steps, "step", "MiB"),
            )
        )
    device = report["memory"].get("npu", {}).get("device")
    if device:
        rows = [(name, f"{value / 2**20:,.1f} MiB") for name, value in device.items()]
        made.append(
            card("The device's memory", table(["memory", "size"], rows, name="Device memory", numbers=" n"))
        )
    return cards(made)


def _scaling(report: Mapping[str, Any]) -> str:
    made: list[str] = []
    if report["batches"]:
        rows = [
            (str(r["batch"]), seconds(r.get("seconds")),
             number(r["batch"] / r["seconds"]) if r.get("seconds") else "–",
             number(r["batch"] / r["plain_seconds"]) if r.get("plain_seconds") else "–",
             size(r["arena"]) if "arena" in r else "–", r.get("refused", ""))
            for r in report["batches"]
        ]  # fmt: skip
        note = report.get("batch_trial", {}).get("text", "")
        made.append(
            card(
                "Throughput by batch size",
                table(
                    ["batch", "time", "samples/s", "without the NPU", "memory", "remark"],
                    rows,
                    name="Batches",
                    numbers="nnnnn",
                ),
                note,
            )
        )
    if report["scaling"]:
        counts = [
            (
                str(r["npus"]),
                seconds(r.get("step_seconds")),
                f"{r['speedup']:.2f}×" if r.get("speedup") else "–",
                r.get("note", ""),
            )
            for r in report["scaling"]
        ]
        made.append(
            card(
                "Several NPUs",
                table(["NPUs", "time of a step", "speedup", "remark"], counts, name="Scaling", numbers="nnn"),
            )
        )
    return cards(made)


def _environment(report: Mapping[str, Any]) -> str:
    rows = [(str(name), str(value)) for name, value in report["environment"].items()]
    rows += [("devices", ", ".join(report["devices"]) or "–")]
    for side, run in report["runs"].items():
        said = [
            run.get("stopped", "") and f"ended {run['stopped']}",
            run.get("reference", ""),
            run.get("no_reference", ""),
            *run.get("notes", ()),
        ]
        rows.append((f"{side} run", "; ".join(filter(None, [f"{run.get('seconds', 0.0):.1f} s", *said]))))
    body = table(["fact", "value"], rows, name="Environment")
    for side, text in report.get("printed", {}).items():
        if text.strip():
            body += folded(f"What the {side} run printed (its end)", f"<pre>{escape(text)}</pre>")
    return f'<div class="card">{body}</div>'
