"""The language of operator files: names, index functions, checks, errors that point to the line, refusals."""

from __future__ import annotations

import importlib
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

import tbe
from tbe import dsl, tvm
from tbe.common.utils import para_check, shape_util


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(dedent(text).lstrip())
    return path


NAMES = {
    "te.lang.cce": "vadd vsub sum auto_schedule cce_build_code util",
    "te": "tvm tik platform",
    "te.tvm": "placeholder compute const",
    "te.platform.fusion_manager": "fusion_manager",
    "te.platform.cce_conf": "api_check_support CceProductParams intrinsic_check_support",
    "te.platform": "get_soc_spec cce_params",
    "te.platform.operation": "register_operator",
    "te.platform.shape_classifier": "classify Mode",
    "te.utils.op_utils": "check_op_params REQUIRED_INPUT shape_to_list broadcast_shapes check_shape",
    "te.utils": "para_check shape_util",
    "te.utils.para_check": "check_op_params",
    "te.utils.error_manager.error_manager_vector": "raise_err_input_dtype_not_supported",
    "topi": "generic",
    "topi.generic": "auto_schedule",
    "topi.cce": "util",
    "topi.cce.util": "check_shape_rule check_dtype_rule check_input_type shape_refine produce_shapes",
    "tbe.dsl": "vadd reduce_sum auto_schedule build compute var classify",
    "tbe.tvm": "placeholder var const compute select exp reduce_axis sum max target",
    "tbe.common.utils": "para_check shape_util",
    "tbe.common.utils.errormgr": "error_manager_vector",
    "tbe.common.register": "register_op_compute register_operator register_operator_compute",
    "tbe.common.platform": "get_soc_spec api_check_support",
    "tbe.common.context": "op_context",
    "impl.util.platform_adapter": "tbe tvm para_check shape_util register_operator register_operator_compute "
    "error_manager_vector classify OpPatternMode tbe_platform operation OpImplMode",
    "impl.util.util_select_op_base": "gen_param get_dynamic_param_in_json SplitInput SplitOutput ReduceInput "
    "ReduceOutput get_op_cal_info",
    "impl.util.util_common": "is_unknown_rank_input",
}


@pytest.mark.parametrize("module", list(NAMES))
def test_operator_files_find_the_names_they_import(module: str) -> None:
    loaded = importlib.import_module(module)
    assert [n for n in NAMES[module].split() if not hasattr(loaded, n)] == []


# -- index functions ------------------------------------------------------------------------------------------


def run(body, *arrays: np.ndarray) -> np.ndarray:
    def example_compute(*tensors, kernel_name="example"):
        return body(*tensors)

    places = [tbe.placeholder(a.shape, a.dtype.name) for a in arrays]
    result = example_compute(*(dsl.Tensor(p) for p in places))
    return dsl.Runner(places, [result.expression])(*arrays)[0]


X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    "body, expected",
    [
        (lambda x: tvm.compute(x.shape, lambda *i: x(*i) * 2 + 1), X * 2 + 1),
        (lambda x: tvm.compute((4, 3), lambda i, j: x[j, i]), X.T),
        (lambda x: tvm.compute((3, 4), lambda i, j: x[2 - i, j]), X[::-1]),
        (lambda x: tvm.compute((3, 2), lambda i, j: x[i, 2 * j + 1]), X[:, 1::2]),
        (lambda x: tvm.compute((3, 4), lambda i, j: x(i, 0) - x(i, j)), X[:, :1] - X),
        (lambda x: tvm.compute((12,), lambda i: x(i // 4, i % 4)), X.reshape(12)),
        (lambda x: tvm.compute((3, 4), lambda i, j: tvm.select(i > j, 0.0, x(i, j))), np.triu(X)),
        (
            lambda x: tvm.compute(
                (3, 4), lambda i, j: tvm.if_then_else(tvm.all(i > 0, j < 2), x(i, j), -1.0)
            ),
            np.where((np.arange(3)[:, None] > 0) & (np.arange(4) < 2), X, -1).astype(np.float32),
        ),
        (
            lambda x: tvm.compute((3, 4), lambda i, j: tvm.select(tvm.any(i == 0, j != 1), x(i, j), 0.0)),
            np.where((np.arange(3)[:, None] == 0) | (np.arange(4) != 1), X, 0).astype(np.float32),
        ),
        (
            lambda x: tvm.compute((3, 4), lambda i, j: x(i, j) + i),
            X + np.arange(3, dtype=np.float32)[:, None],
        ),
        (lambda x: tvm.compute((3, 4), lambda i, j: (x(i, j) / 2).astype("int32")), (X / 2).astype(np.int32)),
        (lambda x: tvm.compute((3, 4), lambda i, j: i * 4 + j), np.arange(12, dtype=np.int32).reshape(3, 4)),
        (lambda x: tvm.compute((3, 4), lambda i, j: tvm.max(x(i, j), 5.0)), np.maximum(X, 5)),
        (lambda x: tvm.compute((3, 4), lambda i, j: tvm.floor(x(i, j) * 0.3)), np.floor(X * np.float32(0.3))),
    ],
)
def test_index_functions(body, expected: np.ndarray) -> None:
    got = run(body, X)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "op, reference", [("sum", np.sum), ("max", np.max), ("min", np.min), ("prod", np.prod)]
)
def test_reduction_axes(op: str, reference) -> None:
    def body(x):
        k = tvm.reduce_axis((0, 4), name="k")
        return tvm.compute((3,), lambda i: getattr(tvm, op)(x[i, k] + 1, axis=k), name=op)

    np.testing.assert_array_equal(run(body, X), reference(X + 1, axis=1))


def test_a_product_of_matrices_by_index() -> None:
    def body(a, b):
        k = tvm.reduce_axis((0, 4), name="k")
        return tvm.compute((3, 5), lambda i, j: tvm.sum(a[i, k] * b[k, j], axis=[k]))

    b = np.arange(20, dtype=np.float32).reshape(4, 5)
    np.testing.assert_array_equal(run(body, X, b), X @ b)


def test_rows_chosen_by_another_tensor() -> None:
    rows = np.array([2, 0, 2, 1], np.int32)
    got = run(lambda x, i: tvm.compute((4, 4), lambda r, c: x(i(r), c)), X, rows)
    np.testing.assert_array_equal(got, X[rows])


def test_mathematical_functions() -> None:
    got = run(lambda x: tvm.compute((3, 4), lambda i, j: tvm.exp(tvm.sqrt(x(i, j)) * -1)), X)
    np.testing.assert_allclose(got, np.exp(-np.sqrt(X)), rtol=3e-7)


def test_tensors_answer_what_operator_files_ask() -> None:
    x = tvm.placeholder((2, 3), name="x", dtype="float16", attrs={"format": "NCHW"})
    y = dsl.vexp(x)
    assert x.shape[0].value == 2 and x.op.name == "x" and x.op.attrs["format"].value == "NCHW"
    assert y.op.input_tensors == [x] and y.op.tag == "vexp" and y.dtype == "float16"
    y.op.attrs["format"] = x.op.attrs["format"]
    assert tvm.const(0.5, "float32").value == 0.5 and 1 / tvm.const(2, "float32") == 0.5


def test_variables_take_the_dimensions_of_the_inputs() -> None:
    def scaled(x, y, kernel_name="scaled"):
        n = tvm.var("n")
        data = tvm.placeholder((n, 4), name="data", dtype="float32")
        res = dsl.vadd(data, dsl.broadcast(tvm.const(1.0, "float32"), (n, 4)))
        with tvm.target.cce():
            sch = dsl.auto_schedule(res)
        dsl.build(sch, {"name": kernel_name, "tensor_list": [data, res]})

    for rows in (2, 5):
        x = np.zeros((rows, 4), np.float32)
        np.testing.assert_array_equal(tbe.run_operator(scaled, x), x + 1)


def test_arrays_of_every_form() -> None:
    def more_compute(x, y, kernel_name="more"):
        return dsl.vadds(x, 1)

    assert tbe.run_operator(more_compute, np.ones((0, 3), np.float32)).shape == (0, 3)
    assert tbe.run_operator(more_compute, np.float32(3)) == np.float32(4)
    strided = np.arange(12, dtype=np.int32).reshape(6, 2)[::2]
    np.testing.assert_array_equal(tbe.run_operator(more_compute, strided), strided + 1)
    with pytest.raises(TypeError, match="unknown dtype 'complex64'"):
        tbe.run_operator(more_compute, np.ones(3, np.complex64))


# -- optional, dynamic inputs, attributes ---------------------------------------------------------------------


def test_optional_and_dynamic_inputs(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "add_all",
        """
        from tbe import dsl, tvm
        from tbe.common.utils import para_check


        @para_check.check_op_params(para_check.DYNAMIC_INPUT, para_check.OPTION_INPUT, para_check.REQUIRED_OUTPUT,
                                    para_check.OPTION_ATTR_FLOAT, para_check.KERNEL_NAME)
        def add_all(xs, bias, y, factor=1.0, kernel_name="add_all"):
            tensors = [tvm.placeholder(x["shape"], name=f"x{i}", dtype=x["dtype"]) for i, x in enumerate(xs)]
            total = tensors[0]
            for tensor in tensors[1:]:
                total = dsl.vadd(total, tensor)
            inputs = list(tensors)
            if bias is not None:
                inputs.append(tvm.placeholder(bias["shape"], name="bias", dtype=bias["dtype"]))
                total = dsl.vadd(total, inputs[-1])
            res = dsl.vmuls(total, factor)
            with tvm.target.cce():
                sch = dsl.auto_schedule(res)
            dsl.build(sch, {"name": kernel_name, "tensor_list": [*inputs, res]})
        """,
    )
    parts = [np.full((2, 3), v, np.float32) for v in (1, 2, 4)]
    np.testing.assert_array_equal(tbe.run_operator(path, parts), np.full((2, 3), 7))
    bias = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(tbe.run_operator(path, parts, bias, factor=0.5), np.full((2, 3), 4))
    with pytest.raises(dsl.OperatorError, match="no attribute faktor"):
        tbe.run_operator(path, parts, faktor=2.0)


DYNAMIC_REDUCE = """
    from impl.util.platform_adapter import OpPatternMode
    from impl.util.platform_adapter import classify
    from impl.util.platform_adapter import para_check
    from impl.util.platform_adapter import register_operator
    from impl.util.platform_adapter import register_operator_compute
    from impl.util.platform_adapter import shape_util
    from impl.util.platform_adapter import tbe
    from impl.util.platform_adapter import tbe_platform
    from impl.util.platform_adapter import tvm
    from impl.util.util_select_op_base import ReduceInput
    from impl.util.util_select_op_base import ReduceOutput
    from impl.util.util_select_op_base import get_op_cal_info


    def get_op_support_info(x, y, axes=None, keepdims=False, kernel_name="dynamic_sum"):
        axis_reduce_list = [[ReduceInput([0, list(axes)]), ReduceOutput([0, 1, False])]]
        return get_op_cal_info([], axis_reduce_list)


    @register_operator_compute("DynamicSum", op_mode="dynamic", support_fusion=False)
    def dynamic_sum_compute(x, y, axes, keepdims, kernel_name="dynamic_sum"):
        dtype = x.dtype
        if dtype == "float16" and tbe_platform.api_check_support("tbe.dsl.reduce_sum", "float32"):
            x = tbe.cast_to(x, "float32")
        return tbe.cast_to(tbe.reduce_sum(x, axis=axes, keepdims=keepdims), dtype)


    @register_operator("DynamicSum")
    @para_check.check_op_params(para_check.REQUIRED_INPUT, para_check.REQUIRED_OUTPUT,
                                para_check.REQUIRED_ATTR_LIST_INT, para_check.OPTION_ATTR_BOOL,
                                para_check.KERNEL_NAME)
    def dynamic_sum(x, y, axes, keepdims=False, kernel_name="dynamic_sum"):
        x["rel_pos_to_reduce"] = "before"
        input_axis = {"shape": [-1], "value": axes, "rel_pos_to_reduce": "axis"}
        schedules, tensors = [], []
        ins = classify([x, input_axis], OpPatternMode.REDUCE, {"keepdims": keepdims is True})
        for (_x, _axes) in ins:
            with tbe.compute():
                shape = shape_util.variable_shape([_x, _axes], op_mode="reduce")[0]
                data = tvm.placeholder(shape, name="data", dtype=x.get("dtype").lower())
                res = dynamic_sum_compute(data, y, _axes.get("value"), keepdims)
                tensors.append([data, res])
            with tvm.target.cce():
                schedules.append(tbe.auto_schedule(res))
        tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
"""


@pytest.mark.parametrize(
    "shape, axes", [((4, 5), [1]), ((3, 4, 5), [0, -1]), ((7,), [0]), ((1, 200, 3), [1])]
)
def test_the_classified_reduction_of_dynamic_files(
    tmp_path: Path, shape: tuple[int, ...], axes: list[int]
) -> None:
    path = written(tmp_path, "dynamic_sum", DYNAMIC_REDUCE)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 7
    for keepdims in (False, True):
        got = tbe.run_operator(path, x, axes=axes, keepdims=keepdims)
        np.testing.assert_array_equal(got, x.sum(tuple(axes), keepdims=keepdims))
    half = tbe.run_operator(path, x.astype(np.float16), axes=axes)
    np.testing.assert_array_equal(half, x.sum(tuple(axes)).astype(np.float16))
    unknown = dsl.description((-1,) * len(shape), "float32")
    loaded = dsl.load_operator(path)
    assert loaded.entry(unknown, unknown, axes) is None  # checked with example values, nothing to compile yet
    assert "reduceMaps" in loaded.module.get_op_support_info(unknown, unknown, axes)


# -- what information libraries ask ---------------------------------------------------------------------------

ASKED = """
    from impl.util.util_select_op_base import gen_param, get_dynamic_param_in_json
    from te import tvm
    import te.lang.cce


    def check_supported(x, y, axis=0, kernel_name="asked"):
        if axis < 0:
            return False, "axis must not be negative"
        return True, ""


    def op_select_format(x, y, axis=0, kernel_name="asked"):
        dtypes = "float16,float" if len(x["shape"]) < 4 else "float"
        formats = "ND,ND" if len(x["shape"]) < 4 else "ND"
        one = gen_param(classify="input0", name="x", datatype=dtypes, format=formats)
        two = gen_param(classify="output0", name="y", datatype=dtypes, format=formats)
        return get_dynamic_param_in_json([one, two])


    def asked(x, y, axis=0, kernel_name="asked"):
        data = tvm.placeholder(x["shape"], name="data", dtype=x["dtype"])
        res = te.lang.cce.sum(data, axis)
        with tvm.target.cce():
            sch = te.lang.cce.auto_schedule(res)
        te.lang.cce.cce_build_code(sch, {"name": kernel_name, "tensor_list": [data, res]})
"""


def test_support_and_formats_are_asked_of_the_file(tmp_path: Path) -> None:
    loaded = dsl.load_operator(written(tmp_path, "asked", ASKED))
    x, y = dsl.description((2, 3), "float32"), dsl.description((3,), "float32")
    assert loaded.supports([x], [y], {"axis": 1}) == (True, "")
    assert loaded.supports([x], [y], {"axis": -1}) == (False, "axis must not be negative")
    assert loaded.formats([x], [y])["input0"] == {"name": "x", "dtype": "float16,float", "format": "ND,ND"}
    assert tbe.run_operator(loaded.entry, np.ones((2, 3), np.float32), axis=0).tolist() == [2, 2, 2]


# -- errors ---------------------------------------------------------------------------------------------------

BROKEN = """
    import te.lang.cce
    from te import tvm


    def broken(x, y, how="shape", kernel_name="broken"):
        data = tvm.placeholder(x["shape"], name="data", dtype=x["dtype"])
        if how == "shape":
            res = te.lang.cce.vadd(data, te.lang.cce.sum(data, 0))
        elif how == "operand":
            res = te.lang.cce.vadd(data, "float16")
        elif how == "cube":
            res = te.lang.cce.matmul(data, data)
        elif how == "schedule":
            res = te.lang.cce.vexp(data)
            tvm.create_schedule(res.op)
        elif how == "divide":
            res = 1 / 0
        elif how == "truth":
            res = tvm.compute(data.shape, lambda i, j: data(i, j) if i > j else 0.0)
        elif how == "none":
            return
        sch = te.lang.cce.auto_schedule(res)
        te.lang.cce.cce_build_code(sch, {"name": kernel_name, "tensor_list": [data, res]})
"""


@pytest.mark.parametrize(
    "how, line, message",
    [
        ("shape", 8, "shapes .* differ; use broadcast"),
        ("operand", 10, "expected a tensor, got str"),
        ("cube", 12, "operator MatMul"),
        ("schedule", 15, "auto_schedule"),
        ("divide", 17, "ZeroDivisionError"),
        ("truth", 19, "no truth value"),
        ("none", 0, "without calling build"),
    ],
)
def test_an_error_points_to_the_line(tmp_path: Path, how: str, line: int, message: str) -> None:
    path = written(tmp_path, "broken", BROKEN)
    with pytest.raises(dsl.OperatorError, match=message) as caught:
        tbe.run_operator(path, np.ones((2, 3), np.float32), how=how)
    assert caught.value.line == line
    if line:
        assert f"broken.py:{line}:" in str(caught.value)


def test_a_file_that_does_not_load_says_where(tmp_path: Path) -> None:
    with pytest.raises(dsl.OperatorError, match=r"worse\.py:2:") as caught:
        dsl.load_operator(written(tmp_path, "worse", "import os\nx = os.nothing\n"))
    assert caught.value.line == 2
    with pytest.raises(dsl.OperatorError, match=r"wrong\.py:1:"):
        dsl.load_operator(written(tmp_path, "wrong", "def x(:\n"))


def test_helpers_of_tik_operators_are_refused_by_name() -> None:
    with pytest.raises(ImportError, match=r"impl\.constant_util is not provided: .* TIK"):
        from impl import constant_util  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from impl import nothing  # noqa: F401


@pytest.mark.parametrize("name", sorted(dsl.refused.CUBE))
def test_cube_functions_name_the_operator_to_use(name: str) -> None:
    with pytest.raises(NotImplementedError, match=dsl.refused.CUBE[name].split()[0]):
        getattr(dsl, name)()


def test_wrong_results_are_named() -> None:
    def wrong_compute(x, y, kernel_name="wrong"):
        return dsl.vexp(x)

    x = tbe.placeholder((4,), "float32")
    with pytest.raises(dsl.OperatorError, match=r"shape \(4,\) where \(5,\) is declared"):
        dsl.compute_function(wrong_compute, [x], [((5,), "float32")])
    with pytest.raises(dsl.OperatorError, match="is float32 where float16 is declared"):
        dsl.compute_function(wrong_compute, [x], [((4,), "float16")])
    with pytest.raises(dsl.OperatorError, match="1 results where 2 outputs"):
        dsl.compute_function(wrong_compute, [x], [((4,), "float32")] * 2)


# -- checks and shapes ----------------------------------------------------------------------------------------


def test_parameter_checks() -> None:
    @para_check.check_op_params(
        para_check.REQUIRED_INPUT, para_check.OPTION_INPUT, para_check.REQUIRED_ATTR_INT
    )
    def checked(x, y, axis):
        return axis

    x = {"shape": (2,), "dtype": "float32"}
    assert checked(x, None, 1) == 1
    for arguments, message in (
        ((None, None, 1), "'x' is missing"),
        ((x, 3, 1), "'y' must be a dict"),
        ((x, None, 1.5), "'axis' must be int"),
        ((x, None, True), "'axis' must be int"),
    ):
        with pytest.raises(RuntimeError, match=message):
            checked(*arguments)
    with pytest.raises(RuntimeError, match="float64, which is not one of"):
        para_check.check_dtype("float64", ("float16", "float32"), "x")
    with pytest.raises(RuntimeError, match="rank 9"):
        para_check.check_shape((1,) * 9)
    with pytest.raises(RuntimeError, match="not a name"):
        para_check.check_kernel_name("a-b")


def test_shape_arithmetic() -> None:
    assert shape_util.broadcast_shapes((2, 1, 3), (4, 1)) == ([2, 1, 3], [1, 4, 1], [2, 4, 3])
    with pytest.raises(RuntimeError, match="do not broadcast"):
        shape_util.broadcast_shapes((2, 3), (4,))
    assert shape_util.refine_shapes_for_broadcast((2, 3, 4, 5), (2, 3, 1, 1)) == ([6, 20], [6, 1])
    assert shape_util.refine_shape_axes((2, 3, 4, 5), (2, 3)) == ([6, 20], [1])
    assert shape_util.axis_check(4, (-1, 0)) == [0, 3]
    assert shape_util.shape_refine((1, 3, 1)) == [3]


def test_what_is_asked_about_the_processor() -> None:
    from te.platform.cce_conf import CceProductParams, api_check_support

    assert api_check_support("te.lang.cce.vexp", "float32") and api_check_support(
        "tbe.dsl.cast_to", "f322f16"
    )
    assert not api_check_support("te.lang.cce.conv2d") and not api_check_support("tik.mmadd")
    assert api_check_support("tik.vadd") and api_check_support("tik.mmad")
    assert CceProductParams().getParams("Unified_Buffer") > 0


@pytest.mark.parametrize("element", [False, True])
def test_a_number_beside_a_tensor_may_be_another_tensors_only_element(element: bool) -> None:
    def scaled_compute(x, factor, y, kernel_name="scaled"):
        number = factor[0] if element else factor
        return dsl.vmins(dsl.vadds(dsl.vmuls(x, number), number), number)

    x, factor = np.linspace(-2, 2, 12, dtype=np.float16).reshape(3, 4), np.asarray([1.5], np.float32)
    half = np.float16(1.5)
    np.testing.assert_array_equal(
        tbe.run_operator(scaled_compute, x, factor), np.minimum(x * half + half, half)
    )


def test_shapes_that_broadcast_are_compared_from_the_last_dimension_on() -> None:
    from tbe.common.utils import para_check

    shapes = [{"shape": (8, 128)}, {"shape": (128,)}]
    para_check.check_elewise_shape_range(shapes, support_broadcast=True)
    with pytest.raises(RuntimeError, match="different ranks"):
        para_check.check_elewise_shape_range(shapes)
    with pytest.raises(RuntimeError, match="do not go together"):
        para_check.check_elewise_shape_range([{"shape": (128, 8)}, {"shape": (128,)}], support_broadcast=True)
