"""Start of scripts: from the start of the process to the first answer, without and with what an earlier start has kept.

Each script runs three times in processes of its own with empty caches at first: the first time is cold, the least of
the others warm. Imports count. Times are the processor's (all threads) and the clock's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measure import console, new_table

_KERAS = """
import tensorflow as tf
{line}
tf.keras.utils.set_random_seed(0)
network = tf.keras.applications.MobileNetV2(weights=None, input_shape=({size}, {size}, 3))
result = tf.function(network)(tf.ones([1, {size}, {size}, 3])).numpy()
"""
_TORCH = """
import torch
{line}
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
network = torch.nn.TransformerEncoder(layer, {layers}, enable_nested_tensor=False).eval()
with torch.no_grad():
    result = torch.compile(network, backend={backend})(torch.ones(1, 64, 256)).numpy()
"""
_FILE = """
import numpy as np
x = np.load("x.npy")
{line}
"""
SCRIPTS = {  # what runs: contender: its program, and the line or backend that it differs in
    "Keras MobileNetV2, tf.function": {
        "ours": (_KERAS, "import tf_adapter", ""),
        "TensorFlow": (_KERAS, "", ""),
    },
    "PyTorch encoder, torch.compile": {
        "ours": (_TORCH, "import torchair", "torchair.get_npu_backend()"),
        "inductor": (_TORCH, "", "'inductor'"),
    },
    "ONNX file, ResNet50": {
        "ours": (_FILE, "import ge; result = ge.compile('net.onnx')(x)", ""),
        "OpenVINO": (
            _FILE,
            "import openvino; core = openvino.Core(); "
            "result = core.compile_model('net.onnx', 'CPU', {{'CACHE_DIR': 'openvino'}})(x)[0]",
            "",
        ),
        "ONNX Runtime": (
            _FILE,
            "import onnxruntime as ort; s = ort.InferenceSession('net.onnx'); "
            "result = s.run(None, {{s.get_inputs()[0].name: x}})[0]",
            "",
        ),
    },
}


def run(program: str, folder: Path) -> tuple[float, float]:
    """Processor's and clock's seconds of a process."""
    caches = {
        "NPU_CACHE_DIR": "npu",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TRITON_CACHE_DIR": "triton",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    caches |= {name: str(folder / value) for name, value in caches.items() if name.endswith("_DIR")}
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", program + "assert result.size"], cwd=folder, env={**os.environ, **caches}
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"failed:\n{program}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - started


def write_file(folder: Path, small: bool) -> None:
    """The ONNX file, made by a process of its own."""
    code = (
        f"import sys, shutil; sys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r})\n"
        "import numpy\nfrom benchmarks.models import onnx_file, zoo\n"
        f"model = zoo(small={small})['resnet50']\n"
        "shutil.copy(onnx_file(model, 1), 'net.onnx')\nnumpy.save('x.npy', model.inputs(1)[0])"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small networks, and each script twice")
    parser.add_argument("--only", nargs="*", choices=[*SCRIPTS], default=[*SCRIPTS])
    arguments = parser.parse_args()
    table = new_table(
        "Start to first answer, seconds of the processor (of the clock)", ["script", "by", "cold", "warm"]
    )
    size = {"size": 32 if arguments.quick else 224, "layers": 1 if arguments.quick else 6}
    for title in arguments.only:
        with tempfile.TemporaryDirectory() as name:
            if "file" in title:
                write_file(Path(name), arguments.quick)
            for contender, (program, line, backend) in SCRIPTS[title].items():
                text = program.replace("{line}", line).format(backend=backend, **size)
                cold, *warm = (run(text, Path(name)) for _ in range(2 if arguments.quick else 3))
                shown = (f"{used:.2f} ({clock:.2f})" for used, clock in (cold, min(warm)))
                table.add_row(title, contender, *shown)
    console.print(table)


if __name__ == "__main__":
    main()
