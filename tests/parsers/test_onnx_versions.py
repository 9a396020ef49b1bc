"""Operators in the forms they had in older operator sets, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from ge.ir.interpret import interpret
from ge.parsers.onnx import parse

ort = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(3)
X = RNG.standard_normal((2, 3, 4, 5)).astype(np.float32)
ROW = "float[2,3,4,5] x"
INTS = "Constant <value = int64[{n}] {{{values}}}> ()"


def ints(*values: int) -> str:
    return INTS.format(n=len(values), values=",".join(map(str, values)))


CASES = [
    (
        7,
        f"g ({ROW}) => (float[a,b,c] y) {{ t = Slice <starts=[1], ends=[2], axes=[0]> (x)  y = Squeeze <axes=[0]> (t) }}",
    ),
    (9, f"g ({ROW}) => (float[a,b,c,d] y) {{ y = Slice <starts=[0,-3], ends=[100,-1], axes=[1,3]> (x) }}"),
    (
        10,
        f"g ({ROW}) => (float[a,b,c,d] y) {{ s = {ints(3)} e = {ints(-100)} a = {ints(3)} p = {ints(-2)} y = Slice(x,s,e,a,p) }}",
    ),
    (7, f"g ({ROW}) => (float[a,b,c,d,e] y) {{ y = Unsqueeze <axes=[2]> (x) }}"),
    (11, f"g ({ROW}) => (float[a,b,c,d,e,f] y) {{ y = Unsqueeze <axes=[0,-1]> (x) }}"),
    (13, f"g ({ROW}) => (float[a,b,c,d,e,f] y) {{ i = {ints(0, -1)} y = Unsqueeze(x, i) }}"),
    (7, f"g ({ROW}) => (float[a,b,c,d] y, float[a,b,c,e] z) {{ y, z = Split <axis=3, split=[2,3]> (x) }}"),
    (
        13,
        f"g ({ROW}) => (float[a,b,c,d] y, float[a,b,c,e] z) {{ s = {ints(1, 4)} y, z = Split <axis=3> (x, s) }}",
    ),
    (18, f"g ({ROW}) => (float[a,b,c,d] y, float[a,b,c,e] z) {{ y, z = Split <axis=3, num_outputs=2> (x) }}"),
    (7, f"g ({ROW}) => (float[a,b,c,d] y) {{ y = ReduceMean <axes=[1,2]> (x) }}"),
    (18, f"g ({ROW}) => (float[a,b,c] y) {{ i = {ints(1)} y = ReduceMax <keepdims=0> (x, i) }}"),
    (11, f"g ({ROW}) => (float[a,b,c,d] y) {{ y = ReduceSum (x) }}"),
    (13, f"g ({ROW}) => (float[a,b,c,d] y) {{ y = ReduceSum <noop_with_empty_axes=1> (x) }}"),
    (7, f'g ({ROW}) => (float[a,b,c,d] y) {{ y = Pad <mode="reflect", pads=[0,0,1,2,0,0,2,1]> (x) }}'),
    (9, f"g ({ROW}) => (float[a,b,c,d] y) {{ y = Pad <pads=[0,1,-1,0,0,0,0,2], value=3.0> (x) }}"),
    (
        13,
        f'g ({ROW}) => (float[a,b,c,d] y) {{ p = {ints(0, 0, 1, 2, 0, 0, 2, 1)} y = Pad <mode="edge"> (x, p) }}',
    ),
    (7, f"g ({ROW}) => (float[a,b,c,d] y, int64[a,b,c,d] z) {{ y, z = TopK <k=2, axis=2> (x) }}"),
    (
        11,
        f"g ({ROW}) => (float[a,b,c,d] y, int64[a,b,c,d] z) {{ k = {ints(2)} y, z = TopK <axis=1, largest=0> (x, k) }}",
    ),
    (7, f'g ({ROW}) => (float[a,b,c,d] y) {{ y = Upsample <mode="nearest", scales=[1.0,1.0,2.0,3.0]> (x) }}'),
    (7, f'g ({ROW}) => (float[a,b,c,d] y) {{ y = Upsample <mode="linear", scales=[1.0,1.0,2.0,2.0]> (x) }}'),
    (7, f"g ({ROW}) => (float[a,b,c,d] y) {{ y = Dropout <ratio=0.3> (x) }}"),
    (12, f"g ({ROW}) => (float[a,b,c,d] y, bool[a,b,c,d] m) {{ y, m = Dropout (x) }}"),
    (7, f"g ({ROW}) => (float[a,b,c,d] y) {{ y = Softmax <axis=2> (x) }}"),
    (12, f"g ({ROW}) => (float[a,b,c,d] y) {{ y = LogSoftmax (x) }}"),
    (12, f"g ({ROW}) => (float[a,b,c,d] y) {{ y = Hardmax <axis=1> (x) }}"),
    (13, f"g ({ROW}) => (float[a,b,c,d] y) {{ y = Hardmax (x) }}"),
    (6, f"g ({ROW}) => (float[a,b,c,d] y) {{ y = Clip <min=-0.5, max=0.5> (x) }}"),
    (7, f"g ({ROW}) => (float[a,b] y) {{ y = Flatten <axis=3> (x) }}"),
    (7, f"g ({ROW}) => (float[a,b,c,d] y) {{ y = LRN <size=3, alpha=0.2, beta=0.5, bias=2.0> (x) }}"),
    (7, f"g ({ROW}) => (float[a,b,c,d] y) {{ y = LpNormalization <axis=1, p=1> (x) }}"),
    (
        7,
        f"g ({ROW}) => (float[a,b,c,d] y) {{ y = MaxPool <kernel_shape=[2,3], pads=[1,1,0,1], strides=[2,2]> (x) }}",
    ),
    (
        10,
        f"g ({ROW}) => (float[a,b,c,d] y) {{ y = MaxPool <kernel_shape=[2,2], ceil_mode=1, strides=[2,2]> (x) }}",
    ),
    (
        7,
        f'g ({ROW}) => (float[a,b,c,d] y) {{ y = AveragePool <kernel_shape=[3,3], auto_pad="SAME_LOWER"> (x) }}',
    ),
    (
        10,
        f"g ({ROW}) => (float[a,b,c,d] y) {{ y = AveragePool <kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1> (x) }}",
    ),
    (7, f"g ({ROW}) => (float[a,b,c,d] y) {{ y = DepthToSpace <blocksize=1> (x) }}"),
    (7, f"g ({ROW}) => (float[a,b,c,d] y) {{ y = SpaceToDepth <blocksize=1> (x) }}"),
    (8, f"g ({ROW}) => (float[a,b,c,d] y) {{ n = Neg(x) y = Max(x, n) }}"),
    (9, f"g ({ROW}) => (float[a,b,c,d] y) {{ n = IsNaN(x) m = Not(n) y = Where(m, x, x) }}"),
    (9, f"g ({ROW}) => (float[a,b] y) {{ s = {ints(3, 2)} y = ConstantOfShape(s) }}"),
    (7, f"g ({ROW}) => (float[a,b,c,d] y) {{ a = Sqrt(x) y = Tanh(a) }}"),
]


@pytest.mark.parametrize(
    ("opset", "text"), CASES, ids=lambda v: "" if isinstance(v, int) else v.split("= ")[-1][:40]
)
def test_older_forms_mean_the_same(opset: int, text: str) -> None:
    proto = onnx.parser.parse_model(f'<ir_version: 7, opset_import: ["" : {opset}]>\n{text}')
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted: list[Any] = session.run(None, {"x": X})
    for found, want in zip(interpret(parse(proto), [X]), wanted, strict=True):
        assert found.dtype == want.dtype
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
