"""Candidates: what each refuses and costs, which one is chosen and why, and that the runtime runs what is chosen."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npu_runtime as rt
from ge.implementations import CANDIDATES, DECOMPOSED, Operation, choose
from ge.ir.types import TensorDesc
from ge.plan import View
from ge.target import Target, host, named

SERVER = named("avx512_bf16")


def _dense(*shape: int, dtype: str = "float32") -> View:
    return View.of(0, TensorDesc(shape, dtype))


def _image(n: int, channels: int, height: int, width: int, dtype: str = "float32") -> View:
    """Channels-last memory, seen as (N, C, H, W)."""
    return _dense(n, height, width, channels, dtype=dtype).permute((0, 3, 1, 2))


def _product(rows: int, depth: int, columns: int, **given: Any) -> Operation:
    attrs = {"has_bias": False, "post_ops": given.pop("post_ops", []), **given.pop("attrs", {})}
    dtype = given.pop("dtype", "float32")
    a, b, y = (_dense(*shape, dtype=dtype) for shape in ((rows, depth), (depth, columns), (rows, columns)))
    return Operation("matmul", (a, b), (y,), attrs, **given)


def _conv(
    shape: tuple[int, int, int, int],
    outputs: int,
    kernel: int = 3,
    kind: str = "conv",
    dtype: str = "float32",
    constant: bool = True,
    **attrs: Any,
) -> Operation:
    n, channels, height, width = shape
    groups = attrs.get("groups", 1)
    pad = kernel // 2
    x, y = _image(n, channels, height, width, dtype), _image(n, outputs, height, width, dtype)
    ends = (channels, outputs // groups) if kind == "deconv" else (outputs, channels // groups)
    given = {"pads_begin": [pad, pad], "pads_end": [pad, pad], "strides": [1, 1], "post_ops": [], **attrs}
    weights = _dense(*ends, kernel, kernel, dtype=dtype)
    return Operation(kind, (x, weights), (y,), given, frozenset({1} if constant else ()))


def _gradient(
    shape: tuple[int, int, int, int], outputs: int, kernel: int, dtype: str = "float32"
) -> Operation:
    n, channels, height, width = shape
    pad = kernel // 2
    sides = (_image(*shape, dtype), _image(n, outputs, height, width, dtype))
    attrs = {"pads_begin": [pad, pad], "pads_end": [pad, pad], "strides": [1, 1]}
    return Operation("conv_grad_weights", sides, (_dense(outputs, channels, kernel, kernel),), attrs)


def _name(op: Operation, target: Target = SERVER) -> str:
    return choose(op, target).name


# -- products ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(1024, 768, 3072), (512, 768, 768), (788, 768, 768), (768, 1024, 3072)])
def test_large_products_save_arithmetic(sizes: tuple[int, int, int]) -> None:
    assert _name(_product(*sizes)) == "strassen"


@pytest.mark.parametrize("sizes", [(64, 2048, 2048), (2048, 2048, 64), (2048, 64, 2048)])
def test_products_that_gain_too_little_are_the_librarys(sizes: tuple[int, int, int]) -> None:
    assert _name(_product(*sizes)) == "onednn"


def test_more_cores_make_parts_that_gain_less() -> None:
    op = _product(512, 768, 768)
    assert [_name(op, replace(SERVER, cores=n)) for n in (1, 2, 16)] == ["strassen", "strassen", "onednn"]


def test_epilogues_that_an_implementation_lacks_exclude_it() -> None:
    choice = choose(_product(1024, 768, 3072, post_ops=["tanh"]), SERVER)
    assert choice.name == "onednn" and ("strassen", "it has no epilogue tanh here") in choice.against
    assert _name(_product(1024, 768, 3072, post_ops=["gelu_erf"])) == "strassen"


def test_few_rows_read_weights_that_are_not_packed() -> None:
    assert _name(_product(4, 512, 512)) == "narrow"
    assert _name(_product(4, 60, 60)) == "onednn"
    assert _name(_product(9, 512, 512)) == "onednn"
    assert _name(_product(4, 512, 512, constant=frozenset({1}))) == "onednn"
    assert _name(_product(4, 512, 512, steady=frozenset({1}))) == "onednn"


def test_few_terms_write_a_large_result_past_the_caches() -> None:
    assert _name(_product(4096, 4, 1024)) == "narrow"
    assert _name(_product(1024, 4, 512)) == "onednn"
    assert _name(_product(4096, 4, 1024), replace(SERVER, costs=None)) == "narrow"
    assert _name(_product(1024, 4, 512), replace(SERVER, costs=None)) == "onednn"
    assert _name(_product(4096, 4, 4096, dtype="bfloat16")) == "onednn"


def test_high_precision_excludes_larger_rounding_errors_and_says_so() -> None:
    for op in (_product(1024, 768, 3072), _conv((1, 64, 56, 56), 64), _gradient((16, 64, 28, 28), 64, 3)):
        assert _name(op) in ("strassen", "winograd")
        precise = choose(replace(op, attrs={**op.attrs, "precise": True}), SERVER)
        assert precise.name not in ("strassen", "winograd")
        assert "high_precision excludes" in precise.against[0][1]


# -- convolutions ------------------------------------------------------------------------------------------------


def test_few_tiles_stay_direct() -> None:
    assert _name(_conv((1, 512, 7, 7), 512)) == "onednn"
    assert _name(_conv((4, 512, 7, 7), 512)) == "winograd"


@pytest.mark.parametrize("kind", ["conv", "deconv"])
@pytest.mark.parametrize(
    ("batch", "channels", "dtype"), [(1, 64, "float32"), (2, 64, "bfloat16"), (7, 256, "bfloat16")]
)
def test_variable_weights_that_gain_nothing_stay_direct(
    kind: str, batch: int, channels: int, dtype: str
) -> None:
    op = _conv((batch, channels, 14, 14), channels, kind=kind, dtype=dtype, constant=False)
    assert _name(op) == "onednn"


def test_activations_decide_about_convolutions_of_our_own() -> None:
    depthwise = {"kernel": 3, "groups": 32}
    assert _name(_conv((1, 32, 56, 56), 32, **depthwise, post_ops=["swish,1.0"])) == "depthwise"
    assert _name(_conv((1, 32, 56, 56), 32, **depthwise, post_ops=["relu"])) == "onednn"
    assert _name(_conv((1, 96, 28, 28), 64, 1, post_ops=["swish,1.0"])) == "pointwise"
    assert _name(_conv((1, 96, 28, 28), 64, 1, post_ops=["relu"])) == "onednn"
    assert _name(_conv((1, 3, 64, 64), 64, 5, post_ops=["swish,1.0"])) == "onednn_swish"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_depthwise_convolutions_run_where_the_library_is_slow(dtype: str) -> None:
    def weights(images: int, kernel: int) -> str:
        op = _gradient((images, 96, 56, 56), 96, kernel, dtype)
        dw = _dense(96, 1, kernel, kernel)
        return _name(replace(op, outputs=(dw,), attrs={**op.attrs, "groups": 96}))

    names = [weights(images, kernel) for images, kernel in ((1, 3), (16, 3), (1, 5))]
    assert names == ["onednn", "depthwise_weight_gradient", "depthwise_weight_gradient"]

    def source(stride: int) -> str:
        op = _conv((2, 96, 28, 28), 96, kind="deconv", dtype=dtype, groups=96, constant=False)
        size = 28 * stride
        dx = replace(op.outputs[0], shape=(2, 96, size, size), strides=(96 * size * size, 1, 96 * size, 96))
        return _name(replace(op, outputs=(dx,), attrs={**op.attrs, "strides": [stride] * 2}))

    strided = "depthwise_source_gradient" if dtype == "bfloat16" else "onednn"
    assert [source(1), source(2)] == ["onednn", strided]


def test_few_channels_leave_gradients_of_weights_to_the_library() -> None:
    cases = [(3, 64, "bfloat16"), (32, 192, "float32"), (16, 64, "bfloat16"), (32, 48, "bfloat16")]
    assert {_name(_gradient((1, i, 9, 9), o, 1, d)) for i, o, d in cases} == {"onednn"}
    assert _name(_gradient((1, 32, 9, 9), 64, 1, "bfloat16")) == "weight_gradient"
    assert _name(_gradient((16, 64, 28, 28), 64, 3)) == "winograd"


def _lstm(batch: int, constant: bool = True) -> Operation:
    hidden = 32
    state = _dense(1, 1, batch, hidden)
    inputs = (
        _dense(5, batch, 16),
        state,
        state,
        _dense(1, 1, 16, 4, hidden),
        _dense(1, 1, hidden, 4, hidden),
        _dense(1, 1, 4, hidden),
    )
    attrs = {"cell": "lstm", "direction": "forward"}
    known = frozenset({3, 4, 5} if constant else ())
    return Operation("rnn", inputs, (_dense(5, batch, hidden), state, state), attrs, known)


def test_small_batches_of_known_weights_have_an_lstm_of_their_own() -> None:
    assert [_name(_lstm(n)) for n in (1, 4, 5)] == ["small_batch", "small_batch", "onednn"]
    assert _name(_lstm(1, constant=False)) == "onednn"


# -- targets -----------------------------------------------------------------------------------------------------

EXAMPLES = {
    "strassen": _product(1024, 768, 3072),
    "narrow": _product(4, 512, 512),
    "winograd": _conv((1, 64, 56, 56), 64),
    "pointwise": _conv((1, 96, 28, 28), 64, 1, post_ops=["swish,1.0"]),
    "weight_gradient": _gradient((1, 64, 9, 9), 64, 1),
    "small_batch": _lstm(1),
}


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        ("portable", set()),
        ("avx2", set(EXAMPLES) - {"strassen"}),
        ("avx512", set(EXAMPLES)),
    ],
)
def test_a_target_has_what_its_instructions_allow(target: str, kept: set[str]) -> None:
    chosen = {name: choose(op, named(target)) for name, op in EXAMPLES.items()}
    assert {name for name, choice in chosen.items() if choice.name == name} == kept
    for name in EXAMPLES.keys() - kept:
        assert any(other == name and "the target has no" in why for other, why in chosen[name].against)


def test_candidates_of_one_kind_of_device_refuse_another() -> None:
    choice = choose(EXAMPLES["narrow"], replace(SERVER, kind="gpu"))
    assert choice.name == "" and {why for _, why in choice.against} == {"it runs on a cpu"}


def test_without_measured_costs_operations_and_bytes_decide() -> None:
    """Products of bfloat16 by tiles are so fast that saving float32 arithmetic loses."""
    server = named("amx")
    assert server.costs_of("bfloat16") is None and server.costs_of("float32") is server.costs is not None
    assert _name(_conv((8, 256, 28, 28), 256, dtype="bfloat16"), server) == "onednn"
    assert _name(_conv((8, 256, 28, 28), 256), server) == "winograd"
    assert _name(_product(1024, 64, 64), server) == "onednn"


def test_costs_are_seconds_and_the_choice_has_the_least() -> None:
    for op in EXAMPLES.values():
        choice = choose(op, SERVER)
        plain = CANDIDATES[op.kind][-1].cost(op, SERVER)
        assert 0 < choice.seconds <= plain < 1


# -- the runtime runs what is chosen -----------------------------------------------------------------------------


def _run(op: Operation, name: str, arrays: list[np.ndarray]) -> np.ndarray:
    """The first result of an operation in one implementation; operands as their views are laid out."""
    program = rt.Program(op.kind)
    views, feeds = [], []
    for i, (view, array) in enumerate(zip(op.inputs, arrays, strict=True)):
        if i in op.constant:
            buffer = program.constant(array)
        else:
            buffer = program.input(len(feeds), array.nbytes)
            feeds.append(array)
        views.append(replace(view, buffer=buffer).as_tuple())
    results = [np.zeros(math.prod(v.shape), rt.numpy_dtype(v.dtype)) for v in op.outputs]
    outputs = [
        replace(v, buffer=program.output(i, r.nbytes)).as_tuple()
        for i, (v, r) in enumerate(zip(op.outputs, results, strict=True))
    ]
    program.task(op.kind, name, views, outputs, {**op.attrs, "implementation": name})
    program.finalize(0)
    program.run(feeds, results)
    return results[0].astype(np.float64)


DTYPES = st.sampled_from(["float32", "bfloat16"])
POST_OPS = st.lists(st.sampled_from(["relu", "clip,0.0,6.0", "swish,1.0", "hardswish", "add"]), max_size=2)


@st.composite
def _operations(draw: st.DrawFn) -> Operation:
    kind = draw(st.sampled_from(["matmul", "conv", "deconv", "conv_grad_weights"]))
    dtype, post_ops = draw(DTYPES), draw(POST_OPS)
    if kind == "matmul":
        rows, depth, columns = (draw(st.sampled_from([1, 5, 16, 70])) for _ in range(3))
        a, b, y = ((rows, depth), (depth, columns), (rows, columns))
        views = tuple(_dense(*s, dtype=dtype) for s in (a, b, *[y] * post_ops.count("add")))
        return Operation(kind, views, (_dense(*y, dtype=dtype),), {"post_ops": post_ops})
    channels, outputs = (draw(st.sampled_from([3, 16, 32, 48])) for _ in range(2))
    kernel = draw(st.sampled_from([1, 3, 5]))
    shape = (draw(st.integers(1, 2)), channels, *(draw(st.integers(5, 12)) for _ in range(2)))
    if kind == "conv_grad_weights":
        return _gradient(shape, outputs, kernel, dtype)
    groups = draw(st.sampled_from([1, channels]))
    outputs = channels if groups > 1 else outputs
    op = _conv(shape, outputs, kernel, kind, dtype, draw(st.booleans()), groups=groups, post_ops=post_ops)
    return replace(op, inputs=(*op.inputs, *[op.outputs[0]] * post_ops.count("add")))


@settings(max_examples=120, deadline=None)
@given(op=_operations(), seed=st.integers(0, 9))
def test_what_a_candidate_accepts_the_runtime_runs_right(op: Operation, seed: int) -> None:
    """Every candidate that does not refuse gives the library's answer, whatever it costs."""
    target = host()
    names = [c.name for c in CANDIDATES[op.kind] if not c.refuse(op, target) and c.name != DECOMPOSED]
    rng = np.random.default_rng(seed)
    arrays = [
        (rng.standard_normal(math.prod(v.shape)) / 4).astype(rt.numpy_dtype(v.dtype)) for v in op.inputs
    ]
    expected = _run(op, "onednn", arrays)
    narrow = any(v.dtype == "bfloat16" for v in (*op.inputs, *op.outputs))
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    for name in names:
        found = _run(op, name, arrays)
        np.testing.assert_allclose(
            found, expected, rtol=0, atol=(3e-2 if narrow else 2e-5) * scale, err_msg=name
        )


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_libraries_of_a_gpu_refuse_operands_that_they_do_not_read(kernel: int, dtype: str) -> None:
    plain = _conv((2, 16, 8, 8), 32, kernel, dtype=dtype)
    product = _product(8, 16, 32)
    gpu = named("sm_90")
    assert choose(plain, gpu).name and choose(product, gpu).name
    gate = _image(2, 16, 1, 1, dtype)
    gated = replace(plain, inputs=(*plain.inputs, gate), attrs={**plain.attrs, "has_gate": True})
    for op in (
        gated,
        replace(plain, inputs=(*plain.inputs, gate)),
        replace(product, inputs=(*product.inputs, _dense(8, 32))),
    ):
        choice = choose(op, gpu)
        assert not choice.name and "no operands but a bias" in choice.reason
