"""Compares the files that PyTorch's, Keras's and TensorFlow's exporters write with ONNX Runtime.

Every network is exported with an open batch, by each exporter and for several operator sets, and runs with two batches.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import ge
from ge.errors import GeError

__all__ = ["FORMS", "exporters", "run_network", "write"]

TOLERANCE = 1e-3  # relative to the largest element
_BATCHES = (2, 3)
_TORCH, _KERAS = ("TorchScript", "torch.export"), ("tf2onnx",)

Feeds = dict[str, np.ndarray]


# What writes the files, and the operator sets: a function of a front door, since only those import frameworks.
_EXPORTERS = {
    "TorchScript": ("torchair.conformance.exporters:by_torchscript", (9, 11, 13, 16, 20)),
    "torch.export": ("torchair.conformance.exporters:by_torch_export", (18, 21, 23, 24)),
    "tf2onnx": ("tf_adapter.conformance.exporters:by_tf2onnx", (9, 11, 13, 15, 18)),
}
FORMS = [f"{name}, {version}" for name, (_, versions) in _EXPORTERS.items() for version in versions]


def write(form: str, network: Any, inputs: tuple[Any, ...], path: Path) -> None:
    """Write a network's file in one of `FORMS`."""
    name, version = form.rsplit(", ", 1)
    module, _, function = _EXPORTERS[name][0].partition(":")
    getattr(importlib.import_module(module), function)(network, inputs, path, int(version))


def run_network(network: Any, inputs: tuple[Any, ...], forms: list[str]) -> Iterator[tuple[str, str, str]]:
    """Form, outcome (pass, wrong, refused, error, or absent: there is no such file) and detail of each form."""
    with tempfile.TemporaryDirectory() as folder:
        for number, form in enumerate(forms):
            path = Path(folder) / f"{number}.onnx"
            try:
                with warnings.catch_warnings(), _silent():
                    warnings.simplefilter("ignore")
                    write(form, network, inputs, path)
                feeds = [_of_batch(inputs, batch) for batch in _BATCHES]
                names, expected = _theirs(path, feeds)
            except Exception as error:
                yield form, "absent", _first_line(error)
                continue
            yield form, *_judged(path, [{k: f[k] for k in names} for f in feeds], expected)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Discard what exporters write to standard output, also from native code (graphs that they cannot export)."""
    sys.stdout.flush()
    kept = os.dup(1)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        os.dup2(nowhere.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)


def _of_batch(inputs: tuple[Any, ...], batch: int) -> Feeds:
    """The inputs with their rows repeated or left out."""
    arrays = [np.asarray(x) for x in inputs]
    return {f"x{i}": np.ascontiguousarray(np.resize(a, (batch, *a.shape[1:]))) for i, a in enumerate(arrays)}


def _theirs(path: Path, feeds: list[Feeds]) -> tuple[list[str], list[list[np.ndarray]]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    return names, [session.run(None, {name: feed[name] for name in names}) for feed in feeds]


def _judged(path: Path, feeds: list[Feeds], expected: list[list[np.ndarray]]) -> tuple[str, str]:
    try:
        model = ge.compile(str(path))
        found = [model(*feed.values()) for feed in feeds]
    except GeError as error:
        return "refused", _first_line(error)
    except Exception as error:
        return "error", f"{type(error).__name__}: {_first_line(error)}"
    for results, wanted in zip(found, expected, strict=True):
        ours = list(results) if isinstance(results, list | tuple) else [results]
        for mine, theirs in zip(ours, wanted, strict=True):
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                return "wrong", f"{mine.dtype}{list(mine.shape)} for {theirs.dtype}{list(theirs.shape)}"
            distance = np.abs(mine.astype(float) - theirs.astype(float)).max(initial=0)
            largest = np.abs(theirs.astype(float)).max(initial=0)
            if not distance <= TOLERANCE * (largest + 1e-6):
                return "wrong", f"differs by {distance:.2g} where the largest is {largest:.2g}"
    return "pass", ""


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]


def _networks(names: str) -> Iterator[tuple[str, Any, tuple[Any, ...], tuple[str, ...]]]:
    """A checkout's networks: name, network, inputs, first words of its forms."""
    found = importlib.import_module("tests.conformance.ort_networks")
    keras = importlib.import_module("tests.conformance.keras_networks")
    chosen = [n for n in (*found.ALL, *keras.ALL) if not names or n in names.split(",")]
    for name in chosen:
        if name in found.ALL:
            make, inputs = found.ALL[name]
            seeded = importlib.import_module("torchair.conformance.exporters").seeded
            yield name, seeded(make), inputs(), _TORCH
        else:
            make, shape = keras.ALL[name]
            yield (
                name,
                make(),
                (np.random.default_rng(0).standard_normal(shape).astype(np.float32),),
                _KERAS,
            )


def exporters(
    networks: Annotated[str, typer.Option(help="names of networks, with commas; none: all")] = "",
    forms: Annotated[str, typer.Option(help=f"forms of {'; '.join(FORMS)}, with | between them")] = "",
) -> None:
    """Compare the files of PyTorch's and TensorFlow's exporters with ONNX Runtime; the networks are a checkout's."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    logging.disable(logging.WARNING)
    sys.path.insert(0, os.getcwd())
    counts: dict[str, dict[str, int]] = {form: {} for form in FORMS if not forms or form in forms.split("|")}
    bad = 0
    for name, network, inputs, kind in _networks(networks):
        fitting = [f for f in counts if f.startswith(kind)]
        for form, outcome, detail in run_network(network, inputs, fitting):
            counts[form][outcome] = counts[form].get(outcome, 0) + 1
            if outcome != "pass":
                print(f"{outcome} {name}, {form}: {detail}", flush=True)
            bad += outcome not in ("pass", "absent")
    table = Table("exporter, operator set", *(outcomes := ("pass", "wrong", "refused", "error", "absent")))
    for form, row in counts.items():
        table.add_row(form, *(str(row.get(o, 0)) for o in outcomes))
    Console().print(table)
    raise typer.Exit(1 if bad else 0)
