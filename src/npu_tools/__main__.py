"""`python -m npu_tools`: the same as the command `tf-adapter`."""

from __future__ import annotations

import sys

from npu_tools.main import main

if __name__ == "__main__":
    sys.exit(main())
