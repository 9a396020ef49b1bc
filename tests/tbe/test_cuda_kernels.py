"""Kernels for GPUs: every thread of the grid is run on the host, against the interpreter; PTX is made by LLVM."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tbe
from tbe import cuda as gpu
from tbe.cuda.grid import TILE
from tests.tbe.simulation import check, simulate

ALL = ("float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "uint32", "bool")


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")


def data_for(x: tbe.Tensor, seed: int = 2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if tbe.dtype_of(x.dtype).is_float:
        return rng.standard_normal(x.shape).astype(tbe.numpy_dtype(x.dtype))
    low, high = {"int": (-4, 5), "uint": (0, 5), "bool": (0, 2)}[tbe.dtype_of(x.dtype).kind]
    return rng.integers(low, high, x.shape).astype(tbe.numpy_dtype(x.dtype))


@pytest.mark.parametrize("dtype", ALL)
def test_elementwise_in_every_dtype(dtype) -> None:
    x, y = tbe.placeholder((7, 33), dtype), tbe.placeholder((33,), dtype)
    both = x ^ y if dtype == "bool" else x * y + x
    values = {x: data_for(x), y: data_for(y)}
    check([x, y], [both, tbe.cast(x, "float32"), tbe.select(tbe.binary("lt", x, y), x, y)], values)


@pytest.mark.parametrize(
    "op", ["exp", "log", "tanh", "erf", "sqrt", "rsqrt", "sin", "cos", "tan", "sigmoid", "floor", "expm1"]
)
def test_special_values_pass_through_functions(op) -> None:
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 88.7, -104.0, 1e5, 1e22, 3e38, 0.5, -3.7]
    for dtype in ("float32", "float16"):
        x = tbe.placeholder((len(special),), dtype)
        with np.errstate(over="ignore"):
            values = np.array(special, np.float64).astype(dtype)
        check([x], [tbe.unary(op, x)], {x: values}, rtol=3e-7, atol=0.0)


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("length", [1, 5, 24, 33, 768, 3001])
def test_softmax_rows_of_any_length(rows, length) -> None:
    x = tbe.placeholder((rows, length), "float32")
    raised = tbe.unary("exp", x - tbe.reduce("max", x, [1], keepdims=True))
    check([x], [raised / tbe.reduce("sum", raised, [1], keepdims=True)], {x: data_for(x)}, rtol=2e-6)


def layer_norm(rows: int) -> tuple[list[tbe.Tensor], list[tbe.Tensor]]:
    x, scale = tbe.placeholder((rows, 768), "float16"), tbe.placeholder((768,), "float16")
    wide = tbe.cast(x, "float32")
    centred = wide - tbe.reduce("sum", wide, [1], keepdims=True) * (1 / 768)
    variance = tbe.reduce("sum", centred * centred, [1], keepdims=True) * (1 / 768)
    return [x, scale], [tbe.cast(centred * tbe.unary("rsqrt", variance + 1e-5), "float16") * scale]


def test_layer_normalisation() -> None:
    inputs, outputs = layer_norm(6)
    check(inputs, outputs, {t: data_for(t) for t in inputs})


def test_layer_normalisation_reads_its_row_once() -> None:
    inputs, outputs = layer_norm(4096)
    (mapping,) = gpu.map_schedule(tbe.schedule(inputs, outputs), gpu.architecture_of("sm_90")).mappings
    assert (mapping.width, mapping.team, mapping.copies, mapping.unrolled) == (8, 32, 3, True)
    text = gpu.build(inputs, outputs, "sm_90").code.decode()
    assert (
        text.count("ld.global") == text.count("v4.b32") - text.count("st.global") == 6
    )  # three of each input


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
def test_reductions_over_every_axis(axes) -> None:
    x = tbe.placeholder((5, 21, 37), "float32")
    sums = [tbe.reduce(op, x * 0.5, axes, True) + 1.0 for op in ("sum", "min", "prod")]
    places = [tbe.reduce("argmin", x, axes, last=True), tbe.reduce("argmax", x, axes)]
    check([x], sums, {x: data_for(x)}, rtol=1e-4, atol=1e-5)
    check([x], places, {x: data_for(x)})


@pytest.mark.parametrize("dtype", ALL)
def test_reductions_of_every_dtype(dtype) -> None:
    x = tbe.placeholder((70, 67), dtype)
    for axis in (0, 1):
        ops = ("any", "all") if dtype == "bool" else ("sum", "max", "argmax")
        check([x], [tbe.reduce(op, x, axis) for op in ops], {x: data_for(x)}, rtol=1e-5, atol=2e-5)


def test_nan_wins_maximum_and_argmax() -> None:
    x = tbe.placeholder((4, 40), "float32")
    data = data_for(x)
    data[1, 39], data[2, 0], data[2, 17] = np.nan, np.nan, np.nan
    for axis in (0, 1):
        check([x], [tbe.reduce(op, x, axis) for op in ("max", "min", "argmax", "argmin")], {x: data})


@pytest.mark.parametrize("shape", [(64, 96), (33, 70), (5, 200), (128, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_transposes_through_shared_memory(shape, dtype) -> None:
    x = tbe.placeholder(shape, dtype)
    turned = tbe.transpose(x, (1, 0))
    check([x], [turned + turned], {x: data_for(x)})


@pytest.mark.parametrize(("dtype", "count"), [("float32", 14), ("float64", 8)])
def test_more_transposes_than_shared_memory_holds(dtype, count) -> None:
    turned = [tbe.placeholder((35, 40), dtype) for _ in range(count)]
    straight = [tbe.placeholder((40, 35), dtype) for _ in range(count)]
    total = straight[0] + tbe.transpose(turned[0], (1, 0))
    for x, y in zip(straight[1:], turned[1:], strict=True):
        total = total + x + tbe.transpose(y, (1, 0))
    inputs = [*straight, *turned]
    check(inputs, [total], {x: data_for(x, n) for n, x in enumerate(inputs)})


def test_transposes_of_channels() -> None:
    x = tbe.placeholder((2, 5, 6, 40), "float16")
    check([x], [tbe.transpose(x, (0, 3, 1, 2))], {x: data_for(x)})


def test_gathers_wrap_and_clamp_their_indices() -> None:
    table, places = tbe.placeholder((10, 48), "float16"), tbe.placeholder((3, 4), "int32")
    values = {
        table: data_for(table),
        places: np.array([[0, 9, 3, -1], [7, 99, -99, 2], [1, 1, 5, 6]], np.int32),
    }
    check([table, places], [tbe.take(table, places, 0)], values)


def test_pads_slices_and_concatenations() -> None:
    x, y = tbe.placeholder((6, 10), "float32"), tbe.placeholder((6, 7), "float32")
    padded = tbe.pad(x, (1, 2), (0, 3), -1.0)
    joined = tbe.concat([x, y * 2.0], 1)
    turned = tbe.concat([tbe.transpose(x, (1, 0)), tbe.transpose(y, (1, 0))], 0)
    for output in (padded, joined, turned, tbe.slice(x, (5, 9), (-2, -3), (3, 3))):
        inputs = [x, y] if output in (joined, turned) else [x]
        check(inputs, [output], {t: data_for(t) for t in inputs})


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_scans_in_both_directions(axis, reverse) -> None:
    x = tbe.placeholder((6, 50), "float32")
    for exclusive in (False, True):
        check([x], [tbe.scan("sum", x, axis, exclusive=exclusive, reverse=reverse)], {x: data_for(x)})


def test_wide_vectors_are_used_where_accesses_are_aligned() -> None:
    x, bias = tbe.placeholder((4096, 768), "float16"), tbe.placeholder((768,), "float16")
    plan = tbe.schedule([x, bias], [x + bias])
    assert gpu.map_schedule(plan, gpu.architecture_of("sm_90")).mappings[0].width == 8
    odd = tbe.placeholder((4096, 767), "float16")
    plan = tbe.schedule([odd], [tbe.reduce("sum", odd, 1)])
    assert gpu.map_schedule(plan, gpu.architecture_of("sm_90")).mappings[0].width == 1
    text = gpu.build([x, bias], [x + bias], "sm_90").code.decode()
    assert "ld.global.nc.v4" in text and "st.global.v4" in text


@pytest.mark.parametrize("shape", [(1,), (31,), (4096, 257), (3, 5, 7, 11), (70000, 64)])
def test_every_cell_belongs_to_one_thread(shape) -> None:
    x = tbe.placeholder(shape, "float32")
    for outputs in ([x + 1.0], [tbe.reduce("sum", x, [len(shape) - 1])], [tbe.reduce("sum", x, [0])]):
        for mapping in gpu.map_schedule(tbe.schedule([x], outputs), gpu.architecture_of("sm_80")).mappings:
            assert (mapping.blocks - 1) * mapping.cells_per_block < mapping.cells
            assert mapping.blocks * mapping.cells_per_block >= mapping.cells
            turns = max((-(-steps // mapping.team) for steps in mapping.steps), default=1)
            assert not mapping.unrolled or mapping.copies == turns
            assert mapping.threads <= 1024


def test_tiles_cover_ragged_edges() -> None:
    x = tbe.placeholder((TILE + 1, 2 * TILE - 1), "float32")
    (mapping,) = gpu.map_schedule(
        tbe.schedule([x], [tbe.transpose(x, (1, 0))]), gpu.architecture_of("sm_90")
    ).mappings
    assert mapping.tiled and mapping.blocks == 4


def test_pools_of_channels_last_images_read_vectors() -> None:
    x = tbe.placeholder((2, 9, 9, 64), "float16")
    padded = tbe.pad(tbe.transpose(x, (0, 3, 1, 2)), (0, 0, 1, 1), (0, 0, 1, 1), -65504.0)
    windows = tbe.compute((2, 64, 5, 5, 3, 3), lambda n, c, i, j, k, m: padded[(n, c, i * 2 + k, j * 2 + m)])
    pooled = tbe.transpose(tbe.reduce("max", windows, [4, 5]), (0, 2, 3, 1))
    check([x], [pooled], {x: data_for(x)})
    large = tbe.placeholder((32, 112, 112, 64), "float16")
    padded = tbe.pad(tbe.transpose(large, (0, 3, 1, 2)), (0, 0, 1, 1), (0, 0, 1, 1), -65504.0)
    windows = tbe.compute(
        (32, 64, 56, 56, 3, 3), lambda n, c, i, j, k, m: padded[(n, c, i * 2 + k, j * 2 + m)]
    )
    pooled = tbe.transpose(tbe.reduce("max", windows, [4, 5]), (0, 2, 3, 1))
    (mapping,) = gpu.map_schedule(tbe.schedule([large], [pooled]), gpu.architecture_of("sm_90")).mappings
    assert (mapping.width, mapping.copies) == (8, 3)


def test_buffers_may_begin_anywhere() -> None:
    x = tbe.placeholder((4096, 64), "float16")
    kernel = gpu.build([x], [x + x], "sm_90", aligned=False)
    assert "ld.global.nc.v" not in kernel.code.decode() and "st.global.v" not in kernel.code.decode()


def test_only_very_long_rows_are_summed_in_two_steps() -> None:
    rows, long = (tbe.placeholder(shape, "float32") for shape in ((128, 768), (2, 1 << 20)))
    assert not tbe.in_two_steps([tbe.reduce("sum", rows, 1)], 132, teams=True)[1]
    assert tbe.in_two_steps([tbe.reduce("sum", long, 1)], 132, teams=True)[1]


def test_an_empty_output_needs_no_blocks() -> None:
    x = tbe.placeholder((0, 5), "float32")
    assert gpu.build([x], [x + 1.0], "sm_90").blocks == 0
    assert simulate([x], [x + 1.0], {x: np.empty((0, 5), np.float32)})[0].shape == (0, 5)


@pytest.mark.parametrize("name", list(gpu.ARCHITECTURES))
def test_every_architecture_has_its_ptx(name) -> None:
    x = tbe.placeholder((64, 100), "bfloat16")
    check([x], [tbe.reduce("max", x * 2.0, 1)], {x: data_for(x)}, architecture=name)


def test_an_unknown_architecture_names_the_known_ones() -> None:
    x = tbe.placeholder((4,), "float32")
    with pytest.raises(ValueError, match=r"sm_12.*sm_80.*sm_100"):
        gpu.build([x], [x], "sm_12")


def test_inputs_that_outputs_may_overwrite_are_not_declared_distinct() -> None:
    x, y = tbe.placeholder((64,), "float32"), tbe.placeholder((64,), "int8")
    kernel = gpu.build([x, y], [x + tbe.cast(y, "float32")], "sm_90")
    header = next(line for line in kernel.ir.splitlines() if line.startswith("define ptx_kernel"))
    assert kernel.aliases == ((0, 0),)
    assert header.count("noalias") == 1


def test_the_normal_distribution_function_is_right_to_16_bits_on_a_gpu() -> None:
    x = np.arange(0x10000, dtype=np.uint16).view(np.float16)
    x = np.resize(x[np.isfinite(x)], 0x10000)
    given = tbe.placeholder(x.shape, "float16")
    wide = tbe.cast(given, "float32")
    gelu = tbe.cast(wide * tbe.unary("narrow_normal_share", wide), "float16")
    (got,) = simulate([given], [gelu], {given: x})
    want = np.array([v * 0.5 * math.erfc(-v * math.sqrt(0.5)) for v in x.astype(float)])
    rounded = np.abs(want).astype(np.float16)
    step = rounded.astype(float) - np.nextafter(rounded, np.float16(-1)).astype(float)
    assert np.max(np.abs(got.astype(float) - want) / np.maximum(step, 2.0**-24)) < 1.01
    assert np.mean(got.astype(float) == want.astype(np.float16).astype(float)) > 0.99
    assert "ex2.approx.ftz" in gpu.build([given], [gelu], "sm_90").code.decode()
    special = tbe.placeholder((5,), "float32")
    numbers = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
    (found,) = simulate([special], [tbe.unary("narrow_normal_share", special)], {special: numbers})
    np.testing.assert_allclose(found, [np.nan, 1.0, 0.0, 0.5, 0.5], rtol=1e-5)


@pytest.mark.parametrize("name", ["gelu_slope", "tanh_gelu_slope"])
def test_slopes_of_gelu_are_right_to_16_bits_on_a_gpu(name) -> None:
    """Also small ones where x is negative; near the zero at -0.75 to 2^-16."""
    x = np.concatenate([np.linspace(-12, 12, 20001), np.linspace(-0.8, -0.7, 1000)]).astype(np.float32)
    given = tbe.placeholder(x.shape, "float32")
    slope = tbe.unary(f"narrow_{name}", given)
    (got,) = simulate([given], [slope], {given: x})
    want = tbe.evaluate([tbe.unary(f"narrow_{name}", tbe.cast(given, "float64"))], {given: x})[0]
    assert np.abs(got - want).max() < 2.0**-15
    far = (np.abs(x + 0.75) > 0.25) & (np.abs(want) > 1e-9)
    assert (np.abs(got - want)[far] / np.abs(want[far])).max() < 2.0**-11
    special = tbe.placeholder((5,), "float32")
    numbers = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
    (found,) = simulate([special], [tbe.unary(f"narrow_{name}", special)], {special: numbers})
    np.testing.assert_allclose(found, [np.nan, 1.0, 0.0, 0.5, 0.5], rtol=1e-4)
    assert "ex2.approx.ftz" in gpu.build([given], [slope], "sm_90").code.decode()
