"""Applications in C++ build against an installation, and run compiled models without Python."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import acl
import ge
from ge.model import om
from ge.ops.header import header
from tests.model.plans import geared

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def own_key(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPU_KEY_FILE", str(tmp_path_factory.mktemp("key") / "om.key"))
        yield


@pytest.fixture(scope="module")
def model() -> ge.Model:
    g = ge.Graph("net")
    x = g.input("x", (4, 16))
    w = g.constant(np.linspace(-1, 1, 16 * 8, dtype=np.float32).reshape(16, 8))
    g.output(ge.ops.softmax(ge.ops.exp(x @ w * 0.125) * 0.5, axes=[-1]), "y")
    return ge.compile(g)


@pytest.fixture(scope="module")
def file(model: ge.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.save(tmp_path_factory.mktemp("model") / "net.om")


def run(*words: object, **variables: str) -> str:
    """The output of a command."""
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=600, env=os.environ | variables
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@functools.cache
def place(option: str) -> str:
    """A folder of the installation."""
    return run(sys.executable, "-m", "npu_runtime", option).strip()


def tool(name: str) -> str:
    """A program of the environment or of the system."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def built(source: Path, folder: Path, *options: str) -> Path:
    """A program that is linked with the runtime."""
    program = folder / source.stem
    old = source.stem.startswith("acl")
    flags = [f"-I{place('--include-dir')}", f"-L{place('--library-dir')}", "-lascendcl" if old else "-lnpu"]
    standard = "-std=c++11" if old else "-std=c++20"
    command = [tool("g++"), standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", *options, source]
    run(*command, "-o", program, *flags, f"-Wl,-rpath,{place('--library-dir')}", "-pthread")
    return program


def ramp(model: ge.Model) -> np.ndarray:
    """What tests/cpp/program.cpp feeds."""
    shape = model.inputs[0].desc.shape
    return (np.arange(1, np.prod(shape) + 1, dtype=np.float32) * np.float32(0.125)).reshape(shape)


def test_the_c_plus_plus_layer_runs_a_model(model: ge.Model, file: Path, tmp_path: Path) -> None:
    program = built(HERE / "program.cpp", tmp_path)
    run(program, file, tmp_path / "result")
    found = np.fromfile(tmp_path / "result", np.float32).reshape(model.outputs[0].desc.shape)
    np.testing.assert_array_equal(found, model(ramp(model)))
    assert program.stat().st_size < 1 << 20, "an application is small beside the runtime"


def programs_of_acl(model: ge.Model, file: Path, folder: Path, *options: str) -> None:
    """Build and run programs in the form of AscendCL's samples, and compare their results."""
    x = ramp(model)
    x.tofile(folder / "input")
    gears = om.write(geared(1, 2, 8), folder / "geared.om")
    for name, further in (("acl_sync", (gears,)), ("acl_async", ())):
        result = folder / f"{name}.raw"
        run(built(HERE / f"{name}.cpp", folder, *options), file, folder / "input", result, *further)
        np.testing.assert_array_equal(np.fromfile(result, np.float32), model(x).reshape(-1))


def test_programs_for_ascendcl_run(model: ge.Model, file: Path, tmp_path: Path) -> None:
    programs_of_acl(model, file, tmp_path)


@pytest.mark.slow
def test_programs_for_ascendcl_are_clean_under_sanitizers(
    model: ge.Model, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UBSAN_OPTIONS", "halt_on_error=1")
    programs_of_acl(model, file, tmp_path, "-g1", "-fsanitize=address,undefined")


def test_constants_of_acl_are_those_of_python() -> None:
    header = (Path(place("--include-dir")) / "acl" / "acl.h").read_text()
    found = dict(re.findall(r"\b(ACL_[A-Z0-9_]+) = (-?\d+)[,;\s]", header))
    assert len(found) > 100
    assert {name: int(value) for name, value in found.items()} == {
        name: getattr(acl.constants, name) for name in found
    }
    names = dict(re.findall(r'#define (ACL_DYNAMIC_\w+) "(.*)"', header))
    assert names == {name: getattr(acl.constants, name) for name in names}


@pytest.mark.slow
def test_the_c_plus_plus_layer_is_clean_under_sanitizers(file: Path, tmp_path: Path) -> None:
    program = built(HERE / "program.cpp", tmp_path, "-g1", "-fsanitize=address,undefined")
    run(program, file, tmp_path / "result", UBSAN_OPTIONS="halt_on_error=1")


@pytest.mark.slow
def test_the_example_builds_with_cmake_and_prints_what_python_computes(
    model: ge.Model, file: Path, tmp_path: Path
) -> None:
    cmake, folder = tool("cmake"), tmp_path / "build"
    run(cmake, "-S", ROOT / "examples" / "cpp", "-B", folder, f"-Dtf_adapter_DIR={place('--cmake-dir')}")
    run(cmake, "--build", folder)
    shape = model.inputs[0].desc.shape
    x = (np.arange(np.prod(shape)) % 256).astype(np.float32).reshape(shape) / np.float32(255)
    x.tofile(tmp_path / "image.raw")
    wanted = model(x).reshape(-1)
    for arguments in ((file,), (file, tmp_path / "image.raw")):
        lines = [
            line.split() for line in run(folder / "classify", *arguments).splitlines() if "class " in line
        ]
        assert len(lines) == 5
        for _, number, value in lines:
            np.testing.assert_allclose(float(value), wanted[int(number)], rtol=1e-6)
    failed = subprocess.run([folder / "classify", tmp_path], capture_output=True, text=True)
    assert failed.returncode == 1
    assert failed.stderr.startswith("[E11001] ")


def by_hand() -> ge.Graph:
    """The first output of what tests/cpp/graph.cpp builds."""

    def values(shape: tuple[int, ...], step: float) -> np.ndarray:
        return np.cumsum(np.full(shape, step, np.float32).reshape(-1), dtype=np.float32).reshape(shape) - 1

    g = ge.Graph("net")
    x = g.input("x", (2, 3, 8, 8))
    weights, bias = g.constant(values((4, 3, 3, 3), 0.01)), g.constant(values((4,), 0.5))
    image = ge.ops.conv(x, weights, bias, strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1])
    means = ge.ops.reduce_mean(ge.ops.relu(image), axes=[2, 3])
    scores = means @ g.constant(values((4, 6), 0.05)) * 0.25
    g.output(ge.ops.softmax(scores[:, 2:]), "y")
    return g


@pytest.mark.slow
def test_a_graph_built_by_hand_is_compiled_and_runs(tmp_path: Path) -> None:
    program = built(HERE / "graph.cpp", tmp_path)
    onnx.save(onnx.parser.parse_model(_RELU), tmp_path / "net.onnx")
    run(program, *(tmp_path / name for name in ("result", "net.air", "net.onnx")), NPU_PYTHON=sys.executable)
    x = np.cumsum(np.full(2 * 3 * 8 * 8, 0.005, np.float32), dtype=np.float32).reshape(2, 3, 8, 8) - 1
    found = np.fromfile(tmp_path / "result", np.float32).reshape(2, 4)
    np.testing.assert_allclose(found, ge.compile(by_hand())(x), rtol=1e-4)
    np.testing.assert_allclose(found, ge.compile(tmp_path / "net.air")(x)[0], rtol=1e-6)


_RELU = '<ir_version: 8, opset_import: ["" : 17]>\nnet (float[N, 3] x) => (float[N, 3] y) { y = Relu (x) }'


def test_the_header_of_operators_is_that_of_the_library() -> None:
    assert (Path(place("--include-dir")) / "npu" / "operators.hpp").read_text() == header()


def test_pkg_config_tells_how_to_build() -> None:
    flags = run(
        tool("pkg-config"), "--cflags", "--libs", "tf_adapter", PKG_CONFIG_PATH=place("--pkg-config-dir")
    )
    folders = [Path(word[2:]).resolve() for word in flags.split() if word.startswith(("-I", "-L"))]
    assert folders == [Path(place("--include-dir")), Path(place("--library-dir"))]
    assert "-lnpu" in flags.split()


def test_headers_are_c_and_older_c_plus_plus(tmp_path: Path) -> None:
    source = tmp_path / "headers.c"
    source.write_text(
        "#include <npu/npu.h>\n#include <acl/acl.h>\nint main(void) { return npu_version() == 0; }\n"
    )
    flags = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", f"-I{place('--include-dir')}")
    run(tool("g++"), "-x", "c", "-std=c99", *flags, source)
    run(tool("g++"), "-x", "c++", "-std=c++11", *flags, source)
