"""The frame of a page and its parts: sections, tiles, cards, sortable tables."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = [
    "Cell",
    "card",
    "cards",
    "document",
    "escape",
    "folded",
    "number",
    "scrolled",
    "seconds",
    "size",
    "table",
    "tile",
]

_HERE = Path(__file__).parent

Cell = str | tuple[str, float]  # text, or text with the number to sort by


def escape(text: object) -> str:
    """Escape text for HTML."""
    return html.escape(str(text), quote=True)


def document(
    title: str, heading: str, above: str, sections: Iterable[tuple[str, str, str]], below: str
) -> str:
    """The whole page; sections are (id, name, body), empty ones are omitted."""
    shown = [(key, name, body) for key, name, body in sections if body]
    links = "".join(f'<a href="#{key}">{escape(name)}</a>' for key, name, _ in shown)
    bodies = "".join(
        f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{escape(name)}</h2>{body}</section>'
        for key, name, body in shown
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{(_HERE / "page.css").read_text()}</style>
</head>
<body>
<a class="skip" href="#{shown[0][0]}">Skip to the {escape(shown[0][1].lower())}</a>
<header class="top"><h1>{escape(heading)}</h1>{above}</header>
<nav aria-label="Sections">{links}<button id="theme" type="button" hidden>Dark</button></nav>
<main>{bodies}</main>
<footer>{below}</footer>
<script>{(_HERE / "page.js").read_text()}</script>
</body>
</html>
"""


def tile(name: str, value: str, note: str = "") -> str:
    return f'<div class="tile"><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>'


def size(nbytes: float) -> str:
    """Format a number of bytes.

    >>> size(512), size(130_000), size(3 << 20), size(5 << 30)
    ('512 B', '127.0 KiB', '3.0 MiB', '5.0 GiB')
    """
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= factor:
            return f"{nbytes / factor:,.1f} {unit}"
    return f"{nbytes:.0f} B"


def card(title: str, body: str, note: str = "", style: str = "") -> str:
    said = f'<p class="soft">{escape(note)}</p>' if note else ""
    return f'<div class="card {style}"><h3>{escape(title)}</h3>{said}{body}</div>'


def cards(made: Sequence[str]) -> str:
    """A row of cards; empty if there are none."""
    return f'<div class="cards">{"".join(made)}</div>' if made else ""


def folded(title: str, body: str) -> str:
    """A collapsible section, expanded in print."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def scrolled(name: str, body: str) -> str:
    """A scrollable box, also by keyboard, for content wider than the screen."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">{body}</div>'


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    name: str,
    classes: Sequence[str] = (),
    numbers: str = "",
) -> str:
    """A sortable table; `numbers` has an "n" for every numeric column."""
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
    made = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody>"
    return scrolled(name, f'<table class="sortable" aria-label="{escape(name)}">{made}</table>')


def _cell(cell: Cell, kind: str) -> str:
    style = " class=num" if kind == "n" else ""
    if isinstance(cell, tuple):
        return f'<td{style} data-value="{cell[1]}">{escape(cell[0])}</td>'
    return f"<td{style}>{escape(cell)}</td>"


def seconds(value: float | None) -> str:
    """Format a duration.

    >>> seconds(0.0000123), seconds(0.5), seconds(12.0), seconds(None)
    ('12.3 µs', '500 ms', '12 s', '–')
    """
    if value is None:
        return "–"
    if value < 1e-3:
        return f"{value * 1e6:.3g} µs"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def number(value: float | None, form: str = ".3g") -> str:
    return "–" if value is None else "not finite" if not math.isfinite(value) else format(value, form)
