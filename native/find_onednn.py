"""Prints the folder of oneDNN's CMake configuration, as the installed Python package records it."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

PACKAGE = "onednn-devel-cpu-gomp"


def find() -> Path | None:
    """The folder that holds dnnl-config.cmake, or None when the package is absent."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None
    found = (Path(str(file.locate())).resolve() for file in files if file.name == "dnnl-config.cmake")
    return next((path.parent for path in found if path.exists()), None)


if __name__ == "__main__":
    folder = find()
    if folder is None:
        sys.exit(f"oneDNN was not found: pip install {PACKAGE}==2023.2.0, or pass -DDNNL_DIR=<folder>")
    print(folder)
