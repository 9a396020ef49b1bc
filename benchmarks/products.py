"""Float32 products of BERT-base on one thread: the share of the processor's peak that we and PyTorch's oneDNN reach.

The peak is that of fused multiply-adds in registers. A product by its definition cannot be faster, so that no ratio
to a peer exceeds one divided by the peer's share; Strassen's algorithm takes up to an eighth fewer of them.
PyTorch's weights are packed for oneDNN beforehand, as `torch.compile` does with frozen parameters.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import instruction_sets
from benchmarks.contenders import limit_threads
from benchmarks.measure import console, new_table, relative_error

SHAPES = {  # rows, depth, columns
    "attention": (128, 768, 768),
    "into the hidden layer": (128, 768, 3072),
    "out of the hidden layer": (128, 3072, 768),
}
LANES = {"avx2": 8, "avx512": 16}
SUMS = 12  # as many as hide the latency of a fused multiply-add


def shortest(call: Callable[[], Any], seconds: float) -> float:
    """The least processor time of a call among those of some seconds."""
    best = float("inf")
    end = time.process_time() + seconds
    while best == float("inf") or time.process_time() < end:
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def loop_of_sums(lanes: int) -> str:
    """LLVM's text of a function that counts down while SUMS registers of lanes take a product each.

    >>> loop_of_sums(8).count("call <8 x float>") == SUMS
    True
    """
    kind, every = f"<{lanes} x float>", range(SUMS)
    factor, term = (f"{kind} <{', '.join([f'float {value}'] * lanes)}>" for value in ("0.5", "1.0"))
    return "\n".join(
        [
            f"declare {kind} @llvm.fma.v{lanes}f32({kind}, {kind}, {kind})",
            "define void @sums(i64 %count, ptr %to) {",
            "entry:",
            "  br label %loop",
            "loop:",
            "  %left = phi i64 [%count, %entry], [%less, %loop]",
            *(f"  %s{i} = phi {kind} [zeroinitializer, %entry], [%t{i}, %loop]" for i in every),
            *(f"  %t{i} = call {kind} @llvm.fma.v{lanes}f32({kind} %s{i}, {factor}, {term})" for i in every),
            "  %less = sub i64 %left, 1",
            "  %more = icmp ne i64 %less, 0",
            "  br i1 %more, label %loop, label %end",
            "end:",
            *(
                f"  %p{i} = getelementptr {kind}, ptr %to, i64 {i}\n  store {kind} %t{i}, ptr %p{i}, align 4"
                for i in every
            ),
            "  ret void",
            "}",
        ]
    )


def peak(lanes: int, seconds: float) -> float:
    """Floating-point operations a second of fused multiply-adds in registers."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu="", features="+fma,+avx512f" if lanes == 16 else "+fma,+avx2", opt=2
    )
    with llvm.create_mcjit_compiler(llvm.parse_assembly(loop_of_sums(lanes)), machine) as engine:
        engine.finalize_object()
        function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(
            engine.get_function_address("sums")
        )
        out = np.empty(SUMS * lanes, np.float32)
        count = 200_000
        return count * SUMS * lanes * 2 / shortest(lambda: function(count, out.ctypes.data), seconds)


def contenders(x: np.ndarray, w: np.ndarray) -> dict[str, Callable[[], np.ndarray]]:
    """The product by us and by PyTorch's oneDNN."""
    import torch
    from torch.utils import mkldnn

    import ge

    graph = ge.Graph("product")
    graph.output(ge.ops.matmul(graph.input("x", x.shape, "float32"), w), "y")
    model = ge.compile(graph)
    torch.set_num_threads(1)
    linear = torch.nn.Linear(*w.shape, bias=False).eval()
    linear.weight.data = torch.from_numpy(np.ascontiguousarray(w.T))
    packed, given = mkldnn.to_mkldnn(linear), torch.from_numpy(x).to_mkldnn()
    return {"ours": lambda: model(x), "PyTorch": lambda: packed(given).to_dense().detach().numpy()}


def main() -> int:
    """Measure and print; the exit status says whether the answers agree."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--isa", choices=sorted(LANES), default="avx2", help="the instruction set of both")
    parser.add_argument("--quick", action="store_true", help="one call each")
    arguments = parser.parse_args()
    instruction_sets.limit(arguments.isa, [])
    limit_threads(1)
    seconds = 0.0 if arguments.quick else 1.0
    limit = peak(LANES[arguments.isa], seconds)
    table = new_table(
        f"Products, {arguments.isa}, share of {limit / 1e9:.0f} GFLOP/s",
        ["product", "rows, depth, columns", "ours", "PyTorch", "ratio at most", "ratio"],
    )
    random, wrong = np.random.default_rng(0), False
    for title, (rows, depth, columns) in SHAPES.items():
        x, w = (random.standard_normal(s, np.float32) for s in ((rows, depth), (depth, columns)))
        calls = contenders(x, w)
        wrong |= any(relative_error([call()], [x @ w]) > 1e-4 for call in calls.values())
        ours, peer = (2 * rows * depth * columns / shortest(call, seconds) / limit for call in calls.values())
        shape = f"{rows}, {depth}, {columns}"
        table.add_row(title, shape, f"{ours:.2f}", f"{peer:.2f}", f"{1 / peer:.2f}", f"{ours / peer:.2f}")
    console.print(table)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
