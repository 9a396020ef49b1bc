"""`python -m tf_adapter --version`: versions, machine and settings, as a bug report needs them."""

from __future__ import annotations

import sys

from ge.versions import describe

_USAGE = "usage: python -m tf_adapter --version"


def main(arguments: list[str]) -> int:
    """The command line; returns the exit status."""
    if arguments != ["--version"]:
        print(_USAGE, file=sys.stderr)
        return 2
    print(describe())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
