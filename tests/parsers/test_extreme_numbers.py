"""ONNX operators on numbers at the ends of their types."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import ge

_HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'


def _run(text: str, *arrays: np.ndarray) -> np.ndarray:
    return np.asarray(ge.compile(onnx.parser.parse_model(_HEAD + text))(*arrays))


def test_the_factor_of_gemm_is_applied_to_the_product() -> None:
    """Not to an operand, which would overflow, vanish or lose the sign of zero."""
    text = "net (float[2,2] a, float[2,1] b) => (float[2,1] y) {{ y = Gemm <alpha = {}> (a, b) }}"
    a, b = np.full((2, 2), 1e-30, np.float32), np.full((2, 1), 1e30, np.float32)
    np.testing.assert_allclose(_run(text.format("1e20"), a, b), 2e20, 1e-5)
    np.testing.assert_allclose(_run(text.format("1e-20"), a * 1e38, b / 1e38), 2e-20, 1e-5)
    zero = _run(text.format("0.0"), np.ones_like(a), -np.ones_like(b))
    assert (zero == 0).all() and np.signbit(zero).all()


@pytest.mark.parametrize("c", [(3,), (1, 3), (2, 3), (2, 1), ()])
def test_gemm_adds_what_broadcasts(c: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    a, b, bias = (rng.standard_normal(s).astype(np.float32) for s in ((2, 4), (4, 3), c))
    for alpha, beta in ((1.0, 1.0), (0.5, 1.0), (1.0, -2.0), (0.5, -2.0), (0.5, 0.0)):
        shape = f"[{','.join(map(str, c))}]" if c else ""
        text = f"net (float[2,4] a, float[4,3] b, float{shape} c) => (float[2,3] y) "
        text += f"{{ y = Gemm <alpha = {alpha}, beta = {beta}> (a, b, c) }}"
        np.testing.assert_allclose(_run(text, a, b, bias), alpha * (a @ b) + beta * bias, 1e-5, 1e-5)


@pytest.mark.parametrize("dtype", ["int32", "int64", "int16"])
def test_integers_keep_their_digits(dtype: str) -> None:
    most = np.iinfo("int32" if dtype == "int64" else dtype).max
    x = np.array([[most, most - 1, -most, 1, 0]], dtype)
    shrunk = _run(
        f"net ({dtype}[1,5] x) => ({dtype}[1,5] y) {{ y = Shrink <bias = 0.5, lambd = 1.5> (x) }}", x
    )
    np.testing.assert_array_equal(shrunk, [[most - 1, most - 2, 1 - most, 0, 0]])
    if dtype == "int16":
        return
    text = f"net ({dtype}[1,5] x) => ({dtype}[1,5] y) "
    text += "{ axes = Constant <value_ints = [0]> () y = ReduceL2 (x, axes) }"
    np.testing.assert_array_equal(_run(text, x), np.abs(x))


@pytest.mark.parametrize("dtype", ["float16", "float"])
def test_norms_whose_squares_do_not_fit(dtype: str) -> None:
    x = np.array([[300, 400], [-30, 40]], "float16" if dtype == "float16" else "float32")
    text = f"net ({dtype}[2,2] x) => ({dtype}[2,1] y) "
    text += "{ axes = Constant <value_ints = [1]> () y = ReduceL2 (x, axes) }"
    np.testing.assert_array_equal(_run(text, x), [[500], [50]])


@pytest.mark.parametrize("size", [0, 2])
@pytest.mark.parametrize("dtype", ["int32", "int64", "float", "double"])
@pytest.mark.parametrize(
    "operator", ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]
)
def test_reductions_of_no_axes_keep_type_and_shape(operator: str, dtype: str, size: int) -> None:
    text = f"net ({dtype}[{size}] x) => ({dtype}[{size}] y) {{ "
    text += f"y = Reduce{operator} <noop_with_empty_axes = 1> (x) }}"
    kind = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    found = _run(text, np.ones(size, kind))
    assert (found.dtype, found.shape) == (np.dtype(kind), (size,))


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap", "constant"])
def test_borders_of_empty_tensors(mode: str) -> None:
    """Only an empty axis that gets a border has nothing to fill it with."""
    text = "net (float[0,3] x) => (float[0,6] y) "
    text += f'{{ pads = Constant <value_ints = [0, 2, 0, 1]> () y = Pad <mode = "{mode}"> (x, pads) }}'
    assert _run(text, np.zeros((0, 3), np.float32)).shape == (0, 6)
    text = text.replace("[0, 2, 0, 1]", "[1, 0, 0, 0]").replace("[0,6]", "[1,3]")
    if mode == "constant":
        assert _run(text, np.zeros((0, 3), np.float32)).shape == (1, 3)
    else:
        with pytest.raises(ge.GeError, match="empty axis"):
            _run(text, np.zeros((0, 3), np.float32))


@pytest.mark.parametrize("operator", ["Relu", "Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "Max", "Min"])
@pytest.mark.parametrize("added", [False, True])
def test_nan_passes_the_epilogues_of_convolutions(operator: str, added: bool) -> None:
    """Alone, and after the sum with another convolution, in whose memory it may be made."""
    more = {"Clip": ", low, high", "Max": ", low", "Min": ", high"}.get(operator, "")
    text = f"""net (float[1,16,9,9] x, float[1,16,9,9] r, float[16,16,1,1] w) => (float[1,16,9,9] y) {{
      low = Constant <value_float = -0.5> ()
      high = Constant <value_float = 0.75> ()
      c = Conv (x, w)
      s = Conv (r, w)
      sum = Add (c, s)
      y = {operator} ({"sum" if added else "c"}{more})
    }}"""
    x, r = np.random.default_rng(0).standard_normal((2, 1, 16, 9, 9)).astype(np.float32)
    w = np.eye(16, dtype=np.float32).reshape(16, 16, 1, 1)
    model = ge.compile(onnx.parser.parse_model(_HEAD + text))
    plain = np.asarray(model(x, r, w))
    assert not np.isnan(plain).any()
    for where in (x, r) if added else (x,):
        where[0, 3, 4, 5] = np.nan
        wrong = np.zeros(plain.shape, bool)
        wrong[0, :, 4, 5] = True  # a product of NaN and zero
        found = np.asarray(model(x, r, w))
        np.testing.assert_array_equal(np.isnan(found), wrong)
        np.testing.assert_array_equal(found[~wrong], plain[~wrong])
        where[0, 3, 4, 5] = 0.5
    np.testing.assert_array_equal(np.isnan(np.asarray(model(x, r, w))), False)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("diagonal", [-(2**63), -(2**63) + 1, -4, 5, 2**31, 2**63 - 2, 2**63 - 1])
def test_triangles_beyond_the_matrix_are_whole_or_empty(diagonal: int, upper: int) -> None:
    text = f"net (int64[3,4] x) => (int64[3,4] y) <int64 k = {{{diagonal}}}> {{ y = Trilu <upper = {upper}> (x, k) }}"
    x = np.arange(1, 13).reshape(3, 4)
    np.testing.assert_array_equal(_run(text, x), x if (diagonal < 0) == bool(upper) else 0 * x)


@pytest.mark.parametrize("most", [-(2**63), -1, 0, 2, 2**31, 2**63 - 2, 2**63 - 1])
def test_all_boxes_are_asked_for_by_the_largest_integer(most: int) -> None:
    text = f"net (float[1,3,4] b, float[1,1,3] s) => (int64[A,B] y) <int64[1] m = {{{most}}}, float[1] t = {{0.5}}>"
    boxes = np.array([[[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]]], np.float32)
    scores = np.array([[[0.1, 0.3, 0.2]]], np.float32)
    found = _run(text + " { y = NonMaxSuppression (b, s, m, t) }", boxes, scores)
    assert found[:, 2].tolist() == [1, 2, 0][: max(most, 0)]


@pytest.mark.parametrize("size", [0, 1, 2, 5])
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("operator", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_short_windows_are_the_standards(operator: str, periodic: int, size: int) -> None:
    """A symmetric window of one element is 0 / 0."""
    text = f"net () => (float[N] y) <int64 n = {{{size}}}> {{ y = {operator} <periodic = {periodic}> (n) }}"
    with np.errstate(invalid="ignore"):
        wanted = ReferenceEvaluator(onnx.parser.parse_model(_HEAD + text)).run(None, {})[0]
    np.testing.assert_allclose(_run(text), wanted, atol=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
@pytest.mark.parametrize("axis", [0, 1])
def test_means_of_integers_do_not_overflow(axis: int, dtype: str) -> None:
    """As ONNX Runtime's, which rounds towards zero."""
    ends = np.iinfo(dtype)
    x = np.array([[ends.max, ends.max, ends.min], [ends.max - 1, ends.min, ends.min]], dtype)
    shape = f"[{2 if axis else 1},{1 if axis else 3}]"
    text = f"net ({dtype}[2,3] x) => ({dtype}{shape} y) "
    text += f"{{ axes = Constant <value_ints = [{axis}]> () y = ReduceMean (x, axes) }}"
    total = x.astype(object).sum(axis, keepdims=True)
    expected = [int(t) // x.shape[axis] if t > 0 else -(-int(t) // x.shape[axis]) for t in total.ravel()]
    np.testing.assert_array_equal(_run(text, x).ravel(), expected)


# -- what differs from NumPy or PyTorch at the ends of a range --------------------------------------------------


def _onnx_runtime(text: str, *arrays: np.ndarray) -> list[np.ndarray]:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = onnx.parser.parse_model(_HEAD + text)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {port.name: array for port, array in zip(model.graph.input, arrays, strict=True)}
    return list(session.run(None, feeds))


@pytest.mark.parametrize("start", [-4, -3, 1, 9])
@pytest.mark.parametrize("end", [-9, -3, 0, 9])
@pytest.mark.parametrize("step", [-2, -1, 1])
def test_slices_that_start_or_end_beyond_an_axis(start: int, end: int, step: int) -> None:
    constants = {"s": start, "e": end, "a": 0, "t": step}
    text = " ".join(f"{name} = Constant <value_ints = [{value}]> ()" for name, value in constants.items())
    text = f"net (float[3] x) => (float[n] y) {{ {text} y = Slice (x, s, e, a, t) }}"
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(_run(text, x), _onnx_runtime(text, x)[0])


@pytest.mark.parametrize("low", [-4, -1, 3])
@pytest.mark.parametrize("high", [-4, -1, 3])
@pytest.mark.parametrize("size", [0, 1, 4])
def test_negative_pads_crop_the_padded_tensor(low: int, high: int, size: int) -> None:
    if size + low + high < 0:
        pytest.skip("nothing would be left")
    text = f"net (float[{size}] x) => (float[n] y) {{{{ p = Constant <value_ints = [{low}, {high}]> () "
    text = (text + "v = Constant <value_float = 7.0> () y = Pad (x, p, v) }}").format()
    x = np.arange(size, dtype=np.float32)
    padded = np.pad(x, (max(low, 0), max(high, 0)), constant_values=7.0)
    wanted = padded[max(-low, 0) : len(padded) - max(-high, 0)]
    np.testing.assert_array_equal(_run(text, x), wanted)


def test_the_dynamic_scale_of_zeros_is_one() -> None:
    text = "net (float[3] x) => (uint8[3] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear (x) }"
    x = np.zeros(3, np.float32)
    found = ge.compile(onnx.parser.parse_model(_HEAD + text))(x)
    for ours, theirs in zip(found, _onnx_runtime(text, x), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_nearest_samples_between_two_pixels(padding: str, align: int) -> None:
    rng = np.random.default_rng(align)
    x = rng.standard_normal((1, 1, 2, 3)).astype(np.float32)
    grid = rng.integers(-5, 6, (1, 4, 4, 2)).astype(np.float32)
    text = f'<align_corners = {align}, mode = "nearest", padding_mode = "{padding}"> (x, g)'
    text = f"net (float[1,1,2,3] x, float[1,4,4,2] g) => (float[1,1,4,4] y) {{ y = GridSample {text} }}"
    np.testing.assert_array_equal(_run(text, x, grid), _onnx_runtime(text, x, grid)[0])


def test_deformed_convolutions_read_nothing_at_infinity() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((1, 2, 5, 6), (3, 2, 2, 2)))
    offset = rng.standard_normal((1, 8, 4, 5)).astype(np.float32)
    offset[0, :5, 0, 0] = [np.inf, -np.inf, 1e20, -1e20, 1e6]
    inputs = "float[1,2,5,6] x, float[3,2,2,2] w, float[1,8,4,5] o"
    text = f"net ({inputs}) => (float[1,3,4,5] y) {{ y = DeformConv <kernel_shape = [2, 2]> (x, w, o) }}"
    np.testing.assert_allclose(_run(text, x, w, offset), _onnx_runtime(text, x, w, offset)[0], 1e-4, 1e-5)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("space", [(3, 4), (1, 4), (4, 1), (1, 1), (2, 3, 4), (1, 3, 1), (3, 1, 2)], ids=str)
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_affine_grids_one_element_wide(dtype: str, space: tuple[int, ...], align: int) -> None:
    rank = len(space)
    theta = np.random.default_rng(rank).standard_normal((2, rank, rank + 1)).astype(DTYPES_OF_GRIDS[dtype])
    text = (
        f"net ({dtype}[2,{rank},{rank + 1}] t) => ({dtype}[2,{','.join(map(str, space))},{rank}] y) "
        f"{{ s = Constant <value_ints = {[2, 1, *space]}> () y = AffineGrid <align_corners = {align}> (t, s) }}"
    )
    np.testing.assert_allclose(_run(text, theta), _onnx_runtime(text, theta)[0], 1e-5, 1e-5)


DTYPES_OF_GRIDS = {"float": np.float32, "double": np.float64}
