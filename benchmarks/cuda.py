"""Networks on one GPU: ours as one CUDA graph beside torch.compile, answers checked.

`python -m benchmarks.cuda resnet50:1,32 bert:1,32` needs a GPU, PyTorch with CUDA and, for ResNet50, torchvision.
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


def bert(batch: int) -> tuple[Any, tuple[Any, ...]]:
    """The encoder of BERT-base without a mask, and embedded tokens."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self, width: int = 768, heads: int = 12) -> None:
            super().__init__()
            self.heads = heads
            self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

        def forward(self, x: Any) -> Any:
            rows, tokens, width = x.shape
            size = width // self.heads
            q, k, v = (
                f(x).reshape(rows, tokens, self.heads, size).transpose(1, 2) for f in (self.q, self.k, self.v)
            )
            attended = torch.softmax(q @ k.transpose(2, 3) / size**0.5, -1) @ v
            x = self.first(x + self.out(attended.transpose(1, 2).reshape(rows, tokens, width)))
            return self.second(x + self.down(nn.functional.gelu(self.up(x))))

    return nn.Sequential(*(Layer() for _ in range(12))).eval(), (torch.randn(batch, TOKENS, 768),)


NETWORKS: dict[str, Callable[[int], tuple[Any, tuple[Any, ...]]]] = {"resnet50": resnet50, "bert": bert}


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


def row(name: str, batch: int, peers: bool) -> dict[str, Any]:
    """The times and the error of one network."""
    import torch

    import ge
    from ge.options import CompileOptions
    from npu_runtime import cuda

    torch.manual_seed(0)
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
        compiled.program.tune()
        tuned = time.perf_counter() - began
        ours = compiled.program.seconds() * 1e3
        again = compiled.run([x.numpy() for x in feeds])[0].astype(np.float32)
        found: dict[str, Any] = {
            "network": name,
            "batch": batch,
            "ours": ours,
            "by heuristics": first,
            "error": max(_error(got, want), _error(again, want)),
            "compile s": built,
            "compile and first run s": loaded,
            "tuning s": tuned,
            "nodes": compiled.program.loaded.graph.nodes,
        }
        if peers:
            on_gpu = half.cuda()
            device_feeds = [x.cuda() for x in feeds]
            if name == "resnet50":
                on_gpu = on_gpu.to(memory_format=torch.channels_last)
                device_feeds = [x.contiguous(memory_format=torch.channels_last) for x in device_feeds]
            began = time.perf_counter()
            peer = torch.compile(on_gpu, mode="max-autotune")
            answer = peer(*device_feeds).float().cpu().numpy()
            found["torch.compile s"] = time.perf_counter() - began
            found["torch.compile"] = measure(lambda: peer(*device_feeds))
            found["torch error"] = _error(answer, want)
    return found


def _error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def main() -> None:
    """Print one line for each network and batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "networks", nargs="*", default=["resnet50:1,32", "bert:1,32"], help="name:batch,batch"
    )
    parser.add_argument("--alone", action="store_true", help="do not run torch.compile")
    arguments = parser.parse_args()
    for text in arguments.networks:
        name, _, batches = text.partition(":")
        for batch in map(int, (batches or "1").split(",")):
            found = row(name, batch, not arguments.alone)
            texts = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items())
            print("  ".join(texts), flush=True)


if __name__ == "__main__":
    main()
