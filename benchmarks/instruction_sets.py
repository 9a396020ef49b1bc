"""The newest instruction set of all contenders: `--isa avx2` measures as on a processor without AVX-512."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

# The variables of ours, oneDNN's, PyTorch's (inductor's width too), MKL's (PyTorch's products) and XLA's. ONNX Runtime
# and OpenVINO have none.
CAPS = {
    "avx2": ("avx2", "AVX2", "avx2", "AVX2", "AVX2"),
    "avx512": ("avx512", "AVX512_CORE_VNNI", "avx512", "AVX512", "AVX512"),
}
_VARIABLES = (
    "NPU_MAX_ISA",
    "ONEDNN_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "MKL_ENABLE_INSTRUCTIONS",
    "XLA_FLAGS",
)
UNCAPPED = frozenset({"onnxruntime", "openvino"})


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--isa`."""
    parser.add_argument(
        "--isa",
        choices=sorted(CAPS),
        help="the newest instruction set of all; peers without such a cap are left out",
    )


def variables(isa: str | None) -> dict[str, str]:
    """The environment that caps everyone.

    >>> variables("avx2")["ONEDNN_MAX_CPU_ISA"], variables(None)
    ('AVX2', {})
    """
    if not isa:
        return {}
    values = dict(zip(_VARIABLES, CAPS[isa], strict=True))
    return values | {"XLA_FLAGS": f"--xla_cpu_max_isa={values['XLA_FLAGS']}"}


def limit(isa: str | None, peers: Sequence[str]) -> list[str]:
    """Cap this process and those it starts, before they load anything; the peers that are capped too.

    >>> limit(None, ["torch", "openvino"])
    ['torch', 'openvino']
    """
    os.environ.update(variables(isa))
    return [peer for peer in peers if not isa or peer not in UNCAPPED]
