"""Keras's own tests, which its wheel brings along, with the NPU as the default device."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from pathlib import Path

from ge.conformance.suites.suite import MissingSuiteError, Side, Suite

__all__ = ["find"]

# Of Keras 3. Tests of other backends, of the code's own layout and of downloads are left out.
FOLDERS = (
    *("layers", "ops", "losses", "metrics", "optimizers", "random", "trainers", "saving"),
    *("activations", "callbacks", "constraints", "initializers", "models", "regularizers", "quantizers"),
)
# Their tests replace TensorFlow's eager context, in which the tensors that other files made at import cannot be used.
RESETTING = ("callbacks/swap_ema_weights_test.py", "ops/nn_test.py")


def find(source: Path | None) -> Suite:
    """The tests of the installed Keras, or of a checkout of the same version."""
    version = importlib.metadata.version("keras")
    if source is not None:
        root = source / "keras" / "src"
    else:
        spec = importlib.util.find_spec("keras")
        assert spec is not None and spec.origin is not None, "the keras package has no file"
        root = Path(spec.origin).parent / "src"
    files = tuple(
        str(path.relative_to(root))
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*_test.py"))
    )
    if not files:
        raise MissingSuiteError(
            f"no *_test.py below {root}. Keras 3 brings its tests along; for Keras {version} name a checkout: "
            f"git clone --depth 1 --branch v{version} https://github.com/keras-team/keras, then --source keras"
        )
    support = source or Path(__file__).parent / "keras_support"  # has conftest.py
    environment = {
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(support), os.environ.get("PYTHONPATH")))),
    }
    return Suite(
        name="keras",
        version=version,
        root=root,
        files=files,
        cpu=Side(environment, plugins=("conftest",)),
        npu=Side(
            environment, plugins=("tf_adapter", "conftest")
        ),  # tf_adapter makes the NPU the default device
        files_per_process=12,
        alone=RESETTING,
        groups=r"^([^/]+)/",
    )
