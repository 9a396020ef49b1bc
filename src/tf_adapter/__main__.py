"""`python -m tf_adapter`: the command `tf-adapter` (which starts faster: it does not import TensorFlow)."""

from __future__ import annotations

import sys

from npu_tools.main import main

if __name__ == "__main__":
    sys.exit(main())
