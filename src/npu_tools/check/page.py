"""The report as one HTML file: summary first, details below; nothing is loaded from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from npu_tools.check.charts import Bar, Line, bars, escape, lines, stacked, timeline

__all__ = ["render"]

_HERE = Path(__file__).parent
_MARKS = {"pass": ("✓", "passed"), "fail": ("✗", "failed"), "open": ("–", "not decided")}
_TOP_KERNELS = 12

Cell = str | tuple[str, float]  # text, or text with the number to sort by


def render(report: Mapping[str, Any]) -> str:
    """The whole page."""
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
    shown = [(key, name, body) for key, name, body in sections if body]
    links = "".join(f'<a href="#{key}">{name}</a>' for key, name, _ in shown)
    bodies = "".join(
        f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{name}</h2>{body}</section>'
        for key, name, body in shown
    )
    subject = report["subject"]
    name = " ".join([subject["name"], *subject.get("arguments", ())])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Check of {escape(name)}</title>
<style>{(_HERE / "page.css").read_text()}</style>
</head>
<body>
<a class="skip" href="#summary">Skip to the summary</a>
<header class="top"><h1>{escape(name)}</h1><p>{_verdict(report)}</p>
<p>{escape(subject["kind"])}{" for " + escape(subject["framework"]) if subject.get("framework") else ""},
checked {escape(report.get("started", ""))} in {report.get("seconds", 0.0):.0f} s</p></header>
<nav aria-label="Sections">{links}<button id="theme" type="button" hidden>Dark</button></nav>
<main>{bodies}</main>
<footer>Written by tf-adapter {escape(report["environment"].get("tf-adapter", ""))}; the same data as JSON:
{escape(report.get("json", "report.json"))}.</footer>
<script>{(_HERE / "page.js").read_text()}</script>
</body>
</html>
"""


def _verdict(report: Mapping[str, Any]) -> str:
    levels = [f["level"] for f in report["findings"]]
    failed = [i for i in report["checklist"] if i["state"] == "fail"]
    count = f"{levels.count('error')} error(s), {levels.count('warning')} warning(s)"
    if not report.get("complete", True):
        return f'<span class="verdict warn">Interrupted: a partial report.</span> {count}'
    if "error" in levels:
        return f'<span class="verdict bad">Not ready for the NPU.</span> {count}'
    if failed or "warning" in levels:
        return f'<span class="verdict warn">Runs on the NPU, with room for improvement.</span> {count}'
    return '<span class="verdict good">Ready for the NPU.</span> No errors, no warnings.'


# -- pieces -------------------------------------------------------------------------------------------------------


def _tile(name: str, value: str, note: str = "") -> str:
    return f'<div class="tile"><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>'


def _table(
    head: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    name: str,
    classes: Sequence[str] = (),
    numbers: str = "",
) -> str:
    """A table that can be sorted; `numbers` has an "n" for every column of numbers."""
    kinds = numbers.ljust(len(head))
    heads = "".join(
        f'<th scope="col"{" class=num" if kind == "n" else ""}>{escape(text)}</th>'
        for text, kind in zip(head, kinds, strict=True)
    )
    body = []
    for index, row in enumerate(rows):
        style = f' class="{escape(classes[index])}"' if classes else ""
        cells = "".join(_cell(cell, kind) for cell, kind in zip(row, kinds, strict=True))
        body.append(f"<tr{style}>{cells}</tr>")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}"><table class="sortable">'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _cell(cell: Cell, kind: str) -> str:
    style = " class=num" if kind == "n" else ""
    if isinstance(cell, tuple):
        return f'<td{style} data-value="{cell[1]}">{escape(cell[0])}</td>'
    return f"<td{style}>{escape(cell)}</td>"


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def _card(title: str, body: str, note: str = "") -> str:
    said = f'<p class="soft">{escape(note)}</p>' if note else ""
    return f'<div class="card"><h3>{escape(title)}</h3>{said}{body}</div>'


def seconds(value: float | None) -> str:
    """A duration.

    >>> seconds(0.0000123), seconds(0.5), seconds(12.0), seconds(None)
    ('12.3 µs', '500 ms', '12 s', '–')
    """
    if value is None:
        return "–"
    if value < 1e-3:
        return f"{value * 1e6:.3g} µs"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def _number(value: float | None, form: str = ".3g") -> str:
    return "–" if value is None else "not finite" if not math.isfinite(value) else format(value, form)


# -- sections -----------------------------------------------------------------------------------------------------


def _summary(report: Mapping[str, Any]) -> str:
    f = report["figures"]
    total, host = f["operators"] or 0, f["host_operators"] or 0
    first = f"without the NPU {seconds(f['plain_first_step_s'])}"
    tiles = [
        _tile("Speed of a step", "–" if f["speedup"] is None else f"{f['speedup']:.2f}×",
              f"{seconds(_milli(f['step_ms']))}, without the NPU {seconds(_milli(f['plain_step_ms']))}"),
        _tile("First step", seconds(f["first_step_s"]), first),
        _tile("Difference of results", _number(f["output_error"], ".1e"), "relative; 1 % is allowed"),
        _tile("Difference of the loss", _number(f["loss_error"], ".1e"), "greatest of the curve, relative"),
        _tile("Operators on the NPU", f"{(total - host) / total:.1%}" if total else "–",
              f"{int(total - host)} of {int(total)}"),
        _tile("Peak memory", f"{_number(f['peak_memory_mib'], '.0f')} MiB",
              f"without the NPU {_number(f['plain_peak_memory_mib'], '.0f')} MiB"),
    ]  # fmt: skip
    items = "".join(
        f'<li class="check {i["state"]}"><span class="mark" aria-hidden="true">{_MARKS[i["state"]][0]}</span>'
        f'<span>{escape(i["item"])} <span class="soft">({_MARKS[i["state"]][1]})</span></span>'
        f"<small>{escape(i['evidence'])}</small></li>"
        for i in report["checklist"]
    )
    worst = report["findings"][:4]
    said = (
        "".join(_finding(f) for f in worst) or '<p class="soft">Nothing was found that needs attention.</p>'
    )
    more = (
        f'<p><a href="#findings">All {len(report["findings"])} findings</a></p>'
        if len(report["findings"]) > 4
        else ""
    )
    return (
        f'<dl class="tiles">{"".join(tiles)}</dl><div class="two below">'
        f"{_card('Checklist', f'<ul class=plainlist>{items}</ul>')}{_card('What matters most', said + more)}</div>"
    )


def _milli(value: float | None) -> float | None:
    return None if value is None else value / 1e3


def _finding(f: Mapping[str, Any]) -> str:
    where = f' <span class="where">{escape(f["location"])}</span>' if f["location"] else ""
    detail = f"<p>{escape(f['detail'])}</p>" if f["detail"] else ""
    remedy = f'<p class="remedy">→ {escape(f["remedy"])}</p>' if f["remedy"] else ""
    return (
        f'<div class="finding {f["level"]}"><p><span class="level">{f["level"]}</span>: {escape(f["title"])}{where}</p>'
        f"{detail}{remedy}</div>"
    )


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
            body += _folded(f"Traceback of the {side} run", run["error"]["traceback"])
    return f'<div class="card">{body}</div>'


def _changes(report: Mapping[str, Any]) -> str:
    changed = report.get("changes")
    if not changed:
        return ""
    rows = [(r["figure"], _number(r["old"], ".4g"), _number(r["new"], ".4g")) for r in changed["figures"]]
    body = (
        _table(["figure", "before", "now"], rows, name="Figures that changed", numbers=" nn")
        if rows
        else "<p>No figure changed by more than 5 %.</p>"
    )
    for key, title in (("new_findings", "New findings"), ("gone_findings", "No longer found")):
        if changed[key]:
            body += f"<h3>{title}</h3>" + "".join(_finding(f) for f in changed[key])
    if changed["operators"]:
        moved = [(r["operator"], r["place"], str(r["old"]), str(r["new"])) for r in changed["operators"]]
        body += "<h3>Operators</h3>" + _table(
            ["operator", "place", "before", "now"], moved, name="Operators that changed", numbers="  nn"
        )
    return _card(f"Since {changed['since'] or 'the older report'}", body)


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
    table = _table(
        ["operator", "place", "count", "operations", "line", "why there"],
        cells, name="Operators", classes=[r["place"] for r in rows], numbers="  nn",
    )  # fmt: skip
    search = (
        '<input type="search" hidden data-filter="operator-table" aria-label="Filter operators" '
        'placeholder="Filter: operator, line, reason…">'
        f'<p class="soft" id="operator-table-count" role="status">{len(rows)} of {len(rows)} rows</p>'
    )
    flow = "".join(_group(g) for g in report["graph"][:60])
    graph = _card(
        "The graph by placement", f'<ol class="flow">{flow}</ol>',
        "Parts of the largest function in the order in which they run.",
    ) if flow else ""  # fmt: skip
    return f'{graph}<div class="card below" id="operator-table"><h3>By name</h3>{search}{table}</div>'


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
    cards = []
    plain, npu = (list(enumerate(report["losses"].get(side, []), 1)) for side in ("plain", "npu"))
    if plain or npu:
        curves = [Line("without the NPU", "plain", plain), Line("on the NPU", "npu", npu)]
        cards.append(_card("Loss", lines("Loss", curves, "step", "loss")))
    if report["outputs"]:
        cards.append(_results(report))
    found = report["precision"]
    for mode, data in found.get("modes", {}).items():
        cards.append(_layers(mode, data))
    if found.get("verdict"):
        cards.insert(0, _card("Against float64", f"<p>{escape(found['verdict'])}</p>"))
    if report["mixlist"]:
        cards.append(_mixlist(report["mixlist"]))
    if not cards:
        return '<div class="card"><p class="none">No results of both runs could be compared.</p></div>'
    return f'<div class="cards">{"".join(cards)}</div>'


def _results(report: Mapping[str, Any]) -> str:
    """The results of both runs, with their distances from float64 where those are known."""
    rows = report["outputs"]
    head = ["result", "shape", "relative error", "greatest difference", "remark"]
    cells: list[list[Cell]] = [
        [r["name"], "×".join(map(str, r["shape"])) or "scalar", _number(r.get("error"), ".2e"),
         _number(r.get("largest"), ".2e"), _remark(r)]
        for r in rows
    ]  # fmt: skip
    note = "Relative error in the 2-norm against the run without the NPU."
    if any("npu_to_float64" in r for r in rows):
        head[3:4] = ["NPU to float64", "reference to float64"]
        for row, r in zip(cells, rows, strict=True):
            row[3:4] = [
                _number(r.get("npu_to_float64"), ".2e"),
                _number(r.get("framework_to_float64"), ".2e"),
            ]
        worst = [max(r.get(f"{side}_to_float64", 0.0) for r in rows) for side in ("npu", "framework")]
        name = report["runs"].get("plain", {}).get("reference") or "the framework"
        near = worst[0] <= max(2 * worst[1], 1e-6)
        note += f" The NPU is {'as near to' if near else 'farther from'} float64 {'as' if near else 'than'} {name} is."
    return _card(
        "Results of both runs", _table(head, cells, name="Results", numbers="  nnn"[: len(head)]), note
    )


def _remark(row: Mapping[str, Any]) -> str:
    """What is wrong with a result besides its error."""
    return row.get("mismatch", "") or (f"{row['not_finite']} not finite" if row["not_finite"] else "")


def _layers(mode: str, data: Mapping[str, Any]) -> str:
    rows = data["layers"]
    curves = [
        Line(f"NPU, {mode}", "npu", [(i, r["error"]) for i, r in enumerate(rows)]),
        Line("float32 by itself", "plain", [(i, r["reference"]) for i, r in enumerate(rows)]),
    ]
    chart = lines(f"Error by layer in {mode}", curves, "layer", "relative error against float64", log=True)
    table = _table(
        ["layer", "operator", "error", "float32 by itself", "greatest value", "line"],
        [(r["layer"].removeprefix("StatefulPartitionedCall/"), r["operator"],
          (_number(r["error"], ".1e"), r["error"] if math.isfinite(r["error"]) else 1e300),
          (_number(r["reference"], ".1e"), r["reference"]), _number(r["largest"], ".3g"), r["location"]) for r in rows],
        name=f"Layers in {mode}", numbers="  nnn",
    )  # fmt: skip
    first = data.get("first_departing")
    said = data.get("verdict", "")
    if first:
        where = f" at {first['location']}" if first["location"] else ""
        said += f" First layer that departs: {first['layer']} ({first['operator']}){where}."
    return _card(
        f"Layers in {mode}", f"{chart}<details><summary>{len(rows)} layers</summary>{table}</details>", said
    )


def _mixlist(found: Mapping[str, Any]) -> str:
    rows: list[Sequence[Cell]] = [(row["keep"], _number(row["error"], ".2e")) for row in found["rows"]]
    body = f"<p>Error of the results with all of them lowered: {_number(found['error_before'], '.2e')}; with the list: "
    body += f"{_number(found['error'], '.2e')}.</p>"
    if rows:
        body += _table(["kept in float32", "error if it is lowered too"], rows, name="Search", numbers=" n")
    return _card(f"Operators to keep in float32 ({found['mode']})", body, found["verdict"])


def _speed(report: Mapping[str, Any]) -> str:
    cards = []
    curves = [
        Line(name, style, list(enumerate(report["speed"].get(side, {}).get("milliseconds", [])[1:], 2)))
        for side, name, style in (("plain", "without the NPU", "plain"), ("npu", "on the NPU", "npu"))
    ]
    if any(c.points for c in curves):
        cards.append(
            _card(
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
        cards.append(_card("Where the time of a step goes", stacked("Where the time goes", rows)))
    cards += _kernels(report["kernels"])
    if report["timeline"]:
        cards.append(
            _card(
                "Timeline",
                _timeline(report),
                "The last steps on the NPU; hold the pointer over a call for its name.",
            )
        )
    if report["pipelines"]:
        stages = [
            (s["stage"], (seconds(s["seconds"]), s["seconds"]), s["location"])
            for s in report["pipelines"][0]["stages"]
        ]
        total = report["pipelines"][0]["seconds"]
        table = _table(["stage", "time a batch", "line"], stages, name="Input", numbers=" n")
        cards.append(_card("Input pipeline", table, f"{seconds(total)} a batch without a model."))
    hot = [
        (r["location"], (f"{r['share']:.0%}", r["share"]), "in a step" if r["inside"] else "between steps")
        for r in report["lines"].get("npu", [])
    ]
    if hot:
        cards.append(
            _card(
                "Lines of the script by time",
                _table(["line", "share", "when"], hot, name="Lines", numbers=" n"),
                "Sampled on the main thread of the NPU run.",
            )
        )
    return f'<div class="cards">{"".join(cards)}</div>' if cards else ""


def _kernels(kernels: Sequence[Mapping[str, Any]]) -> list[str]:
    if not kernels:
        return []
    total = sum(k["seconds"] * k["calls"] for k in kernels) or 1.0
    top = [
        Bar(k["name"], k["seconds"] * k["calls"], "copies" if k["kind"] in ("copy", "reorder") else "npu",
            f"{seconds(k['seconds'])} ({k['seconds'] * k['calls'] / total:.0%})")
        for k in kernels[:_TOP_KERNELS]
    ]  # fmt: skip
    table = _table(
        ["task", "engine", "implementation", "result", "time", "calls", "GFLOP/s", "GB/s"],
        [(k["name"], k["engine"], k["implementation"], f"{k['dtype']}[{'×'.join(map(str, k['shape']))}]",
          (seconds(k["seconds"]), k["seconds"]), (str(k["calls"]), k["calls"]),
          _number(_rate(k["flops"], k)), _number(_rate(k["bytes"], k)))
         for k in kernels],
        name="Tasks", numbers="    nnnn",
    )  # fmt: skip
    return [
        _card(
            "Time by task",
            bars("Time by task", top) + f"<details><summary>{len(kernels)} tasks</summary>{table}</details>",
        )
    ]


def _rate(amount: float, task: Mapping[str, Any]) -> float | None:
    """Thousands of millions a second."""
    return amount / task["seconds"] / 1e9 if task["seconds"] else None


def _timeline(report: Mapping[str, Any]) -> str:
    spans = [(s["kind"], s["name"], s["begin"], s["end"]) for s in report["timeline"]]
    return timeline("Timeline", ["NPU", "host", "input"], spans)


def _memory(report: Mapping[str, Any]) -> str:
    sides = (("plain", "without the NPU", "plain"), ("npu", "on the NPU", "npu"))
    curves = [
        Line(name, style, [(t, b / 2**20) for t, b in report["memory"].get(side, {}).get("over_time", [])])
        for side, name, style in sides
    ]
    if not any(c.points for c in curves):
        return ""
    cards = [_card("Resident memory over time (MiB)", lines("Resident memory", curves, "seconds", "MiB"))]
    steps = [
        Line(
            name,
            style,
            [(i, b / 2**20) for i, b in enumerate(report["memory"].get(side, {}).get("by_step", []), 1)],
        )
        for side, name, style in sides
    ]
    if any(len(c.points) > 1 for c in steps):
        cards.append(
            _card(
                "Resident memory after each step (MiB)",
                lines("Resident memory by step", steps, "step", "MiB"),
            )
        )
    device = report["memory"].get("npu", {}).get("device")
    if device:
        rows = [(name, f"{value / 2**20:,.1f} MiB") for name, value in device.items()]
        cards.append(
            _card("The device's memory", _table(["memory", "size"], rows, name="Device memory", numbers=" n"))
        )
    return f'<div class="cards">{"".join(cards)}</div>'


def _scaling(report: Mapping[str, Any]) -> str:
    cards = []
    if report["batches"]:
        rows = [
            (str(r["batch"]), seconds(r.get("seconds")),
             _number(r["batch"] / r["seconds"]) if r.get("seconds") else "–",
             f"{r['arena'] / 2**20:.1f} MiB" if "arena" in r else "–", r.get("refused", ""))
            for r in report["batches"]
        ]  # fmt: skip
        largest = report.get("largest_batch")
        note = f"The largest batch that fits: {largest}." if largest else ""
        cards.append(
            _card(
                "Throughput by batch size",
                _table(
                    ["batch", "time", "samples/s", "memory", "remark"], rows, name="Batches", numbers="nnnn"
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
        cards.append(
            _card(
                "Several NPUs",
                _table(
                    ["NPUs", "time of a step", "speedup", "remark"], counts, name="Scaling", numbers="nnn"
                ),
            )
        )
    return f'<div class="cards">{"".join(cards)}</div>' if cards else ""


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
    body = _table(["fact", "value"], rows, name="Environment")
    for side, text in report.get("printed", {}).items():
        if text.strip():
            body += _folded(f"What the {side} run printed (its end)", text)
    return f'<div class="card">{body}</div>'
