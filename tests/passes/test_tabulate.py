"""Functions of bytes become tables."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import pytest

import ge
from ge.options import CompileOptions

BYTES = np.arange(256, dtype=np.uint8)


def model_of(body: str, kind: str = "uint8", more: str = "", shape: str = "8,16,16") -> onnx.ModelProto:
    """A graph of y from x (and more inputs); s, t, u are scales, z, v zero points."""
    text = f"""<ir_version: 9, opset_import: ["" : 19]>
    net ({kind}[{shape}] x{more}) => ({kind}[{shape}] y)
    <float s = {{0.05}}, float t = {{0.004}}, float u = {{0.03}}, {kind} z = {{100}}, {kind} v = {{3}}> {{ {body} }}"""
    return onnx.parser.parse_model(text)


SILU = """
    a = DequantizeLinear(x, s, z)
    b = Sigmoid(a)
    c = QuantizeLinear(b, t, v)
    d = DequantizeLinear(c, t, v)
    e = Mul(a, d)
    y = QuantizeLinear(e, u, v)
"""


def types_of(model: ge.Model) -> list[str]:
    return [row.operator for row in ge.explain(model)]


def compiled(proto: onnx.ModelProto, **options: object) -> ge.Model:
    return ge.compile(proto, CompileOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize(
    "body",
    [
        SILU,
        "a = DequantizeLinear(x, s, z) b = Tanh(a) y = QuantizeLinear(b, t, v)",
        "a = DequantizeLinear(x, s, z) b = HardSwish(a) c = Clip(b, t, s) d = Neg(c) y = QuantizeLinear(d, t, v)",
    ],
    ids=["silu", "tanh", "simple operators"],
)
def test_a_function_of_bytes_is_looked_up(body: str, kind: str) -> None:
    proto = model_of(body, kind)
    model = compiled(proto)
    assert types_of(model) == ["ByteTable"]
    x = np.tile(BYTES, 8).reshape(8, 16, 16).view(kind)
    wanted = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x})[0]
    found = model(x)
    assert found.dtype == wanted.dtype
    off = np.abs(found.astype(int) - wanted.astype(int))
    assert off.max() <= 1 and (off > 0).mean() < 0.02, "rounded to the other side at most, and rarely"


def test_a_table_of_a_table_is_one() -> None:
    body = (
        SILU.replace("y =", "f =") + "g = DequantizeLinear(f, u, v) h = Tanh(g) y = QuantizeLinear(h, t, v)"
    )
    model = compiled(model_of(body))
    assert types_of(model).count("ByteTable") >= 1 and "Tanh" not in types_of(model)
    proto = model_of(body)
    x = np.tile(BYTES, 8).reshape(8, 16, 16)
    wanted = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x})[0]
    assert np.abs(model(x).astype(int) - wanted.astype(int)).max() <= 2


@pytest.mark.parametrize(
    ("body", "more", "shape"),
    [
        ("a = DequantizeLinear(x, s, z) b = Relu(a) y = QuantizeLinear(b, t, v)", "", "8,16,16"),
        ("a = DequantizeLinear(x, s, z) c = Add(a, w) b = Tanh(c) y = QuantizeLinear(b, t, v)",
         ", float[8,16,16] w", "8,16,16"),
        ("a = DequantizeLinear(x, s, z) b = Tanh(a) y = QuantizeLinear(b, t, v)", "", "8"),
    ],
    ids=["too simple", "another operand", "too small"],
)  # fmt: skip
def test_what_stays_as_it_is(body: str, more: str, shape: str) -> None:
    assert "ByteTable" not in types_of(compiled(model_of(body, more=more, shape=shape)))


def test_values_in_between_are_there_for_other_readers() -> None:
    proto = model_of(SILU)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [8, 16, 16]))
    x = np.tile(BYTES, 8).reshape(8, 16, 16)
    y, b = compiled(proto)(x)
    wanted = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(b, wanted[1], rtol=1e-5)
    assert np.abs(y.astype(int) - wanted[0].astype(int)).max() <= 1


@pytest.mark.parametrize("target", ["avx2", "avx512", "portable"])
def test_tables_without_permutations_of_bytes(target: str) -> None:
    import tbe

    x, table = tbe.placeholder((1000,), "uint8"), tbe.placeholder((256,), "int8")
    kernel = tbe.build([x, table], [tbe.take(table, x, 0)], target)
    assert "vpermi2var" not in kernel.ir
    assert not kernel.aliases or (1, 0) not in kernel.aliases
