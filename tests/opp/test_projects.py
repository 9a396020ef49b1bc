"""Operator projects: built, installed, run; and what is wrong with them said with its place."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import ge
from ge import opp
from ge.offline import compile_operators, describe
from ge.opp import cpp
from ge.opp.information import read_information
from ge.opp.project import read
from ge.ops.custom import search
from tests.opp.conftest import KIT


def sample(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape).astype(dtype)


# -- implementations -----------------------------------------------------------------------------------------


def test_tbe_operator_is_fused(kit: Path) -> None:
    graph = ge.Graph("g")
    x = graph.input("x", (4, 5))
    graph.output(graph.op("Cube", x + 1.0) * 2.0)
    model = ge.compile(graph)
    array = sample(4, 5)
    np.testing.assert_allclose(model(array), (array + 1) ** 3 * 2, rtol=1e-5, atol=1e-6)
    assert [task.kind for task in model.plan.tasks] == ["kernel"]


def test_tbe_operator_replaces_the_built_in_one(kit: Path) -> None:
    x = np.array([-3, 0, 5], np.float32)
    np.testing.assert_array_equal(ge.run_operator("Sign", x), [-2, 0, 2])
    np.testing.assert_array_equal(ge.run_operator("Sign", x.astype(np.int32)), [-1, 0, 1])


def test_without_the_package_the_built_in_one_is_in_force() -> None:
    np.testing.assert_array_equal(ge.run_operator("Sign", np.array([-3, 0, 5], np.float32)), [-1, 0, 1])
    with pytest.raises(ge.GeError, match="operator type 'Cube' is not in the operator library"):
        ge.run_operator("Cube", sample(3))


def test_kernel_decides_the_size_of_its_result(kit: Path) -> None:
    for dtype in ("float32", "int32"):
        x = np.array([3, -1, 0, 7, -2], dtype)
        np.testing.assert_array_equal(ge.run_operator("KeepPositive", x), [3, 7])
    assert ge.run_operator("KeepPositive", np.array([-1, -2], np.float32)).shape == (0,)


def test_verification_in_cpp(kit: Path) -> None:
    with pytest.raises(ge.GeError, match="takes vectors, got rank 2"):
        ge.run_operator("KeepPositive", sample(2, 2))


def test_any_number_of_inputs_and_lists_of_attributes(kit: Path) -> None:
    arrays = [sample(70, 90) + i for i in range(3)]
    got = ge.run_operator("WeightedSum", *arrays, weights=[1.0, 0.5, -2.0], negate=True)
    np.testing.assert_allclose(got, -(arrays[0] + arrays[1] / 2 - arrays[2] * 2), rtol=1e-4, atol=1e-5)
    with pytest.raises(ge.GeError, match="2 weights for 3 tensors"):
        ge.run_operator("WeightedSum", *arrays, weights=[1.0, 0.5])
    with pytest.raises(ge.GeError, match="attribute 'weights' is missing"):
        ge.run_operator("WeightedSum", *arrays)


def test_an_output_with_the_name_of_an_input_is_its_memory(kit: Path, tmp_path: Path) -> None:
    table, row = sample(4, 3), np.ones(3, np.float32)
    wanted = table.copy()
    wanted[2] = row
    kept = table.copy()
    np.testing.assert_array_equal(ge.run_operator("PutRow", table, row, at=2), wanted)
    graph = ge.Graph("rows")
    old, new = graph.input("table", (4, 3)), graph.input("row", (3,))
    relu, weights = graph.op("Relu", old), graph.constant(table)
    graph.output(graph.op("PutRow", relu, new, at=2) - relu)  # the former table is read as well
    graph.output(graph.op("PutRow", old, new, at=2))
    graph.output(graph.op("PutRow", weights, new, at=2) + weights)
    graph.output(graph.op("PutRow", weights, graph.constant(row), at=2) + old)  # folded
    positive = np.maximum(table, 0)
    changed = positive.copy()
    changed[2] = row
    expected = [changed - positive, wanted, wanted + table, wanted + table]
    for model in (found := ge.compile(graph), ge.load(found.save(tmp_path / "rows"))):
        for _ in range(2):
            for y, reference in zip(model(table, row), expected, strict=True):
                np.testing.assert_allclose(y, reference, rtol=1e-6)
            np.testing.assert_array_equal(table, kept)


def test_error_status_of_a_kernel(kit: Path) -> None:
    x = np.array([1, 2, -5], np.float32)
    with pytest.raises(ge.GeError, match=r"Checked.*status 1: element 2 is -5, below 0"):
        ge.run_operator("Checked", x)
    with pytest.raises(ge.GeError, match="it threw an element is too small"):
        ge.run_operator("Checked", x, how="throw")
    np.testing.assert_array_equal(ge.run_operator("Checked", x, bound=-9.0), x)


def test_inference_and_verification_in_python(kit: Path) -> None:
    with pytest.raises(ge.GeError, match=r"how is 'shout'.*use 'status' or 'throw'"):
        ge.run_operator("Checked", sample(3), how="shout")


def explained(x: np.ndarray, **attrs: object) -> tuple[np.ndarray, str, str]:
    graph = ge.Graph("g")
    graph.output(graph.op("Affine", graph.input("x", x.shape, x.dtype.name), **attrs))
    model = ge.compile(graph)
    (row,) = ge.explain(model)
    return model(x), row.engine, row.reason


def test_a_tik_program_is_a_task_of_a_model(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = ge.Graph("g")
    x = graph.input("x", (4, 128), "float16")
    graph.output(graph.op("Tripled", x + 1.0) - 1.0)
    model = ge.compile(graph)
    array = sample(4, 128, dtype="float16")
    wanted = (array + np.float16(1)) * np.float16(3) - np.float16(1)
    np.testing.assert_array_equal(model(array), wanted)
    assert [task.kind for task in model.plan.tasks] == ["kernel", "kernel", "check", "kernel"]
    path = model.save(tmp_path / "tripled")
    np.testing.assert_array_equal(ge.load(path)(array), wanted)
    monkeypatch.setenv("NPU_KEY_FILE", str(tmp_path / "other.key"))
    with pytest.raises(ge.GeError, match=r"E11007.*TIK program for another machine, or not trusted"):
        ge.load(path)


def test_a_tik_program_that_breaks_a_rule_fails_the_run(kit: Path) -> None:
    graph = ge.Graph("g")
    graph.output(graph.op("Tripled", graph.input("x", (2, 128), "float16"), reach=512))
    with pytest.raises(ge.GeError, match=r"Tripled.*statement \d+ of the TIK program reaches outside"):
        ge.compile(graph)(sample(2, 128, dtype="float16"))


def test_tbe_comes_before_ai_cpu(kit: Path) -> None:
    x = sample(6, dtype="float16")
    result, engine, reason = explained(x)
    np.testing.assert_array_equal(result, x * 2)
    assert engine == "vector"
    assert "custom TBE computation of package kit" in reason and "TBE comes before AI CPU" in reason


def test_ai_cpu_where_tbe_does_not_take_the_element_type(kit: Path) -> None:
    result, engine, reason = explained(sample(6), factor=3)
    np.testing.assert_allclose(result, sample(6) * 3, rtol=1e-6)
    assert engine == "AI CPU"
    assert "not on vector: no combination of element types fits (float32); it takes float16" in reason


def test_ai_cpu_where_check_supported_says_no(kit: Path) -> None:
    with pytest.raises(ge.GeError, match="Affine takes float, got DT_FLOAT16"):
        explained(sample(6, dtype="float16"), factor=13)


def test_optional_input_of_kernel_and_tbe(kit: Path) -> None:
    for dtype in ("float32", "float16"):
        x, bias = sample(2, 3, dtype=dtype), sample(3, dtype=dtype)
        np.testing.assert_allclose(ge.run_operator("Affine", x, bias), x * 2 + bias, rtol=1e-2, atol=1e-2)
        np.testing.assert_allclose(ge.run_operator("Affine", x, None), x * 2, rtol=1e-2)


def test_constants_of_kernels_are_folded(kit: Path) -> None:
    graph = ge.Graph("g")
    graph.output(graph.op("Affine", graph.constant(sample(3)), factor=3) + graph.input("x", (3,)))
    assert [node.op_type for node in graph.ir] == ["Add"]
    np.testing.assert_allclose(ge.compile(graph)(np.ones(3, np.float32)), sample(3) * 3 + 1, rtol=1e-6)


# -- model files ---------------------------------------------------------------------------------------------


def test_model_file_names_the_package_it_needs(kit: Path, tmp_path: Path) -> None:
    graph = ge.Graph("sums")
    x = graph.input("x", (4,))
    graph.output(graph.op("WeightedSum", x, x, weights=[1.0, 2.0]))
    graph.output(graph.op("Cube", x))
    path = ge.compile(graph).save(tmp_path / "sums")
    array = sample(4)
    np.testing.assert_allclose(ge.load(path)(array)[0], array * 3, rtol=1e-6)
    with opp.searching(tmp_path / "nothing"):
        parts = os.environ["NPU_OPP_PATH"].split(os.pathsep)
        os.environ["NPU_OPP_PATH"] = parts[0]
        missing = r"E10611.*kernel WeightedSum of operator package kit 2\.1, which is not installed.*nothing"
        with pytest.raises(ge.GeError, match=missing):
            ge.load(path)


def test_model_file_of_tbe_operators_needs_no_package(kit_folder: Path, tmp_path: Path) -> None:
    with opp.searching(kit_folder):
        graph = ge.Graph("cubes")
        graph.output(graph.op("Cube", graph.input("x", (4,))))
        path = ge.compile(graph).save(tmp_path / "cubes")
    array = sample(4)
    np.testing.assert_allclose(ge.load(path)(array), array**3, rtol=1e-5)


def test_model_file_of_another_version_of_the_package(kit: Path, tmp_path: Path) -> None:
    graph = ge.Graph("sums")
    x = graph.input("x", (4,))
    graph.output(graph.op("WeightedSum", x, weights=[2.0]))
    model = ge.compile(graph)
    model.plan.report["packages"] = {"kit": "1.9"}
    with pytest.warns(UserWarning, match=r"compiled with version 1\.9 of operator package kit, 2\.1"):
        ge.load(model.save(tmp_path / "sums"))


# -- the command line ----------------------------------------------------------------------------------------


def command(*args: str, folder: Path, code: int = 0) -> str:
    environment = {**os.environ, "NPU_OPP_PATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "ge.opp", *args],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_skeleton_builds_and_passes_its_tests(tmp_path: Path) -> None:
    assert "next: python -m ge.opp build" in command("new", "DoubleUp", folder=tmp_path)
    project = tmp_path / "double_up"
    assert "exists already" in command("new", "double_up", folder=tmp_path, code=1)
    assert "no packages" in command("list", folder=tmp_path)
    said = command("build", "double_up", "--version", "3.0", "--output", "inst", folder=tmp_path)
    assert "installed double_up 3.0 (DoubleUp)" in said
    listed = command("list", folder=tmp_path / "inst")
    assert "double_up" in listed and "AI CPU, TBE" in listed
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(project / "tests")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert tests.returncode == 0, tests.stdout[-3000:] + tests.stderr[-3000:]
    command("remove", "double_up", folder=tmp_path / "inst")
    assert not (tmp_path / "inst" / "double_up").exists()
    assert "is not installed" in command("remove", "double_up", folder=tmp_path / "inst", code=1)


# -- what is wrong with a project ----------------------------------------------------------------------------


def changed_kit(tmp_path: Path, file: str, old: str, new: str) -> Path:
    project = tmp_path / "kit"
    shutil.copytree(KIT, project, ignore=shutil.ignore_patterns("__pycache__"))
    path = project / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return project


HEADER, INI = "op_proto/kit.h", "tbe/op_info_cfg/ai_core/npu/kit.ini"


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        (HEADER, ".OP_END_FACTORY_REG(Cube)", "", r"kit\.h:\d+: the prototype of Cube does not end"),
        (
            HEADER,
            "ATTR(bound, Float, 0.0)",
            "ATTR(bound, Float, zero)",
            r"kit\.h:\d+: 'zero' is not a literal",
        ),
        (HEADER, "ATTR(bound, Float,", "ATTR(bound, Tensor,", r"attribute 'bound' is of type Tensor"),
        (HEADER, "TensorType::UnaryDataType()", "TensorType::Odd()", r"TensorType::Odd is unknown"),
        (INI, "opFile.value=cube", "opFile.value=cubic", r"Cube names cubic\.py, which is not there"),
        (INI, "input0.dtype=float16,float\n", "input0.dtype=float16\n", "list different numbers of types"),
        (INI, "[Cube]", "[Cube", r"kit\.ini:\d+: the information cannot be read"),
        (INI, "defaultValue=2", "defaultValue=two", "the default of attribute 'factor' of Affine is 'two'"),
        (INI, "attr_factor.type=int", "attr_factor.type=tensor", "attribute 'factor' of Affine is of type"),
        (
            "cpukernel/impl/kit_kernels.cc",
            'REGISTER_CPU_KERNEL("Checked", CheckedKernel);',
            "",
            "there is no kernel for Checked",
        ),
        (
            "framework/tf_plugin/kit_plugin.cc",
            ".ParseParamsFn(AutoMappingFn)",
            ".ParseOpToGraphFn(CubeGraph)",
            r"kit_plugin\.cc:\d+: the plugin of Cube has ParseOpToGraphFn",
        ),
        (
            "op_proto/kit.cc",
            "COMMON_INFER_FUNC_REG(Affine,",
            "COMMON_INFER_FUNC_REG(Afine,",
            "no prototype of Afine",
        ),
    ],
)
def test_faults_are_named_with_their_place(tmp_path: Path, file: str, old: str, new: str, words: str) -> None:
    found = read(changed_kit(tmp_path, file, old, new)).faults.found
    assert found and {error.code for error in found} == {"E10612"}
    assert any(re.search(words, str(error)) for error in found), found


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_rest_of_a_project_is_built_and_every_fault_reported(tmp_path: Path, native: bool) -> None:
    kernels = "cpukernel/impl/kit_kernels.cc"
    project = changed_kit(tmp_path, kernels, "int64_t count = 0;", "int64_t count = nought;")
    if not native:
        shutil.rmtree(project / "cpukernel")
        (project / "op_proto/kit.cc").unlink()
    for file, old, new in (
        ("op_proto/kit.h", "TensorType::UnaryDataType()", "TensorType::Odd()"),
        ("tbe/impl/affine.py", "import", "import nothing\nimport"),
    ):
        path = project / file
        path.write_text(path.read_text().replace(old, new, 1))
    said = command("build", str(project), "--output", str(tmp_path / "out"), folder=tmp_path, code=1)
    for words in (
        r"installed kit 1\.0 \(Cube",
        r"fault: .*'Sign'.*kit\.h:\d+: TensorType::Odd is unknown",
        r"fault: .*'Affine'.*kit/tbe/impl/affine\.py:\d+.*nothing",
        r"fault: .*'WeightedSum'.*has no implementation",
        *([r"fault: .*kit_kernels\.cc:\d+: .*nought"] if native else []),
    ):
        assert re.search(words, said), (words, said)
    x = sample(3)
    with opp.searching(tmp_path / "out"):
        np.testing.assert_allclose(ge.run_operator("Cube", x), x**3, rtol=1e-5)


def only_cube(project: Path) -> None:
    """Leave one operator, which is written in TBE, of the kit."""
    for name in ("cpukernel", "framework", "operators"):
        shutil.rmtree(project / name)
    for name in ("kit.cc", "checked.py"):
        (project / "op_proto" / name).unlink()
    header, ini = project / HEADER, project / INI
    header.write_text(
        header.read_text().partition("// Twice the sign")[0] + "}\n",
    )
    ini.write_text(ini.read_text().partition("[Sign]")[0].partition("[Affine]")[0])


def test_a_project_of_which_nothing_is_left_is_an_error(tmp_path: Path) -> None:
    project = changed_kit(
        tmp_path, "tbe/impl/cube.py", "from topi import generic", "from topi import nothing"
    )
    only_cube(project)
    with pytest.raises(ge.GeError, match=r"kit/tbe/impl/cube\.py:6.*ImportError"):
        opp.build(project, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir()), "nothing half built is left"


def test_the_name_and_the_place_of_a_project_as_they_are_found(tmp_path: Path) -> None:
    project = changed_kit(tmp_path / "x", INI, "[Cube]", "[Cube]")
    only_cube(project)
    outer = tmp_path / "1 custom (op)"
    outer.mkdir()
    project.rename(outer / "custom_op")
    spec, path = opp.build(outer, tmp_path / "out")
    assert (spec.name, path.name, spec.faults) == ("opp_1_custom__op_", "opp_1_custom__op_", ())
    with pytest.raises(ge.GeError, match="cannot be the name"):
        opp.build(outer, tmp_path / "out", name="a b")


PROTOTYPE = """
#include "graph/operator_reg.h"
namespace ge {
REG_OP(Shrink)
    .INPUT(x, "T")
    .OUTPUT(y, "T")
    .ATTR(axis, Int, 0)
    .ATTR(factor, Float, 1.0f)
    .ATTR(keep, ListInt, {})
    .DATATYPE(T, TensorType({DT_FLOAT16, ge::DT_FLOAT}))
    .OP_END_FACTORY_REG(Shrink)

static bool SameLength(const vector<int64_t>& a, const string& name) { return !a.empty() && !name.empty(); }

IMPLEMT_VERIFIER(Shrink, ShrinkVerify) {
  if (!SameLength(op.get_input_desc_x().GetShape().GetDims(), op.GetName())) return GRAPH_FAILED;
  return op.get_attr_axis() < 2 ? GRAPH_SUCCESS : GRAPH_FAILED;
}
IMPLEMT_INFERFUNC(Shrink, ShrinkInfer) {
  TensorDesc desc = op.get_input_desc_x();
  vector<int64_t> dims = desc.GetShape().GetDims();
  dims[0] = UNKNOWN_DIM;
  op.SetAttr("axis", 1);
  int32_t axis = 0;
  if (op.GetAttr("axis", axis) != GRAPH_SUCCESS || axis != 1) return GRAPH_FAILED;
  desc.SetShape(Shape(dims));
  return op.update_output_desc_y(desc);
}
INFER_FUNC_REG(Shrink, ShrinkInfer);
VERIFY_FUNC_REG(Shrink, ShrinkVerify);
}  // namespace ge
"""

PARSE = """
#include "register/register.h"
#include "graph/operator.h"
using namespace ge;
namespace domi {
Status ParseShrink(const Message* op_src, ge::Operator& op_dest) {
  const ge::onnx::NodeProto* node = dynamic_cast<const ge::onnx::NodeProto*>(op_src);
  if (node == nullptr) return FAILED;
  vector<int> keep;
  for (auto attr : node->attribute()) {
    if (attr.name() == "ends" && attr.type() == ge::onnx::AttributeProto::INTS) {
      for (int i = 0; i < attr.ints_size(); ++i) keep.push_back(attr.ints(i));
    } else if (attr.name() == "scale") {
      op_dest.SetAttr("factor", attr.f() * 2);
    } else if (attr.name() == "mode" && attr.s() != "plain") {
      OP_LOGE(op_dest.GetName().c_str(), "mode %s is unknown", attr.s().c_str());
      return PARAM_INVALID;
    }
  }
  op_dest.SetAttr("keep", keep);
  op_dest.SetAttr("of_nobody", true);
  return SUCCESS;
}
Status ParseByOperator(const ge::Operator& op_src, ge::Operator& op) {
  AutoMappingByOpFn(op_src, op);
  float half = 0;
  if (op_src.GetAttr("half", half) != GRAPH_SUCCESS) return FAILED;
  op.SetAttr("factor", half * 2);
  return SUCCESS;
}
REGISTER_CUSTOM_OP("Shrink")
    .FrameworkType(ONNX)
    .OriginOpType({"my::1::Shrink", "my::2::Shrink"})
    .ParseParamsFn(ParseShrink)
    .ImplyType(ImplyType::TVM);
REGISTER_CUSTOM_OP("Shrink")
    .FrameworkType(TENSORFLOW)
    .OriginOpType("TfShrink")
    .ParseParamsByOperatorFn(ParseByOperator);
}  // namespace domi
"""

SHRINK = """
from te import tvm
import te.lang.cce as cce
from topi import generic


def shrink(x, y, axis=0, factor=1.0, keep=(), kernel_name="shrink"):
    data = tvm.placeholder(x["shape"], name="x", dtype=x["dtype"])
    made = cce.vmuls(data, factor)
    if keep:
        made = tvm.compute((keep[0], *x["shape"][1:]), lambda *i: made_of(made, i), name="cut")
    with tvm.target.cce():
        schedule = generic.auto_schedule(made)
    cce.cce_build_code(schedule, {"name": kernel_name, "tensor_list": [data, made]})


def made_of(tensor, at):
    return tensor(*at)
"""


@pytest.fixture(scope="module")
def shrink_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with prototypes and parse functions in C++, installed."""
    project = tmp_path_factory.mktemp("shrink") / "shrink"
    for file, text in (
        ("op_proto/shrink.cc", PROTOTYPE),
        ("framework/onnx_plugin/shrink.cc", PARSE),
        ("tbe/impl/shrink.py", SHRINK),
        (
            "tbe/op_info_cfg/ai_core/ascend910/shrink.ini",
            "[Shrink]\ninput0.name=x\ninput0.dtype=float16,float\ninput0.format=FORMAT_ND\n"
            "output0.name=y\noutput0.dtype=float16,float\noutput0.format=NCHW,ND\n",
        ),
    ):
        path = project / file
        path.parent.mkdir(parents=True)
        path.write_text(text)
    spec, place = opp.build(project, project.parent / "out")
    assert spec.faults == () and [p.parse for p in spec.plugins] == ["ParseShrink", "ParseByOperator"]
    return place.parent


def test_prototypes_in_cpp_as_projects_write_them(shrink_folder: Path) -> None:
    x = sample(3, 4)
    with opp.searching(shrink_folder):
        np.testing.assert_allclose(ge.run_operator("Shrink", x, factor=3.0), x * 3, rtol=1e-6)
        np.testing.assert_allclose(ge.run_operator("Shrink", x, keep=[2]), x[:2], rtol=1e-6)
        with pytest.raises(ge.GeError, match="refuses the node"):
            ge.run_operator("Shrink", x, axis=5)


def onnx_model(**attrs: object) -> onnx.ModelProto:
    node = helper.make_node("Shrink", ["x"], ["y"], domain="my", **attrs)
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("x", "y")]
    ports[0] = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    return helper.make_model(helper.make_graph([node], "g", ports[:1], ports[1:]), opset_imports=opsets)


def test_a_parse_function_in_cpp_gives_the_attributes(shrink_folder: Path) -> None:
    x = sample(3, 4)
    with opp.searching(shrink_folder):
        model = ge.compile(onnx_model(ends=[2], scale=1.5, mode="plain"))
        np.testing.assert_allclose(model(x), x[:2] * 3, rtol=1e-6)
        with pytest.raises(ge.GeError, match="mode odd is unknown"):
            ge.compile(onnx_model(mode="odd"))
        function = ge.ops.plugins.find("tensorflow", "TfShrink")
        assert function is not None and function.custom


def test_an_empty_project(tmp_path: Path) -> None:
    with pytest.raises(ge.GeError, match="declares no operator"):
        opp.build(tmp_path, tmp_path / "out")


def test_an_operator_without_shapes(tmp_path: Path) -> None:
    project = changed_kit(
        tmp_path, "op_proto/kit.cc", "COMMON_INFER_FUNC_REG(WeightedSum, WeightedSumInfer);", ""
    )
    (fault,) = read(project).faults.found
    assert re.search(r"nothing tells the shapes of WeightedSum.*weighted_sum\.py with infer", str(fault))


def test_private_storage_formats_are_told() -> None:
    found = {info.type: info for info in read_information(KIT / INI)}
    assert found["Affine"].columns == (("float16", "float16", "float16"),)
    assert found["Cube"].columns == (("float16", "float16"), ("float32", "float32"))


def test_information_of_two_processors_is_joined(tmp_path: Path) -> None:
    project = changed_kit(tmp_path, INI, "[Cube]", "[Cube]")
    folder = project / "tbe/op_info_cfg/ai_core/other"
    folder.mkdir()
    (folder / "kit.ini").write_text(
        "[Affine]\ninput0.name=x\ninput0.dtype=float\ninput1.name=bias\ninput1.dtype=float\n"
        "output0.name=y\noutput0.dtype=float\n"
    )
    spec = read(project).operators["Affine"].tbe
    assert spec is not None and spec.asks
    assert spec.columns == (("float16",) * 3, ("float32",) * 3)


def test_plugins_for_caffe_are_left_out(tmp_path: Path) -> None:
    project = changed_kit(tmp_path, "framework/tf_plugin/kit_plugin.cc", "TENSORFLOW", "CAFFE")
    assert read(project).notes == ["the plugin of Cube for Caffe is left out: there is no parser"]


def test_only_private_storage_formats(tmp_path: Path) -> None:
    path = tmp_path / "a.ini"
    path.write_text("[A]\ninput0.name=x\ninput0.dtype=float16\ninput0.format=FRACTAL_NZ\n")
    (info,) = read_information(path)
    assert info.columns == () and "only the storage formats FRACTAL_NZ" in info.refused


# -- texts ---------------------------------------------------------------------------------------------------


def test_prototypes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.h"
    path.write_text(
        """
        // REG_OP(Hidden).OP_END_FACTORY_REG(Hidden)
        #define REG_OP(x) nothing
        REG_OP(All)
            .INPUT(x, TensorType({DT_FLOAT, DT_STRING, DT_INT8}))
            .DYNAMIC_INPUT(more, TensorType::ALL())
            .OUTPUT(y, TensorType({DT_BF16}))
            .ATTR(a, Int, -3)
            .ATTR(b, Float, 1.5f)
            .ATTR(c, Bool, true)
            .ATTR(d, String, "a, (b)")
            .ATTR(e, ListInt, {1, 2})
            .ATTR(f, ListFloat, {})
            .ATTR(g, Type, DT_FLOAT)
            .REQUIRED_ATTR(h, ListString)
            .OP_END_FACTORY_REG(All)
        """
    )
    (spec,) = cpp.prototypes_of(path)
    assert spec.type == "All"
    assert [(p.name, p.kind) for p in spec.inputs] == [("x", "required"), ("more", "dynamic")]
    assert spec.inputs[0].dtypes == ("float32", "int8") and spec.outputs[0].dtypes == ("bfloat16",)
    defaults = {a.name: a.default for a in spec.attrs if not a.required}
    assert defaults == {"a": -3, "b": 1.5, "c": True, "d": "a, (b)", "e": [1, 2], "f": [], "g": "float32"}
    assert [a.name for a in spec.attrs if a.required] == ["h"]


def test_plugins_are_read() -> None:
    found = {
        (p.framework, p.names): p.type for p in cpp.plugins_of(KIT / "framework/tf_plugin/kit_plugin.cc")
    }
    assert found == {
        ("tensorflow", ("KitCube",)): "Cube",
        ("tensorflow", ("KitKeepPositive",)): "KeepPositive",
        ("tensorflow", ("KitWeightedSum", "KitWeightedSumV2")): "WeightedSum",
    }


def test_manifest_that_was_damaged(kit_folder: Path, tmp_path: Path) -> None:
    package = tmp_path / "kit"
    shutil.copytree(kit_folder / "kit", package)
    (package / "package.json").write_text("{")
    damaged = r"package\.json cannot be used.*build the operator project again"
    with pytest.raises(ge.GeError, match=damaged), opp.searching(tmp_path):
        pass
    search.refresh()


def test_atc_takes_operators_from_a_directory(kit_folder: Path, tmp_path: Path) -> None:
    node = helper.make_node("WeightedSum", ["x", "x"], ["y"], domain="kit", weights=[1.0, 2.0])
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("x", "y")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("kit", 1)]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=opsets), tmp_path / "m.onnx")
    arguments = ["-m", "ge.atc", f"--model={tmp_path}/m.onnx", f"--output={tmp_path}/m", "--soc_version=cpu"]
    done = subprocess.run(
        [sys.executable, *arguments, f"--opp_path={kit_folder}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with opp.searching(kit_folder):
        assert describe(tmp_path / "m.om")["packages"] == {"kit": "2.1"}
        x = sample(4)
        np.testing.assert_allclose(ge.load(tmp_path / "m.om")(x), 3 * x, rtol=1e-6)


def test_single_operator_descriptions(kit: Path, tmp_path: Path) -> None:
    port = {"format": "ND", "shape": [3], "type": "float"}
    path = tmp_path / "op.json"
    path.write_text(json.dumps([{"op": "Cube", "input_desc": [port], "output_desc": [port]}]))
    (result,) = compile_operators(path, tmp_path, ge.CompileOptions())
    np.testing.assert_array_equal(ge.load(result.path)(np.array([1, 2, 3], np.float32)), [1, 8, 27])


@pytest.mark.parametrize(
    ("file", "reader"),
    [
        (HEADER, cpp.prototypes_of),
        ("framework/onnx_plugin/kit_plugin.cc", cpp.plugins_of),
        (INI, read_information),
    ],
)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_texts_are_errors_at_most(
    file: str, reader: Callable[[Path], object], data: st.DataObject
) -> None:
    text = (KIT / file).read_text()
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start, min(len(text), start + 80)))
    put = data.draw(st.sampled_from(["", "(", ")", '"', "{", "=", "[", "\n", "\0", "é", ","]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(file).name
        path.write_text(text[:start] + put + text[end:])
        with contextlib.suppress(ge.GeError):
            reader(path)
