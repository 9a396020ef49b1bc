"""Generated kernels against torch.compile, oneDNN's primitives and NumPy, and against the memory's bandwidth."""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.contenders import limit_threads
from benchmarks.kernel_cases import CASES, Case, NumpyFunctions, TbeFunctions, TorchFunctions, arrays_of

OURS = "ours"
COMPILES = 3  # of each kernel, none from a cache: a single one may be slowed by the machine
COLUMNS = [
    "kernel",
    "ours µs",
    "torch.compile µs",
    "ratio",
    "oneDNN",
    "NumPy",
    "compile ms",
    "GB/s",
    "bandwidth",
    "error",
]


def main() -> int:
    """Measure and print; the exit status says whether the answers agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    parser.add_argument("--peers", nargs="*", default=["torch.compile", "oneDNN", "NumPy"])
    parser.add_argument(
        "--quick", action="store_true", help="three kernels, one round, without torch.compile"
    )
    arguments = parser.parse_args()
    limit_threads()
    cases = [c for c in CASES if arguments.only in c.name]
    peers = set(arguments.peers)
    if arguments.quick:
        cases, peers, arguments.rounds = cases[6:9], peers - {"torch.compile"}, 1
    return _report(cases, peers, arguments.rounds)


def _report(cases: Sequence[Case], peers: set[str], rounds: int) -> int:
    from benchmarks.measure import console, geometric_mean, interleave, new_table, ratio, relative_error
    from tbe.bench import Memory

    Ours(Case("first", (((16,), "float32"),), lambda f, x: x + x), [np.ones(16, np.float32)])  # starts LLVM
    memory = Memory()
    table = new_table("Generated kernels", COLUMNS)
    ratios, shares, compiles, worst = [], [], [], 0.0
    for case in cases:
        arrays = arrays_of(case)
        contenders = {OURS: Ours(case, arrays)} | {n: PEERS[n](case, arrays) for n in PEERS if n in peers}
        ready = {n: c for n, c in contenders.items() if c.call is not None}
        calls = {n: c.call for n, c in ready.items() if n != "NumPy"}
        times = interleave(calls, rounds, 0.05)
        medians = {n: statistics.median(t) for n, t in times.items()}
        if "NumPy" in ready:
            medians["NumPy"] = _best_of(ready["NumPy"].call, 2)
        expected = reference(case, arrays)
        error = relative_error([r.astype(np.float64) for r in ready[OURS].results()], expected)
        allowed = 2e-2 if any(d == "bfloat16" for _, d in case.inputs) else 1e-4
        worst = max(worst, error / allowed)
        ours = ready[OURS]
        rate = ours.moved / medians[OURS]
        share = memory.beside(calls[OURS], ours.moved, 3 * rounds)[1] if case.bound else None
        compiles.append(ours.compile_seconds)
        if "torch.compile" in medians:
            ratios.append(medians["torch.compile"] / medians[OURS])
        if share is not None:
            shares.append(share)
        table.add_row(
            case.name,
            f"{medians[OURS] * 1e6:.0f}",
            f"{medians['torch.compile'] * 1e6:.0f}" if "torch.compile" in medians else "–",
            ratio(ratios[-1] if "torch.compile" in medians else None),
            *(ratio(medians[n] / medians[OURS] if n in medians else None) for n in ("oneDNN", "NumPy")),
            f"{statistics.median(ours.compile_seconds) * 1e3:.1f}",
            f"{rate / 1e9:.1f}",
            f"{share:.0%}" if share is not None else "–",
            f"{error:.0e}",
        )
    compile_times = [statistics.median(c) for c in compiles]
    console.print(table)
    console.print(
        f"geometric mean over torch.compile: {ratio(geometric_mean(ratios))}   "
        f"compile time (the middle of {COMPILES}): {statistics.median(compile_times) * 1e3:.1f} ms in the middle, "
        f"{max(compile_times) * 1e3:.1f} at most; the slowest single one: {max(map(max, compiles)) * 1e3:.1f}"
    )
    if shares:
        console.print(
            f"large kernels bound by memory: {min(shares):.0%} of the bandwidth of copies and sums at least, "
            f"{geometric_mean(shares):.0%} in the mean"
        )
    return int(worst > 1)


def _best_of(call: Callable[[], Any], times: int) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


def reference(case: Case, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The answer in double precision."""
    wide = [a.astype(np.float64) for a in arrays]

    class Wide(NumpyFunctions):
        def cast(self, x: Any, dtype: str) -> Any:
            return x

    return [np.asarray(r) for r in case.results(Wide(), wide)]


class Ours:
    """Our kernel."""

    def __init__(self, case: Case, arrays: Sequence[np.ndarray]) -> None:
        import tbe
        from tbe.dsl.running import Runner, aligned_empty
        from tbe.kernel import forget

        gc.collect()  # of what the contenders before left behind
        self.compile_seconds = []
        for _ in range(COMPILES):
            forget()
            inputs = [tbe.placeholder(s, d) for s, d in case.inputs]
            start = time.perf_counter()
            outputs = case.results(TbeFunctions(), inputs)
            runner = Runner(inputs, outputs)
            self.compile_seconds.append((time.perf_counter() - start) / len(runner.kernels))
        self.moved = sum(a.nbytes for a in arrays) + sum(t.size * tbe.dtype_of(t.dtype).size for t in outputs)
        self._results = [aligned_empty(t.shape, tbe.numpy_dtype(t.dtype)) for t in outputs]
        self.call: Callable[[], Any] | None = lambda: runner.into(arrays, self._results)

    def results(self) -> list[np.ndarray]:
        """The last answer."""
        return self._results


class TorchCompile:
    """The same function through torch.compile, into given tensors."""

    def __init__(self, case: Case, arrays: Sequence[np.ndarray]) -> None:
        import torch

        torch._dynamo.reset()
        torch.set_grad_enabled(False)
        functions = TorchFunctions()
        values = [_tensor(torch, a) for a in arrays]
        outs = [
            torch.empty_like(r, memory_format=torch.contiguous_format)
            for r in case.results(functions, values)
        ]

        def function(outs: list[Any], *values: Any) -> None:
            for out, result in zip(outs, case.results(functions, values), strict=True):
                out.copy_(result)

        compiled = torch.compile(function)
        self.call: Callable[[], Any] | None = lambda: compiled(outs, *values)
        self.call()


def _tensor(torch: Any, array: np.ndarray) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class OneDnn:
    """oneDNN's primitives one after another, through PyTorch's tensors in oneDNN's memory."""

    def __init__(self, case: Case, arrays: Sequence[np.ndarray]) -> None:
        self.call: Callable[[], Any] | None = None
        if case.onednn is None:
            return
        import torch

        torch.set_grad_enabled(False)
        values = [_tensor(torch, a).to_mkldnn() for a in arrays]
        function = case.onednn
        self.call = lambda: function(torch, *values)


class Numpy:
    """The same formula in NumPy."""

    def __init__(self, case: Case, arrays: Sequence[np.ndarray]) -> None:
        functions = NumpyFunctions()
        self.call: Callable[[], Any] | None = lambda: case.results(functions, arrays)


PEERS: dict[str, Callable[..., Any]] = {"torch.compile": TorchCompile, "oneDNN": OneDnn, "NumPy": Numpy}


if __name__ == "__main__":
    sys.exit(main())
