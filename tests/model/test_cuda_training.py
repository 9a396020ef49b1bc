"""Training on the simulated GPU: gradients and updates against the CPU, and what runs where."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ge
from ge.build import assemble
from ge.compiler import compile_graph
from ge.model.cuda.host import runs_on_host
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from tbe.cuda.row_sums import build_row_sums

TOLERANCE = {"float32": 1e-5, "float16": 3e-3, "bfloat16": 2e-2}
GEOMETRIES = [
    # kernel, strides, dilations, pads_begin, pads_end, groups
    ((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1),
    ((3, 2), (2, 1), (1, 2), (1, 0), (0, 1), 1),
    ((3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 4),
    ((1, 1), (1, 1), (1, 1), (0, 0), (0, 0), 1),
    ((1, 1), (2, 2), (1, 1), (0, 0), (0, 0), 1),
]


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(make, dtype: str, *feeds: np.ndarray, donated=()) -> ge.Model:
    """Compile a graph for both, compare all outputs; the model of the GPU."""
    given = [a.astype(getattr(ml_dtypes, dtype, dtype)) if a.dtype == np.float32 else a for a in feeds]

    def graph():
        b = GraphBuilder("step")
        results = make(b, *[b.input(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(given)])
        for value in results if isinstance(results, tuple) else (results,):
            b.output(value)
        return b.graph

    model = compile_graph(graph(), CompileOptions(target="sm_90"), "step", donated)
    wants = compile_graph(graph(), None, "step", donated).run([a.copy() for a in given])
    for got, want in zip(model.run([a.copy() for a in given]), wants, strict=True):
        size = np.abs(want.astype(np.float64)).max()
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=0, atol=TOLERANCE[dtype] * size
        )
    return model


def kinds(model: ge.Model) -> list[str]:
    return [task.kind for task in model.plan.tasks]


def on_host(model: ge.Model) -> list[str]:
    return [task.name for task in model.plan.tasks if runs_on_host(task)]


def window(geometry) -> dict:
    _, strides, dilations, begin, end, groups = geometry
    names = ("strides", "dilations", "pads_begin", "pads_end")
    return {n: list(v) for n, v in zip(names, (strides, dilations, begin, end), strict=True)} | {
        "groups": groups
    }


def sizes(geometry) -> list[int]:
    kernel, strides, dilations, begin, end, _ = geometry
    rows = zip((8, 7), kernel, strides, dilations, begin, end, strict=True)
    return [(n + a + b - (k - 1) * d - 1) // s + 1 for n, k, s, d, a, b in rows]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_gradients_of_convolutions(geometry, dtype) -> None:
    """Of images and of weights, from weights that the step computes."""
    groups = geometry[-1]

    def make(b, x, w, dy):
        scaled = b.op("Add", w, w)
        dx = b.op("ConvTranspose", dy, scaled, output_shape=[8, 7], **window(geometry))
        dw = b.op("ConvGradWeight", x, dy, kernel=list(geometry[0]), **window(geometry))
        return dx, dw

    feeds = random(2, 8, 8, 7), random(8, 8 // groups, *geometry[0]), random(2, 8, *sizes(geometry), seed=2)
    model = check(make, dtype, *feeds)
    cubes = [t for t in model.plan.tasks if t.kind in ("deconv", "conv_grad_weights")]
    assert [t.attrs["implementation"] for t in cubes if not runs_on_host(t)] == ["cudnn"] * 2
    assert not on_host(model)


def test_computed_weights_have_their_input_channels_last() -> None:
    """As tensor cores read them; the transpose is a part of the kernel that computes them."""

    def make(b, x, w):
        return b.op("Conv", x, b.op("Add", w, w), pads_begin=[1, 1], pads_end=[1, 1])

    model = check(make, "float16", random(1, 8, 5, 5), random(8, 8, 3, 3))
    conv = next(t for t in model.plan.tasks if t.kind == "conv")
    assert conv.inputs[1].strides[1] == 1
    assert kinds(model).count("kernel") <= 3  # images to channels last and back, weights


def test_a_gradient_of_weights_may_be_wider_than_its_operands() -> None:
    def make(b, x, dy):
        return b.op("ConvGradWeight", x, dy, kernel=[3, 3], output_dtype="float32")

    model = check(make, "bfloat16", random(2, 8, 6, 6), random(2, 8, 4, 4, seed=1))
    assert [v.dtype for t in model.plan.tasks if t.kind == "conv_grad_weights" for v in t.outputs] == [
        "float32"
    ]


@pytest.mark.parametrize("data_format", ["channels_first", "channels_last"])
@pytest.mark.parametrize(("kernel", "strides", "pad"), [(3, 2, 1), (2, 2, 0), (3, 1, 1)])
def test_gradients_of_pools(data_format, kernel, strides, pad) -> None:
    window = {
        "kernel": [kernel] * 2,
        "strides": [strides] * 2,
        "pads_begin": [pad] * 2,
        "pads_end": [pad] * 2,
    }
    positions = [(n + 2 * pad - kernel) // strides + 1 for n in (8, 7)]
    shape, taken = ([2, 4, 8, 7], [2, 4, *positions])
    if data_format == "channels_last":
        shape, taken = ([2, 8, 7, 4], [2, *positions, 4])

    def make(b, x, dy):
        y = b.op("Add", x, x)
        most = b.op("MaxPoolGrad", dy, y, data_format=data_format, **window)
        return most, b.op("AvgPoolGrad", dy, shape=shape, data_format=data_format, **window)

    x = np.round(random(*shape) * 2)  # with equal maxima: the first one counts
    assert not on_host(check(make, "float32", x, random(*taken, seed=1)))


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_one_update_in_each_row_is_a_kernel(reduction) -> None:
    """The gradient of the negative log likelihood."""

    def make(b, x, places, updates):
        return b.op("ScatterElements", x, places, updates, axis=1, reduction=reduction)

    places = np.array([[3], [-1], [0], [2]])
    assert not on_host(check(make, "float32", random(4, 6), places, random(4, 1, seed=1)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("width", [3, 600])
def test_gradients_of_embeddings_are_sums_of_rows(dtype, index, width) -> None:
    """In the order of the rows; padding (-1) is left out."""

    def make(b, places, rows):
        return b.op("ScatterSum", places, rows, rows=9)

    places = np.array([4, 0, 4, -1, 8, 4, 0, 5], index)
    model = check(make, dtype, places, random(8, width))
    assert not on_host(model)
    assert "a kernel of the GPU" in "".join(row.reason for row in ge.explain(model))


def test_checks_of_inputs_come_before_one_graph() -> None:
    """A class number out of range fails the run as on the CPU, and the step stays one graph."""

    def make(b, x, places):
        y = b.op("Exp", x)
        seen = b.op("Checked", places, limits=[9])
        return b.op("Gather", y, seen, axis=0)

    model = check(make, "float32", random(9, 4), np.array([3, 8]))
    assert len(model.program.loaded.parts) == 1
    with pytest.raises(ge.GeError, match=r"indices\[1\] = 9"):
        model.run([random(9, 4), np.array([3, 9])])


def test_sums_of_rows_are_ptx() -> None:
    code = build_row_sums("bfloat16", "int64", 8, 600, 9, "sm_90").code.decode()
    assert ".entry tbe_row_sums" in code and "st.global" in code


@pytest.mark.parametrize("shape", [(4096, 24), (64, 64, 16)])
def test_sums_of_few_columns_are_done_in_two_steps(shape) -> None:
    """So that all multiprocessors take part; what is between them is float32."""

    def make(b, x):
        return b.op("ReduceSum", x, axes=list(range(len(shape) - 1)), keepdims=False)

    model = check(make, "bfloat16", random(*shape))
    between = [v for t in model.plan.tasks for v in t.outputs]
    assert [v.dtype for v in between] == ["float32", "bfloat16"]


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_attention_are_products_of_the_operands_type(causal) -> None:
    def make(b, dy, q, k, v):
        y, sums = b.op("Attention", q, k, v, scale=0.25, causal=causal)
        return tuple(b.ops("AttentionGrad", [dy, q, k, v, y, sums], scale=0.25, causal=causal))

    shape = (2, 2, 8, 16)
    model = check(make, "bfloat16", *(random(*shape, seed=n) for n in range(4)))
    products = [t for t in model.plan.tasks if t.kind == "matmul"]
    assert {t.inputs[0].dtype for t in products} == {"bfloat16"} and not on_host(model)
    assert sorted(t.outputs[0].dtype for t in products).count("float32") == 2


def test_small_copies_to_state_are_one_launch() -> None:
    """New values that are read by all of a step cannot be written in place, and are copied at its end."""

    def make(b, x, *state):
        total, values = x, []
        for value in state:
            total = b.op("Add", total, value)
            values.append(b.op("ReduceSum", b.op("Mul", x, value), axes=[0], keepdims=False))
        return (*values, b.op("Exp", total))

    state = [random(6, seed=n) for n in range(3)]
    model = check(make, "float32", random(5, 6), *state, donated=((0, 1), (1, 2), (2, 3)))
    copies = [t for t in model.plan.tasks if t.kind == "copy"]
    steps = model.program.loaded.parts[-1].steps
    assert len(copies) == 3 and len(steps) == len(model.plan.tasks) - 2


def test_what_products_read_late_is_kept() -> None:
    """The CPU recomputes it by another pass over memory."""

    def make(b, x, w, v):
        y = b.op("Relu", b.op("MatMul", x, w))
        z = b.op("MatMul", b.op("Exp", b.op("MatMul", y, v)), v)
        return z, b.op("MatMul", y, z, transpose_a=True)

    model = check(make, "bfloat16", random(64, 64), random(64, 64) / 8, random(64, 64, seed=1) / 80)
    assert kinds(model).count("kernel") == 1


def test_profiles_let_checks_read_what_the_step_computes(monkeypatch) -> None:
    """Indices whose memory later tasks use again: a check alone would read their values."""
    monkeypatch.setattr(assemble, "_REST", 0)

    def make(b, x, places):
        seen = b.op("Checked", b.op("Mul", places, np.array(2)), limits=[9])
        y = b.op("Gather", x, seen, axis=0)
        for n in range(3):
            y = b.op("MatMul", b.op("Exp", y), b.op("Mul", y, np.float32(1e3 + n)), transpose_a=True)
        return y

    model = check(make, "float32", random(9, 2) / 1e3, np.array([3, 4]))
    assert len(model.profile([random(9, 2), np.array([3, 4])])) == len(model.plan.tasks)


@pytest.mark.parametrize(("kernel", "strides", "dilation"), [(3, 1, 2), (2, 3, 1), (3, 2, 3)])
def test_gradients_of_maxima_of_windows_with_gaps(kernel, strides, dilation) -> None:
    """Between the elements of a window, and between windows."""
    window = {"kernel": [kernel] * 2, "strides": [strides] * 2, "dilations": [dilation] * 2}
    sizes = [(n - (kernel - 1) * dilation - 1) // strides + 1 for n in (9, 8)]

    def make(b, x, dy):
        return b.op("MaxPoolGrad", dy, b.op("Add", x, x), **window)

    check(make, "float32", np.round(random(2, 4, 9, 8) * 2), random(2, 4, *sizes, seed=1))
