"""docs/options.md, made from the table: `python -m ge.options.document docs/options.md` writes it."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Any

from ge.options.table import DECIDES, DOORS, GROUPS, OPTIONS, Option, view

__all__ = ["text"]

_HEAD = """# Options

`python -m ge.options.document docs/options.md` makes this page from the table of options. Every door checks names and
values by that table and refuses wrong ones with the same words; `None` resets an option of a tree to its default. An
environment variable with a wrong value is not used, and a warning says so.
"""


def text() -> str:
    """The page."""
    lines = [_HEAD, "| door | |", "|---|---|"]
    lines += [f"| {name} | {what} |" for name, what in DOORS.items()]
    lines += ["", "| kind | |", "|---|---|", *(f"| {name} | {what} |" for name, what in DECIDES.items())]
    for group in GROUPS[:-1]:
        lines += [
            "",
            f"## {group}",
            "",
            "| option | kind | values | default | effect | doors |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_row(option) for option in OPTIONS.values() if option.group == group]
    lines += ["", f"## {GROUPS[-1]}", "", "Accepted, and said once why they change nothing.", ""]
    for reason in dict.fromkeys(o.text for o in OPTIONS.values() if o.decides == "idle"):
        names = ", ".join(f"`{o.name}`" for o in OPTIONS.values() if o.decides == "idle" and o.text == reason)
        lines += [f"* **{reason[0].upper()}{reason[1:]}**: {names}"]
    return "\n".join(lines) + "\n" + _variables()


def _row(option: Option) -> str:
    names = f"`{option.name}`" + (f" (`{option.variable}`)" if option.variable else "")
    effect = option.text + (
        f". {_plain_doors(option.ignored_at)}: none, {option.ignored}" if option.ignored else ""
    )
    cells = [names, option.decides, option.parser.choices, _shown(option.default), effect, _doors(option)]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _plain_doors(doors: frozenset[str]) -> str:
    return ", ".join(door for door in DOORS if door in doors)


def _doors(option: Option) -> str:
    found = []
    for door in DOORS:
        spellings = [n for n, o in view(door).items() if o is option and not option.idle_at(door)]
        other = [f"`{n}`" for n in spellings if n != option.name]
        found += [door if option.name in spellings else ""] if not other else [f"{door} ({', '.join(other)})"]
    return ", ".join(filter(None, found))


def _shown(value: Any) -> str:
    if value in (None, "", (), {}, frozenset()):
        return ""
    return f"`{value.value if isinstance(value, enum.Enum) else value}`"


def _variables() -> str:
    from npu_runtime.environment import VARIABLES

    own = {option.variable for option in OPTIONS.values()}
    rows = [f"| `{name}` | {what} |" for name, what in VARIABLES.items() if name not in own]
    return (
        "\n".join(["\n## Environment variables without an option", "", "| variable | |", "|---|---|", *rows])
        + "\n"
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text(), encoding="utf-8")
