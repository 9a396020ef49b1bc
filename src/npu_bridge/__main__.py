"""`python -m npu_bridge run script.py …`: runs a TensorFlow 1 script unmodified on the NPU (`--nproc N`: ranks)."""

from __future__ import annotations

import sys
from pathlib import Path

_USAGE = "usage: python -m npu_bridge run [--nproc N] SCRIPT [ARGUMENTS...]"


def main(arguments: list[str]) -> int:
    """The command line; returns the exit status."""
    if len(arguments) < 2 or arguments[0] != "run":
        print(_USAGE, file=sys.stderr)
        return 2
    processes = 0
    if arguments[1] == "--nproc":
        if len(arguments) < 4 or not arguments[2].isdecimal() or not int(arguments[2]):
            print(_USAGE, file=sys.stderr)
            return 2
        processes = int(arguments[2])
        del arguments[1:3]
    script = arguments[1]
    if not Path(script).is_file():
        print(f"there is no script '{script}'\n{_USAGE}", file=sys.stderr)
        return 2
    if processes:
        from npu_bridge.launch import launch

        return launch(script, arguments[2:], processes)
    from npu_bridge.version1 import run_script

    run_script(script, arguments[2:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
