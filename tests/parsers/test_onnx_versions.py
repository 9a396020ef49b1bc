"""Operators in the forms they had in older operator sets, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from ge.compiler import compile_graph
from ge.ops.interpret import interpret
from ge.parsers.onnx.parser import parse

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
        f"g ({ROW}) => (float[a,b,c] y) "
        "{ t = Slice <starts=[1], ends=[2], axes=[0]> (x)  y = Squeeze <axes=[0]> (t) }",
    ),
    (9, f"g ({ROW}) => (float[a,b,c,d] y) {{ y = Slice <starts=[0,-3], ends=[100,-1], axes=[1,3]> (x) }}"),
    (
        10,
        f"g ({ROW}) => (float[a,b,c,d] y) {{ s = {ints(3)} e = {ints(-100)} a = {ints(3)} "
        f"p = {ints(-2)} y = Slice(x,s,e,a,p) }}",
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
        f"g ({ROW}) => (float[a,b,c,d] y) "
        "{ y = AveragePool <kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1> (x) }",
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


@pytest.mark.parametrize(("kind", "per_channel"), [("uint8", False), ("uint8", True), ("int8", True)])
def test_quantised_convolution_gives_what_onnx_runtime_gives(kind: str, per_channel: bool) -> None:
    text = f"""g ({kind}[1,8,9,9] x) => ({kind}[a,b,c,d] y) {{
        y = QLinearConv <pads=[1,1,1,1], strides=[2,2]> (x, xs, xz, w, ws, wz, ys, yz, b) }}"""
    proto = onnx.parser.parse_model(f'<ir_version: 7, opset_import: ["" : 13]>\n{text}')
    count = 16 if per_channel else 1
    stored = {
        "xs": np.float32(0.02),
        "xz": np.dtype(kind).type(3),
        "w": RNG.integers(-127, 128, (16, 8, 3, 3)).astype(np.int8),
        "ws": RNG.uniform(0.01, 0.02, count).astype(np.float32),
        "wz": np.zeros(count, np.int8),
        "ys": np.float32(0.7),
        "yz": np.dtype(kind).type(9),
        "b": RNG.integers(-500, 500, 16).astype(np.int32),
    }
    if not per_channel:
        stored |= {"ws": stored["ws"].reshape(()), "wz": np.int8(0)}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items())
    x = RNG.integers(0, 127, (1, 8, 9, 9)).astype(kind)
    (wanted,) = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )
    graph = parse(proto)
    assert [n.op_type for n in graph] == ["QConv"]
    for found in (interpret(graph, [x])[0], compile_graph(graph).run([x])[0]):
        assert found.dtype == wanted.dtype
        apart = np.abs(found.astype(int) - wanted.astype(int))
        assert apart.max() <= 1 and (apart > 0).mean() < 0.01  # where a half is rounded


def test_regions_are_pooled_as_onnx_runtime_does() -> None:
    text = """g (float[2,3,4,5] x, float[3,5] r) => (float[a,b,c,d] y) {
        y = MaxRoiPool <pooled_shape=[2,2], spatial_scale=0.5> (x, r) }"""
    proto = onnx.parser.parse_model(f'<ir_version: 7, opset_import: ["" : 11]>\n{text}')
    rois = np.array([[0, 0, 0, 7, 5], [1, 2, 1, 9, 7], [1, 3, 3, 3, 3]], np.float32)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": X, "r": rois})
    graph = parse(proto)
    np.testing.assert_allclose(interpret(graph, [X, rois])[0], wanted)
    np.testing.assert_allclose(compile_graph(graph).run([X, rois])[0], wanted)
