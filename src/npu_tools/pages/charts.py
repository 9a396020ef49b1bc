"""Charts as inline SVG: they scale with the page, follow its colours, print, and have a text alternative."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npu_tools.pages.parts import escape

__all__ = [
    "Bar",
    "Line",
    "Span",
    "bars",
    "figure",
    "graph",
    "lines",
    "number",
    "ranks",
    "stacked",
    "timeline",
]

WIDTH, HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 12, 12, 40


@dataclass(frozen=True)
class Line:
    """A curve: its name, its colour class and its points."""

    name: str
    style: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Bar:
    """A bar: its name, value, colour class and label."""

    name: str
    value: float
    style: str
    text: str


def figure(title: str, summary: str, body: str, width: int, height: int, kind: str = "") -> str:
    return (
        f'<svg class="chart {kind}" role="img" viewBox="0 0 {width} {height}" '
        f'aria-label="{escape(title)}. {escape(summary)}">'
        f"<title>{escape(title)}</title><desc>{escape(summary)}</desc>{body}</svg>"
    )


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers that cover a range.

    >>> ticks(0, 97)
    [0.0, 25.0, 50.0, 75.0, 100.0]
    """
    span = max(high - low, 1e-12)
    raw = span / count
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw * 0.999)
    first = math.floor(low / step) * step
    made = [first + step * i for i in range(count * 3) if first + step * i <= high + step * 0.999]
    return [round(t, 12) for t in made]


def decades(low: float, high: float) -> list[float]:
    """At most eight powers of ten that cover a range of logarithms.

    >>> decades(-7.05, -6.7), decades(-20.0, 2.0)
    ([-8.0, -7.0, -6.0], [-21.0, -18.0, -15.0, -12.0, -9.0, -6.0, -3.0, 0.0, 3.0])
    """
    first, last = math.floor(low), math.ceil(high)
    step = max(1, math.ceil((last - first) / 8))
    first -= first % step
    return [float(first + step * i) for i in range(math.ceil((last - first) / step) + 1)]


def number(value: float) -> str:
    """Format a number for an axis.

    >>> number(0.00012), number(1500.0), number(2.5), number(0), number(math.inf)
    ('1.2e-04', '1500', '2.5', '0', 'not finite')
    """
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    if abs(value) < 1e-3 or abs(value) >= 1e6:
        return f"{value:.1e}"
    return f"{value:.4g}"


def lines(title: str, curves: Sequence[Line], x_name: str, y_name: str, *, log: bool = False) -> str:
    """Curves over one axis; `log` makes the vertical axis logarithmic."""
    curves = [c for c in curves if c.points]
    finite = [(x, y) for c in curves for x, y in c.points if math.isfinite(y) and (y > 0 or not log)]
    if not finite:
        return '<p class="none">Not measured.</p>'
    scale = math.log10 if log else (lambda value: value)
    heights = [scale(y) for _, y in finite]
    low, high = min(heights), max(heights)
    if not log:
        low = min(0.0, low) if low >= 0 and low < 0.6 * high else low
    if log:
        marks = decades(low, high)
    else:
        marks = ticks(low, high if high > low else low + (abs(low) or 1.0) * 0.1)
    low, high = min(marks[0], low), max(marks[-1], high)
    left, right = min(x for x, _ in finite), max(x for x, _ in finite)
    right = right if right > left else left + 1

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (x - left) / (right - left) * (WIDTH - _LEFT - _RIGHT)
        return across, HEIGHT - _BOTTOM - (y - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    body = []
    for mark in marks:
        _, y = place(left, mark)
        text = f"1e{mark:g}" if log else number(mark)
        body.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    counted = all(float(x).is_integer() for x, _ in finite)
    for mark in ticks(left, right, 6):
        if counted and not mark.is_integer():
            continue
        x, _ = place(mark, low)
        if _LEFT - 1 <= x <= WIDTH - _RIGHT + 1:
            body.append(
                f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 22}" text-anchor="middle">{number(mark)}</text>'
            )
    body.append(
        f'<text class="axis" x="{WIDTH - _RIGHT}" y="{HEIGHT - 3}" text-anchor="end">{escape(x_name)}</text>'
    )
    for curve in sorted(curves, key=lambda c: c.style == "plain"):  # dashed ones on top
        usable = [(x, scale(y)) for x, y in curve.points if math.isfinite(y) and (y > 0 or not log)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(x, y) for x, y in usable))
        body.append(f'<polyline class="line {curve.style}" points="{path}"/>')
        if len(usable) <= 40:
            for (a, b), (x, y) in zip((place(x, y) for x, y in usable), usable, strict=True):
                value = 10**y if log else y
                body.append(
                    f'<circle class="dot {curve.style}" cx="{a:.1f}" cy="{b:.1f}" r="2.5">'
                    f"<title>{escape(curve.name)}: {number(x)} → {number(value)}</title></circle>"
                )
        for x in [x for x, y in curve.points if not math.isfinite(y)]:
            a, _ = place(x, high)
            body.append(
                f'<path class="lost" d="M{a - 5:.1f} {_TOP + 9} L{a:.1f} {_TOP} L{a + 5:.1f} {_TOP + 9} Z">'
                f"<title>{escape(curve.name)}: {number(x)} → not finite</title></path>"
            )
    said = "; ".join(f"{c.name} from {number(c.points[0][1])} to {number(c.points[-1][1])}" for c in curves)
    legend = "".join(f'<span class="key {c.style}">{escape(c.name)}</span>' for c in curves)
    summary = f"{y_name} by {x_name}: {said}"
    return f'<div class="legend" aria-hidden="true">{legend}</div>' + figure(
        title, summary, "".join(body), WIDTH, HEIGHT
    )


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars, one per row, with their names and values as text."""
    if not rows:
        return '<p class="none">Not measured.</p>'
    most = max((r.value for r in rows if math.isfinite(r.value)), default=0.0) or 1.0
    made = []
    for row in rows:
        width = max(0.3, 100 * (row.value if math.isfinite(row.value) else most) / most)
        made.append(
            f"<li><span>{_breakable(row.name)}</span>"
            f'<svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect class="bar {row.style}" width="{width:.2f}" height="10"/></svg><span>{escape(row.text)}</span></li>'
        )
    return f'<ul class="bars" aria-label="{escape(title)}">{"".join(made)}</ul>'


def _breakable(name: str) -> str:
    """HTML of a name that may break between its parts.

    >>> _breakable("Mul+add:a/b")
    'Mul+<wbr>add:<wbr>a/<wbr>b'
    """
    return re.sub(r"([+:/_])(?=.)", r"\1<wbr>", escape(name))


def stacked(title: str, rows: Sequence[Bar]) -> str:
    """One bar of parts that make a whole."""
    total = sum(r.value for r in rows)
    if not total:
        return '<p class="none">Not measured.</p>'
    x, body = 0.0, []
    for row in rows:
        width = WIDTH * row.value / total
        if width <= 0:
            continue
        share = f"{row.value / total:.0%}"
        body.append(
            f"<g><title>{escape(row.name)}: {escape(row.text)} ({share})</title>"
            f'<rect class="bar {row.style}" x="{x:.1f}" y="2" width="{width:.1f}" height="34"/>'
            + (
                f'<text class="inbar" x="{x + width / 2:.1f}" y="24" text-anchor="middle">{share}</text>'
                if width > 40
                else ""
            )
            + "</g>"
        )
        x += width
    legend = "".join(
        f'<span class="key {r.style}">{escape(r.name)}: {escape(r.text)}</span>' for r in rows if r.value > 0
    )
    said = "; ".join(f"{r.name} {r.text}" for r in rows)
    return figure(title, said, "".join(body), WIDTH, 40) + f'<div class="legend">{legend}</div>'


@dataclass(frozen=True)
class Span:
    """A block of the timeline: its row, name, begin and end in seconds, and colour class."""

    row: str
    name: str
    begin: float
    end: float
    style: str


_STILL = 400  # blocks on paper


def timeline(title: str, key: str, rows: Sequence[str], spans: Sequence[Span], left_out: int = 0) -> str:
    """Spans over time, one row each: a static picture for print, and a zoomable one with scripts. `key` is its id."""
    if not spans:
        return '<p class="none">Not measured.</p>'
    begin = min(span.begin for span in spans)
    data = {
        "rows": list(rows),
        "blocks": [
            [rows.index(s.row), round((s.begin - begin) * 1e6, 3), round((s.end - s.begin) * 1e6, 3), s.name, s.style]
            for s in spans
        ],
    }  # fmt: skip
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    note = f" {left_out} short spans are left out here." if left_out else ""
    return (
        f'<div class="still">{_still(title, rows, spans)}</div>'
        f'<div class="timeline" id="{key}" hidden><p class="soft" id="{key}-help">Zoom with + and − (or click, then '
        f"the wheel), move by dragging or with ← and →, step through blocks with ↓ and ↑; Home shows all.{note}</p>"
        f'<canvas tabindex="0" role="application" aria-label="{escape(title)}" aria-describedby="{key}-help" '
        f'style="height: {30 + 34 * len(rows)}px"></canvas>'
        f'<p role="status" class="block">&nbsp;</p><script type="application/json">{text}</script></div>'
    )


def _still(title: str, rows: Sequence[str], spans: Sequence[Span]) -> str:
    """The longest spans as a static picture."""
    begin, end = min(span.begin for span in spans), max(span.end for span in spans)
    whole = max(end - begin, 1e-9)
    left, step = 120, 30
    height = step * len(rows) + 26
    body = [
        f'<text class="label" x="{left - 8}" y="{i * step + 19}" text-anchor="end">{escape(_end(row, 17))}</text>'
        f'<line class="grid" x1="{left}" x2="{WIDTH}" y1="{(i + 1) * step}" y2="{(i + 1) * step}"/>'
        for i, row in enumerate(rows)
    ]
    for span in sorted(spans, key=lambda s: s.begin - s.end)[:_STILL]:
        x = left + (span.begin - begin) / whole * (WIDTH - left)
        width = max(0.6, (span.end - span.begin) / whole * (WIDTH - left))
        body.append(
            f'<rect class="bar {span.style}" x="{x:.2f}" y="{rows.index(span.row) * step + 4}" width="{width:.2f}" '
            f'height="{step - 8}"><title>{escape(span.name)}: {1e3 * (span.end - span.begin):.3f} ms</title></rect>'
        )
    for mark in ticks(0, whole * 1e3, 6):
        x = left + mark / 1e3 / whole * (WIDTH - left)
        if x <= WIDTH - 20:
            body.append(f'<text class="tick" x="{x:.1f}" y="{height - 8}">{number(mark)} ms</text>')
    said = "; ".join(
        f"{row}: {sum(s.end - s.begin for s in spans if s.row == row) * 1e3:.2f} ms" for row in rows
    )
    return figure(title, f"{len(spans)} calls. {said}", "".join(body), WIDTH, height)


# -- graphs -------------------------------------------------------------------------------------------------------

_BOX, _TALL, _ACROSS, _DOWN = 168, 38, 14, 24  # a box, and the room between boxes
_COLUMNS = 6  # boxes beside one another


def ranks(count: int, edges: Iterable[Sequence[int]]) -> list[int]:
    """Row of each layer: one below its lowest predecessor; ignores backward edges.

    >>> ranks(4, [(0, 1), (1, 2), (0, 2), (2, 1)])
    [0, 1, 2, 0]
    """
    rows = [0] * count
    for source, target in sorted(tuple(edge) for edge in edges):
        if source < target:
            rows[target] = max(rows[target], rows[source] + 1)
    return rows


def graph(title: str, drawing: Mapping[str, Any]) -> str:
    """Layers as boxes with edges from above; colours and borders show placement."""
    layers, edges = drawing["layers"], [tuple(edge) for edge in drawing["edges"]]
    places = _places(len(layers), edges)
    width = int(max(x for x, _ in places)) + _BOX + 2
    height = int(max(y for _, y in places)) + _TALL + 2
    body = [_edge(places[a], places[b]) for a, b in edges]
    body += [_box(layer, *place) for layer, place in zip(layers, places, strict=True)]
    on_host = [layer["name"] for layer in layers if layer["place"] != "NPU"]
    said = f"{len(layers)} layers, {len(edges)} connections; {len(layers) - len(on_host)} run on the NPU, "
    said += f"{len(on_host)} on the host" + (f": {', '.join(on_host[:8])}" if on_host else "")
    drawn = figure(title, said, "".join(body), width, height, "graph")
    return drawn.replace("<svg ", f'<svg width="{width}" height="{height}" ', 1)


def _places(count: int, edges: Sequence[tuple[int, ...]]) -> list[tuple[float, float]]:
    """Upper left corner of each box: rows by rank, columns near the predecessors."""
    rows: dict[int, list[int]] = {}
    for layer, rank in enumerate(ranks(count, edges)):
        rows.setdefault(rank, []).append(layer)
    feeds: dict[int, list[int]] = {}
    for source, target in edges:
        feeds.setdefault(target, []).append(source)
    places: dict[int, tuple[float, float]] = {}
    whole = min(_COLUMNS, max(len(row) for row in rows.values()))
    y = 1.0
    for rank in sorted(rows):
        wanted = {n: [places[s][0] for s in feeds.get(n, ()) if s in places] for n in rows[rank]}
        row = sorted(rows[rank], key=lambda n: (sum(wanted[n]) / len(wanted[n]) if wanted[n] else 0.0, n))
        for first in range(0, len(row), _COLUMNS):
            beside = row[first : first + _COLUMNS]
            left = 1.0 + (whole - len(beside)) / 2 * (_BOX + _ACROSS)
            for column, layer in enumerate(beside):
                places[layer] = (left + column * (_BOX + _ACROSS), y)
            y += _TALL + _DOWN
    return [places[n] for n in range(count)]


def _edge(source: tuple[float, float], target: tuple[float, float]) -> str:
    (a, b), (c, d) = source, target
    a, b, c = a + _BOX / 2, b + _TALL, c + _BOX / 2
    bend = max(_DOWN, abs(d - b) / 3)
    side = (_BOX / 2 + _ACROSS / 2) * (1 if d - b > _DOWN + _TALL and abs(a - c) < _BOX / 2 else 0)
    return f'<path class="edge" d="M{a:g} {b:g} C{a + side:g} {b + bend:g} {c + side:g} {d - bend:g} {c:g} {d:g}"/>'


def _box(layer: Mapping[str, Any], x: float, y: float) -> str:
    inside = ", ".join(f"{name} ×{count}" if count > 1 else str(name) for name, count in layer["operators"])
    where = f" ({layer['engine']})" if layer["engine"] else ""
    lines = f"; {', '.join(layer['locations'])}" if layer["locations"] else ""
    style = "npu" if layer["place"] == "NPU" else "host"
    middle = f'x="{x + _BOX / 2:g}" text-anchor="middle"'
    return (
        f'<g class="box {style}"><title>{escape(layer["name"])} on the {escape(layer["place"])}{escape(where)}: '
        f"{escape(inside)}{escape(lines)}</title>"
        f'<rect x="{x:g}" y="{y:g}" width="{_BOX}" height="{_TALL}" rx="6"/>'
        f'<text class="label" {middle} y="{y + 16:g}">{escape(_end(layer["name"], 23))}</text>'
        f'<text class="tick" {middle} y="{y + 31:g}">{escape(_start(inside, 23))}</text></g>'
    )


def _end(text: str, length: int) -> str:
    return text if len(text) <= length else f"…{text[1 - length :]}"


def _start(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
