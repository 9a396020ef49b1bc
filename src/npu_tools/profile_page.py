"""The page of a profile: one HTML file without network, with inline SVG for bars, roofline and timeline."""

from __future__ import annotations

import html
import json
import math
import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from npu_tools.profile_data import Kernel, Profile

__all__ = ["page"]

_MOST_ROWS = 200
_MOST_BLOCKS = 6000  # of the timeline
_WIDTH, _HEIGHT, _MARGIN = 720, 380, 56
_TEMPLATE = string.Template(Path(__file__).with_suffix(".html").read_text())
_COLOURS = ("#3b6fd4", "#c05a2b", "#2f8f5b", "#8a4fbf", "#b0892a", "#2b94a8", "#b53a68", "#6b7280")


def page(script: str, profile: Profile, recorded: dict[str, Any]) -> str:
    """The whole page."""
    engines = list(dict.fromkeys(kernel.engine for kernel in profile.kernels))
    colours = {engine: _COLOURS[i % len(_COLOURS)] for i, engine in enumerate(engines)}
    return _TEMPLATE.substitute(
        title=html.escape(f"Profile of {script}"),
        summary=_summary(profile),
        operators=_operators(profile, colours),
        roofline=_roofline(profile, colours),
        legend="".join(
            f'<span><i style="background:{colour}"></i>{html.escape(engine)}</span>'
            for engine, colour in colours.items()
        ),
        kernels=_kernels(profile),
        timeline=_data(_timeline(recorded, colours)),
    )


def _summary(profile: Profile) -> str:
    idle = max(0.0, profile.wall - profile.busy - profile.host)
    cards = (
        ("whole script", f"{profile.wall:.3f} s"),
        ("on the NPU", f"{profile.busy:.3f} s ({_share(profile.busy, profile.wall)})"),
        ("calls on the host", f"{profile.host:.3f} s ({_share(profile.host, profile.wall)})"),
        ("everything else: imports, compiles, Python", f"{idle:.3f} s ({_share(idle, profile.wall)})"),
        ("machine", html.escape(profile.target)),
    )
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in cards)


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _operators(profile: Profile, colours: dict[str, str]) -> str:
    rows = profile.operators()
    most = rows[0][3] if rows else 1.0
    total = sum(row[3] for row in rows) or 1.0
    return "".join(
        f"<tr><td>{html.escape(operator)}</td><td>{html.escape(engine)}</td><td>{calls}</td>"
        f"<td>{seconds * 1e3:.3f}</td><td>{seconds / total:.1%}</td>"
        f'<td class="bar"><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{100 * seconds / most:.2f}" height="10" fill="{colours[engine]}"/></svg></td></tr>'
        for engine, operator, calls, seconds in rows[:_MOST_ROWS]
    )


def _kernels(profile: Profile) -> str:
    return "".join(_kernel_row(profile, kernel) for kernel in profile.kernels[:_MOST_ROWS])


def _kernel_row(profile: Profile, kernel: Kernel) -> str:
    shape = f"{kernel.dtype}[{'x'.join(map(str, kernel.shape))}]"
    cells: Iterable[str] = (
        html.escape(kernel.name),
        html.escape(kernel.program),
        html.escape(kernel.operator),
        html.escape(shape),
        str(kernel.calls),
        f"{kernel.seconds * 1e3:.3f}",
        f"{kernel.seconds / kernel.calls * 1e6:.2f}",
        f"{kernel.flops / 1e6:.3f}",
        f"{kernel.nbytes / 1e6:.3f}",
        f"{kernel.flops_rate / 1e9:.2f}",
        f"{kernel.bytes_rate / 1e9:.2f}",
        f"{profile.roof(kernel):.1%}",
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


# -- roofline -----------------------------------------------------------------------------------------------------


def _roofline(profile: Profile, colours: dict[str, str]) -> str:
    """Rate over intensity, both logarithmic; a circle a kernel, its area by its time."""
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
        f'<circle cx="{x(k.intensity):.1f}" cy="{y(k.flops_rate):.1f}" '
        f'r="{3 + 12 * math.sqrt(k.seconds / longest):.1f}" '
        f'fill="{colours[k.engine]}"><title>{html.escape(k.name)}: {k.flops_rate / 1e9:.1f} GFLOP/s, '
        f"{k.intensity:.2f} FLOP/B, {profile.roof(k):.0%} of the roof</title></circle>"
        for k in points
    )
    return (
        f"{_ticks(left, right, bottom, top, x, y)}"
        f'<polyline class="roof" points="{roof}"/>'
        f'<text x="{_WIDTH - _MARGIN}" y="{y(profile.flops_roof) - 6:.1f}" text-anchor="end">'
        f"{profile.flops_roof / 1e9:.0f} GFLOP/s</text>"
        f'<text x="{x(left) + 8:.1f}" y="{y(profile.bytes_roof * left) - 14:.1f}">'
        f"{profile.bytes_roof / 1e9:.0f} GB/s</text>{circles}"
    )


def _ticks(left: float, right: float, bottom: float, top: float, x: Any, y: Any) -> str:
    low, high = _HEIGHT - _MARGIN, _WIDTH - _MARGIN
    marks = []
    for power in range(math.ceil(math.log10(left)), math.floor(math.log10(right)) + 1):
        at = x(10.0**power)
        marks.append(
            f'<text x="{at:.1f}" y="{low + 18}" text-anchor="middle">{10.0**power:g}</text>'
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_MARGIN}" y2="{low}"/>'
        )
    for power in range(math.ceil(math.log10(bottom)), math.floor(math.log10(top)) + 1):
        at = y(10.0**power)
        marks.append(
            f'<text x="{_MARGIN - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0**power / 1e9:g}</text>'
            f'<line class="grid" x1="{_MARGIN}" x2="{high}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
    return "".join(marks)


# -- timeline -----------------------------------------------------------------------------------------------------


def _timeline(recorded: dict[str, Any], colours: dict[str, str]) -> dict[str, Any]:
    """Rows of blocks (start, length in microseconds, name, colour), the longest blocks where there are too many."""
    first = recorded["began"]
    programs = {program["number"]: program for program in recorded["programs"]}
    blocks: list[tuple[str, float, float, str, str]] = []
    for number, index, thread, start, end in recorded["spans"]:
        tasks = programs[number]["tasks"]
        if 0 <= index < len(tasks):
            task = tasks[index]
            row, name, colour = (
                f"NPU, thread {thread}",
                task["name"],
                colours.get(task["engine"], _COLOURS[-1]),
            )
            blocks.append((row, (start - first) / 1e3, (end - start) / 1e3, name, colour))
    for name, start, end in recorded["host"]:
        blocks.append(("host", (start - first) / 1e3, (end - start) / 1e3, name, _COLOURS[-1]))
    for name, on_npu, thread, start, end in recorded["calls"]:
        if not on_npu:
            row = f"host, thread {thread + 1}"
            blocks.append((row, (start - first) / 1e3, (end - start) / 1e3, name, _COLOURS[-1]))
    total = len(blocks)
    blocks = sorted(sorted(blocks, key=lambda block: -block[2])[:_MOST_BLOCKS])
    rows = list(dict.fromkeys(block[0] for block in blocks))
    return {
        "rows": rows,
        "blocks": [
            [rows.index(row), round(at, 3), round(long, 3), name, c] for row, at, long, name, c in blocks
        ],
        "leftOut": total - len(blocks) + recorded["dropped"],
    }


def _data(value: dict[str, Any]) -> str:
    """JSON that may stand in a script element."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")
