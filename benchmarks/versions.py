"""Two versions of this project against each other: the same rows in two source trees, interleaved.

    git worktree add ../before <commit>        # build it there: cmake -DNPU_IN_PLACE=ON …
    python benchmarks/versions.py ../before
    python benchmarks/versions.py . --isa avx512    # this tree without bfloat16 products, and with all there is

The rows of a kind run in two processes, one per tree, called in turn; their answers are compared. A row's figure is the
median over rounds of before / after: above 1, the present tree is faster. The ratio of the minima is shown beside it,
because it is less sensitive to other programs on the machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks import contenders, instruction_sets, kept
from benchmarks.contenders import CONTENDERS, OURS, THREADS, FileCase, limit_threads
from benchmarks.measure import console, geometric_mean, milliseconds, new_table, ratio, relative_error

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("resnet50", "mobilenetv2", "efficientnetb0", "bert", "vit", "lstm", "dlrm")
TRAINING = (("resnet50", 16), ("bert", 8), ("lstm", 16), ("cnn", 32))
PYTORCH = ("resnet50", "mobilenetv2", "bert", "vit", "gpt2", "lstm", "dlrm")
KINDS = ("infer", "compile", "train", "torch-infer", "torch-train")
SAME = {"fp32": 1e-3, "bf16": 5e-2}  # how far answers of the two trees may be apart
Call = Callable[[], Any]
Answer = Callable[[Any], list[np.ndarray]]


# -- in the process of a tree --------------------------------------------------------------------------------


def _case(model: str, batch: int, precision: str, small: bool) -> FileCase:
    from benchmarks.models import onnx_file, zoo

    subject = zoo(small)[model]
    feeds = dict(zip(subject.input_names, subject.inputs(batch), strict=True))
    return FileCase(onnx_file(subject, batch), feeds, precision)


def _infer(model: str, batch: int, precision: str, small: bool) -> tuple[Call, Answer]:
    runner = CONTENDERS[OURS](_case(model, batch, precision, small))
    return runner.call, runner.answer


_START = """
import sys
import numpy as np
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildInplaceFinder"]
import ge
from ge.options import CompileOptions, PrecisionMode
path, precision, feeds, found = sys.argv[1:]
mode = PrecisionMode.MIX_BF16 if precision == "bf16" else PrecisionMode.KEEP
with np.load(feeds) as arrays:
    inputs = list(arrays.values())
np.savez(found, *ge.compile(path, CompileOptions(precision_mode=mode)).run(inputs))
"""


def _compile(model: str, batch: int, precision: str, small: bool) -> tuple[Call, Answer]:
    """A process from its start to the first result, with empty caches."""
    case = _case(model, batch, precision, small)

    def call() -> list[np.ndarray]:
        with tempfile.TemporaryDirectory() as folder:
            feeds, found = (f"{folder}/{name}.npz" for name in ("feeds", "found"))
            np.savez(feeds, **case.feeds)
            command = [sys.executable, "-c", _START, str(case.onnx), precision, feeds, found]
            subprocess.run(command, check=True, env={**os.environ, "NPU_CACHE_DIR": "off"})
            with np.load(found) as arrays:
                return list(arrays.values())

    return call, lambda arrays: arrays


def _train(model: str, batch: int, precision: str, small: bool) -> tuple[Call, Answer]:
    from benchmarks.training_steps import CONTENDERS as STEPS
    from benchmarks.training_steps import Subject, start

    start(OURS)
    step = STEPS[OURS](Subject(model, batch, precision, small))
    return step, lambda loss: [np.array([loss])]


def _torch(mode: str) -> Callable[..., tuple[Call, Answer]]:
    def make(model: str, batch: int, precision: str, small: bool) -> tuple[Call, Answer]:
        import torch

        from benchmarks import pytorch

        torch.set_num_threads(contenders.THREADS)
        options = argparse.Namespace(quick=small, batch=batch)
        module, args = pytorch.subject(model, precision, mode, options)
        call = pytorch.MAKERS[mode](module, args, pytorch.OURS)
        return call, lambda result: [result.float().numpy()]

    return make


MAKERS = {
    "infer": _infer,
    "compile": _compile,
    "train": _train,
    "torch-infer": _torch("infer"),
    "torch-train": _torch("train"),
}


def serve(threads: int, small: bool) -> None:
    """Answer lines of standard input: to a row with the first answer, to seconds with the times of a burst of calls."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is not an answer
    limit_threads(threads)
    contenders.THREADS = threads
    clock = time.perf_counter if threads > 1 else _processor_time
    # An editable install's import hook would find the installed tree before the one that PYTHONPATH names.
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildInplaceFinder"]
    import ge

    assert Path(ge.__file__).is_relative_to(Path.cwd()), f"{ge.__file__} is not of {Path.cwd()}"
    call: Call | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, list):
            call = None
            gc.collect()
            if "torch._dynamo" in sys.modules:
                sys.modules["torch._dynamo"].reset()
            kind, model, batch, precision = asked
            call, answer = MAKERS[kind](model, int(batch), precision, small)
            reply = [np.asarray(a, np.float64).reshape(-1)[:4096].tolist() for a in answer(call())]
            call()
        else:
            assert call is not None
            reply = _burst(call, asked, clock)
        print(json.dumps(reply), file=stream, flush=True)
    os._exit(0)  # skip the libraries' tear-down


def _processor_time() -> float:
    """Of this process and of those that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _burst(call: Call, seconds: float, clock: Callable[[], float]) -> list[float]:
    """Times of calls for some seconds, without that of the first, which finds cold caches, where it is short."""
    taken: list[float] = []
    begin = time.perf_counter()
    while len(taken) < 2 or time.perf_counter() - begin < seconds:
        start = clock()
        call()
        taken.append(clock() - start)
        if taken[0] > seconds:
            return taken
    return taken[1:]


# -- the command ---------------------------------------------------------------------------------------------


class RowFailed(Exception):
    """A process ended before its row was measured."""


class Tree:
    """A process that runs rows with the sources of one tree."""

    def __init__(self, root: Path, given: argparse.Namespace, isa: str | None = None) -> None:
        inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        path = os.pathsep.join([str(root / "src"), str(ROOT), *filter(None, inherited)])
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(given.threads), *["--small"] * given.quick],
            env={**os.environ, **instruction_sets.variables(isa), "PYTHONPATH": path},
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def first(self, row: list[str]) -> list[np.ndarray]:
        """The answer of a row's first call."""
        self._send(row)
        return [np.array(a) for a in self._read()]

    def burst(self, seconds: float) -> list[float]:
        """Processor times or times of calls for some seconds."""
        self._send(seconds)
        return self._read()

    def _send(self, asked: list[str] | float) -> None:
        assert self.process.stdin is not None
        print(json.dumps(asked), file=self.process.stdin, flush=True)

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RowFailed(f"a process ended with status {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def measure(pairs: Iterable[list[Tree]], row: list[str], rounds: int, seconds: float) -> dict[str, Any]:
    """Times of both trees and how far their answers are apart, from some rounds of each pair of processes."""
    times: list[list[float]] = [[], []]
    for trees in pairs:
        old, new = (tree.first(row) for tree in trees)
        for number in range(rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                times[which].append(statistics.median(trees[which].burst(seconds)))
    ratios = sorted(before / after for before, after in zip(*times, strict=True))
    return {
        "before": statistics.median(times[0]),
        "after": statistics.median(times[1]),
        "ratio": statistics.median(ratios),
        "least": min(times[0]) / min(times[1]),
        "quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
        "error": relative_error(new, old),
    }


def start(given: argparse.Namespace) -> list[Tree]:
    """A process of each tree."""
    return [Tree(given.before.resolve(), given, given.isa), Tree(ROOT, given)]


def repeated(trees: list[Tree], given: argparse.Namespace) -> Iterator[list[Tree]]:
    """The processes given, then as many new ones as asked for."""
    yield trees
    for _ in range(given.processes - 1):
        close(trees)
        trees[:] = start(given)
        yield trees


def close(trees: list[Tree]) -> None:
    """End the processes."""
    for tree in trees:
        tree.close()


def rows(given: argparse.Namespace) -> list[list[str]]:
    """The rows asked for: kind, model, batch, precision."""
    found = []
    for kind in given.kinds:
        for precision in given.precisions:
            if kind == "infer":
                found += [[kind, m, b, precision] for m in MODELS for b in given.batches]
            elif kind == "compile":
                found += [[kind, m, "1", precision] for m in MODELS]
            elif kind == "train":
                found += [[kind, m, str(b), precision] for m, b in TRAINING]
            else:
                found += [[kind, m, "4" if kind == "torch-train" else "1", precision] for m in PYTORCH]
    return [r for r in found if not given.models or r[1] in given.models]


def main() -> int:
    """Measure and print; the exit status says whether both trees gave the same answers."""
    if sys.argv[1:2] == ["--serve"]:
        threads, *small = sys.argv[2:]
        serve(int(threads), bool(small))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="a source tree with its native library built in place")
    parser.add_argument(
        "--isa", choices=sorted(instruction_sets.CAPS), help="the newest instruction set of the tree before"
    )
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"], choices=list(SAME))
    parser.add_argument("--batches", nargs="+", default=["1", "32"], help="of the rows of kind infer")
    parser.add_argument("--threads", type=int, default=THREADS, help="with 1, times are the processor's")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--burst", type=float, default=0.2)
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        help="fresh ones for each row, this many a tree: where memory lies differs from one to the next",
    )
    parser.add_argument(
        "--json", type=Path, help="keep the rows there; a later run goes on with those missing"
    )
    parser.add_argument("--quick", action="store_true", help="small models, few rounds")
    given = parser.parse_args()
    known = kept.read(given.json)
    rounds, burst = (3, 0.01) if given.quick else (given.rounds, given.burst)
    table = new_table(
        "Before and after, ms",
        ["row", "before", "after", "before / after", "quartiles", "of minima", "error"],
    )
    found, wrong = [], []
    trees: list[Tree] = []
    served = ""
    for row in rows(given):
        title = " ".join(row)
        if title not in known:
            if served != row[0]:  # processes of their own for each kind
                close(trees)
                trees = start(given)
                served = row[0] if given.processes == 1 else ""
            try:
                known[title] = measure(repeated(trees, given), row, rounds, burst)
            except (RowFailed, BrokenPipeError) as error:
                console.print(f"{title}: {error}", style="red")
                wrong.append(title)
                served = ""
                continue
            kept.write(given.json, known)
        r = known[title]
        found.append(r["ratio"])
        quartiles = "–".join(f"{q:.2f}" for q in r["quartiles"])
        cells = [
            milliseconds(r["before"]),
            milliseconds(r["after"]),
            ratio(r["ratio"]),
            quartiles,
            ratio(r["least"]),
        ]
        table.add_row(title, *cells, f"{r['error']:.0e}")
        console.print(f"[dim]{title}: {r['ratio']:.3f} ({quartiles}), minima {r['least']:.3f}[/]")
        if not r["error"] <= SAME[row[3]]:
            wrong.append(title)
    close(trees)
    console.print(table)
    if found:
        console.print(f"geometric mean {ratio(geometric_mean(found))}, lowest {ratio(min(found))}")
    if wrong:
        console.print(f"failed, or the answers differ: {', '.join(wrong)}", style="red")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
