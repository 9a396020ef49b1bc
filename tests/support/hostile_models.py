"""Compiles models whose sizes are meant to hang, crash or exhaust a compiler; a line of JSON for each.

Run as a process of its own, with limits.
"""

from __future__ import annotations

import json
import sys

import onnx
from onnx import TensorProto, helper

import ge

_WEIGHTS = "float[4,3,3,3] w"

TEXTS = {
    "Conv+Relu 2^32": f"(float[1,3,4294967296,8] x, {_WEIGHTS}) => (float[A,B,C,D] y)"
    " { t = Conv(x, w)  y = Relu(t) }",
    "Gemm+Relu 2^32": "(float[4294967296,8] x, float[8,8] w) => (float[A,B] y) { t = Gemm(x, w)  y = Relu(t) }",
    "QLinearMatMul 2^32": "(uint8[4294967296,8] x, uint8[8,8] w, float s, uint8 z) => (uint8[A,B] y)"
    " { y = QLinearMatMul(x, s, z, w, s, z, s, z) }",
    "rows 2^31": "(float[2147483648,4] x) => (float[A,B] y) { y = Softmax(x) }",
    "rows prime": "(float[2147483647,4] x) => (float[A,B] y) { t = Exp(x)  y = Relu(t) }",
    "input beyond all memory": "(float[4294967296,4294967296] x) => (float[A,B] y) { y = Relu(x) }",
    "negative Reshape": "(float[2,3] x) => (float[A] y) <int64[2] s = {-1, -1}> { y = Reshape(x, s) }",
    "overflowing Reshape": "(float[2] x) => (float[A] y) <int64[3] s = {4294967296, 4294967296, -1}>"
    " { y = Reshape(x, s) }",
    "Conv strides": f"(float[1,3,8,8] x, {_WEIGHTS}) => (float[A,B,C,D] y)"
    " { y = Conv <strides = [4294967296, 4294967296]>(x, w) }",
    "Conv pads": f"(float[1,3,8,8] x, {_WEIGHTS}) => (float[A,B,C,D] y)"
    " { y = Conv <pads = [1000000000, 1000000000, 1000000000, 1000000000]>(x, w) }",
    "Conv dilations": f"(float[1,3,8,8] x, {_WEIGHTS}) => (float[A,B,C,D] y) {{ y = Conv <dilations = [0, 0]>(x, w) }}",
    "Conv groups": f"(float[1,3,8,8] x, {_WEIGHTS}) => (float[A,B,C,D] y) {{ y = Conv <group = 0>(x, w) }}",
    "AveragePool kernel": "(float[1,1,8,8] x) => (float[A,B,C,D] y) { y = AveragePool"
    " <kernel_shape = [2147483647, 2147483647], pads = [1073741823, 1073741823, 1073741823, 1073741823]>(x) }",
    "LRN size": "(float[1,4,2,2] x) => (float[A,B,C,D] y) { y = LRN <size = 1000000000>(x) }",
    "Tile": "(float[2] x) => (float[A] y) <int64[1] r = {1000000000000}> { y = Tile(x, r) }",
    "Tile of a constant": "() => (float[A] y) <float[2] x = {1, 2}, int64[1] r = {100000000000}> { y = Tile(x, r) }",
    "Expand": "() => (float[A] y) <float[1] x = {1}, int64[1] r = {1000000000000}> { y = Expand(x, r) }",
    "ConstantOfShape": "() => (float[A] y) <int64[1] r = {100000000000}> { y = ConstantOfShape(r) }",
    "ConstantOfShape below 0": "() => (float[A] y) <int64[1] r = {-1}> { y = ConstantOfShape(r) }",
    "Range": "() => (int64[A] y) <int64 a = {0}, int64 b = {9000000000000000000}, int64 c = {1}>"
    " { y = Range(a, b, c) }",
    "Pad": "(float[2] x) => (float[A] y) <int64[2] r = {1000000000000, 0}> { y = Pad(x, r) }",
    "Resize": "(float[1,1,2,2] x) => (float[A,B,C,D] y) <float[4] s = {1, 1, 1e8, 1}>"
    ' { y = Resize <mode = "cubic">(x, , s) }',
    "OneHot": "(int64[2] x) => (float[A,B] y) <float[2] v = {0, 1}, int64 d = {1000000000000}>"
    " { y = OneHot(x, d, v) }",
    "TopK": "(float[8] x) => (float[A] y, int64[A] i) <int64[1] k = {1000000000000}> { y, i = TopK(x, k) }",
    "SplitToSequence": "(float[10000000] x) => (float[1] y) <int64 p = {0}>"
    " { s = SplitToSequence(x)  y = SequenceAt(s, p) }",
    "Loop that grows": "(float[2] x) => (float[A] y) <int64 n = {60}> { y = Loop (n, , x) <"
    " body = b (int64 i, bool c, float[A] a) => (bool d, float[A] e)"
    " { d = Identity(c)  e = Concat <axis = 0>(a, a) }> }",
    "Loop that stacks": "(float[2] x) => (float[A,2] y) <int64 n = {1000000000000}> { o, y = Loop (n, , x) <"
    " body = b (int64 i, bool c, float[2] a) => (bool d, float[2] e, float[2] f)"
    " { d = Identity(c)  e = Relu(a)  f = Relu(a) }> }",
}


def functions(levels: int, cyclic: bool = False) -> onnx.ModelProto:
    """Functions each of which calls the one before twice; the first the last where they are cyclic."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    made = []
    for level in range(levels):
        below = f"f{level - 1 if level else levels - 1}"
        nodes = [helper.make_node(below, [a], [b], domain="my") for a, b in (("x", "t"), ("t", "y"))]
        leaf = [helper.make_node("Relu", ["x"], ["y"])]
        body = nodes if level or cyclic else leaf
        made.append(helper.make_function("my", f"f{level}", ["x"], ["y"], body, opsets))
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    call = helper.make_node(f"f{levels - 1}", ["x"], ["y"], domain="my")
    graph = helper.make_graph([call], "g", ports[:1], ports[1:])
    return helper.make_model(graph, functions=made, opset_imports=opsets, ir_version=8)


def chain(count: int) -> onnx.ModelProto:
    """Very many nodes."""
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    ports = [helper.make_tensor_value_info(f"v{i}", TensorProto.FLOAT, [2]) for i in (0, count)]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    models = {
        name: onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\ng {text}')
        for name, text in TEXTS.items()
    }
    models["functions, 30 levels"] = functions(30)
    models["functions in a circle"] = functions(3, cyclic=True)
    models["100000 nodes"] = chain(100_000)
    for name, model in models.items():
        try:
            ge.compile(model)
            answer = "compiled"
        except ge.GeError as error:
            answer = error.code
        except BaseException as error:
            answer = repr(error)
        print(json.dumps([name, answer]))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
