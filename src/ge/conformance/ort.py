"""Compares models rewritten by ONNX Runtime's optimiser (every level) and quantisers with ONNX Runtime.

Each variant of a model runs in ONNX Runtime and in the engine. Float variants must agree up to rounding. In quantised
variants a small difference in a sum may change a quantisation level, so their error against ONNX Runtime must be
smaller than the quantisation error itself.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from rich.console import Console
from rich.table import Table

import ge
from ge.errors import GeError
from ge.options import CompileOptions

__all__ = ["FORMS", "Outcome", "ort", "run_file"]

FLOAT = 1e-3  # tolerance of float variants, relative to the largest element
ROUNDING = 0.02  # added to the quantisation error for quantised variants


@dataclass(frozen=True)
class Outcome:
    """Outcome of one variant of a model."""

    model: str
    form: str
    status: (
        str  # pass, wrong, refused, error, or absent: ONNX Runtime's tools cannot produce or run this variant
    )
    detail: str = ""
    operators: int = 0  # of ONNX Runtime's own domains


def _optimised(level: str) -> Callable[[Path, Path, Any], None]:
    def make(source: Path, made: Path, feeds: Any) -> None:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
        settings.optimized_model_filepath = str(made)
        onnxruntime.InferenceSession(str(source), settings, providers=["CPUExecutionProvider"])

    return make


def _transformer(source: Path, made: Path, feeds: Any) -> None:
    """Apply the transformer optimiser, which fuses attention, embeddings and skip normalisations."""
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    model = optimizer.optimize_model(
        str(source), "bert", num_heads=0, hidden_size=0, optimization_options=FusionOptions("bert")
    )
    model.save_model_to_file(str(made))


def _static(form: str) -> Callable[[Path, Path, Any], None]:
    def make(source: Path, made: Path, feeds: Any) -> None:
        from onnxruntime import quantization
        from onnxruntime.quantization.shape_inference import quant_pre_process

        prepared = made.with_suffix(".prepared.onnx")
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)

        class Reader(quantization.CalibrationDataReader):
            def __init__(self) -> None:
                self.left = [feeds]

            def get_next(self) -> Any:
                return self.left.pop() if self.left else None

        quantization.quantize_static(
            str(prepared), str(made), Reader(), quant_format=getattr(quantization.QuantFormat, form)
        )

    return make


def _dynamic(source: Path, made: Path, feeds: Any) -> None:
    from onnxruntime import quantization

    quantization.quantize_dynamic(str(source), str(made))


def _four_bits(source: Path, made: Path, feeds: Any) -> None:
    from onnxruntime.quantization import matmul_nbits_quantizer

    quantiser = matmul_nbits_quantizer.MatMulNBitsQuantizer(str(source), block_size=16, is_symmetric=False)
    quantiser.process()
    quantiser.model.save_model_to_file(str(made))


FORMS: dict[str, Callable[[Path, Path, Any], None]] = {
    "basic": _optimised("ENABLE_BASIC"),
    "extended": _optimised("ENABLE_EXTENDED"),
    "all": _optimised("ENABLE_ALL"),
    "transformers": _transformer,
    "qdq": _static("QDQ"),
    "qdq, all": lambda source, made, feeds: _both(_static("QDQ"), source, made, feeds),
    "qoperator": _static("QOperator"),
    "dynamic": _dynamic,
    "dynamic, all": lambda source, made, feeds: _both(_dynamic, source, made, feeds),
    "4 bits": _four_bits,
}
_QUANTISED = ("qdq", "qoperator", "dynamic", "4 bits")


def _both(quantise: Callable[[Path, Path, Any], None], source: Path, made: Path, feeds: Any) -> None:
    """Quantise, then optimise."""
    between = made.with_suffix(".between.onnx")
    quantise(source, between, feeds)
    FORMS["all"](between, made, feeds)


def run_file(path: Path, forms: Mapping[str, Any] = FORMS) -> list[Outcome]:
    """Check all variants of a model file."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    proto = onnx.load(path)
    feeds = _feeds(proto)
    real = _theirs(path, feeds)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for form, make in forms.items():
            made = Path(folder) / f"{len(outcomes)}.onnx"
            try:
                make(path, made, feeds)
                wanted = _theirs(made, feeds)
                _check_scales(made)
            except Exception as error:
                outcomes.append(Outcome(path.stem, form, "absent", _first_line(error)))
                continue
            outcomes.append(_judged(path.stem, form, made, feeds, wanted, real))
    return outcomes


def _judged(
    name: str,
    form: str,
    made: Path,
    feeds: Mapping[str, np.ndarray],
    wanted: list[np.ndarray],
    real: list[np.ndarray],
) -> Outcome:
    proto = onnx.load(made)
    count = sum(node.domain.startswith("com.microsoft") for node in proto.graph.node)
    try:
        model = ge.compile(str(made), CompileOptions(input_shapes={k: v.shape for k, v in feeds.items()}))
        found = model(*(feeds[port.name] for port in proto.graph.input if port.name in feeds))
    except GeError as error:
        return Outcome(name, form, "refused", _first_line(error), count)
    except Exception as error:
        return Outcome(name, form, "error", f"{type(error).__name__}: {_first_line(error)}", count)
    results = list(found) if isinstance(found, list | tuple) else [found]
    for ours, theirs, exact in zip(results, wanted, real, strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            detail = (
                f"{ours.dtype}{list(ours.shape)} where ONNX Runtime has {theirs.dtype}{list(theirs.shape)}"
            )
            return Outcome(name, form, "wrong", detail, count)
        settled = np.isfinite(theirs)
        if not np.array_equal(ours[~settled], theirs[~settled], equal_nan=True):
            return Outcome(
                name, form, "wrong", "infinities or NaN in other places than ONNX Runtime's", count
            )
        ours, theirs, exact = ours[settled], theirs[settled], exact[settled]
        size = np.abs(theirs).max(initial=0) + 1e-6
        distance = float(np.abs(ours - theirs).max(initial=0) / size)
        allowed = FLOAT
        if form.split(",")[0] in _QUANTISED:
            allowed = ROUNDING + float(np.abs(theirs - exact).max(initial=0) / size)
        if not distance <= allowed:
            return Outcome(
                name,
                form,
                "wrong",
                f"differs by {distance:.2g} of the largest, {allowed:.2g} is allowed",
                count,
            )
    return Outcome(name, form, "pass", "", count)


def _check_scales(path: Path) -> None:
    """Reject models with NaN scales, which the quantiser computes from masks of minus infinity."""
    for tensor in onnx.load(path).graph.initializer:
        if tensor.name.endswith("_scale") and not np.isfinite(onnx.numpy_helper.to_array(tensor)).all():
            raise ValueError(f"the quantiser wrote {tensor.name}, which is not finite")


def _theirs(path: Path, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def _feeds(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Random inputs: small integers or normally distributed floats; unknown dimensions are 2."""
    rng = np.random.default_rng(0)
    stored = {t.name for t in proto.graph.initializer}
    feeds = {}
    for port in proto.graph.input:
        if port.name in stored:
            continue
        kind = port.type.tensor_type
        shape = [d.dim_value or 2 for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        feeds[port.name] = values.astype(dtype)
    return feeds


def _exported(module: str, folder: Path) -> Iterator[Path]:
    """Export the networks of a module lazily; yields the file of each."""
    sys.path.insert(0, os.getcwd())
    found = importlib.import_module(module)
    for name in found.ALL:
        yield found.exported(name, folder)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]


def ort(
    files: Annotated[
        list[Path] | None, typer.Argument(help="ONNX files, or folders of them; none: those of --networks")
    ] = None,
    forms: Annotated[str, typer.Option(help=f"forms of {'; '.join(FORMS)}, with | between them")] = "",
    networks: Annotated[
        str, typer.Option(help="a module of a checkout with ALL and exported(name, folder)")
    ] = "tests.conformance.ort_networks",
) -> None:
    """Compare every variant that ONNX Runtime's optimiser and quantisers produce with ONNX Runtime."""
    chosen = {k: v for k, v in FORMS.items() if not forms or k in forms.split("|")}
    with tempfile.TemporaryDirectory() as folder:
        paths: Iterator[Path] = (
            p for f in files or () for p in (sorted(f.glob("*.onnx")) if f.is_dir() else [f])
        )
        if not files:
            paths = _exported(networks, Path(folder))
        outcomes = [outcome for path in paths for outcome in run_file(path, chosen)]
    console = Console()
    table = Table("form", "pass", "wrong", "refused", "error", "absent", "operators of ONNX Runtime")
    for form in chosen:
        of_form = [o for o in outcomes if o.form == form]
        counts = [
            sum(o.status == s for o in of_form) for s in ("pass", "wrong", "refused", "error", "absent")
        ]
        table.add_row(form, *map(str, counts), str(sum(o.operators for o in of_form)))
    console.print(table)
    for outcome in outcomes:
        if outcome.status != "pass":
            console.print(
                f"[bold]{outcome.status}[/] {outcome.model}, {outcome.form}: {outcome.detail}",
                highlight=False,
            )
    raise typer.Exit(int(any(o.status in ("wrong", "error", "refused") for o in outcomes)))
