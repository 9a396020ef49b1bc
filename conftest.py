"""Set-up of tests and doctests alike."""

from ge.compatibility import load_triton_before_tensorflow

# Tests and doctests of one process load TensorFlow first and PyTorch later.
load_triton_before_tensorflow()
