"""Programs of PaddlePaddle 2 (`.pdmodel`), written here by hand as `paddle.jit.save` of that version does."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge
from ge.errors import GeError, UnsupportedOperatorsError
from ge.parsers.paddle.program_desc import MESSAGES
from ge.parsers.paddle.program_desc import read as read_program

_CODES = {"float32": 5, "int64": 3, "int32": 2, "bool": 0}
_KINDS = ((bool, 6, "b"), (int, 0, "i"), (float, 1, "f"), (str, 2, "s"))
_LISTS = ((bool, 7, "bools"), (int, 3, "ints"), (float, 4, "floats"), (str, 5, "strings"))


class Writer:
    """A program in the making; variables are names."""

    def __init__(self) -> None:
        self.program: Any = MESSAGES["ProgramDesc"]()
        self.block = self.program.blocks.add(idx=0, parent_idx=-1)
        self.parameters: dict[str, np.ndarray] = {}

    def variable(self, name: str, shape: Sequence[int], dtype: str = "float32", stored: bool = False) -> str:
        variable = self.block.vars.add(name=name, persistable=stored)
        variable.type.type = 7
        variable.type.dense.tensor.data_type = _CODES[dtype]
        variable.type.dense.tensor.dims.extend(shape)
        return name

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> str:
        self.variable(name, shape, dtype)
        self.op("feed", {"X": ["feed"]}, {"Out": [name]}, col=0)
        return name

    def parameter(self, name: str, array: np.ndarray) -> str:
        self.parameters[name] = array
        return self.variable(name, array.shape, str(array.dtype), stored=True)

    def op(
        self, type_: str, inputs: Mapping[str, list[str]], outputs: Mapping[str, list[str]], **attrs: Any
    ) -> None:
        made = self.block.ops.add(type=type_)
        for slots, given in ((made.inputs, inputs), (made.outputs, outputs)):
            for name, arguments in given.items():
                slots.add(parameter=name).arguments.extend(arguments)
        for name, value in attrs.items():
            attr = made.attrs.add(name=name)
            if isinstance(value, list):
                attr.type, place = next(
                    (t, f) for k, t, f in _LISTS if isinstance(value[0] if value else 0, k)
                )
                getattr(attr, place).extend(v.encode() if isinstance(v, str) else v for v in value)
            else:
                attr.type, place = next((t, f) for k, t, f in _KINDS if isinstance(value, k))
                setattr(attr, place, value.encode() if isinstance(value, str) else value)

    def one(
        self,
        type_: str,
        inputs: Mapping[str, list[str]],
        shape: Sequence[int],
        dtype: str = "float32",
        /,
        **attrs: Any,
    ) -> str:
        """An operation with the one result `Out`."""
        name = self.variable(f"{type_}_{len(self.block.ops)}", shape, dtype)
        self.op(type_, inputs, {"Out": [name]}, **attrs)
        return name

    def save(self, folder: Path, *results: str) -> Path:
        for column, name in enumerate(results):
            self.op("fetch", {"X": [name]}, {"Out": ["fetch"]}, col=column)
        path = folder / "net.pdmodel"
        path.write_bytes(self.program.SerializeToString())
        stored = []
        for name in sorted(self.parameters):
            array = self.parameters[name]
            desc: Any = MESSAGES["TensorDesc"](data_type=_CODES[str(array.dtype)], dims=array.shape)
            text = desc.SerializeToString()
            stored.append(struct.pack("<IQIi", 0, 0, 0, len(text)) + text + array.tobytes())
        path.with_suffix(".pdiparams").write_bytes(b"".join(stored))
        return path


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def test_a_second_operand_is_aligned_with_an_axis_of_the_first(tmp_path: Path) -> None:
    w = Writer()
    x = w.input("x", [-1, 3, 4, 5])
    bias = w.parameter("bias", _normal(3))
    plane = w.parameter("plane", _normal(4, 5))
    y = w.one("elementwise_add", {"X": [x], "Y": [bias]}, [-1, 3, 4, 5], axis=1)
    z = w.one("elementwise_mul", {"X": [y], "Y": [plane]}, [-1, 3, 4, 5], axis=-1)
    model = ge.compile(w.save(tmp_path, z), ge.CompileOptions(input_shapes={"x": (2, 3, 4, 5)}))
    given = _normal(2, 3, 4, 5)
    wanted = (given + w.parameters["bias"][:, None, None]) * w.parameters["plane"]
    np.testing.assert_allclose(model(given), wanted, rtol=1e-6, atol=1e-6)


def test_products_of_version_2_flatten_their_operands(tmp_path: Path) -> None:
    w = Writer()
    x = w.input("x", [2, 3, 4])
    weight = w.parameter("w", _normal(12, 6))
    flat = w.one("mul", {"X": [x], "Y": [weight]}, [2, 6], x_num_col_dims=1, y_num_col_dims=1)
    rows = w.one("mul", {"X": [x], "Y": [w.parameter("v", _normal(4, 5))]}, [2, 3, 5], x_num_col_dims=2)
    scaled = w.one("matmul", {"X": [rows], "Y": [rows]}, [2, 3, 3], transpose_Y=True, alpha=0.5)
    model = ge.compile(w.save(tmp_path, flat, scaled))
    given = _normal(2, 3, 4)
    product = given @ w.parameters["v"]
    got = model(given)
    np.testing.assert_allclose(got[0], given.reshape(2, 12) @ w.parameters["w"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[1], product @ product.swapaxes(1, 2) * 0.5, rtol=1e-5, atol=1e-5)


def test_attributes_become_operands_and_lists_are_taken_apart(tmp_path: Path) -> None:
    w = Writer()
    x = w.input("x", [4, 6])
    parts = [w.variable(f"part{i}", [4, size]) for i, size in enumerate((1, 2, 3))]
    w.op("split", {"X": [x]}, {"Out": parts}, axis=1, sections=[1, 2, -1], num=0)
    joined = w.one("concat", {"X": parts[::-1]}, [4, 6], axis=1)
    total = w.one(
        "reduce_sum", {"X": [joined]}, [4, 1], dim=[1], keep_dim=True, reduce_all=False, out_dtype=-1
    )
    wide = w.one("expand_v2", {"X": [total]}, [4, 6], shape=[-1, 6])
    shaped = w.one("reshape2", {"X": [wide]}, [2, 12], shape=[2, -1])
    ones = w.one("fill_constant", {}, [2, 12], shape=[2, 12], dtype=5, value=0.0, str_value="1.25")
    result = w.one("elementwise_sub", {"X": [shaped], "Y": [ones]}, [2, 12], axis=-1)
    place = w.one("arg_max", {"X": [joined]}, [4], "int64", axis=1, keepdims=False, flatten=False, dtype=-1)
    got = ge.compile(w.save(tmp_path, result, place))(_normal(4, 6))
    given = _normal(4, 6)
    turned = np.concatenate([given[:, 3:], given[:, 1:3], given[:, :1]], 1)
    wanted = np.broadcast_to(turned.sum(1, keepdims=True), (4, 6)).reshape(2, 12) - 1.25
    np.testing.assert_allclose(got[0], wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got[1], turned.argmax(1))


@pytest.mark.parametrize("beta", [1.0, 1.7])
def test_activations_keep_their_attributes(tmp_path: Path, beta: float) -> None:
    w = Writer()
    x = w.input("x", [3, 50])
    swish = w.one("swish", {"X": [x]}, [3, 50], beta=beta)
    hard = w.one("hard_swish", {"X": [x]}, [3, 50], threshold=6.0 * beta, scale=6.0, offset=3.0)
    limited = w.one("relu6", {"X": [x]}, [3, 50], threshold=beta)
    given = _normal(3, 50) * 4
    got = ge.compile(w.save(tmp_path, swish, hard, limited))(given)
    np.testing.assert_allclose(got[0], given / (1 + np.exp(-beta * given)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[1], given * np.clip(given + 3, 0, 6 * beta) / 6, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[2], np.clip(given, 0, beta), rtol=1e-6)


def test_statistics_that_files_describe_as_empty_are_no_hindrance(tmp_path: Path) -> None:
    w = Writer()
    x = w.input("x", [2, 3, 4, 4])
    given = {
        n: w.parameter(n, np.abs(_normal(3)) + i) for i, n in enumerate(("Scale", "Bias", "Mean", "Variance"))
    }
    y = w.variable("y", [2, 3, 4, 4])
    outputs = {"Y": [y], "MeanOut": ["Mean"], "VarianceOut": ["Variance"]}
    outputs |= {name: [w.variable(name, [])] for name in ("SavedMean", "SavedVariance", "ReserveSpace")}
    inputs = {"X": [x], **{n: [v] for n, v in given.items()}}
    w.op("batch_norm", inputs, outputs, epsilon=1e-5, momentum=0.9, is_test=True, data_layout="NCHW")
    image = _normal(2, 3, 4, 4)
    scale, bias, mean, variance = (
        w.parameters[n][:, None, None] for n in ("Scale", "Bias", "Mean", "Variance")
    )
    wanted = (image - mean) / np.sqrt(variance + 1e-5) * scale + bias
    np.testing.assert_allclose(ge.compile(w.save(tmp_path, y))(image), wanted, rtol=1e-5, atol=1e-5)


def test_all_unmapped_operators_are_named_at_once(tmp_path: Path) -> None:
    w = Writer()
    x = w.input("x", [2, 3])
    y = w.one("while", {"X": [x]}, [2, 3])
    z = w.one("beam_search", {"X": [x]}, [2, 3])
    sum_ = w.one("elementwise_add", {"X": [y], "Y": [z]}, [2, 3], axis=-1)
    with pytest.raises(UnsupportedOperatorsError) as caught:
        ge.compile(w.save(tmp_path, sum_))
    assert [item.operator for item in caught.value.items] == ["pd_op.while", "pd_op.beam_search"]


@pytest.mark.parametrize("content", [b"", b"\x0a\x80", b"no program at all"])
def test_what_is_no_program_is_refused(content: bytes) -> None:
    with pytest.raises(GeError, match="not a program of PaddlePaddle 2"):
        read_program(content, "net.pdmodel")


def test_missing_parameters_are_named(tmp_path: Path) -> None:
    w = Writer()
    y = w.one(
        "elementwise_add", {"X": [w.input("x", [3])], "Y": [w.parameter("b", _normal(3))]}, [3], axis=-1
    )
    path = w.save(tmp_path, y)
    path.with_suffix(".pdiparams").unlink()
    with pytest.raises(GeError, match=r"net\.pdmodel has 1 parameters, and net\.pdiparams cannot be read"):
        ge.compile(path)
