"""python -m tests.figures: lines by room, cycles in `ge`, functions that stand twice, patches by front door."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

from tests.test_repository import packages_of_ge, reached, tracked

ROOT = Path(__file__).resolve().parents[1]
NATIVE = tuple(f"native/*.{ending}" for ending in ("cc", "h", "cu"))
REPEATED = 4  # lines from which a function that stands twice counts


def lines(*patterns: str, depth: int = 2) -> Counter[str]:
    """The lines of tracked files, by their first folders."""
    found: Counter[str] = Counter()
    for path in tracked(*patterns):
        folders = path.relative_to(ROOT).parts[:-1]
        found["/".join(folders[:depth])] += path.read_text().count("\n")
    return found


def repeated(*patterns: str) -> list[list[str]]:
    """The places of functions whose bodies are the same but for their documentation."""
    found = defaultdict(list)
    for path in tracked(*patterns):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                body = node.body[ast.get_docstring(node) is not None :]
                if body and (node.end_lineno or 0) - body[0].lineno + 1 >= REPEATED:
                    text = ast.dump(ast.Module(body, []))
                    found[text].append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    return [places for places in found.values() if len(places) > 1]


def cycles() -> list[str]:
    """The packages of `ge` that reach themselves by imports."""
    graph = packages_of_ge()
    return [name for name in graph if name in reached(graph, name)]


def patches() -> dict[str, int]:
    """How many attributes of its framework each front door replaces."""
    found = {p.parent.name: p.read_text().count(" Patch(") for p in tracked("src/*/compatibility.py")}
    return {name: count for name, count in found.items() if name != "ge"}


def main() -> None:
    """Print all figures."""
    rooms = lines("src/*.py") + lines(*NATIVE, depth=1) + lines("tests/*.py", "benchmarks/*.py", depth=1)
    for room, count in rooms.most_common():
        print(f"{count:8,}  {room}")
    print("cycles:", len(cycles()), *cycles())
    twice = repeated("src/*.py", "benchmarks/*.py")
    print("functions that stand twice:", len(twice), *(" = ".join(places) for places in twice), sep="\n  ")
    print("patches:", ", ".join(f"{count} {name}" for name, count in sorted(patches().items())))


if __name__ == "__main__":
    main()
