"""Shortens repeated calls of `tf.function` objects: they go straight to the traced function.

TensorFlow binds and types the arguments of every call in Python before it finds the function it traced for them, which
takes several times as long as the call of a small function on the NPU. Here the function that was found is remembered
for the types and shapes of the arguments. That holds where nothing else can matter: eager code with the NPU as current
device, positional arguments that are all tensors, or a single iterator, no tape, no strategy, no profiler.
Everything else takes TensorFlow's own way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import (
    function_type_utils,
    polymorphic_function,
    tracing_compilation,
)
from tensorflow.python.framework import ops
from tensorflow.python.profiler import trace
from tensorflow.python.saved_model import save_context
from tensorflow.python.util import traceback_utils

__all__ = ["noticed_captures", "shortened"]

MOST_REMEMBERED = 64  # argument types of one function
_NAME = "_npu_calls"
_EAGER_TENSOR = ops.EagerTensor
_WITHOUT_CONTENTS = frozenset({tf.resource.as_datatype_enum, tf.variant.as_datatype_enum})

Key = tuple[Any, ...]
# The settings a function was traced with, how many were traced by then, the traced one, what it captured, and
# objects whose identity is part of the key.
Traced = tuple[Any, int, Any, list[Any], Any]


def shortened(is_npu: Callable[[str], bool]) -> Callable[[Any], Any]:
    """A patch of `Function.__call__` that tries the short way first; `is_npu` recognises names of devices."""
    places: dict[str, bool] = {}

    def here() -> bool:
        """Whether this is eager code on an NPU, with nothing around it that a call depends on."""
        local = context.context()._thread_local_data
        name = local.device_name
        if not local.is_eager or not name:
            return False
        on_npu = places.get(name)
        if on_npu is None:
            on_npu = places[name] = is_npu(name)
        return on_npu and pywrap_tfe.TFE_Py_TapeSetIsEmpty() and _undisturbed()

    def make(original: Any) -> Any:
        @traceback_utils.filter_traceback
        @wraps(original)
        def call(self: Any, *args: Any, **named: Any) -> Any:
            key = None if named else _key(args)
            if key is None or not here():
                return original(self, *args, **named)
            found = _recall(self, key)
            if found is None:
                result = original(self, *args)
                _remember(self, key, args)
                return result
            function, captured = found
            polymorphic_function._frequent_tracing_detector_manager.called_without_tracing(
                self._key_for_call_stats
            )
            return function._inference_function.call_preflattened([*_tensors(args), *captured])

        return call

    return make


def noticed_captures(original: Any) -> Any:
    """A function one of whose captures is replaced gets another list of them: `_recall` notices that."""

    def replace(self: Any, *args: Any, **named: Any) -> None:
        original(self, *args, **named)
        self._captured_inputs = list(self._captured_inputs)

    return replace


def _undisturbed() -> bool:
    graph = ops.get_default_graph()
    profiling = trace.enabled() if callable(trace.enabled) else trace.enabled
    return not (
        graph.building_function
        or graph._distribution_strategy_stack
        or profiling
        or save_context.in_save_context()
    )


def _key(args: Sequence[Any]) -> Key | None:
    """What a call depends on: the types and shapes of tensors with contents, or what an iterator gives.

    None where there is anything else among the arguments.
    """
    if len(args) == 1 and type(args[0]) is OwnedIterator:
        return (id(args[0]._element_spec),)
    key: list[Any] = []
    for value in args:
        if type(value) is not _EAGER_TENSOR:
            return None
        kind = value._datatype_enum()
        if kind in _WITHOUT_CONTENTS:
            return None
        key.append(kind)
        key.append(value._shape_tuple())
    return tuple(key)


def _tensors(args: Sequence[Any]) -> Sequence[Any]:
    """The tensors that stand for the arguments."""
    return [args[0]._iterator_resource] if args and type(args[0]) is OwnedIterator else args


def _settings(function: Any) -> Any:
    """What TensorFlow would trace this function with; None before its first call."""
    if function._run_functions_eagerly:
        return None
    if function._created_variables:
        return function._no_variable_creation_config
    return function._variable_creation_config


def _recall(function: Any, key: Key) -> tuple[Any, list[Any]] | None:
    remembered = function.__dict__.get(_NAME)
    found = None if remembered is None else remembered.get(key)
    if found is None:
        return None
    settings, traced, concrete, captured, _ = found
    if settings is not _settings(function) or traced != len(settings.function_cache):
        return None
    return (concrete, captured) if concrete._captured_inputs is captured else None


def _remember(function: Any, key: Key, args: tuple[Any, ...]) -> None:
    """Find the function that TensorFlow has traced for these arguments, and keep it if it takes them as they are."""
    settings = _settings(function)
    if settings is None or settings.function_cache is None:
        return
    captures = settings.function_captures
    if captures is not None and captures.capture_types:  # values that decide, besides the arguments
        return
    traced = len(settings.function_cache)
    bound = function_type_utils.canonicalize_function_inputs(
        args, {}, function._function_type, function._default_values, function._is_pure
    )
    concrete = tracing_compilation.trace_function(bound.args, bound.kwargs, settings)
    if len(settings.function_cache) != traced:  # another one was traced just now
        return
    given = concrete.function_type.unpack_inputs(concrete.function_type.bind(*bound.args, **bound.kwargs))
    captured = concrete._captured_inputs
    plain = all(type(value) is _EAGER_TENSOR for value in captured)  # not asked for at every call
    tensors = _tensors(args)
    if plain and len(given) == len(tensors) and all(a is b for a, b in zip(given, tensors, strict=True)):
        remembered: dict[Key, Traced] = function.__dict__.setdefault(_NAME, {})
        while len(remembered) >= MOST_REMEMBERED:
            remembered.pop(next(iter(remembered)), None)
        kept = args[0]._element_spec if tensors is not args else None
        remembered[key] = (settings, traced, concrete, captured, kept)
