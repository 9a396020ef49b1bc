"""The page of a profile: time by operator, roofline, timeline, every kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from npu_tools.pages.charts import Bar, Span, bars, figure, timeline
from npu_tools.pages.parts import card, cards, document, escape, folded, seconds, table, tile
from npu_tools.profile_data import Kernel, Profile

__all__ = ["page"]

_MOST_ROWS = 200
_MOST_BARS = 16
_MOST_BLOCKS = 6000  # of the timeline
_WIDTH, _HEIGHT, _MARGIN = 720, 380, 56
_STYLES = ("npu", "copies", "input", "between")
_HOST = "host"
_ROOFLINE = (
    "Operations a second over operations for each byte, both logarithmic. A kernel on the line could not be faster on "
    "this machine, unless its data is in the caches; the area of a circle is its share of the time."
)


def page(script: str, profile: Profile, recorded: dict[str, Any]) -> str:
    """The whole page."""
    engines = list(dict.fromkeys(kernel.engine for kernel in profile.kernels))
    styles = {engine: _STYLES[min(i, len(_STYLES) - 1)] for i, engine in enumerate(engines)}
    keys = "".join(f'<span class="key {style}">{escape(engine)}</span>' for engine, style in styles.items())
    legend = f'<div class="legend">{keys}<span class="key {_HOST}">calls on the host</span></div>'
    measured = [
        card("Time by operator", _operators(profile, styles), "Share of the time on the NPU."),
        card("Roofline", legend + _roofline(profile, styles), _ROOFLINE),
    ]
    blocks = card("Kernels and calls on the host", legend + _timeline(recorded, styles))
    sections = [
        ("summary", "Summary", f'<dl class="tiles">{_summary(profile)}</dl>'),
        ("operators", "Operators", cards(measured)),
        ("timeline", "Timeline", blocks),
        ("kernels", "Kernels", card(f"The longest of {len(profile.kernels)}", _kernels(profile))),
    ]
    name = f"Profile of {script}"
    above = f"<p>{escape(profile.framework)}, {escape(profile.target)}</p>"
    return document(name, name, above, sections, "trace.json opens in Perfetto, with all details.")


def _summary(profile: Profile) -> str:
    idle = max(0.0, profile.wall - profile.busy - profile.host)
    return "".join(
        tile(name, seconds(value), _share(value, profile.wall))
        for name, value in (
            ("Whole script", profile.wall),
            ("On the NPU", profile.busy),
            ("Calls on the host", profile.host),
            ("Everything else", idle),
        )
    )


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%} of the script" if whole else "–"


def _operators(profile: Profile, styles: Mapping[str, str]) -> str:
    rows = profile.operators()
    total = sum(row[3] for row in rows) or 1.0
    drawn = [
        Bar(name, time, styles[engine], f"{time / total:.1%}") for engine, name, _, time in rows[:_MOST_BARS]
    ]
    cells = [
        (name, engine, (str(calls), calls), (f"{time * 1e3:.3f}", time), (f"{time / total:.1%}", time))
        for engine, name, calls, time in rows[:_MOST_ROWS]
    ]
    heads = ["operator", "engine", "calls", "ms", "share"]
    rowed = table(heads, cells, name="Time by operator", numbers="  nnn")
    return bars("Time by operator", drawn) + folded(f"{len(cells)} operators", rowed)


def _kernels(profile: Profile) -> str:
    heads = ["kernel", "program", "implementation", "output", "calls", "ms", "µs a call", "MFLOP", "MB"]
    heads += ["GFLOP/s", "GB/s", "of roof"]
    rows = [_kernel_row(profile, kernel) for kernel in profile.kernels[:_MOST_ROWS]]
    return table(heads, rows, name="Kernels", numbers="    nnnnnnnn")


def _kernel_row(profile: Profile, kernel: Kernel) -> list[str | tuple[str, float]]:
    roof = profile.roof(kernel)
    return [
        kernel.name, kernel.program, kernel.runs_as, f"{kernel.dtype}[{'×'.join(map(str, kernel.shape))}]",
        (str(kernel.calls), kernel.calls), (f"{kernel.seconds * 1e3:.3f}", kernel.seconds),
        f"{kernel.seconds / kernel.calls * 1e6:.2f}", f"{kernel.flops / 1e6:.3f}", f"{kernel.nbytes / 1e6:.3f}",
        f"{kernel.flops_rate / 1e9:.2f}", f"{kernel.bytes_rate / 1e9:.2f}", (f"{roof:.1%}", roof),
    ]  # fmt: skip


# -- roofline -----------------------------------------------------------------------------------------------------


def _roofline(profile: Profile, styles: Mapping[str, str]) -> str:
    """Rate over intensity, both logarithmic; one circle per kernel with area proportional to its time."""
    points = [k for k in profile.kernels if k.flops > 0 and k.nbytes > 0 and k.seconds > 0][:_MOST_ROWS]
    ridge = profile.flops_roof / profile.bytes_roof
    values = [k.intensity for k in points]
    left, right = min([0.05, *values]) / 2, max([ridge * 8, *values]) * 2
    top = profile.flops_roof * 2
    bottom = min([profile.bytes_roof * left, *(k.flops_rate for k in points)]) / 2

    def x(value: float) -> float:
        return _MARGIN + (_WIDTH - 2 * _MARGIN) * math.log(value / left) / math.log(right / left)

    def y(value: float) -> float:
        return _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * math.log(value / bottom) / math.log(top / bottom)

    roof = f"{x(left):.1f},{y(profile.bytes_roof * left):.1f} {x(ridge):.1f},{y(profile.flops_roof):.1f} "
    roof += f"{x(right):.1f},{y(profile.flops_roof):.1f}"
    longest = max((k.seconds for k in points), default=1.0)
    circles = "".join(
        f'<circle class="dot share {styles[k.engine]}" cx="{x(k.intensity):.1f}" cy="{y(k.flops_rate):.1f}" '
        f'r="{3 + 12 * math.sqrt(k.seconds / longest):.1f}"><title>{escape(k.name)}: {k.flops_rate / 1e9:.1f} GFLOP/s, '
        f"{k.intensity:.2f} FLOP/B, {profile.roof(k):.0%} of the roof</title></circle>"
        for k in points
    )
    body = (
        f'{_ticks((left, right), (bottom, top), x, y)}<polyline class="roof" points="{roof}"/>'
        f'<text class="label" x="{_WIDTH - _MARGIN}" y="{y(profile.flops_roof) - 6:.1f}" text-anchor="end">'
        f"{profile.flops_roof / 1e9:.0f} GFLOP/s</text>"
        f'<text class="label" x="{x(left) + 8:.1f}" y="{y(profile.bytes_roof * left) - 14:.1f}">'
        f"{profile.bytes_roof / 1e9:.0f} GB/s</text>{circles}"
        f'<text class="axis" x="{_WIDTH / 2}" y="{_HEIGHT - 6}" text-anchor="middle">FLOP for each byte</text>'
        f'<text class="axis" transform="translate(12 {_HEIGHT / 2}) rotate(-90)" text-anchor="middle">GFLOP/s</text>'
    )
    said = "; ".join(f"{k.name} at {profile.roof(k):.0%} of the roof" for k in points[:8])
    return figure("Roofline", said or "no kernel with arithmetic", body, _WIDTH, _HEIGHT)


def _ticks(
    across: tuple[float, float],
    up: tuple[float, float],
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> str:
    low, high = _HEIGHT - _MARGIN, _WIDTH - _MARGIN
    marks = []
    for power in _powers(*across):
        at = x(10.0**power)
        marks.append(
            f'<text x="{at:.1f}" y="{low + 18}" text-anchor="middle">{10.0**power:g}</text>'
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_MARGIN}" y2="{low}"/>'
        )
    for power in _powers(*up):
        at = y(10.0**power)
        marks.append(
            f'<text x="{_MARGIN - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0**power / 1e9:g}</text>'
            f'<line class="grid" x1="{_MARGIN}" x2="{high}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
    return "".join(marks)


def _powers(low: float, high: float) -> range:
    return range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)


# -- timeline -----------------------------------------------------------------------------------------------------


def _timeline(recorded: dict[str, Any], styles: Mapping[str, str]) -> str:
    """Kernels and host calls; only the longest if there are too many."""
    programs = {program["number"]: program for program in recorded["programs"]}
    spans: list[Span] = []
    for number, index, thread, start, end in recorded["spans"]:
        tasks = programs[number]["tasks"]
        if 0 <= index < len(tasks):
            task = tasks[index]
            style = styles.get(task["engine"], _STYLES[-1])
            spans.append(Span(f"NPU, thread {thread}", task["name"], start / 1e9, end / 1e9, style))
    for name, start, end in recorded["host"]:
        spans.append(Span("host", name, start / 1e9, end / 1e9, _HOST))
    for name, on_npu, thread, start, end in recorded["calls"]:
        if not on_npu:
            spans.append(Span(f"host, thread {thread + 1}", name, start / 1e9, end / 1e9, _HOST))
    kept = sorted(spans, key=lambda s: s.begin - s.end)[:_MOST_BLOCKS]
    kept.sort(key=lambda s: (s.row, s.begin))
    rows = list(dict.fromkeys(s.row for s in kept))
    return timeline("Timeline", "blocks", rows, kept, len(spans) - len(kept) + recorded["dropped"])
