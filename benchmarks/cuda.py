"""Networks on one GPU: ours as one CUDA graph beside torch.compile and JAX, answers checked.

`python -m benchmarks.cuda resnet50:1,32 bert:1,32` needs a GPU, PyTorch with CUDA and, for images, torchvision. With
`--together` every row is a process, all compile at the same time, and are measured one after another.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

TOKENS = 128


def resnet50(batch: int) -> tuple[Any, tuple[Any, ...]]:
    """The network in evaluation mode with statistics that are not trivial, and an input."""
    import torch
    from torchvision.models import resnet50 as make

    model = make(weights=None).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return model, (torch.randn(batch, 3, 224, 224),)


def _images(name: str) -> Callable[[int], tuple[Any, tuple[Any, ...]]]:
    """A network of torchvision for images of 224 x 224."""

    def make(batch: int) -> tuple[Any, tuple[Any, ...]]:
        import torch
        import torchvision

        model = getattr(torchvision.models, name)(weights=None).eval()
        for weights in model.parameters():
            if (
                weights.ndim > 1 and not weights.any()
            ):  # heads begin with zeros, which give nothing to compare
                torch.nn.init.normal_(weights, 0, 0.02)
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 1.0
        with (
            torch.no_grad()
        ):  # statistics with which the results of every layer are of a size that float16 has
            model.train()(torch.randn(8, 3, 224, 224))
        return model.eval(), (torch.randn(batch, 3, 224, 224),)

    return make


def _encoder(activation: str, causal: bool = False) -> Callable[[int], tuple[Any, tuple[Any, ...]]]:
    """Twelve transformer layers of the size of BERT-base and GPT-2, and embedded tokens."""

    def make(batch: int) -> tuple[Any, tuple[Any, ...]]:
        import torch
        from torch import nn

        class Layer(nn.Module):
            def __init__(self, width: int = 768, heads: int = 12) -> None:
                super().__init__()
                self.heads = heads
                self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
                self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
                self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
                later = torch.full((TOKENS, TOKENS), -65504.0).triu(1)
                self.register_buffer("later", later)

            def attend(self, x: Any) -> Any:
                rows, tokens, width = x.shape
                size = width // self.heads
                q, k, v = (
                    f(x).reshape(rows, tokens, self.heads, size).transpose(1, 2)
                    for f in (self.q, self.k, self.v)
                )
                scores = q @ k.transpose(2, 3) / size**0.5
                weights = torch.softmax(scores + self.later if causal else scores, -1)
                return self.out((weights @ v).transpose(1, 2).reshape(rows, tokens, width))

            def forward(self, x: Any) -> Any:
                if causal:
                    x = x + self.attend(self.first(x))
                    inner = self.up(self.second(x))
                    return x + self.down(nn.functional.gelu(inner, approximate=activation))
                x = self.first(x + self.attend(x))
                return self.second(x + self.down(nn.functional.gelu(self.up(x), approximate=activation)))

        return nn.Sequential(*(Layer() for _ in range(12))).eval(), (torch.randn(batch, TOKENS, 768),)

    return make


def _llama(batch: int, cached: int = 0) -> tuple[Any, tuple[Any, ...]]:
    """Eight layers of a Llama-like decoder of width 2048 with rotary positions.

    Over 128 tokens, or over the one token that follows `cached` ones, whose keys and values are inputs.
    """
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self, width: int = 2048, heads: int = 16, inner: int = 5632) -> None:
            super().__init__()
            self.heads, self.size = heads, width // heads
            self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
            self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
            self.down = nn.Linear(inner, width, bias=False)
            self.first, self.second = (nn.Parameter(torch.ones(width)) for _ in range(2))
            places = torch.arange(cached, cached + 1) if cached else torch.arange(TOKENS)
            angles = torch.outer(places, 10000.0 ** -(torch.arange(self.size // 2) * 2 / self.size))
            self.register_buffer("cos", angles.cos().repeat(1, 2))
            self.register_buffer("sin", angles.sin().repeat(1, 2))
            self.register_buffer("later", torch.full((TOKENS, TOKENS), -65504.0).triu(1))

        def norm(self, x: Any, weight: Any) -> Any:
            wide = x.float()
            return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * weight

        def turned(self, x: Any) -> Any:
            low, high = x.chunk(2, -1)
            return x * self.cos + torch.cat((-high, low), -1) * self.sin

        def forward(self, x: Any, past: Any = None) -> Any:
            rows, tokens, width = x.shape
            y = self.norm(x, self.first)
            q, k, v = (
                f(y).reshape(rows, tokens, self.heads, self.size).transpose(1, 2)
                for f in (self.q, self.k, self.v)
            )
            q, k = self.turned(q) / self.size**0.5, self.turned(k)
            new = torch.stack((k, v))
            if past is None:
                attended = torch.softmax(q @ k.transpose(2, 3) + self.later, -1) @ v
            else:
                scores = torch.cat((q @ past[0].transpose(2, 3), q @ k.transpose(2, 3)), -1)
                weights = torch.softmax(scores, -1)
                attended = weights[..., :cached] @ past[1] + weights[..., cached:] @ v
            x = x + self.out(attended.transpose(1, 2).reshape(rows, tokens, width))
            y = self.norm(x, self.second)
            return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y)), new

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(8))

        def forward(self, x: Any, *past: Any) -> Any:
            fresh = []
            for number, layer in enumerate(self.layers):
                x, new = layer(x, past[number] if past else None)
                fresh.append(new)
            return (x, *fresh) if past else x

    pasts = tuple(torch.randn(2, batch, 16, cached, 128) for _ in range(8)) if cached else ()
    return Network().eval(), (torch.randn(batch, 1 if cached else TOKENS, 2048), *pasts)


def dlrm(batch: int) -> tuple[Any, tuple[Any, ...]]:
    """A recommender: 26 embedding tables, dense layers, products of all pairs."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self, tables: int = 26, rows: int = 10000, width: int = 64) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
            self.bottom = nn.Sequential(
                nn.Linear(13, 512),
                nn.ReLU(),
                nn.Linear(512, 256),
                nn.ReLU(),
                nn.Linear(256, width),
                nn.ReLU(),
            )
            pairs = (tables + 1) * (tables + 1)
            self.top = nn.Sequential(
                nn.Linear(pairs + width, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
            )

        def forward(self, dense: Any, places: Any) -> Any:
            x = self.bottom(dense)
            rows = torch.stack([x, *(t(places[:, n]) for n, t in enumerate(self.tables))], 1)
            pairs = (rows @ rows.transpose(1, 2)).flatten(1)
            return torch.sigmoid(self.top(torch.cat((x, pairs), 1)))

    return Network().eval(), (torch.randn(batch, 13), torch.randint(0, 10000, (batch, 26)))


def lstm(batch: int) -> tuple[Any, tuple[Any, ...]]:
    """Two layers of 512 units over 64 steps, written out step by step."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self, width: int = 512) -> None:
            super().__init__()
            self.x = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(2))
            self.h = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(2))

        def forward(self, x: Any) -> Any:
            for into, over in zip(self.x, self.h, strict=True):
                inputs, outputs = into(x), []
                h = c = torch.zeros_like(x[:, 0])
                for step in range(64):
                    i, f, g, o = (inputs[:, step] + over(h)).chunk(4, -1)
                    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                    h = torch.sigmoid(o) * torch.tanh(c)
                    outputs.append(h)
                x = torch.stack(outputs, 1)
            return x

    return Network().eval(), (torch.randn(batch, 64, 512),)


NETWORKS: dict[str, Callable[[int], tuple[Any, tuple[Any, ...]]]] = {
    "resnet50": resnet50,
    "mobilenet_v2": _images("mobilenet_v2"),
    "efficientnet_b0": _images("efficientnet_b0"),
    "vit_b_16": _images("vit_b_16"),
    "bert": _encoder("none"),
    "bert_tanh": _encoder("tanh"),
    "gpt2": _encoder("tanh", causal=True),
    "llama": _llama,
    "llama_decode": partial(_llama, cached=1024),
    "dlrm": dlrm,
    "lstm": lstm,
}


INT8 = "_int8"  # the end of the name of a network whose products ONNX Runtime quantises


def _exported(model: Any, half: Any, inputs: Sequence[Any], folder: str, int8: bool) -> tuple[Path, Any]:
    """The file of a network and its options: in float16, or in float32 with integer products."""
    import torch

    import ge
    from ge.options import CompileOptions
    from npu_runtime import cuda

    path, target = Path(folder) / "model.onnx", str(cuda.describe(0)["architecture"])
    given = tuple(inputs)
    torch.onnx.export(model if int8 else half, given, str(path), dynamo=False, opset_version=17)
    if not int8:
        return path, CompileOptions(target=target)
    from onnxruntime import quantization

    class Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            session = quantization.calibrate.onnxruntime.InferenceSession(path)
            names = [port.name for port in session.get_inputs()]
            self.rest = iter([dict(zip(names, (x.numpy() for x in given), strict=True))])

        def get_next(self) -> Any:
            return next(self.rest, None)

    quantised = path.with_name("int8.onnx")
    quantization.quantize_static(
        path,
        quantised,
        Samples(),
        op_types_to_quantize=["MatMul"],
        per_channel=True,
        extra_options={"MatMulConstBOnly": True},
    )
    return quantised, CompileOptions(target=target, precision_mode=ge.PrecisionMode.MIX_FP16)


def measure(run: Callable[[], Any], repeats: int = 50) -> float:
    """The median milliseconds of a call between two events."""
    import torch

    for _ in range(10):
        run()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(np.median(times))


def rows(
    name: str, batch: int, peers: Sequence[str], profile: bool, tuning: float, wait: Callable[[], None]
) -> Iterator[tuple[str, Any]]:
    """The times and errors of one network: all compile first, are measured after `wait`, and report as they go."""
    import torch

    import ge

    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # its operators have no form in ONNX
    int8 = name.endswith(INT8)
    model, inputs = NETWORKS[name.removesuffix(INT8)](batch)
    single = copy.deepcopy(model) if int8 else None
    with torch.inference_mode():
        double = [x.double().cuda() if x.is_floating_point() else x.cuda() for x in inputs]
        want = _first(model.double().cuda()(*double)).float().cpu().numpy()
        del double
        half = model.half().cpu()
        feeds = tuple(x.half() if x.is_floating_point() else x for x in inputs)
        with tempfile.TemporaryDirectory() as folder:
            given = inputs if int8 else feeds
            path, options = _exported(single, half, given, folder, int8)
            arrays = [x.numpy() for x in given]
            began = time.perf_counter()
            compiled = ge.compile(path, options)
            yield "compile s", time.perf_counter() - began
            got = compiled.run(arrays)[0].astype(np.float32)
            yield "compile and first run s", time.perf_counter() - began
            began = time.perf_counter()
            again = ge.compile(path, options)
            again.run(arrays)
            yield "again, with the cache s", time.perf_counter() - began
            del again
        yield "eager float16 error", _error(_eager(half, feeds), want)
        ready = {peer: _PEERS.get(peer, _torch)(half, feeds, peer) for peer in peers}
        for peer, (_, seconds, answer) in ready.items():
            yield f"{peer} s", seconds
            yield f"{peer} error", _error(answer, want)
        wait()
        yield "by heuristics" if tuning else "ours", compiled.program.seconds() * 1e3
        yield "error", _error(got, want)
        yield "nodes", compiled.program.loaded.nodes
        if tuning:
            began = time.perf_counter()
            compiled.program.tune(tuning)
            yield "tuning s", time.perf_counter() - began
            yield "ours", compiled.program.seconds() * 1e3
            tuned = compiled.run(arrays)[0].astype(np.float32)
            yield "tuned error", _error(tuned, want)
            yield "wrong candidates", len(compiled.program.loaded.wrong)
        if profile:
            print("\n".join(compiled.program.loaded.wrong))
            tasks = sorted(compiled.profile(arrays), key=lambda t: -t.seconds)
            for task in tasks[:25]:
                print(f"{task.seconds * 1e6:9.1f} us  {task.name[:60]:60} {task.shape} {task.implementation}")
        for peer, (run, _, _) in ready.items():
            yield peer, run()


def _torch(half: Any, feeds: Sequence[Any], mode: str) -> tuple[Callable[[], float], float, np.ndarray]:
    """torch.compile in a mode: what measures it, the seconds to the first result, and that."""
    import torch

    on_gpu = copy.deepcopy(half).cuda()
    given = [x.cuda() for x in feeds]
    if given[0].dim() == 4:
        on_gpu = on_gpu.to(memory_format=torch.channels_last)
        given[0] = given[0].contiguous(memory_format=torch.channels_last)
    began = time.perf_counter()
    peer = torch.compile(on_gpu, mode=mode)
    answer = _first(peer(*given)).float().cpu().numpy()
    return lambda: measure(lambda: peer(*given)), time.perf_counter() - began, answer


def _jax(half: Any, feeds: Sequence[Any], _: str) -> tuple[Callable[[], float], float, np.ndarray]:
    """JAX: milliseconds of many calls that wait for one another on the GPU alone."""
    import jax

    from benchmarks.jax_inference import jax_lstm, jax_network

    run, seconds = (jax_lstm if hasattr(half, "h") else jax_network)(copy.deepcopy(half).cpu(), feeds)

    def timed(repeats: int = 50) -> float:
        times = []
        for _ in range(5):
            began = time.perf_counter()
            found = [run() for _ in range(repeats)]
            jax.block_until_ready(found[-1])
            times.append((time.perf_counter() - began) / repeats * 1e3)
        return min(times)

    return timed, seconds, np.asarray(_first(run()), np.float32)


_PEERS: dict[str, Callable[..., tuple[Callable[[], float], float, np.ndarray]]] = {"jax": _jax}


def _first(results: Any) -> Any:
    """The result that is checked."""
    return results[0] if isinstance(results, tuple | list) else results


def _eager(half: Any, feeds: tuple[Any, ...]) -> np.ndarray:
    """PyTorch's own result in float16 on the GPU."""
    found = _first(half.cuda()(*[x.cuda() for x in feeds])).float().cpu().numpy()
    half.cpu()
    return np.asarray(found)


def _error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def _together(subjects: Sequence[str], options: Sequence[str], limit: float) -> list[dict[str, Any]]:
    """Each subject in a process of its own; those that do not compile within so many seconds are stopped."""
    command = [sys.executable, "-m", "benchmarks.cuda", "--worker", *options]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = {s: subprocess.Popen([*command, s], **pipes) for s in subjects}  # type: ignore[call-overload]
    found: dict[str, dict[str, Any]] = {s: {"network": s} for s in subjects}
    arrived = {s: threading.Event() for s in subjects}

    def listen(subject: str) -> None:
        for line in workers[subject].stdout:
            if line == "ready\n":
                arrived[subject].set()
            elif line.startswith("{"):
                found[subject] |= json.loads(line)
        arrived[subject].set()

    threads = [threading.Thread(target=listen, args=(s,)) for s in subjects]
    for thread in threads:
        thread.start()
    until = time.monotonic() + limit
    for subject, event in arrived.items():
        if not event.wait(max(until - time.monotonic(), 0)):
            found[subject]["stopped"] = f"not compiled after {limit:.0f} s"
            workers[subject].kill()
    for subject, worker in workers.items():
        if worker.poll() is None:
            _release(worker)
        print(_text(found[subject]), flush=True)
    for thread in threads:
        thread.join()
    return list(found.values())


def _release(worker: Any) -> None:
    """Let a process measure, and wait for its end."""
    worker.stdin.write("go\n")
    worker.stdin.close()
    worker.wait()


def _text(found: dict[str, Any]) -> str:
    return "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items())


def _summary(found: Sequence[dict[str, Any]], peers: Sequence[str]) -> str:
    """The geometric mean of the best peer's time over ours, and the least ratio."""
    ratios = {
        f["network"]: min(f[p] for p in peers if p in f) / f["ours"]
        for f in found
        if "ours" in f and any(p in f for p in peers)
    }
    if not ratios:
        return "no peer was measured"
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    least = min(ratios, key=ratios.__getitem__)
    return f"best peer over ours: geometric mean {mean:.3f} of {len(ratios)}, least {ratios[least]:.3f} ({least})"


def main() -> None:
    """Print one line for each network and batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "networks", nargs="*", default=["resnet50:1,32,256", "bert:1,32"], help="name:batch,batch"
    )
    parser.add_argument(
        "--peers", nargs="*", default=["max-autotune"], help="modes of torch.compile, and jax"
    )
    parser.add_argument("--alone", action="store_true", help="no peers")
    parser.add_argument("--tuning", type=float, default=math.inf, help="seconds a network, 0 for none")
    parser.add_argument(
        "--together", type=float, default=0.0, help="compile all at once, for so many seconds"
    )
    parser.add_argument("--profile", action="store_true", help="print the longest tasks")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    peers = [] if arguments.alone else arguments.peers
    subjects = [
        f"{text.partition(':')[0]}:{batch}"
        for text in arguments.networks
        for batch in (text.partition(":")[2] or "1").split(",")
    ]
    if arguments.together:
        options = ["--tuning", str(arguments.tuning), *(["--profile"] if arguments.profile else [])]
        print(_summary(_together(subjects, [*options, "--peers", *peers, "--"], arguments.together), peers))
        return
    every = []
    for subject in subjects:
        name, _, batch = subject.partition(":")
        found: dict[str, Any] = {"network": subject}
        steps = rows(
            name,
            int(batch),
            peers,
            arguments.profile,
            arguments.tuning,
            _wait if arguments.worker else lambda: None,
        )
        for key, value in steps:
            found[key] = value
            if arguments.worker:
                print(json.dumps({key: value}), flush=True)
        every.append(found)
        if not arguments.worker:
            print(_text(found), flush=True)
    if peers and not arguments.worker:
        print(_summary(every, peers))


def _wait() -> None:
    """Tell the process that started this one, and wait for its word."""
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
