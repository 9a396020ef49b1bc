"""Inference of Checked in Python."""

from ge.ops import TensorDesc, fail


def verify(op):
    if op.how not in ("status", "throw"):
        raise fail(op, f"how is '{op.how}'", "use 'status' or 'throw'")


def infer(op):
    return TensorDesc(op.input(0).shape, op.input(0).dtype)
