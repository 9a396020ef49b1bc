"""The wheels of this tree install into environments of their own and run there, without the tree."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import npu_runtime
from tests.packaging import beside
from tests.packaging.beside import LIBRARIES

ROOT = Path(__file__).resolve().parents[2]
BUILT = Path(npu_runtime.__file__).parent
SMOKE = Path(__file__).with_name("smoke.py")


LIBRARY_SETTINGS = {"wheel.cmake": "false", "wheel.platlib": "true", "sdist.include": "src/npu_runtime/*.so"}
ASCEND = ("acl", "hccl", "impl", "npu_bridge", "npu_device", "te", "topi", "torch_npu")


def _unpack(source: Path, settings: dict[str, str], folder: Path, site: Path) -> None:
    """Build the wheel of a project and unpack it as an installer does."""
    code = (
        f"from scikit_build_core.build import build_wheel; print(build_wheel({str(folder)!r}, {settings!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=source, check=True, capture_output=True, text=True
    )
    with zipfile.ZipFile(folder / done.stdout.split()[-1]) as packed:
        packed.extractall(site)


def _environment(folder: Path) -> tuple[Path, Path]:
    """A new environment and its folder of packages, beside the third-party packages of the one that runs the tests.

    A path in a .pth file is only added to the path: the editable installation of this tree, a .pth file of that folder,
    is not in force.
    """
    place = folder / "environment"
    venv.create(place, symlinks=True)
    site = place / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    others = [folder for folder in sys.path if Path(folder).name == "site-packages"]
    (site / "others.pth").write_text("\n".join(others))
    return place, site


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the engine's wheel, which takes the libraries that are built already."""
    folder = tmp_path_factory.mktemp("wheel")
    place, site = _environment(folder)
    _unpack(ROOT, LIBRARY_SETTINGS, folder, site)
    command = place / "bin" / "atc"
    command.write_text(f"#!{place / 'bin' / 'python'}\nfrom ge.atc import main\nmain()\n")
    command.chmod(0o755)
    return place


@pytest.fixture(scope="module")
def with_ascend(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same environment's packages and the second distribution."""
    folder = tmp_path_factory.mktemp("ascend")
    place, site = _environment(folder)
    engine = environment / site.relative_to(place)
    for package in engine.iterdir():
        if package.name != "others.pth":
            (site / package.name).symlink_to(package)
    _unpack(ROOT / "ascend", {}, folder, site)
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


def _smoke(environment: Path, door: str) -> set[str]:
    """The packages that a door tried; none where its framework is absent."""
    output = run(environment, str(SMOKE), str(environment), door).strip().splitlines()[-1]
    if output.endswith(f"{door} is not installed"):
        return set()
    assert output.endswith(": ok"), output
    return set(output.removesuffix(": ok").split(", "))


FRAMEWORKS = [pytest.param(door, marks=pytest.mark.slow) for door in ("tensorflow", "torch")]


@pytest.mark.parametrize("door", ["engine", *FRAMEWORKS])
def test_the_engine_runs_without_the_source_tree(environment: Path, door: str) -> None:
    assert not _smoke(environment, door) & set(ASCEND)


@pytest.mark.parametrize("door", ["ascend", *FRAMEWORKS])
def test_the_names_of_ascend_run_without_the_source_tree(with_ascend: Path, door: str) -> None:
    tried = _smoke(with_ascend, door)
    assert not tried or tried & set(ASCEND)


def test_nobody_gets_the_names_of_ascend_who_did_not_ask(environment: Path, with_ascend: Path) -> None:
    """Libraries look for `torch_npu` to decide which device they use."""
    code = f"import importlib.util as u; print([n for n in {ASCEND} if u.find_spec(n)])"
    assert run(environment, "-c", code).strip() == "[]"
    assert run(with_ascend, "-c", code).strip() == str(list(ASCEND))


def test_what_needs_the_names_of_ascend_says_what_to_install(environment: Path) -> None:
    code = "from ge.distributions import ascend; ascend('torch_npu.contrib')"
    done = subprocess.run(
        [str(environment / "bin" / "python"), "-I", "-c", code],
        cwd=environment,
        capture_output=True,
        text=True,
    )
    assert "No module named 'torch_npu': pip install 'tf-adapter[ascend]'" in done.stderr


def test_both_distributions_have_one_version() -> None:
    tomllib = pytest.importorskip("tomllib")
    engine, ascend = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in (".", "ascend")
    )
    assert ascend["version"] == engine["version"]
    assert ascend["dependencies"] == [f"tf-adapter=={engine['version']}"]
    assert engine["optional-dependencies"]["ascend"] == [f"tf-adapter-ascend=={engine['version']}"]


def test_a_wheel_carries_its_libraries_and_nothing_is_missing(environment: Path) -> None:
    code = "import npu_runtime, pathlib; print(pathlib.Path(npu_runtime.__file__).parent)"
    place = Path(run(environment, "-c", code).strip())
    built = {path.name for path in BUILT.glob("*.so")}
    assert {path.name for path in place.glob("*.so")} == built
    assert "libnpu_dnnl.so" in built
    libraries = [
        path for path in place.glob("*.so") if path.read_bytes()[:4] == b"\x7fELF"
    ]  # not linker scripts
    listing = subprocess.run(["ldd", *map(str, libraries)], capture_output=True, text=True, check=True)
    assert "not found" not in listing.stdout


def test_commands_and_extras_are_declared(environment: Path) -> None:
    code = (
        "from importlib.metadata import distribution as d; p = d('tf-adapter');"
        "print(*[e.name for e in p.entry_points], *p.metadata.get_all('Provides-Extra'))"
    )
    names = run(environment, "-c", code).split()
    assert {"atc", "npu", "ascend", "tensorflow", "torch", "onnx", "cuda", "test", "dev"} <= set(names)


@pytest.mark.exhaustive
@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_run_as_before_beside_the_names_of_ascend(
    with_ascend: Path, library: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    without, _ = _environment(tmp_path)
    before, after = (
        run(place, "-W", "ignore", beside.__file__, library).splitlines() for place in (without, with_ascend)
    )
    assert before and after[-len(before) :] == before
