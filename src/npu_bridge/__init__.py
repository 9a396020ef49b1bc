"""TensorFlow 1 on the NPU, under the names that ported scripts import.

    from npu_bridge.npu_init import *

From then on the sessions of `tf` (version-1 names) run on the NPU. Whole scripts written for TensorFlow 1 are
started with `python -m npu_bridge run script.py …`. See docs/tensorflow_v1.md.
"""
