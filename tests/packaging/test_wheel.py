"""A wheel of this tree installs into an environment of its own and runs there, without the tree."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import npu_runtime

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = Path(npu_runtime.__file__).parent
SMOKE = Path(__file__).with_name("smoke.py")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, and beside it the third-party packages of the one that runs the tests.

    The wheel takes the libraries that are built already. A path in a .pth file is only added to the path: the
    editable installation of this tree, a .pth file of that folder, is not in force.
    """
    folder = tmp_path_factory.mktemp("wheel")
    settings = {"wheel.cmake": "false", "wheel.platlib": "true", "sdist.include": "src/npu_runtime/*.so"}
    code = f"from scikit_build_core.build import build_wheel; build_wheel({str(folder)!r}, {settings!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    place = folder / "environment"
    venv.create(place, symlinks=True)
    site = place / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    command = place / "bin" / "atc"
    command.write_text(f"#!{place / 'bin' / 'python'}\nfrom ge.atc import main\nmain()\n")
    command.chmod(0o755)
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    return place


def run(environment: Path, *arguments: str) -> str:
    """The output of the environment's Python, without anything of this process but the path."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "NPU_"))}
    variables["NPU_CACHE_DIR"] = "off"
    done = subprocess.run(
        [str(environment / "bin" / "python"), "-I", *arguments],
        cwd=environment, env=variables, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "door",
    [
        "engine",
        pytest.param("tensorflow", marks=pytest.mark.slow),
        pytest.param("torch", marks=pytest.mark.slow),
    ],
)
def test_a_wheel_runs_without_the_source_tree(environment: Path, door: str) -> None:
    output = run(environment, str(SMOKE), str(environment), door)
    assert output.endswith(": ok\n") or f"{door} is not installed" in output


def test_a_wheel_carries_its_libraries_and_nothing_is_missing(environment: Path) -> None:
    code = "import npu_runtime, pathlib; print(pathlib.Path(npu_runtime.__file__).parent)"
    place = Path(run(environment, "-c", code).strip())
    built = {path.name for path in LIBRARIES.glob("*.so")}
    assert {path.name for path in place.glob("*.so")} == built
    assert "libnpu_dnnl.so" in built
    listing = subprocess.run(
        ["ldd", *map(str, place.glob("*.so"))], capture_output=True, text=True, check=True
    )
    assert "not found" not in listing.stdout


def test_commands_and_extras_are_declared(environment: Path) -> None:
    code = (
        "from importlib.metadata import distribution as d; p = d('tf-adapter');"
        "print(*[e.name for e in p.entry_points], *p.metadata.get_all('Provides-Extra'))"
    )
    names = run(environment, "-c", code).split()
    assert {"atc", "npu", "tensorflow", "torch", "onnx", "cuda", "test", "dev"} <= set(names)
