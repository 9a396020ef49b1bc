"""Which of TensorFlow's operators the table leaves out, and why."""

from __future__ import annotations

import importlib
import inspect
import re

from tf_adapter.conformance.rows import ROWS
from tf_adapter.conformance.worker import collect

__all__ = ["FAMILIES", "NOT_SWEPT", "left_out", "public_operators"]

# Modules of TensorFlow whose operators the sweep is about.
FAMILIES = ("array", "bitwise", "image", "linalg", "math", "nn", "special_math", "spectral", "manip")

# Why an operator is in no case, as expressions its name matches as a whole.
NOT_SWEPT = {
    r"Quantize.*|Quantized.*|Dequantize|Requantiz.*|UniformQuantize.*|UniformDequantize|UniformRequantize": (
        "works on TensorFlow's quantised types"
    ),
    r"Batch(Cholesky.*|Matrix.*|Svd|SelfAdjointEig.*|I?FFT.*|NormWithGlobalNormalization.*)": "withdrawn",
    r"(AdjustContrast|RandomCrop|MatrixExponential|SelfAdjointEig|TileGrad|TopK)": "withdrawn",
    r"Conv3DBackprop(Input|Filter)": "withdrawn",
    r"(MaxPoolGradGradWithArgmax|Segment\w+V2|Conv2DBackprop\w+V2)": "has no kernel on the CPU",
    r"(AccumulateNV2|GenerateBoundingBoxProposals)": "has no kernel on the CPU",
    r"(Decode|Encode|ExtractJpeg).*": "works on strings",
    r"(Placeholder.*|Const|ImmutableConst|_\w+)": "is how graphs are made",
    r"(Ref\w+|DebugGradient\w*|Resource\w+|StridedSliceAssign|DebugIdentity\w*)": "works on variables or debuggers",
    r"(SampleDistortedBoundingBox\w*|StatelessSampleDistortedBoundingBox)": "gives random results of open size",
    r"(Fractional\w+Grad|FusedBatchNormGrad(V2)?|MaxPoolGradV2|MaxPoolGradGradV2|MaxPool3DGradGrad)": (
        "is another release, or the gradient, of a gradient that is swept"
    ),
    r"(SparseSegment\w+GradV2|I?R?FFTND)": "is another release of an operator that is swept",
    r"(StatelessRandom\w*|Snapshot|CheckNumericsV2)": "is swept with another family",
}


def public_operators() -> list[str]:
    """The operators of the families that this TensorFlow has."""
    names: set[str] = set()
    for family in FAMILIES:
        source = inspect.getsource(importlib.import_module(f"tensorflow.python.ops.gen_{family}_ops"))
        names |= set(re.findall(r'tf_export\("raw_ops\.(\w+)"\)', source))
    return sorted(names)


def left_out() -> list[str]:
    """Operators that are neither in the table nor in the list of exceptions."""
    collect(quick=True)
    swept = {row.operator for row in ROWS}
    excepted = [re.compile(pattern) for pattern in NOT_SWEPT]
    return [n for n in public_operators() if n not in swept and not any(p.fullmatch(n) for p in excepted)]
