"""`python -m paddle_npu run script.py …`: enables `paddle.set_device("npu")` in a script; `install`: in all."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

_USAGE = "usage: python -m paddle_npu run SCRIPT [ARGUMENTS...]\n       python -m paddle_npu install"


def main(arguments: list[str]) -> int:
    """The command line; returns the exit status."""
    if arguments == ["install"]:
        from paddle_npu.native import install

        print(f"PaddlePaddle finds the device npu in {install()}")
        return 0
    if len(arguments) < 2 or arguments[0] != "run" or not Path(arguments[1]).is_file():
        print(_USAGE, file=sys.stderr)
        return 2
    import paddle_npu

    sys.argv = arguments[1:]
    sys.path.insert(0, str(Path(arguments[1]).resolve().parent))
    try:
        runpy.run_path(arguments[1], run_name="__main__")
    finally:
        found = paddle_npu.counts()
        print(
            f"paddle_npu: {found.npu} programs and {found.eager} eager operators on the NPU; "
            f"{found.paddle} programs on PaddlePaddle",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
