"""`tf-adapter env`: versions, machine, devices, memory and settings, and problems with them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ge.distributions import installed
from npu_tools.outcome import Exit, console, print_json

__all__ = ["Finding", "app", "environment", "findings"]

_LEAST_MEMORY = 1 << 30
_LEAST_DISK = 256 << 20
_FRAMEWORKS = {"tensorflow": ((2, 15), ("tensorflow-cpu", "tensorflow")), "torch": ((2, 6), ("torch",))}

app = typer.Typer()


@dataclass(frozen=True)
class Finding:
    """A problem with the environment; errors prevent models from running."""

    severity: str  # "error" | "warning" | "note"
    text: str
    remedy: str = ""


@app.command()
def env(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show versions, processor, devices, memory and settings, and problems with them.

    Exit status 1: models cannot run here, or a setting has no effect.
    """
    facts, found = environment(), list(findings())
    if json:
        print_json({"facts": facts, "findings": [asdict(finding) for finding in found]})
    else:
        _show(facts, found)
    if any(finding.severity != "note" for finding in found):
        raise typer.Exit(Exit.FOUND)


def _show(facts: dict[str, Any], found: list[Finding]) -> None:
    from rich.markup import escape

    screen = console()
    for name, value in facts.items():
        screen.print(f"[bold]{name:<22}[/] {escape(str(value))}")
    colours = {"error": "red", "warning": "yellow", "note": "cyan"}
    for finding in found:
        hint = f" [dim]→ {escape(finding.remedy)}[/]" if finding.remedy else ""
        screen.print(f"[bold {colours[finding.severity]}]{finding.severity}:[/] {escape(finding.text)}{hint}")
    if not found:
        screen.print("[bold green]ready[/]")


# -- facts --------------------------------------------------------------------------------------------------------


def environment() -> dict[str, Any]:
    """Facts by name, without those of the native runtime if it cannot be loaded (`findings` says why)."""
    if _runtime_fault():
        return {"tf-adapter": installed("tf-adapter") or "source"}
    import npu_runtime
    from ge.target import host
    from ge.versions import facts
    from npu_runtime.environment import cache_folder

    target = host()
    total, available = _memory()
    return {
        **facts(),
        "devices": f"{npu_runtime.device_count()} NPU(s) of {npu_runtime.num_threads()} threads",
        "fast types": ", ".join(sorted(map(str, target.narrow_floats))) or "float32 only",
        "memory": f"{available >> 20} of {total >> 20} MiB available, device limit"
        f" {npu_runtime.memory_info()['limit'] >> 20} MiB",
        "cache folder": str(cache_folder()),
    }


def _memory() -> tuple[int, int]:
    """Total and available bytes of memory, from the kernel."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.split()[1:]}
    return sizes["MemTotal"], sizes["MemAvailable"]


def _runtime_fault() -> str:
    try:
        import npu_runtime  # noqa: F401
    except ImportError as error:
        return str(error)
    return ""


# -- findings -----------------------------------------------------------------------------------------------------


def findings() -> Iterator[Finding]:
    """All findings, errors first."""
    if fault := _runtime_fault():
        yield Finding("error", fault)
        return
    yield from _frameworks()
    yield from _variables()
    yield from _resources()


def _frameworks() -> Iterator[Finding]:
    missing = []
    for name, (least, packages) in _FRAMEWORKS.items():
        version = next(filter(None, map(installed, packages)), "")
        if not version:
            missing.append(name)
        elif _numbers(version) < least:
            wanted = ".".join(map(str, least))
            yield Finding(
                "error", f"{name} {version} is too old", f"pip install --upgrade '{packages[0]}>={wanted}'"
            )
    if len(missing) == len(_FRAMEWORKS):
        yield Finding(
            "note",
            "neither TensorFlow nor PyTorch is installed: model files and acl only",
            "pip install torch",
        )


def _numbers(version: str) -> tuple[int, ...]:
    """
    >>> _numbers("2.15.1rc0")
    (2, 15)
    """
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _variables() -> Iterator[Finding]:
    from npu_runtime.environment import unknown

    for name, near in unknown():
        yield Finding("warning", f"{name} has no effect", f"did you mean {near}?" if near else "unset it")


def _resources() -> Iterator[Finding]:
    import npu_runtime
    from npu_runtime.environment import cache_folder

    cores = len(os.sched_getaffinity(0))
    threads = npu_runtime.num_threads() * npu_runtime.device_count()
    if threads > cores:
        yield Finding(
            "warning",
            f"{threads} threads on {cores} cores: threads wait for each other",
            f"set NPU_NUM_THREADS={max(1, cores // npu_runtime.device_count())}",
        )
    available = _memory()[1]
    if available < _LEAST_MEMORY:
        yield Finding("warning", f"only {available >> 20} MiB of memory are available", "end other programs")
    folder = _existing(cache_folder())
    if not os.access(folder, os.W_OK):
        yield Finding("warning", f"the cache folder {cache_folder()} cannot be written", "set NPU_CACHE_DIR")
    elif shutil.disk_usage(folder).free < _LEAST_DISK:
        yield Finding(
            "warning", f"the disk of the cache folder {cache_folder()} is full", "tf-adapter cache clear"
        )


def _existing(folder: Path) -> Path:
    """The folder or its nearest existing ancestor."""
    return folder if folder.exists() else _existing(folder.parent)
