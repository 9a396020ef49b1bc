"""Products with weights of 4 and 8 bits: kernels of every instruction set against NumPy in float64."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

import ge
from ge.ir.types import numpy_dtype
from ge.ops.nn.packed import pack_levels
from ge.target import named


@dataclass(frozen=True)
class Case:
    """Sizes and kinds of one product."""

    rows: int
    depth: int = 200
    columns: int = 37
    bits: int = 4
    group: int = 32
    kind: str = "uint8"
    zeros: bool = False
    bias: bool = False
    dtype: str = "float32"
    rounded: bool = False  # x, to 8 bits
    fed: bool = False  # the weights are an input

    def check(self, implementation: str) -> None:
        """Compile and run the product, and compare it."""
        rng = np.random.default_rng(self.rows)
        middle = 1 << (self.bits - 1)
        levels = rng.integers(0, 2 * middle, (self.columns, self.depth)).astype(np.uint8)
        groups = -(-self.depth // self.group)
        scales = (rng.random((self.columns, groups)) + 0.5).astype(np.float32)
        if self.rows % 2:  # factors that are float16 as well are stored as such
            scales = scales.astype(np.float16).astype(np.float32)
        zeros = rng.standard_normal(scales.shape).astype(np.float32) if self.zeros else None
        dtype = numpy_dtype(self.dtype)
        bias = rng.standard_normal(self.columns).astype(dtype) if self.bias else None
        x = rng.standard_normal((self.rows, self.depth)).astype(dtype)
        signed = self.kind != "uint8"
        numbers = (
            levels.astype(np.float64) - np.where(levels < middle, 0, 2 * middle)
            if signed
            else levels - float(middle)
        )
        place = np.arange(self.depth) // self.group
        weights = (numbers if zeros is None else numbers - zeros[:, place]) * scales[:, place]
        wanted = x.astype(np.float64) @ weights.T + (0.0 if bias is None else bias.astype(np.float64))
        packed = pack_levels(levels, self.bits).view(np.int8 if self.kind == "int8" else np.uint8)
        graph = ge.Graph("product")
        value = graph.input("x", x.shape, self.dtype)
        attrs = {"bits": self.bits, "group": self.group, "signed": signed}
        weights_in = graph.input("w", packed.shape, packed.dtype.name) if self.fed else packed
        graph.output(ge.ops.packed_mat_mul(value, weights_in, scales, zeros, bias, **attrs), "y")
        model = ge.compile(graph, ge.CompileOptions(quantise_activations=self.rounded))
        kinds = [t.attrs.get("implementation", t.kind) for t in model.plan.tasks]
        assert wanted_name(implementation) in kinds, kinds
        found = np.asarray(model(x, *([packed] if self.fed else []))).astype(np.float64)
        margin = 2e-2 if self.rounded or self.dtype == "bfloat16" else 2e-6
        np.testing.assert_allclose(found, wanted, rtol=0, atol=margin * np.abs(wanted).max())


def wanted_name(implementation: str) -> str:
    """What takes the place of panels on processors without their instructions."""
    has_panels = "avx512_vnni" in named("host").features
    return {"panels": "panels" if has_panels else "rows"}.get(implementation, implementation)


CASES = {
    "one row": (Case(1), "panels"),
    "8 rows, zero points": (Case(8, zeros=True, bias=True), "panels"),
    "11 rows, groups of a lane": (Case(11, depth=130, group=8), "panels"),
    "one group a row": (Case(3, depth=70, group=70, zeros=True), "panels"),
    "one group a row of several blocks": (Case(2, depth=301, group=301, bits=8, zeros=True), "panels"),
    "groups of blocks": (Case(2, depth=512, group=256), "panels"),
    "8 bits": (Case(5, bits=8, zeros=True), "panels"),
    "8 bits, signed": (Case(1, bits=8, kind="int8", group=64), "panels"),
    "4 bits, signed": (Case(6, kind="signed"), "panels"),
    "bfloat16": (Case(4, dtype="bfloat16", bias=True, bits=8), "panels"),
    "chunks of different heights": (Case(33, zeros=True, bias=True, dtype="bfloat16"), "panels"),
    "x rounded": (Case(14, rounded=True, zeros=True, bias=True), "panels"),
    "x of bfloat16 rounded, 8 bits": (Case(13, rounded=True, dtype="bfloat16", bits=8, group=128), "panels"),
    "fed weights": (Case(1, fed=True), "rows"),
    "fed weights, 8 rows": (Case(8, fed=True, zeros=True, bias=True), "rows"),
    "fed weights, groups of a lane": (Case(11, fed=True, depth=130, group=8), "rows"),
    "fed weights, 8 bits signed": (Case(1, fed=True, bits=8, kind="int8", group=64), "rows"),
    "fed weights, bfloat16": (Case(4, fed=True, dtype="bfloat16", bias=True, bits=8), "rows"),
    "many rows": (Case(70, fed=True, zeros=True, bias=True), "tiles"),
    "many rows, 4 bits signed": (Case(65, fed=True, kind="signed", depth=67, group=67), "tiles"),
    "many rows, 8 bits signed": (Case(65, fed=True, bits=8, kind="int8"), "tiles"),
    "many rows of bfloat16": (Case(66, fed=True, dtype="bfloat16", bits=8), "tiles"),
    "tiles of different widths": (Case(65, fed=True, depth=16384, columns=100, group=128), "tiles"),
    "few rows with odd groups": (Case(3, bits=8, group=30, zeros=True), "tiles"),
    "groups within bytes": (Case(3, group=5, zeros=True, bias=True), "onednn"),
}


@pytest.mark.parametrize("name", CASES)
def test_product_is_its_definition(name: str) -> None:
    case, implementation = CASES[name]
    case.check(implementation)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    "special", [np.inf, -np.inf, np.nan, 1e-36, 0.0, 3e38, 1e4], ids=lambda value: str(value)
)
def test_special_elements(special: float, bits: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 1 << bits, (5, 300)).astype(np.uint8)
    levels[levels == 1 << (bits - 1)] = 0  # no weight is zero
    scales = np.full((5, 10), 1e-3, np.float32)
    x = rng.standard_normal((2, 300)).astype(numpy_dtype(dtype))
    x[1, 130] = special
    x[0, 128:256] = special if abs(special) < 1 else 1  # a block has nothing else
    graph = ge.Graph("product")
    value = graph.input("x", x.shape, dtype)
    graph.output(ge.ops.packed_mat_mul(value, pack_levels(levels, bits), scales, bits=bits, group=32), "y")
    found = np.asarray(ge.compile(graph)(x)).astype(np.float64)
    weights = (levels - float(1 << (bits - 1))) * 1e-3
    wanted = x.astype(np.float64) @ weights.T
    margin = 3e-6 if dtype == "float32" else 2e-2
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(found[~finite], wanted[~finite])
    for row in range(2):
        there = finite[row]
        size = np.abs(wanted[row, there]).max(initial=1e-30)
        np.testing.assert_allclose(found[row, there], wanted[row, there], rtol=0, atol=margin * size)


SCRIPT = """
import ge
from tests.native.test_packed_product import CASES, test_special_elements
for name in ("8 rows, zero points", "11 rows, groups of a lane", "8 bits, signed", "x rounded", "many rows"):
    case, implementation = CASES[name]
    case.check(implementation)
for special in (3e38, float("-inf"), float("nan")):
    test_special_elements(special, 4, "float32")
    test_special_elements(special, 8, "bfloat16")
"""


@pytest.mark.parametrize(
    "limit",
    [{"NPU_MAX_ISA": "avx2"}, {"NPU_MAX_ISA": "sse4"}, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}],
    ids=["avx2", "sse4", "avx512 without dot products of bytes"],
)
def test_kernels_of_older_processors(limit: dict[str, str]) -> None:
    environment = {**os.environ, **limit, "NPU_CACHE_DIR": "off"}
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, env=environment, timeout=300)


def test_weights_stay_packed_in_the_plan() -> None:
    packed = np.zeros((256, 128), np.uint8)
    graph = ge.Graph("product")
    x = graph.input("x", (1, 256), "float32")
    graph.output(ge.ops.packed_mat_mul(x, packed, np.ones((256, 8), np.float32), bits=4, group=32), "y")
    model = ge.compile(graph)
    held = sum(c.nbytes for c in model.plan.constants)
    assert packed.nbytes <= held < 2 * packed.nbytes


def test_gpus_widen_the_weights() -> None:
    graph = ge.Graph("product")
    x = graph.input("x", (1, 256), "float32")
    packed, scales = np.zeros((64, 128), np.uint8), np.ones((64, 8), np.float32)
    graph.output(ge.ops.packed_mat_mul(x, packed, scales, bits=4, group=32), "y")
    model = ge.compile(graph, ge.CompileOptions(target=named("sm_90")))
    assert [t.kind for t in model.plan.tasks] == ["matmul"]


@pytest.mark.parametrize(
    ("shape", "scales", "attrs"),
    [
        ((8, 100), (8, 2), {"group": 32}),
        ((8, 128), (8, 9), {"group": 32}),
        ((8, 128), (8, 8), {"group": 32, "bits": 3}),
    ],
)
def test_operands_that_do_not_fit_are_named(
    shape: tuple[int, ...], scales: tuple[int, ...], attrs: dict[str, int]
) -> None:
    graph = ge.Graph("product")
    x = graph.input("x", (1, 256), "float32")
    with pytest.raises(ge.GeError, match="PackedMatMul"):
        ge.ops.packed_mat_mul(x, np.zeros(shape, np.uint8), np.ones(scales, np.float32), **attrs)
