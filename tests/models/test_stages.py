"""ONNX models with sizes that depend on data, run in stages."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import ge
from ge.conformance.detectors import DETECTORS, compare
from ge.errors import GeError
from ge.model.one_kernel import run_kernel
from ge.open_model import MOST_PROGRAMS, OpenModel
from ge.ops.builder import GraphBuilder
from ge.ops.interpret import evaluate_node
from ge.staged_model import StagedModel

HEAD = '<ir_version: 8, opset_import: ["" : 17, "local" : 1]>\n'
MODELS = {
    "positions, then products": """
net (float[N, 4] x, float[4, 3] w) => (float[M, 3] y, int64[1] count)
{
  zero = Constant <value_float = 0.0> ()
  first = ReduceMax <axes = [1], keepdims = 0> (x)
  kept = Greater (first, zero)
  found = NonZero (kept)
  axis = Constant <value_ints = [0]> ()
  rows = Squeeze (found, axis)
  chosen = Gather <axis = 0> (x, rows)
  product = MatMul (chosen, w)
  y = Softmax <axis = 1> (product)
  count = Shape (rows)
}""",
    "masks, then reductions": """
net (float[8, 4] x, bool[8] mask) => (float[4] y, float[M, 4] z)
{
  axis = Constant <value_ints = [0]> ()
  kept = Compress <axis = 0> (x, mask)
  y = ReduceSum <keepdims = 0> (kept, axis)
  total = ReduceMean <axes = [0], keepdims = 1> (kept)
  z = Sub (kept, total)
}""",
    "distinct elements, one size after another": """
net (int64[N] x) => (float[K, K] y, int64[L] z)
{
  u, first, inverse, counts = Unique <sorted = 1> (x)
  f = Cast <to = 1> (counts)
  axes0 = Constant <value_ints = [0]> ()
  axes1 = Constant <value_ints = [1]> ()
  row = Unsqueeze (f, axes0)
  column = Unsqueeze (f, axes1)
  y = Mul (row, column)
  one = Constant <value_int = 1> ()
  often = Greater (counts, one)
  z = Compress <axis = 0> (u, often)
}""",
    "a computed number of elements": """
net (float[6] x, int64 n) => (int64[K] y, float[K, 6] z)
{
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  two = Mul (n, n)
  y = Range (zero, two, one)
  shape = Shape (y)
  six = Constant <value_ints = [6]> ()
  both = Concat <axis = 0> (shape, six)
  z = Expand (x, both)
}""",
    "a branch with sizes of its own": """
net (float[N] x) => (float[M] y)
{
  zero = Constant <value_float = 0.0> ()
  total = ReduceMax <keepdims = 0> (x)
  some = Greater (total, zero)
  y = If (some) <
    then_branch = then () => (float[K] a) {
      mask = Greater (x, zero)
      found = NonZero (mask)
      axis = Constant <value_ints = [0]> ()
      rows = Squeeze (found, axis)
      picked = Gather (x, rows)
      a = Exp (picked)
    },
    else_branch = other () => (float[N] b) { b = Neg (x) }
  >
}""",
    "a function": """
net (float[N] x) => (float[M] y)
{
  kept = local.positive (x)
  y = Sqrt (kept)
}
<domain: "local", opset_import: ["" : 17]>
positive (x) => (y)
{
  zero = Constant <value_float = 0.0> ()
  mask = Greater (x, zero)
  y = Compress <axis = 0> (x, mask)
}""",
    "sequences on both sides": """
net (float[4, 2] x) => (float[M, 2] y)
{
  parts = SplitToSequence <axis = 0> (x)
  one = Constant <value_int = 1> ()
  second = SequenceAt (parts, one)
  zero = Constant <value_float = 0.0> ()
  low = ReduceMin <axes = [1], keepdims = 0> (x)
  mask = Greater (low, zero)
  kept = Compress <axis = 0> (x, mask)
  both = SequenceInsert (parts, kept)
  three = Constant <value_int = 4> ()
  again = SequenceAt (both, three)
  y = Add (again, second)
}""",
}


def _arguments(name: str, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(5, 9))
    if name == "positions, then products":
        return [
            rng.normal(size=(size, 4)).astype(np.float32) - 0.5,
            rng.normal(size=(4, 3)).astype(np.float32),
        ]
    if name == "masks, then reductions":
        return [rng.normal(size=(8, 4)).astype(np.float32), rng.random(8) < 0.6]
    if name == "distinct elements, one size after another":
        return [rng.integers(0, 4, size)]
    if name == "a computed number of elements":
        return [rng.normal(size=6).astype(np.float32), np.array(seed % 4)]
    if name == "a branch with sizes of its own":
        return [(rng.normal(size=size) - (10 if seed % 2 else 0)).astype(np.float32)]
    if name == "a function":
        return [rng.normal(size=size).astype(np.float32)]
    return [rng.normal(size=(4, 2)).astype(np.float32)]


def _compare(model: Any, reference: ReferenceEvaluator, arguments: Sequence[np.ndarray]) -> None:
    expected = reference.run(None, dict(zip(reference.input_names, arguments, strict=True)))
    found = model.run(list(arguments))
    assert len(found) == len(expected)
    for ours, wanted in zip(found, expected, strict=True):
        assert ours.shape == wanted.shape and ours.dtype == wanted.dtype
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_anything_follows_a_result_whose_size_depends_on_data(name: str) -> None:
    proto = onnx.parser.parse_model(HEAD + MODELS[name])
    model, reference = ge.compile(proto), ReferenceEvaluator(proto)
    assert isinstance(model, OpenModel)
    for seed in range(7):
        _compare(model, reference, _arguments(name, seed))


PARAMETERS = {
    "the value of a border": (
        "net (float[2, 3] x, float v) => (float[A, B] y) { pads = Constant <value_ints = [1, 0, 0, 1]> ()\n"
        "y = Pad (x, pads, v) }",
        [np.array(2.5, np.float32), np.array(np.nan, np.float32)],
    ),
    "factors of a resize": (
        "net (float[1, 1, 2, 3] x, float[4] s) => (float[A, B, C, D] y) { y = Resize (x, , s) }",
        [np.array([1, 1, 2, 2], np.float32), np.array([1, 1, 1, 3], np.float32)],
    ),
    "a computed factor": (
        "net (float[1, 1, 2, 3] x, float[1] f) => (float[A, B, C, D] y) {\n"
        "ones = Constant <value_floats = [1.0, 1.0]> ()\n"
        "one = Constant <value_float = 1.0> ()\ng = Add (f, one)\ns = Concat <axis = 0> (ones, g, g)\n"
        "y = Resize (x, , s) }",
        [np.array([1], np.float32), np.array([2], np.float32)],
    ),
    "the threshold of scores": (
        "net (float[1, 1, 4] s, float[1] t) => (int64[A, B] y) { b = Constant <value = float[1, 4, 4] "
        "{0, 0, 1, 1, 0, 0, 1, 1.1, 2, 2, 3, 3, 4, 4, 5, 5}> ()\nm = Constant <value = int64[1] {3}> ()\n"
        "i = Constant <value = float[1] {0.5}> ()\ny = NonMaxSuppression (b, s, m, i, t) }",
        [np.array([0.1], np.float32), np.array([10], np.float32)],
    ),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_an_operator_reads_small_parameters_at_run_time(name: str) -> None:
    text, parameters = PARAMETERS[name]
    proto = onnx.parser.parse_model(HEAD + text)
    model, reference = ge.compile(proto), ReferenceEvaluator(proto)
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    for parameter in (*parameters, parameters[0]):
        _compare(model, reference, [x, parameter])


def _masked() -> tuple[StagedModel, ReferenceEvaluator]:
    proto = onnx.parser.parse_model(HEAD + MODELS["masks, then reductions"])
    model = ge.compile(proto)
    assert isinstance(model, StagedModel)
    return model, ReferenceEvaluator(proto)


def test_programs_are_bounded_and_the_usual_sizes_are_compiled() -> None:
    model, reference = _masked()
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    for count in range(1, 9):
        _compare(model, reference, [x, np.arange(8) < count])
    assert model.programs == 1, "light stages are interpreted at first"
    for _ in range(6):
        _compare(model, reference, [x, np.arange(8) < 3])
    assert model.programs == 2
    for count in range(1, 9):
        for _ in range(6):
            _compare(model, reference, [x, np.arange(8) < count])
    assert model.programs <= 1 + MOST_PROGRAMS


def test_threads_with_values_that_decide_sizes_share_a_model() -> None:
    proto = onnx.parser.parse_model(HEAD + MODELS["a computed number of elements"])
    model = ge.compile(proto)
    x = np.arange(6, dtype=np.float32)

    def call(n: int) -> list[tuple[int, ...]]:
        return [array.shape for array in model.run([x, np.array(n % 5)])]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(call, range(60)))
    assert found == [[(k * k,), (k * k, 6)] for k in (n % 5 for n in range(60))]


def test_what_a_model_in_stages_cannot_do_is_said(tmp_path: Path) -> None:
    model, _ = _masked()
    with pytest.raises(GeError, match="runs in stages"):
        model.save(tmp_path / "net.om")
    with pytest.raises(GeError, match="takes"):
        model(np.zeros((8, 5), np.float32), np.zeros(8, bool))
    with pytest.raises(GeError, match="2 inputs"):
        model(np.zeros((8, 4), np.float32))


def test_what_no_stage_can_run_is_refused() -> None:
    text = """
net (float[4] x) => (float[M] y)
{
  zero = Constant <value_float = 0.0> ()
  mask = Greater (x, zero)
  kept = Compress <axis = 0> (x, mask)
  y = local.Unknown (kept)
}"""
    with pytest.raises(GeError, match="Unknown"):
        ge.compile(onnx.parser.parse_model(HEAD + text))


@pytest.mark.parametrize("name", ("yolo v5", "fcos", "faster rcnn", "keypoints"))
def test_detectors_with_their_post_processing_inside(name: str) -> None:
    pytest.importorskip("onnxruntime")
    outcome = compare(name)
    assert outcome.status == "pass", outcome.detail


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_all_detectors(name: str) -> None:
    pytest.importorskip("onnxruntime")
    outcome = compare(name)
    assert outcome.status == "pass", outcome.detail


HEAVY = """
net (float[N, 4] x, float[4, 3] w) => (float[M, 3] y, float[3] top)
{
  zero = Constant <value_float = 0.0> ()
  first = ReduceMax <axes = [1], keepdims = 0> (x)
  kept = Greater (first, zero)
  found = NonZero (kept)
  axis = Constant <value_ints = [0]> ()
  rows = Squeeze (found, axis)
  chosen = Gather <axis = 0> (x, rows)
  product = MatMul (chosen, w)
  y = Softmax <axis = 1> (product)
  top = ReduceMax <axes = [0], keepdims = 0> (y)
}"""


def _rows(count: int, kept: int) -> np.ndarray:
    x = np.random.default_rng(kept).normal(size=(count, 4)).astype(np.float32)
    return np.where(np.arange(count)[:, None] < kept, np.abs(x), -np.abs(x))


def test_products_of_any_number_of_rows_run_in_programs_for_powers_of_two() -> None:
    proto = onnx.parser.parse_model(HEAD + HEAVY)
    model, reference = ge.compile(proto), ReferenceEvaluator(proto)
    w = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    for kept in (40, *range(1, 60), *range(1, 60)):
        _compare(model, reference, [_rows(64, kept), w])
    staged = model if isinstance(model, StagedModel) else model._programs.values()[0]
    assert isinstance(staged, StagedModel)
    assert staged.programs <= 1 + 1 + 7, "the first stage, the first size, and 1 to 64 rows"


def test_a_number_that_depends_on_the_count_of_rows_is_not_taken_from_a_larger_program() -> None:
    text = HEAVY.replace(
        "y = Softmax <axis = 1> (product)",
        "n = Shape (rows) m = Cast <to = 1> (n) y = Div (product, m)",
    )
    proto = onnx.parser.parse_model(HEAD + text)
    model, reference = ge.compile(proto), ReferenceEvaluator(proto)
    w = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    for kept in (5, 3, 7, 6, 1, 13):
        _compare(model, reference, [_rows(16, kept), w])


def test_a_kernel_runs_without_a_plan() -> None:
    builder = GraphBuilder()
    boxes, scores = (
        builder.input("boxes", (2, 30, 4), "float32"),
        builder.input("scores", (2, 3, 30), "float32"),
    )
    attrs = {"max_output_boxes": 5, "iou_threshold": 0.4, "score_threshold": 0.2}
    builder.output(builder.op("NonMaxSuppression", boxes, scores, **attrs))
    node = next(n for n in builder.graph if n.op_type == "NonMaxSuppression")
    rng = np.random.default_rng(0)
    arrays = [rng.random((2, 30, 4)).astype(np.float32), rng.random((2, 3, 30)).astype(np.float32)]
    (found,), (wanted,) = run_kernel(node, arrays), evaluate_node(node, arrays)
    assert len(found) >= 6
    np.testing.assert_array_equal(found, wanted)
