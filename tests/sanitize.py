"""Runs the runtime's tests on an extension built under sanitizers: ``python -m tests.sanitize thread``.

Files and options of pytest may follow, to run these tests instead.

The instrumented extension is built apart from the ordinary one and put on the path in its place. The
sanitizers' own libraries must be loaded before the interpreter, which is not instrumented itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "npu_runtime"

_LIBRARIES = {"address": "libasan.so", "thread": "libtsan.so", "undefined": "libubsan.so"}

_OPTIONS = {
    # The interpreter and its extensions keep memory until exit.
    "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0:halt_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": f"suppressions={ROOT / 'native' / 'tsan.supp'}:halt_on_error=1:report_signal_unsafe=0"
    ":die_after_fork=0",
}

# The editable installation has a finder of its own that comes before the path; without it the path counts.
_CUSTOMIZE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "Inplace" not in type(finder).__name__]
"""

# Ends the run where another build of the extension or the runtime was loaded, whose code no sanitizer saw.
_PLUGIN = """
import pathlib
import sys
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    loaded = pathlib.Path(sys.modules["npu_runtime._native"].__file__).resolve()
    maps = pathlib.Path("/proc/self/maps").read_text()
    if loaded not in LIBRARIES or any(str(library) not in maps for library in LIBRARIES):
        pytest.exit(f"the extension under test is {loaded}, not {LIBRARIES}", returncode=3)
    print(f"\\nInstrumented: {LIBRARIES}")
"""

# The interpreter's and TensorFlow's own synchronisation is invisible to the thread sanitizer: races are looked for
# between callers, whose loops run serially, and in the pool of threads.
_TESTS = {
    "address": (
        "tests/native",
        "tests/model/test_tensor_dump.py",
        "tests/tensorflow/test_device.py",
        "tests/tensorflow/test_device_models.py",
        "tests/tensorflow/test_device_variables.py",
        "tests/tensorflow/test_eager.py",
        "tests/opp/test_projects.py",
    ),
    "undefined": ("tests/native",),
    # Its allocator has locks that other threads may hold in a fork, and a child that waits for one never ends.
    "thread": ("tests/native", "-k", "(threads or turns or program) and not child_of_the_process"),
}

_LIMIT = 3600  # seconds; a run on two idle cores takes a tenth of that


def _build(kinds: str, folder: Path) -> Path:
    """Builds the extension and returns a folder to put on the path."""
    # The environment's own CMake and Ninja come before the system's, as they do in an installation.
    tools = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2")
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", f"-DNPU_SANITIZE={kinds}"]
    configure.append(f"-DPython_EXECUTABLE={sys.executable}")
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL, env=tools)
    build = ["cmake", "--build", str(folder), "-j", jobs]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL, env=tools)
    site = folder / "site"
    package = site / PACKAGE.name
    shutil.rmtree(site, ignore_errors=True)
    package.mkdir(parents=True)
    for source in [*PACKAGE.glob("*.py"), *folder.glob("*.so")]:
        (package / source.name).symlink_to(source)
    libraries = [
        next(folder.glob(name)).resolve() for name in ("_native*.so", "_tensorflow*.so", "libnpu.so")
    ]
    (site / "sitecustomize.py").write_text(_CUSTOMIZE)
    (site / "instrumented.py").write_text(
        f"import pathlib\nLIBRARIES = [pathlib.Path(p) for p in {[str(p) for p in libraries]}]\n{_PLUGIN}"
    )
    return site


def _library(kind: str) -> str:
    found = subprocess.run(
        ["g++", f"-print-file-name={_LIBRARIES[kind]}"], check=True, capture_output=True, text=True
    )
    return found.stdout.strip()


def main(kinds: str, selected: Sequence[str] = ()) -> int:
    """Builds, then runs the tests, all or those selected; the exit status is pytest's."""
    names = kinds.split(",")
    if not set(names) <= set(_LIBRARIES):
        raise SystemExit(f"usage: python -m tests.sanitize {'|'.join(_LIBRARIES)}[,…] [tests]")
    site = _build(kinds, ROOT / "build" / f"sanitize-{'-'.join(names)}")
    environment = os.environ | _OPTIONS
    environment["PYTHONPATH"] = f"{site}:{ROOT / 'src'}"
    environment["LD_PRELOAD"] = " ".join([_library(name) for name in names] + ["libstdc++.so.6"])
    if "thread" in names:
        environment["OMP_NUM_THREADS"] = "1"
    tests = selected or list(dict.fromkeys(word for name in names for word in _TESTS[name]))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "instrumented", "-q", *tests]
    try:
        return subprocess.run(command, env=environment, cwd=ROOT, check=False, timeout=_LIMIT).returncode
    except subprocess.TimeoutExpired:
        print(f"The tests did not end within {_LIMIT} s.", file=sys.stderr)
        return 124


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m tests.sanitize address,undefined [tests]")
    sys.exit(main(sys.argv[1], sys.argv[2:]))
