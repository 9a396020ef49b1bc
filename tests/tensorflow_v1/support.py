"""What the tests of version-1 style share."""

from __future__ import annotations

from importlib import metadata

from packaging.version import Version


def has_keras2() -> bool:
    """Whether TensorFlow comes with Keras 2, and so with estimators and tf.layers."""
    return Version(metadata.version("tensorflow-cpu")) < Version("2.16")
