"""One sample of PyTorch's operator database through the compiler: values and gradients against eager mode."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._functorch.aot_autograd import aot_function
from torch.utils import _pytree as pytree

from torchair import decompositions
from torchair.backend import get_compiler
from torchair.executable import GraphReport, observe

__all__ = ["DTYPES", "Outcome", "check_sample", "name_of", "operators", "run_operator", "samples_of",
           "with_gaps"]  # fmt: skip

# The types that run by default; any other one can be asked for by its name in torch.
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int64": torch.int64, "bool": torch.bool}
# Relative and absolute tolerance; sums of the samples' numbers are taken in another order than eager mode takes them.
_TOLERANCE = {torch.float32: (1.3e-4, 1e-4), torch.bfloat16: (3e-2, 3e-2), torch.float16: (1e-2, 1e-2),
              torch.float64: (1e-6, 1e-6)}  # fmt: skip
_GRADIENT_TOLERANCE = (1e-3, 1e-3)
# Their results are uninitialised memory, fresh random numbers, or choices (signs, bases) that eager mode leaves open.
UNDEFINED = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_",
     "resize_as_",
     "linalg.eig", "linalg.eigh", "linalg.svd", "svd", "svd_lowrank", "pca_lowrank", "linalg.qr", "qr", "geqrf",
     "linalg.eigvals", "ormqr", "linalg.householder_product"}
)  # fmt: skip


# Among equal elements eager mode names any; position of the axis among the arguments.
TIES = {"topk": 1, "sort": 0, "argsort": 0}


@dataclass
class Outcome:
    """What became of an operator's samples."""

    name: str
    dtype: str
    samples: int = 0
    native: int = 0  # samples of which every call ran on the NPU
    wrong: list[str] = field(default_factory=list)
    skipped: int = 0  # samples that eager mode itself refuses, or that cannot be traced
    ungraphed: int = 0  # samples of which Dynamo makes no graph: they run eagerly
    breaks: int = 0  # where Dynamo cuts graphs in two
    theirs: list[str] = field(
        default_factory=list
    )  # what PyTorch's own backend answers or refuses as ours does
    refusals: dict[str, str] = field(default_factory=dict)
    operators: set[str] = field(default_factory=set)


def operators() -> list[Any]:
    """The operator database."""
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def samples_of(op: Any, dtype: torch.dtype, most: int, gradient: bool = False) -> Iterator[Any]:
    """The first samples of an operator."""
    made = op.sample_inputs("cpu", dtype, requires_grad=gradient)
    for _, sample in zip(range(most), made, strict=False):
        yield sample


def run_operator(
    op: Any, dtype: str, most: int, gradients: bool, dynamo: bool = False, eager: bool = False,
    strided: bool = False,
) -> Outcome:  # fmt: skip
    """All samples of an operator in one element type.

    With `dynamo`, through torch.compile as a whole; with `eager`, not compiled, on tensors of the npu device; with
    `strided`, operands have gaps in memory and their axes in reverse.
    """
    outcome = Outcome(name_of(op), dtype)
    kind = getattr(torch, dtype)
    if kind not in op.supported_dtypes("cpu"):
        return outcome
    torch.manual_seed(0)
    modes = [False, True] if gradients and kind is torch.float32 and op.supports_autograd else [False]
    for gradient in modes:
        samples = _listed(op, kind, most, gradient)
        outcome.skipped += samples is None
        for index, sample in enumerate(samples or []):
            label = f"{'gradient' if gradient else 'value'} {index}"
            if strided:
                sample = sample.transform(lambda v: with_gaps(v) if isinstance(v, torch.Tensor) else v)
            check_sample(op, sample, outcome, label, gradient, dynamo, eager)
    return outcome


def _listed(op: Any, kind: torch.dtype, most: int, gradient: bool) -> list[Any] | None:
    try:
        return list(samples_of(op, kind, most, gradient))
    except Exception:  # the database's own samples need a library that is not there
        return None


def with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements as every second one along each axis of a larger tensor, the axes in reverse in memory.

    >>> with_gaps(torch.ones(2, 3)).stride()
    (2, 8)
    """
    if tensor.layout is not torch.strided:
        return tensor
    strides, step = [], 2
    for size in tensor.shape:
        strides.append(step)
        step *= 2 * max(size, 1)
    return _strided(tensor, strides).requires_grad_(tensor.requires_grad)


def _strided(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A copy of a tensor with these strides; gaps are zeros."""
    reach = 1 + sum((d - 1) * s for d, s in zip(tensor.shape, strides, strict=True) if d)
    memory = torch.zeros(reach, dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(tensor.shape, strides).copy_(tensor.detach())


def _copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of a tensor on a device, with its gaps in memory where no elements share memory."""
    moved = tensor.detach().to(device)
    overlaps = any(d > 1 and s == 0 for d, s in zip(tensor.shape, tensor.stride(), strict=True))
    return moved.clone() if tensor.is_contiguous() or overlaps else _strided(moved, tensor.stride())


def name_of(op: Any) -> str:
    """An operator's name with its variant."""
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def check_sample(
    op: Any, sample: Any, outcome: Outcome, label: str, gradient: bool = False, dynamo: bool = False,
    eager: bool = False,
) -> None:  # fmt: skip
    """Run one sample both ways; what differs goes into the outcome."""
    tree = (sample.input, tuple(sample.args), dict(sample.kwargs))
    flat, spec = pytree.tree_flatten(tree)
    places = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]
    function = _function(op, flat, spec, places)
    tensors = [flat[i] for i in places]
    if any(t.layout is not torch.strided for t in tensors):
        outcome.skipped += 1
        return
    try:
        expected = _called(function, tensors, gradient)
    except Exception:  # what eager mode refuses has no right answer
        outcome.skipped += 1
        return
    with observe() as reports:
        try:
            if eager:
                found = _on_device(function, tensors, gradient)
            else:
                through = _through_dynamo(function) if dynamo else _compiled(function)
                found = _called(through, tensors, gradient)
        except Exception as error:
            told = f"{label}: {type(error).__name__}: {str(error)[:300]}"
            if dynamo and _refused_by_pytorch(function, tensors, gradient):
                outcome.theirs.append(told)
                outcome.skipped += 1
            elif not dynamo and not eager and _untraceable(error):
                outcome.skipped += 1
            else:
                outcome.wrong.append(told)
            return
    outcome.samples += 1
    if dynamo:
        outcome.breaks += sum(counters["graph_break"].values())
        outcome.ungraphed += not reports
    _tally(outcome, reports, label)
    if op.name in UNDEFINED:
        return
    if op.name in TIES:
        found, expected = _without_ties(op.name, sample, found, expected)
    problem = difference(found, expected, gradient)
    if problem and dynamo and not difference(found, _by_pytorch(function, tensors, gradient), gradient):
        outcome.theirs.append(f"{label}: {problem}")
    elif problem:
        outcome.wrong.append(f"{label}: {problem}")


def _without_ties(
    name: str, sample: Any, found: list[torch.Tensor], expected: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Positions replaced by the elements at them."""
    place = TIES[name]
    axis = sample.kwargs.get("dim", sample.args[place] if len(sample.args) > place else -1)
    source = sample.input.detach()

    def elements(results: list[torch.Tensor]) -> list[torch.Tensor]:
        known = {0} if name == "argsort" else {1}
        return [
            (source.gather(axis, r) if source.dim() else source) if i in known else r
            for i, r in enumerate(results)
        ]

    return elements(found), elements(expected)


def _untraceable(error: Exception) -> bool:
    """Whether tracing, before any graph is compiled, cannot take the sample (sizes that depend on data)."""
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        UnsupportedOperatorException,
    )
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    kinds = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException,
             GuardOnDataDependentSymNode)  # fmt: skip
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, kinds) or "aot_autograd" in str(type(chain).__module__):
            return True
        chain = chain.__cause__ or chain.__context__
    return _raised_while_tracing(error)


def _raised_while_tracing(error: Exception) -> bool:
    """Whether none of our own modules is on the stack."""
    trace, ours = error.__traceback__, False
    while trace is not None:
        name = trace.tb_frame.f_globals.get("__name__", "")
        ours = ours or name in ("torchair.executable", "torchair.lowering") or name.startswith("ge.")
        trace = trace.tb_next
    return not ours


def _function(op: Any, flat: list[Any], spec: Any, places: Sequence[int]) -> Callable[..., Any]:
    def function(*tensors: torch.Tensor) -> Any:
        filled = list(flat)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        value, args, kwargs = pytree.tree_unflatten(filled, spec)
        result = op.op(value, *args, **kwargs)
        return [r for r in pytree.tree_leaves(result) if isinstance(r, torch.Tensor)]

    return function


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return aot_function(
        function,
        fw_compiler=get_compiler(None, "forward"),
        bw_compiler=get_compiler(None, "backward"),
        inference_compiler=get_compiler(None, "inference"),
        decompositions=decompositions.table(),
    )


def _through_dynamo(function: Callable[..., Any], backend: str = "npu") -> Callable[..., Any]:
    torch._dynamo.reset()  # nothing is left of other samples: no sizes that became symbolic, no limit reached
    counters.clear()
    return torch.compile(function, backend=backend)


def _by_pytorch(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], gradient: bool
) -> list[torch.Tensor]:
    """What torch.compile gives with a backend of PyTorch's that runs the traced graphs eagerly."""
    return _called(_through_dynamo(function, "aot_eager"), tensors, gradient)


def _refused_by_pytorch(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], gradient: bool
) -> bool:
    """Whether torch.compile refuses a sample with that backend too."""
    try:
        _by_pytorch(function, tensors, gradient)
    except Exception:  # whatever it is, it is not ours
        return True
    return False


def _on_device(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], gradient: bool
) -> list[torch.Tensor]:
    """What a function gives on the npu device."""
    import torch_npu

    assert torch_npu
    device = torch.device("npu")
    moved = [_copy(t, device).requires_grad_(t.requires_grad) for t in tensors]
    return [r.cpu() for r in _called(function, moved, gradient)]


def _called(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], gradient: bool
) -> list[torch.Tensor]:
    """The results and, if requested, the gradients of their weighted sum."""
    given = [_copy(t, t.device).requires_grad_(gradient and t.requires_grad) for t in tensors]
    torch.manual_seed(42)  # what the samples that draw numbers themselves begin with
    context = contextlib.nullcontext() if gradient else torch.no_grad()
    with context, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = list(function(*given))
        if not gradient:
            return [r.detach().clone() for r in results]
        usable = [r for r in results if r.requires_grad and (r.is_floating_point() or r.is_complex())]
        if not usable:
            return [r.detach().clone() for r in results]
        total = torch.stack([_weighted(r) for r in usable]).sum()
        leaves = [g for g in given if g.requires_grad]
        slopes = torch.autograd.grad(total, leaves, allow_unused=True)
    values = [r.detach().clone() for r in results]
    zeros = [torch.zeros_like(v) if s is None else s for s, v in zip(slopes, leaves, strict=True)]
    return values + zeros


def _weighted(result: torch.Tensor) -> torch.Tensor:
    real = torch.view_as_real(result) if result.is_complex() else result
    weights = torch.linspace(0.5, 1.5, max(real.numel(), 1), device=real.device)[: real.numel()]
    weights = weights.reshape(real.shape)
    return (real.float() * weights).sum()


def difference(
    found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], gradient: bool = False
) -> str:
    """What differs, "" when nothing does."""
    if len(found) != len(expected):
        return f"{len(found)} results where eager mode has {len(expected)}"
    for index, (a, b) in enumerate(zip(found, expected, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"result {index} is {a.dtype}{list(a.shape)}, eager mode has {b.dtype}{list(b.shape)}"
        if a.layout is not torch.strided:
            continue
        rtol, atol = _GRADIENT_TOLERANCE if gradient else _TOLERANCE.get(a.dtype, (1e-4, 1e-4))
        exact = not (a.is_floating_point() or a.is_complex())
        try:
            torch.testing.assert_close(
                a, b, rtol=0 if exact else rtol, atol=0 if exact else atol, equal_nan=True
            )
        except AssertionError as error:
            return f"result {index}: {' '.join(str(error).split())[:240]}"
    return ""


def _tally(outcome: Outcome, reports: Sequence[GraphReport], label: str) -> None:
    clean = True
    for report in reports:
        if report.failure:
            outcome.wrong.append(f"{label}: not compiled: {report.failure}")
            clean = False
        for refusal in report.refusals:
            clean = False
            outcome.refusals[refusal.operator] = refusal.reason
        refused = {r.operator for r in report.refusals}
        outcome.operators |= {name for name in report.operators if name not in refused}
    outcome.native += clean and bool(reports)
