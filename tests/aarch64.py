"""Builds the runtime for aarch64 and runs tests there under emulation: ``python -m tests.aarch64``.

1. Debian's arm64 packages of Python and its libraries, and wheels of the dependencies, are unpacked into
   build/aarch64; nothing of this machine is changed.
2. Debian's cross compiler builds the runtime, without oneDNN: every cube operator is a generated kernel.
   `--wheel` takes a wheel for Python 3.11 instead (`make wheels`).
3. qemu runs a subset of the tests: generated kernels of every cube operator, the loader of kernels, and a sample of
   ONNX's node tests.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "aarch64"
SYSTEM, SITE, TREE, BUILD = (WORK / name for name in ("root", "site", "tree", "native"))
QEMU = shutil.which("qemu-aarch64") or "qemu-aarch64-static"
TOOLS = {QEMU: "qemu-user-static", "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu", "apt-get": "apt"}
DEBIAN = [
    "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "python3.11", "libpython3.11-dev", "libc6",
    "libstdc++6", "libgcc-s1", "zlib1g", "libexpat1", "libssl3", "libffi8", "libbz2-1.0", "liblzma5", "libuuid1",
    "libcrypt1",
]  # fmt: skip
WHEELS = [
    "numpy", "ml_dtypes>=0.5", "onnx>=1.19", "onnx_ir>=1.1", "llvmlite>=0.45", "typer", "rich", "protobuf",
    "cloudpickle", "pillow", "pytest", "hypothesis",
]  # fmt: skip
PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_27", "manylinux_2_28")
TESTS = (
    "tests/implementations/test_generated.py",
    "tests/tbe/test_shared_rows.py",
    "tests/tbe/test_elementwise.py",
)


def call(*command: str | Path, cwd: Path | None = None, **variables: str) -> int:
    done = subprocess.run([str(part) for part in command], cwd=cwd, env={**os.environ, **variables})
    return done.returncode


def must(*command: str | Path, cwd: Path | None = None, **variables: str) -> None:
    if call(*command, cwd=cwd, **variables):
        sys.exit(f"failed: {' '.join(map(str, command))}")


def unpack_system() -> None:
    """Python of Debian's arm64, from lists and a cache of our own."""
    state = WORK / "apt"
    for folder in ("lists/partial", "cache/archives/partial", "debs"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    settings = {
        "APT::Architecture": "arm64", "APT::Architectures": "arm64", "Dir::State::Lists": state / "lists",
        "Dir::State::Status": state / "status", "Dir::Cache": state / "cache", "APT::Sandbox::User": "root",
    }  # fmt: skip
    apt = [
        "apt-get",
        "-qq",
        *(text for name, value in settings.items() for text in ("-o", f"{name}={value}")),
    ]
    must(*apt, "update")
    must(*apt, "download", *DEBIAN, cwd=state / "debs")
    for package in (state / "debs").glob("*.deb"):
        must("dpkg", "-x", package, SYSTEM)


def unpack_wheels() -> None:
    places = [text for name in PLATFORMS for text in ("--platform", f"{name}_aarch64")]
    version = ["--python-version", "3.11", "--implementation", "cp", "--only-binary=:all:"]
    pip = [sys.executable, "-m", "pip", "-q", "download", "-d", WORK / "wheels"]
    must(*pip, *version, *places, *WHEELS)
    for wheel in (WORK / "wheels").glob("*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(SITE)


def build() -> None:
    """The libraries, beside links to the Python sources."""
    settings = {
        "CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": "aarch64-linux-gnu-g++", "Python_EXECUTABLE": sys.executable,
        "Python_INCLUDE_DIR": SYSTEM / "usr" / "include" / "python3.11",
    }  # fmt: skip
    must("cmake", "-G", "Ninja", "-S", ROOT, "-B", BUILD, *(f"-D{k}={v}" for k, v in settings.items()))
    must("ninja", "-C", BUILD, CPATH=str(SYSTEM / "usr" / "include"))
    shutil.rmtree(TREE, ignore_errors=True)
    TREE.mkdir()
    for package in (ROOT / "src").iterdir():
        if package.name != "npu_runtime":
            (TREE / package.name).symlink_to(package)
    own = TREE / "npu_runtime"
    own.mkdir()
    for source in (ROOT / "src" / "npu_runtime").iterdir():
        if source.suffix != ".so":
            (own / source.name).symlink_to(source)
    for library in ("npu", "_native", "_tensorflow", "_cuda"):  # named after the Python that runs here
        (made,) = BUILD.glob(f"lib{library}.so" if library == "npu" else f"{library}.*.so")
        shutil.copy(made, own / f"{'lib' * (library == 'npu')}{library}.so")


def unpack_runtime(wheel: Path) -> None:
    """The packages of a wheel in place of links to the sources."""
    shutil.rmtree(TREE, ignore_errors=True)
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(TREE)


def emulated(*arguments: str) -> int:
    """Run Python under emulation."""
    python = [QEMU, "-L", SYSTEM, SYSTEM / "usr" / "bin" / "python3.11", *arguments]
    path = os.pathsep.join(map(str, (TREE, ROOT, SITE)))
    variables = {"PYTHONHOME": "/usr", "PYTHONPATH": path, "NPU_CACHE_DIR": "off", "NPU_NUM_THREADS": "2"}
    return call(*python, cwd=ROOT, **variables)


NODES = """
import sys, platform, npu_runtime
from ge.conformance.cases import collect
from ge.conformance.worker import check
assert platform.machine() == "aarch64" and npu_runtime.version() == {"onednn": "", "isa": "neon"}
every = int(sys.argv[1])
cases = [case for case in collect(["node"]) if case.numeric][::every]
found = {case.name: check(case, False) for case in cases}
bad = {name: result for name, result in found.items() if result["status"] not in ("pass", "unsupported")}
passed = sum(result["status"] == "pass" for result in found.values())
print(f"{passed} of {len(cases)} of ONNX's node tests pass on {platform.machine()}")
for name, result in bad.items():
    print(name, result["status"], result["reason"][:300])
sys.exit(bool(bad))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--every", type=int, default=20, help="one in so many of ONNX's node tests")
    parser.add_argument("--wheel", type=Path, help="a wheel for aarch64 and Python 3.11; nothing is built")
    parser.add_argument("tests", nargs="*", default=TESTS)
    arguments = parser.parse_args()
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        parser.exit(1, f"missing: apt-get install {' '.join(missing)}\n")
    if not SYSTEM.is_dir():
        unpack_system()
    if not SITE.is_dir():
        unpack_wheels()
    unpack_runtime(arguments.wheel) if arguments.wheel else build()
    failed = emulated("-c", NODES, str(arguments.every))
    failed |= emulated("-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments.tests)
    sys.exit(failed)


if __name__ == "__main__":
    main()
