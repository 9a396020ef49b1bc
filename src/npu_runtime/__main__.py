"""Tells C and C++ builds where things are: ``python -m npu_runtime --cmake-dir``."""

from __future__ import annotations

import argparse
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PLACES = {
    "--cmake-dir": (ROOT / "cmake", "folder for tf_adapter_DIR of CMake's find_package(tf_adapter)"),
    "--pkg-config-dir": (ROOT / "pkgconfig", "folder for PKG_CONFIG_PATH"),
    "--include-dir": (ROOT / "include", "folder of npu/npu.h, npu/npu.hpp and acl/acl.h"),
    "--library-dir": (ROOT, "folder of libnpu.so and libascendcl.so"),
}


def main() -> None:
    """Print the requested folder."""
    parser = argparse.ArgumentParser(prog="python -m npu_runtime", description=__doc__)
    group = parser.add_mutually_exclusive_group(required=True)
    for name, (place, what) in PLACES.items():
        group.add_argument(name, dest="place", action="store_const", const=place, help=what)
    print(parser.parse_args().place)


if __name__ == "__main__":
    main()
