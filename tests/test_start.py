"""Imports cost little: heavy packages are loaded by what needs them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

HEAVY = {"sympy", "scipy", "torch", "tensorflow", "keras", "onnxruntime", "openvino", "pandas", "matplotlib"}


def loaded(code: str) -> set[str]:
    """The top-level packages that a process has imported after some code."""
    script = f"{code}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_engine_alone_loads_nothing() -> None:
    assert loaded("import ge") & (HEAVY | {"numpy", "onnx", "onnx_ir", "llvmlite", "rich", "typer"}) == set()


def test_acl_loads_the_engine_when_it_is_used() -> None:
    assert loaded("import acl") & {"ge", "npu_runtime", "onnx_ir"} == set()
    assert loaded("import acl; assert not acl.init() and not acl.finalize()") & {"ge", "onnx_ir"} == set()


@pytest.mark.parametrize(
    "code", ["import ge.compiler, ge.parsers.onnx", "import acl", "import ge.atc", "import hccl"]
)
def test_what_compiles_and_runs_models_loads_no_framework(code: str) -> None:
    assert loaded(code) & HEAVY == set()


def test_a_compile_loads_no_framework() -> None:
    code = (
        "import ge, numpy as np\n"
        "g = ge.Graph('net'); x = g.input('x', (2, 3), 'float32'); g.output(ge.ops.relu(x), 'y')\n"
        "assert (ge.compile(g)(np.ones((2, 3), np.float32)) == 1).all()"
    )
    assert loaded(code) & HEAVY == set()


def test_symbolic_dimensions_still_have_their_arithmetic() -> None:
    """sympy is put off, not gone: the first use loads it, and it is everybody's sympy."""
    code = (
        "import ge.compiler, onnx_ir as ir, sys\n"
        "assert 'sympy' not in sys.modules\n"
        "assert str(ir.SymbolicDim('n') + 1) == 'n + 1'\n"
        "assert str(ir.SymbolicDim('max(a, b)') * 2) == '2*Max(a, b)'\n"
        "import sympy, sympy.core\n"
        "assert isinstance((ir.SymbolicDim('n') + 1)._expr, sympy.Expr)"
    )
    assert "sympy" in loaded(code)


def test_sympy_may_be_loaded_before_or_by_others() -> None:
    assert "sympy" in loaded("import sympy, ge.compiler; assert sympy.Integer(2) + 1 == 3")
    assert "sympy" in loaded("import ge.compiler, sympy.core.numbers; assert sympy.Integer(2) + 1 == 3")


COMPILER = {"tbe", "llvmlite", "onnx", "onnx_ir"}


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_tensorflows_door_loads_the_compiler_with_the_first_function() -> None:
    """Registering the devices takes little more than the runtime."""
    assert loaded("import tf_adapter") & COMPILER == set()
    code = (
        "import tensorflow as tf, tf_adapter\nassert 'NPU' in tf.function(lambda x: x + 1)(tf.ones(4)).device"
    )
    assert loaded(code) >= COMPILER


def test_the_compiler_loads_kernels_for_gpus_where_they_are_asked_for() -> None:
    code = "import ge.compiler, tbe, sys\nassert 'tbe.cuda' not in sys.modules\n"
    loaded(
        code
        + "try:\n    tbe.build([], [], target='sm_1')\nexcept ValueError as error:\n    assert 'sm_90' in str(error)"
    )
