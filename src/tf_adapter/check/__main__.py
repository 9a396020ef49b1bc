"""`python -m tf_adapter.check`: the same as `tf-adapter check`, which starts faster: it imports no TensorFlow."""

from __future__ import annotations

import sys

from npu_tools.main import main

if __name__ == "__main__":
    sys.exit(main(["check", *sys.argv[1:]]))
