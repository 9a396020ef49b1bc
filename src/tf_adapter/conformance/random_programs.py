"""Random TensorFlow programs: eager operators, functions and files on the NPU, against TensorFlow on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

os.environ.setdefault("NPU_AS_DEFAULT", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import ml_dtypes
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

import tf_adapter  # noqa: F401  (the device)
from ge.conformance.programs.door import Door, Refused, Runs
from ge.conformance.programs.python_door import PythonDoor
from ge.conformance.programs.record import Program, Role
from tf_adapter.conformance.random_operators import OPERATORS

__all__ = ["TensorFlowDoor", "door"]


def elsewhere(x: Any) -> Any:
    """A copy by way of the second device, where there is one."""
    if not tf.config.list_logical_devices("NPU")[1:]:
        return tf.identity(x)
    with tf.device("/NPU:1"):
        there = tf.identity(x)
    with tf.device(x.device if tf.executing_eagerly() else None):
        return tf.identity(there)


def given(arrays: Any, roles: Any, held: Any) -> Any:
    """The arguments of one run; states are variables that are made once."""
    for index, (array, role) in enumerate(zip(arrays, roles, strict=True)):
        if role == "state" and index not in held:
            held[index] = tf.Variable(array)
    return [held.get(index, array) for index, array in enumerate(arrays)]


def called(program: Any, arguments: Any, options: Any) -> Any:
    """The results, and the gradients of their sum if requested."""
    tensors = [a if isinstance(a, tf.Variable) else tf.convert_to_tensor(a) for a in arguments]
    if "gradient" not in options:
        return [tf.convert_to_tensor(r) for r in program(*tensors)]
    leaves = [t for t in tensors if t.dtype.is_floating]
    with tf.GradientTape() as tape:
        for leaf in leaves:
            tape.watch(leaf)
        results = [tf.convert_to_tensor(r) for r in program(*tensors)]
    targets = [r for r in results if r.dtype.is_floating]
    if not targets or not leaves:
        return results
    slopes = tape.gradient(targets, leaves, unconnected_gradients="zero")
    return results + [tf.convert_to_tensor(s) for s in slopes]


def eager(program: Any, runs: Any, roles: Any, options: Any, device: Any) -> Any:
    """Operator by operator."""
    if "random" in options:
        tf.random.set_seed(7)
    held: dict[int, Any] = {}
    found: list[Any] = []
    with tf.device(device):
        for arrays in runs:
            results = called(program, given(arrays, roles, held), options)
            found.append([r.numpy() for r in results] + [v.numpy() for v in held.values()])
    return found


def function(program: Any, runs: Any, roles: Any, options: Any, device: Any) -> Any:
    """One tf.function for all runs; constants are part of it."""
    if "random" in options:
        tf.random.set_seed(7)
    held: dict[int, Any] = {}
    found: list[Any] = []
    constants = [a if r == "constant" else None for a, r in zip(runs[0], roles, strict=True)]

    @tf.function(autograph=False, reduce_retracing=True)
    def traced(*fed: Any) -> Any:
        rest = iter(fed)
        return called(program, [next(rest) if c is None else tf.constant(c) for c in constants], options)

    with tf.device(device):
        for arrays in runs:
            arguments = given(arrays, roles, held)
            fed = [a for a, c in zip(arguments, constants, strict=True) if c is None]
            results = traced(*(a if isinstance(a, tf.Variable) else tf.constant(a) for a in fed))
            found.append([r.numpy() for r in results] + [v.numpy() for v in held.values()])
    return found


def loaded(program: Any, runs: Any, roles: Any, options: Any, device: Any) -> Any:
    """Saved as a SavedModel, loaded again and called."""
    import tempfile

    module = tf.Module()
    held: dict[int, Any] = {}
    found: list[Any] = []
    if "random" in options:
        tf.random.set_seed(7)
    constants = [a if r == "constant" else None for a, r in zip(runs[0], roles, strict=True)]
    with tf.device(device):
        given(runs[0], roles, held)
        module.states = list(held.values())
        fed = [i for i, r in enumerate(roles) if r == "fed"]

        def whole(*tensors: Any) -> Any:
            known = {**dict(zip(fed, tensors, strict=True)), **held}
            return called(
                program,
                [tf.constant(c) if c is not None else known[i] for i, c in enumerate(constants)],
                options,
            )

        specs = [
            tf.TensorSpec(
                runs[0][i].shape if len({r[i].shape for r in runs}) < 2 else [None, *runs[0][i].shape[1:]],
                runs[0][i].dtype,
            )
            for i in fed
        ]
        module.call = tf.function(whole, autograph=False, input_signature=specs)
        with tempfile.TemporaryDirectory() as folder:
            tf.saved_model.save(module, folder)
            again = tf.saved_model.load(folder)
        for arrays in runs:
            results = again.call(*(tf.constant(arrays[i]) for i in fed))
            found.append([r.numpy() for r in results] + [v.numpy() for v in again.states])
    return found


class TensorFlowDoor(PythonDoor):
    """TensorFlow 2."""

    name = "tensorflow"
    operators = OPERATORS
    dtypes = {  # noqa: RUF012
        "float32": 10,
        "float64": 2,
        "float16": 2,
        "bfloat16": 2,
        "int32": 4,
        "int64": 3,
        "bool": 1,
        "int8": 1,
        "int16": 0.5,
        "uint8": 1,
        "uint16": 0.3,
        "uint32": 0.4,
        "uint64": 0.4,
        "complex64": 0.4,
        "complex128": 0.2,
    }
    modes = {"eager": 0.6, "function": 0.9, "loaded": 0.1}  # noqa: RUF012
    options = {"gradient": 0.3}  # noqa: RUF012
    roles = {"fed": 0.75, "constant": 0.1, "state": 0.15}  # noqa: RUF012
    names = {"tf": tf, "np": np, "elsewhere": elsewhere}  # noqa: RUF012
    imports = (
        'import os\n\nos.environ.setdefault("NPU_AS_DEFAULT", "0")\n\n'
        "from typing import Any\n\nimport ml_dtypes\nimport numpy as np\n"
        "import tensorflow as tf\nfrom numpy import array, inf, nan\n\n"
        "import tf_adapter\n"
    )
    helpers: Sequence[Any] = (elsewhere, given, called)
    ways = {"eager": eager, "function": function, "loaded": loaded}  # noqa: RUF012
    flushes = True
    host = "/CPU:0"
    device = "/NPU:0"

    def tensor(self, array: np.ndarray, role: str) -> Any:
        with tf.device("/CPU:0"):
            return tf.Variable(array) if role == "state" else tf.constant(array)

    def array(self, tensor: Any) -> np.ndarray | None:
        if not isinstance(tensor, (tf.Tensor, tf.Variable)):
            return None
        array = tensor.numpy()
        return array if isinstance(array, np.ndarray) else np.asarray(array, tensor.dtype.as_numpy_dtype)

    def evaluate(self, statement: Any, scope: Any) -> list[Any]:
        with tf.device("/CPU:0"):
            return super().evaluate(statement, scope)

    def scaled(self, tensor: Any, factors: Callable[[np.ndarray], np.ndarray], written: bool) -> Any:
        if isinstance(tensor, tf.Variable):
            tensor = tensor.read_value()
        if not isinstance(tensor, tf.Tensor) or not hasattr(tensor, "numpy"):
            return tensor
        if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
            return tensor
        array = np.asarray(tensor.numpy())
        factor = factors(array)
        moved = (array.astype(np.result_type(array, np.float64)) * factor).astype(array.dtype)
        tiny = (np.abs(array) < ml_dtypes.finfo(array.real.dtype).tiny) & (array != 0)
        if not tiny.any():
            return tensor * tf.constant(factor.astype(array.dtype))

        @tf.custom_gradient
        def by_numpy(x: Any) -> Any:  # TensorFlow's kernels take denormal numbers for zeros
            return tf.constant(moved), lambda slope: slope

        return by_numpy(tensor)

    def changed_back(self, tensor: Any, change: Callable[[Any], Any]) -> Any:
        if not isinstance(tensor, tf.Tensor) or not tensor.dtype.is_floating:
            return tensor

        @tf.custom_gradient
        def passed(x: Any) -> Any:
            return tf.identity(x), change

        return passed(tensor)

    def finite(self, tensor: Any, number: Callable[[float], float]) -> Any:
        stand_in = tf.cast(number(float(tensor.dtype.max)), tensor.dtype)
        return tf.where(tf.math.is_finite(tensor), tensor, stand_in)

    def contradicts(self, program: Program, arrays: Sequence[Any], results: Sequence[Any]) -> bool:
        """True where a value has another type or shape than TensorFlow infers, or where the mode itself fails on it.

        Convolutions of an empty batch have the shape of their input; arrays of no tensors are float32, or cannot be
        stacked in a function.
        """
        if all(a.size for a in arrays) and all(r.size for r in results):
            return False
        if self._invalid(program, [list(arrays)]):
            return True
        values = tuple(v for s in program.statements for v in s.results)
        whole = replace(program, results=values, options=())
        found = self.reference(whole, [list(arrays)], None)[0]
        with tf.Graph().as_default():
            fed = [
                tf.Variable(a)
                if i.role is Role.STATE
                else tf.compat.v1.placeholder(tf.as_dtype(a.dtype), a.shape)
                for a, i in zip(arrays, program.inputs, strict=True)
            ]
            symbols = called(self.function(whole), fed, whole.options)
        # States follow the symbols.
        return not all(
            s.dtype == r.dtype and s.shape.is_compatible_with(r.shape)
            for s, r in zip(symbols, found, strict=False)
        )

    def same_reference(self, program: Program) -> bool:
        """Random numbers follow from the way of the call, and so do shapes of what loops without a step collect."""
        return not self._random(program) and not {"map_fn", "scan", "TensorArray"} & set(program.operators())

    def measurable(self, program: Program) -> bool:
        return not self._random(program) or program.mode == self.plain

    def _random(self, program: Program) -> bool:
        return "random" in program.operators()

    def second_opinion(self, program: Program, runs: Runs) -> Any:
        """TensorFlow itself in the other way: its functions and its operators differ, as in gradients of unread values
        (zero times infinity, or none) and in arrays of no tensors.
        """
        if self._random(program) or program.mode == self.plain:
            return None
        way = program.mode if self.same_reference(program) else self.plain
        return self._called(self.ways[way], program, runs, self.host, None)

    def run(self, program: Program, runs: Runs) -> Any:
        try:
            return super().run(program, runs)
        except Exception as error:
            if self._invalid(program, runs):
                raise Refused(str(error)) from error
            raise

    def _invalid(self, program: Program, runs: Runs) -> bool:
        """True if TensorFlow refuses the program operator by operator (its optimiser of functions may hide that), or
        in the same mode (it may not know a rank as it traces)."""
        try:
            with context.eager_mode():
                self._called(eager, program, runs, "/CPU:0", None)
            self._called(self.ways[program.mode], program, runs, "/CPU:0", None)
        except Exception:
            return True
        return False


def door() -> Door:
    """TensorFlow 2, with every operator on the NPU from its first call on."""
    from tf_adapter.device import everything_on_npu

    everything_on_npu()
    return TensorFlowDoor()
