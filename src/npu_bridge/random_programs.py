"""Random TensorFlow 1 programs: compares sessions on the NPU with sessions on the CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

os.environ.setdefault("NPU_AS_DEFAULT", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.eager import context

import npu_bridge.npu_init  # noqa: F401  (sessions)
from ge.conformance.programs.door import Call, Door, Maker, Rounding, Runs
from ge.conformance.programs.generate import FLOATS, Draw
from ge.conformance.programs.record import Program, Statement
from tf_adapter.conformance import random_programs as version_2
from tf_adapter.conformance.random_operators import OPERATORS

__all__ = ["SessionDoor", "door"]


def session(program: Any, runs: Any, roles: Any, options: Any, device: Any) -> Any:
    """One session for all runs. Sizes that vary between runs are unknown."""
    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(7)
        tensors: list[Any] = []
        states: list[Any] = []
        fed: dict[int, Any] = {}
        for index, (array, role) in enumerate(zip(runs[0], roles, strict=True)):
            if role == "state":
                states.append(tf.Variable(array, use_resource=index % 2 == 0))
                tensors.append(states[-1])
            elif role == "constant":
                tensors.append(tf.constant(array))
            else:
                sizes = zip(*(r[index].shape for r in runs), strict=True)
                shape = [s[0] if len(set(s)) == 1 else None for s in sizes]
                tensors.append(tf.placeholder(tf.as_dtype(array.dtype), shape))
                fed[index] = tensors[-1]
        results = [tf.convert_to_tensor(r) for r in program(*tensors)]
        leaves = [t for t in tensors if t.dtype.base_dtype.is_floating]
        targets = [r for r in results if r.dtype.is_floating]
        if "gradient" in options and leaves and targets:
            slopes = tf.gradients(targets, leaves, unconnected_gradients="zero")
            results = results + [tf.convert_to_tensor(s) for s in slopes]
        start = tf.global_variables_initializer()
    config = tf.ConfigProto(allow_soft_placement=True)
    custom = config.graph_options.rewrite_options.custom_optimizers.add()
    custom.name = "NpuOptimizer"
    custom.parameter_map["use_off_line"].b = device != "/CPU:0"
    custom.parameter_map["precision_mode"].s = b"must_keep_origin_dtype"
    found = []
    with tf.Session(graph=graph, config=config) as opened:
        opened.run(start)
        for arrays in runs:
            values = opened.run(results, {place: arrays[i] for i, place in fed.items()})
            found.append([np.asarray(v) for v in [*values, *opened.run(states)]])
    return found


def _assign(d: Draw) -> Call:
    """Assign to a variable without other readers, outside loops: version 1 leaves the order undefined."""
    if d.depth:
        raise LookupError("steps of a loop may overtake one another")
    x = d.input(d.dtype(FLOATS), d.shape(), role="state")
    d.values.pop(x.name)
    how = d.choice(["assign", "assign_add", "assign_sub"])
    return Call(f"tf.identity(tf.{how}({{0}}, {{1}}))", [x, d.like(x)], effect=True)


def _without_readers(maker: Maker) -> Maker:
    """Keep the variable that a call writes from other readers, for the same reason."""

    def made(d: Draw) -> Call | None:
        call = maker(d)
        if call is not None:
            written, *others = (value.name for value in call.arguments)
            if written in others:
                raise LookupError("a variable is read beside its assignment")
            d.values.pop(written, None)
        return call

    return made


def _eagerly(maker: Maker) -> Maker:
    """Run a maker in eager mode, since it inspects tensors."""

    def made(d: Draw) -> Call | None:
        with context.eager_mode():
            return maker(d)

    return made


_WITHOUT = ("elsewhere", "scatter_variable", "assign")
_WRITERS = ("assign_slice", "assign_in_body")


class SessionDoor(version_2.TensorFlowDoor):
    """TensorFlow 1."""

    name = "tensorflow_v1"
    operators = {  # noqa: RUF012
        **{n: (w, _eagerly(m)) for n, (w, m) in OPERATORS.items() if n not in _WITHOUT},
        "assign": (0.5, _eagerly(_assign)),
        **{n: (OPERATORS[n][0], _eagerly(_without_readers(OPERATORS[n][1]))) for n in _WRITERS},
    }
    modes = {"session": 1.0}  # noqa: RUF012
    statements = 7
    roles = {"fed": 0.85, "constant": 0.15}  # noqa: RUF012
    names = {"tf": tf, "np": np}  # noqa: RUF012
    imports = (
        'import os\n\nos.environ.setdefault("NPU_AS_DEFAULT", "0")\n\n'
        "from typing import Any\n\nimport ml_dtypes\nimport numpy as np\n"
        "import tensorflow.compat.v1 as tf\nfrom numpy import array, inf, nan\n\n"
        "import npu_bridge.npu_init\n\ntf.disable_v2_behavior()\n"
    )
    helpers: Sequence[Any] = ()
    ways = {"session": session}  # noqa: RUF012
    plain = "session"

    def tensor(self, array: np.ndarray, role: str) -> Any:
        with context.eager_mode():
            return super().tensor(array, role)

    def array(self, tensor: Any) -> np.ndarray | None:
        with context.eager_mode():
            return super().array(tensor)

    def evaluate(self, statement: Statement, scope: Mapping[str, Any]) -> list[Any]:
        with context.eager_mode():
            return super().evaluate(statement, scope)

    def measurable(self, program: Program) -> bool:
        return not self._random(program)

    def second_opinion(self, program: Program, runs: Runs) -> Any:
        """TensorFlow's operators one by one, where a session's optimiser or its gradients differ."""
        if self._random(program):
            return None
        with context.eager_mode():
            return self._called(version_2.eager, program, runs, self.host, None)

    def reference(self, program: Program, runs: Runs, rounding: Rounding | None) -> Any:
        if rounding is None:
            return super().reference(program, runs, None)
        with context.eager_mode():
            return self._called(version_2.eager, program, runs, self.host, rounding)


def door() -> Door:
    """TensorFlow 1, as its scripts run."""
    tf.disable_v2_behavior()
    return SessionDoor()
