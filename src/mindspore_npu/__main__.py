"""`python -m mindspore_npu run script.py …`: runs an unmodified MindSpore script for Ascend on the NPU."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

_USAGE = "usage: python -m mindspore_npu run SCRIPT [ARGUMENTS...]"


def main(arguments: list[str]) -> int:
    """The command line; returns the exit status."""
    if len(arguments) < 2 or arguments[0] != "run":
        print(_USAGE, file=sys.stderr)
        return 2
    script = arguments[1]
    if not Path(script).is_file():
        print(f"there is no script '{script}'\n{_USAGE}", file=sys.stderr)
        return 2
    import mindspore_npu
    from mindspore_npu.compatibility import PATCHES

    PATCHES.apply()
    sys.argv = arguments[1:]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        found = mindspore_npu.counts()
        print(
            f"mindspore_npu: {found.compiled} graphs on the NPU, run {found.runs} times; "
            f"{found.fallbacks} graphs on MindSpore",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
