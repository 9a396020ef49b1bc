"""Networks on one GPU: ours as one CUDA graph beside torch.compile, answers checked.

`python -m benchmarks.cuda resnet50:1,32 bert:1,32` needs a GPU, PyTorch with CUDA and, for images, torchvision.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
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


def llama(batch: int) -> tuple[Any, tuple[Any, ...]]:
    """Eight layers of a Llama-like decoder of width 2048 over 128 tokens, with rotary positions."""
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
            angles = torch.outer(
                torch.arange(TOKENS), 10000.0 ** -(torch.arange(self.size // 2) * 2 / self.size)
            )
            self.register_buffer("cos", angles.cos().repeat(1, 2))
            self.register_buffer("sin", angles.sin().repeat(1, 2))
            self.register_buffer("later", torch.full((TOKENS, TOKENS), -65504.0).triu(1))

        def norm(self, x: Any, weight: Any) -> Any:
            wide = x.float()
            return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * weight

        def turned(self, x: Any) -> Any:
            low, high = x.chunk(2, -1)
            return x * self.cos + torch.cat((-high, low), -1) * self.sin

        def forward(self, x: Any) -> Any:
            rows, tokens, width = x.shape
            y = self.norm(x, self.first)
            q, k, v = (
                f(y).reshape(rows, tokens, self.heads, self.size).transpose(1, 2)
                for f in (self.q, self.k, self.v)
            )
            scores = self.turned(q) @ self.turned(k).transpose(2, 3) / self.size**0.5 + self.later
            attended = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(rows, tokens, width)
            x = x + self.out(attended)
            y = self.norm(x, self.second)
            return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))

    return nn.Sequential(*(Layer() for _ in range(8))).eval(), (torch.randn(batch, TOKENS, 2048),)


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
    "llama": llama,
    "dlrm": dlrm,
    "lstm": lstm,
}


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


def row(name: str, batch: int, peers: bool, profile: bool, tuned: bool = True) -> dict[str, Any]:
    """The times and the error of one network."""
    import torch

    import ge
    from ge.options import CompileOptions
    from npu_runtime import cuda

    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # its operators have no form in ONNX
    model, inputs = NETWORKS[name](batch)
    with torch.inference_mode():
        want = model.double().cuda()(
            *[x.double().cuda() if x.is_floating_point() else x.cuda() for x in inputs]
        )
        want = want.float().cpu().numpy()
        half = model.half().cpu()
        feeds = tuple(x.half() if x.is_floating_point() else x for x in inputs)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            torch.onnx.export(half, feeds, str(path), dynamo=False, opset_version=17)
            began = time.perf_counter()
            compiled = ge.compile(path, CompileOptions(target=cuda.describe(0)["architecture"]))
            built = time.perf_counter() - began
        got = compiled.run([x.numpy() for x in feeds])[0].astype(np.float32)
        loaded = time.perf_counter() - began
        first = compiled.program.seconds() * 1e3
        began = time.perf_counter()
        if tuned:
            compiled.program.tune()
        tuning = time.perf_counter() - began
        ours = compiled.program.seconds() * 1e3
        again = compiled.run([x.numpy() for x in feeds])[0].astype(np.float32)
        found: dict[str, Any] = {
            "network": name,
            "batch": batch,
            "ours": ours,
            "by heuristics": first,
            "error": _error(again, want),
            "error by heuristics": _error(got, want),
            "eager float16 error": _error(_eager(half, feeds), want),
            "compile s": built,
            "compile and first run s": loaded,
            "tuning s": tuning,
            "nodes": compiled.program.loaded.nodes,
            "wrong candidates": len(compiled.program.loaded.wrong),
        }
        if profile:
            print("\n".join(compiled.program.loaded.wrong))
            tasks = sorted(compiled.profile([x.numpy() for x in feeds]), key=lambda t: -t.seconds)
            for task in tasks[:25]:
                print(f"{task.seconds * 1e6:9.1f} us  {task.name[:60]:60} {task.shape} {task.implementation}")
        if peers:
            on_gpu = half.cuda()
            device_feeds = [x.cuda() for x in feeds]
            if len(feeds[0].shape) == 4:
                on_gpu = on_gpu.to(memory_format=torch.channels_last)
                device_feeds = [x.contiguous(memory_format=torch.channels_last) for x in device_feeds]
            began = time.perf_counter()
            peer = torch.compile(on_gpu, mode="max-autotune")
            answer = peer(*device_feeds).float().cpu().numpy()
            found["torch.compile s"] = time.perf_counter() - began
            found["torch.compile"] = measure(lambda: peer(*device_feeds))
            found["torch error"] = _error(answer, want)
    return found


def _eager(half: Any, feeds: tuple[Any, ...]) -> np.ndarray:
    """PyTorch's own result in float16 on the GPU."""
    found = half.cuda()(*[x.cuda() for x in feeds]).float().cpu().numpy()
    half.cpu()
    return np.asarray(found)


def _error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def main() -> None:
    """Print one line for each network and batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "networks", nargs="*", default=["resnet50:1,32,256", "bert:1,32"], help="name:batch,batch"
    )
    parser.add_argument("--alone", action="store_true", help="do not run torch.compile")
    parser.add_argument("--untuned", action="store_true", help="take the libraries' first choices")
    parser.add_argument("--profile", action="store_true", help="print the longest tasks")
    arguments = parser.parse_args()
    for text in arguments.networks:
        name, _, batches = text.partition(":")
        for batch in map(int, (batches or "1").split(",")):
            found = row(name, batch, not arguments.alone, arguments.profile, not arguments.untuned)
            texts = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items())
            print("  ".join(texts), flush=True)


if __name__ == "__main__":
    main()
