"""Training steps on one GPU: the whole step as one CUDA graph beside torch.compile, losses and weights checked.

`python -m benchmarks.cuda_training resnet50:64 bert:32 gpt2:32` needs a GPU and PyTorch with CUDA.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

RATE, MOMENTUM = 1e-2, 0.9
ADAM_RATE, BETAS, EPSILON, DECAY = 1e-4, (0.9, 0.999), 1e-8, 0.01


@dataclass
class Subject:
    """A network in training mode, its batch and its optimizer."""

    name: str
    batch: int
    small: bool = False

    def __post_init__(self) -> None:
        import torch

        from benchmarks.models.zoo import zoo

        model = zoo(self.small)[self.name]
        self.module = model.module().train().requires_grad_(True)
        self.inputs = [torch.from_numpy(a) for a in model.inputs(self.batch)]
        with torch.no_grad():
            shape = model.module()(*[x[:1] for x in self.inputs]).shape
        rng = np.random.default_rng(3)
        classes = shape[-1]
        self.classified = len(shape) == 2 or self.name == "gpt2"
        self.target = (
            torch.from_numpy(rng.integers(0, classes, (self.batch, *shape[1:-1])))
            if self.classified
            else torch.from_numpy(rng.standard_normal((self.batch, *shape[1:])).astype(np.float32))
        )

    @property
    def adam(self) -> bool:
        """Whether AdamW updates the weights; else momentum does."""
        return not any(x.dim() == 4 for x in self.inputs)

    def loss(self, y: Any, target: Any) -> Any:
        """Cross entropy of classes, the mean square of others."""
        import torch

        if not self.classified:
            return torch.nn.functional.mse_loss(y.float(), target)
        return torch.nn.functional.cross_entropy(y.float().reshape(-1, y.shape[-1]), target.reshape(-1))


def traced_step(subject: Subject, dtype: Any = None) -> tuple[Any, list[Any]]:
    """The graph of one step that writes weights, optimizer state and statistics in place, and its arguments.

    The order of arguments: weights, state, statistics, step count (AdamW), inputs, target; the result is the loss.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from torchair import decompositions, pooling

    names, weights = zip(*subject.module.named_parameters(), strict=True)
    buffers = dict(subject.module.named_buffers())
    slots = 2 if subject.adam else 1
    state = [torch.zeros_like(w) for w in weights for _ in range(slots)]
    count = [torch.zeros(())] if subject.adam else []
    values = [*(w.detach().clone() for w in weights), *state, *(b.clone() for b in buffers.values()), *count]
    sizes = [len(weights), len(state), len(buffers), len(count)]

    def step(*given: Any) -> Any:
        ends = np.cumsum([0, *sizes])
        now, slot, statistics, counted = (list(given[a:b]) for a, b in itertools.pairwise(ends))
        *inputs, target = given[ends[-1] :]

        def forward(fresh: list[Any], moved: list[Any]) -> Any:
            parameters = dict(zip((*names, *buffers), (*fresh, *moved), strict=True))
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                y = torch.func.functional_call(subject.module, parameters, tuple(inputs))
            return subject.loss(y, target), moved

        gradients, (loss, moved) = torch.func.grad_and_value(forward, has_aux=True)(
            now, [s.clone() for s in statistics]
        )
        with torch.no_grad():
            for old, new in zip(statistics, moved, strict=True):
                old.copy_(new)
            if counted:
                number = counted[0] + 1
                counted[0].copy_(number)
                corrections = [1 - b**number for b in BETAS]
            for i, (w, g) in enumerate(zip(now, gradients, strict=True)):
                if not subject.adam:
                    v = slot[i] * MOMENTUM + g
                    slot[i].copy_(v)
                    w.copy_(w - RATE * v)
                    continue
                m = slot[2 * i] * BETAS[0] + g * (1 - BETAS[0])
                v = slot[2 * i + 1] * BETAS[1] + g * g * (1 - BETAS[1])
                slot[2 * i].copy_(m)
                slot[2 * i + 1].copy_(v)
                update = (m / corrections[0]) / ((v / corrections[1]).sqrt() + EPSILON)
                w.copy_(w * (1 - ADAM_RATE * DECAY) - ADAM_RATE * update)
        return loss

    def batch_norm(
        x: Any, mean: Any, variance: Any, weight: Any, bias: Any, training: bool, *rest: float
    ) -> Any:
        """The form whose writes to the statistics a trace sees."""
        return torch.ops.aten._native_batch_norm_legit(x, weight, bias, mean, variance, training, *rest)[0]

    arguments = [*values, *subject.inputs, subject.target]
    functional = torch.func.functionalize(step, remove="mutations")
    with mock.patch.object(torch.nn.functional, "batch_norm", batch_norm):
        graph = make_fx(functional, decompositions.table(), tracing_mode="fake")(*arguments)
    pooling.find_maxima_again(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph, arguments


@dataclass
class Compiled:
    """The step as a model, with its arguments by the model's inputs."""

    model: Any
    feeds: list[Any]
    loss: int  # the output that is the loss
    slots: list[int]  # the outputs that are the first slot of each weight's state

    def run(self) -> list[np.ndarray]:
        """One step from the first weights, through memory of the host."""
        return list(self.model.run([a.copy() for a in self.feeds]))


def compiled_step(subject: Subject, dtype: Any, target: str) -> Compiled:
    """The step compiled as one graph."""
    from ge.compiler import compile_graph
    from ge.options import CompileOptions
    from torchair.lowering import Layout, NpuPart, lower

    graph, arguments = traced_step(subject, dtype)
    nodes = list(graph.graph.nodes)
    places = [n for n in nodes if n.op == "placeholder"]
    values = {n: n.meta["val"] for n in nodes if "val" in n.meta}
    layouts = {n: Layout.of(a) for n, a in zip(places, arguments, strict=True)}
    (part,) = lower(graph, values, {}, layouts).steps
    assert isinstance(part, NpuPart), "the whole step is one part"
    model = compile_graph(part.graph, CompileOptions(target=target), subject.name, part.donated)
    written = {n.args[1]: n.args[0] for n in nodes if str(n.target) == "aten.copy_.default"}
    count = len(list(subject.module.parameters()))
    first = [places[count + i * (2 if subject.adam else 1)] for i in range(count)]
    outputs = [written.get(n) for n in part.outputs]
    feeds = [arguments[places.index(n)].detach().numpy() for n in part.inputs]
    return Compiled(model, feeds, outputs.index(None), [outputs.index(n) for n in first])


def gradients(subject: Subject, dtype: Any, wide: Any = None) -> tuple[float, np.ndarray]:
    """PyTorch's own loss and gradients on the GPU, in the order of the weights."""
    import copy

    import torch

    module = copy.deepcopy(subject.module).cuda().to(wide)
    inputs = [x.cuda().to(wide) if x.is_floating_point() else x.cuda() for x in subject.inputs]
    target = subject.target.cuda()
    with torch.autocast("cuda", dtype, enabled=dtype is not None):
        y = module(*inputs)
    loss = subject.loss(y, target)
    loss.backward()
    flat = [w.grad.double().cpu().numpy().reshape(-1) for w in module.parameters()]
    return float(loss.detach()), np.concatenate(flat)


def peer(subject: Subject, dtype: Any, mode: str) -> Any:
    """A step of torch.compile with a fused optimizer."""
    import copy

    import torch

    module = copy.deepcopy(subject.module).cuda()
    inputs, target = [x.cuda() for x in subject.inputs], subject.target.cuda()
    if not subject.adam:
        module = module.to(memory_format=torch.channels_last)
        inputs = [x.contiguous(memory_format=torch.channels_last) for x in inputs]
    if subject.adam:
        optimizer: Any = torch.optim.AdamW(
            module.parameters(), ADAM_RATE, BETAS, EPSILON, weight_decay=DECAY, fused=True
        )
    else:
        optimizer = torch.optim.SGD(module.parameters(), RATE, momentum=MOMENTUM, fused=True)

    def forward(*given: Any) -> Any:
        with torch.autocast("cuda", dtype, enabled=dtype is not None):
            y = module(*given)
        return subject.loss(y, target)

    fast = torch.compile(forward, mode=mode) if mode != "eager" else forward

    def step() -> Any:
        loss = fast(*inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def rows(
    subject: Subject, precision: str, peers: Sequence[str], tuning: float, profile: str
) -> Iterator[tuple[str, Any]]:
    """The times and errors of one network's step, as they are found."""
    import torch

    from benchmarks.cuda import measure
    from npu_runtime import cuda

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": None}[precision]
    began = time.perf_counter()
    ours = compiled_step(subject, dtype, cuda.describe(0)["architecture"])
    yield "trace and compile s", time.perf_counter() - began
    outputs = ours.run()
    program = ours.model.program
    yield "and first run s", time.perf_counter() - began
    yield "by heuristics", program.seconds() * 1e3
    yield "nodes", program.loaded.nodes
    yield "parts", len(program.loaded.parts)
    yield from _errors(subject, ours, outputs, dtype)
    if profile:
        _write_profile(ours, Path(profile) / f"{subject.name}-{subject.batch}-{precision}.txt")
    if tuning:
        began = time.perf_counter()
        program.tune(tuning)
        yield "tuning s", time.perf_counter() - began
        yield "ours", program.seconds() * 1e3
        yield "wrong candidates", len(program.loaded.wrong)
        yield from _errors(subject, ours, ours.run(), dtype)
        if profile:
            _write_profile(ours, Path(profile) / f"{subject.name}-{subject.batch}-{precision}.txt")
    for mode in peers:
        if mode == "jax":
            yield from _jax_rows(subject)
            continue
        torch._dynamo.reset()
        began = time.perf_counter()
        step = peer(subject, dtype, mode)
        step()
        torch.cuda.synchronize()
        yield f"{mode} s", time.perf_counter() - began
        yield mode, measure(step)


def _jax_rows(subject: Subject) -> Iterator[tuple[str, Any]]:
    from benchmarks.jax_training import jax_step

    began = time.perf_counter()
    run, loss = jax_step(subject)
    yield "jax s", time.perf_counter() - began
    yield "jax loss", loss
    run(5)
    yield "jax", run(30) * 1e3


def _errors(
    subject: Subject, ours: Compiled, outputs: Sequence[np.ndarray], dtype: Any
) -> Iterator[tuple[str, Any]]:
    """Of loss and gradients against float64, with those of PyTorch's own step in the same precision."""
    import torch

    share = 1 - BETAS[0] if subject.adam else 1.0
    got = np.concatenate([outputs[i].astype(np.float64).reshape(-1) / share for i in ours.slots])
    want_loss, want = gradients(subject, None, torch.float64)
    torch_loss, theirs = gradients(subject, dtype)
    for name, loss, found in (("", float(outputs[ours.loss]), got), ("torch ", torch_loss, theirs)):
        yield f"{name}loss error", abs(loss - want_loss) / abs(want_loss)
        yield f"{name}gradient error", float(np.linalg.norm(found - want) / np.linalg.norm(want))


def _write_profile(ours: Compiled, path: Path) -> None:
    """The time of every task, the longest first, and their sums by kind."""
    tasks = sorted(ours.model.profile([a.copy() for a in ours.feeds]), key=lambda t: -t.seconds)
    sums: dict[str, list[float]] = {}
    for task in tasks:
        sums.setdefault(task.kind, []).append(task.seconds)
    lines = [f"{sum(s) * 1e6:9.1f} us in {len(s)} tasks: {kind}" for kind, s in sums.items()]
    lines += [
        f"{t.seconds * 1e6:9.1f} us  {t.kind:18} {t.name[:70]:70} {t.shape} {t.implementation}" for t in tasks
    ]
    path.write_text("\n".join(lines) + "\n")


def main() -> None:
    """Print one line for each network, batch and precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "networks", nargs="*", default=["resnet50:64", "bert:32", "gpt2:32"], help="name:batch,batch"
    )
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp16", "fp32"))
    parser.add_argument(
        "--peers", nargs="*", default=["max-autotune"], help="modes of torch.compile, eager, jax"
    )
    parser.add_argument("--tuning", type=float, default=300.0, help="seconds for it, 0 for none")
    parser.add_argument("--profile", default="", help="the folder for the times of all tasks")
    parser.add_argument("--small", action="store_true", help="small networks")
    arguments = parser.parse_args()
    for text in arguments.networks:
        name, _, batches = text.partition(":")
        for batch in map(int, (batches or "1").split(",")):
            subject = Subject(name, batch, arguments.small)
            print(f"{name} batch {batch} {arguments.precision}", end="", flush=True)
            given = arguments.precision, arguments.peers, arguments.tuning, arguments.profile
            for key, value in rows(subject, *given):
                print(
                    f"  {key} {value:.4g}" if isinstance(value, float) else f"  {key} {value}",
                    end="",
                    flush=True,
                )
            print(flush=True)


if __name__ == "__main__":
    main()
