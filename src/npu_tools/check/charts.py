"""Charts as inline SVG: they scale with the page, follow its colours, print, and say in words what they show."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Bar", "Line", "bars", "lines", "stacked", "timeline"]

WIDTH, HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 34


@dataclass(frozen=True)
class Line:
    """A curve: its name, its colour class and its points."""

    name: str
    style: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Bar:
    """A bar: its name, value, colour class and the text behind it."""

    name: str
    value: float
    style: str
    text: str


def escape(text: object) -> str:
    """Text for HTML."""
    return html.escape(str(text), quote=True)


def _figure(title: str, summary: str, body: str, width: int, height: int, kind: str = "") -> str:
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
    """Whole powers of ten that cover a range of logarithms, at most eight.

    >>> decades(-7.05, -6.7), decades(-20.0, 2.0)
    ([-8.0, -7.0, -6.0], [-21.0, -18.0, -15.0, -12.0, -9.0, -6.0, -3.0, 0.0, 3.0])
    """
    first, last = math.floor(low), math.ceil(high)
    step = max(1, math.ceil((last - first) / 8))
    first -= first % step
    return [float(first + step * i) for i in range(math.ceil((last - first) / step) + 1)]


def number(value: float) -> str:
    """A number for an axis.

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
    for mark in ticks(left, right, 6):
        x, _ = place(mark, low)
        if _LEFT - 1 <= x <= WIDTH - _RIGHT + 1:
            body.append(
                f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 18}" text-anchor="middle">{number(mark)}</text>'
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
    return f'<div class="legend" aria-hidden="true">{legend}</div>' + _figure(
        title, summary, "".join(body), WIDTH, HEIGHT
    )


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars, one a row."""
    if not rows:
        return '<p class="none">Not measured.</p>'
    most = max((r.value for r in rows if math.isfinite(r.value)), default=0.0) or 1.0
    step, label = 24, 228
    body = []
    for index, row in enumerate(rows):
        y = index * step
        value = row.value if math.isfinite(row.value) else most
        width = max(1.0, (WIDTH - label - 110) * value / most)
        name = row.name if len(row.name) <= 32 else f"…{row.name[-31:]}"
        body.append(
            f"<g><title>{escape(row.name)}: {escape(row.text)}</title>"
            f'<text class="label" x="{label - 8}" y="{y + 16}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="bar {row.style}" x="{label}" y="{y + 4}" width="{width:.1f}" height="{step - 8}" rx="2"/>'
            f'<text class="tick" x="{label + width + 6:.1f}" y="{y + 16}">{escape(row.text)}</text></g>'
        )
    said = "; ".join(f"{r.name} {r.text}" for r in rows[:8])
    return _figure(title, said, "".join(body), WIDTH, step * len(rows) + 4, "rows")


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
    return _figure(title, said, "".join(body), WIDTH, 40) + f'<div class="legend">{legend}</div>'


def timeline(title: str, lanes: Sequence[str], spans: Sequence[tuple[str, str, float, float]]) -> str:
    """Spans (lane, name, begin, end) over time, one row a lane."""
    if not spans:
        return '<p class="none">Not measured.</p>'
    begin, end = min(s[2] for s in spans), max(s[3] for s in spans)
    span = max(end - begin, 1e-9)
    left, step = 64, 30
    height = step * len(lanes) + 26
    body = [
        f'<text class="label" x="{left - 8}" y="{i * step + 19}" text-anchor="end">{escape(lane)}</text>'
        f'<line class="grid" x1="{left}" x2="{WIDTH}" y1="{(i + 1) * step}" y2="{(i + 1) * step}"/>'
        for i, lane in enumerate(lanes)
    ]
    for lane, name, start, stop in spans:
        x, width = (
            left + (start - begin) / span * (WIDTH - left),
            max(0.6, (stop - start) / span * (WIDTH - left)),
        )
        body.append(
            f'<rect class="bar {lane.lower()}" x="{x:.2f}" y="{lanes.index(lane) * step + 4}" width="{width:.2f}" '
            f'height="{step - 8}"><title>{escape(name)}: {1e3 * (stop - start):.3f} ms</title></rect>'
        )
    for mark in ticks(0, span * 1e3, 6):
        x = left + mark / 1e3 / span * (WIDTH - left)
        if x <= WIDTH - 20:
            body.append(f'<text class="tick" x="{x:.1f}" y="{height - 8}">{number(mark)} ms</text>')
    said = "; ".join(
        f"{lane}: {sum(s[3] - s[2] for s in spans if s[0] == lane) * 1e3:.2f} ms" for lane in lanes
    )
    return _figure(title, f"{len(spans)} calls. {said}", "".join(body), WIDTH, height)
