"""Every patch of TensorFlow and Keras that this front door applies, in one table.

Each makes TensorFlow's own interface know the NPU, or gives the NPU a shorter way through it. A patch that only saves
time or adds a convenience is left out, with a warning, where a version of TensorFlow differs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from ge.compatibility import Patch, PatchTable
from npu_runtime import tensorflow as native
from tf_adapter import calls, channel, crossing, device, distribution, loops, variables
from tf_adapter.arrays import converting_for_datasets, converting_once
from tf_adapter.options import options

__all__ = ["PATCHES", "add_names", "patch_keras"]

_CONTEXT = "tensorflow.python.eager.context"
_FUNCTION = "tensorflow.python.eager.polymorphic_function"

Function = Callable[..., Any]
Make = Callable[[Function], Function]


def _after(then: Function) -> Make:
    """Calls `then` after TensorFlow's function, with the same arguments."""

    def make(original: Function) -> Function:
        def both(*args: Any, **named: Any) -> Any:
            result = original(*args, **named)
            then(*args, **named)
            return result

        return both

    return make


def _instead(ours: Function, is_ours: Function) -> Make:
    """Calls `ours` in place of TensorFlow's method if its first argument is an NPU."""

    def make(original: Function) -> Function:
        def either(self: Any, place: Any, *args: Any, **named: Any) -> Any:
            return (ours if is_ours(place) else original)(self, place, *args, **named)

        return either

    return make


def _setter(then: Function) -> Callable[[Any], Any]:
    """A property whose setter calls `then` with the new value."""

    def make(original: Any) -> Any:
        def set_value(self: Any, value: Any) -> None:
            original.fset(self, value)
            then(value)

        return property(original.fget, set_value, doc=original.__doc__)

    return make


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _soft_placement_changed(_: bool) -> None:
    device.apply_placement()
    native.forget_all()


def _interruptible(original: Function) -> Function:
    """Raises KeyboardInterrupt where a compile was interrupted: TensorFlow knows the call as cancelled."""

    def call(*args: Any, **named: Any) -> Any:
        try:
            return original(*args, **named)
        except tf.errors.CancelledError:
            if native.take_interrupt():
                raise KeyboardInterrupt from None
            raise

    return call


def _prefetching(original: Function) -> Function:
    """Iterators that are made where the NPU is the current device prepare batches ahead."""

    def iterate(self: Any) -> Any:
        here = context.executing_eagerly() and device.is_npu_name(context.context().device_name)
        if not here:
            return original(self)
        iterator = original(channel.ahead(self))
        channel.end_in_thread(iterator)
        return iterator

    return iterate


def _npus_first(original: Function) -> Function:
    """Strategies that name no devices take all NPUs where the NPU is the default device."""

    def devices(*args: Any, **named: Any) -> Any:
        listed = context.context().list_logical_devices(device.TYPE) if device.is_default() else []
        return tuple(d.name for d in listed) or original(*args, **named)

    return devices


def _brought_back(original: Function) -> Function:
    """Results of `tf.py_function` that were computed on an NPU go to the device that its caller runs it on.

    TensorFlow copies them to the current device, which is an NPU again where that is the default. The copy has a
    gradient.
    """

    def copied(tensor: Any, target: str) -> Any:
        if device.is_npu_name(tensor.backing_device):
            return tensor._copy(device_name=target)
        return original(tensor, target)

    return copied


_PARSED_NAMES = Patch(f"{_CONTEXT}:_device_parsing_cache", device.ParsedNames)


def _take_new_context() -> None:
    """Take the place of the context that TensorFlow has just replaced, with an empty cache of device names."""
    _PARSED_NAMES.apply()
    device.take_new_context()


_MEMORY = "tf.config's questions about memory do not know the NPU"

PATCHES = PatchTable(
    "TensorFlow",
    ("2.15.1", "2.21.0"),
    (
        # Device names and lists
        Patch(
            "tensorflow.python.framework.device_spec:DeviceSpecV2._get_valid_device_types",
            lambda original: lambda: original() | {device.TYPE},
        ),
        _PARSED_NAMES,
        Patch(f"{_CONTEXT}:_reset_context", _after(lambda *_: _take_new_context())),
        Patch(
            f"{_CONTEXT}:Context._initialize_physical_devices",
            _after(lambda self, *_: device.add_physical_devices(self)),
            needs=(f"{_CONTEXT}:PhysicalDevice",),
        ),
        Patch(
            f"{_CONTEXT}:Context._initialize_logical_devices",
            _after(device.add_devices),
            needs=(
                f"{_CONTEXT}:LogicalDevice",
                "tensorflow.python.pywrap_tfe:TFE_Py_RegisterCustomDevice",
                "tensorflow.python.pywrap_tfe:TFE_Py_IsCustomDevice",
            ),
        ),
        Patch(
            f"{_CONTEXT}:Context.call_function",
            distribution.on_workers,
            without="workers of ParameterServerStrategy train on their hosts",
        ),
        Patch(
            "tensorflow.python.distribute.collective_all_reduce_strategy:"
            "CollectiveAllReduceExtended._initialize_local_devices",
            distribution.npu_of_worker,
            without="MultiWorkerMirroredStrategy trains on the host",
        ),
        Patch(f"{_CONTEXT}:Context.soft_device_placement", _setter(_soft_placement_changed)),
        Patch(
            f"{_CONTEXT}:Context.__init__",
            _after(lambda self, *_, **__: device.start_threads_on_default(self)),
            without="new threads start on the host: use tf.device('/NPU:0') in them",
            needs=("tensorflow.python.pywrap_tfe:EagerContextThreadLocalData",),
        ),
        # Random numbers and functions
        Patch(f"{_CONTEXT}:Context._set_global_seed", _after(lambda *_: native.reset_random())),
        Patch(
            f"{_CONTEXT}:Context.remove_function",
            _after(lambda _, name: native.forget(_text(name))),
            without="compiled programs of deleted functions stay in memory",
        ),
        # The configuration API
        Patch(
            f"{_CONTEXT}:Context.set_optimizer_experimental_options",
            _after(lambda *_: options.changed()),
            without="tf.config.optimizer.set_experimental_options takes effect only before a function's first call",
        ),
        Patch(
            f"{_CONTEXT}:Context.get_memory_info",
            _instead(device.memory_info, device.is_npu_name),
            without=_MEMORY,
        ),
        Patch(
            f"{_CONTEXT}:Context.reset_memory_stats",
            _instead(device.reset_memory_stats, device.is_npu_name),
            without=_MEMORY,
        ),
        Patch(
            f"{_CONTEXT}:Context.get_device_details",
            _instead(device.details, device.is_npu_device),
            without="get_device_details does not know the NPU",
        ),
        Patch(
            f"{_CONTEXT}:Context.set_memory_growth",
            _instead(device.set_memory_growth, device.is_npu_device),
            without="set_memory_growth refuses the NPU, whose memory always grows as needed",
        ),
        Patch(
            f"{_CONTEXT}:Context.set_logical_device_configuration",
            _instead(device.set_memory_limit, device.is_npu_device),
            without="memory limits are set by NPU_MEMORY_LIMIT only",
        ),
        Patch(
            f"{_CONTEXT}:Context.log_device_placement",
            _setter(lambda enable: native.set_log_placement(bool(enable))),
            without="set_log_device_placement does not show what runs on the NPU",
        ),
        # Interrupts, host functions, checkpoints, strategies
        Patch(
            f"{_CONTEXT}:Context.call_function",
            _interruptible,
            without="Ctrl-C during a compile raises CancelledError",
        ),
        Patch(
            "tensorflow.python.framework.ops:raise_from_not_ok_status",
            _interruptible,
            without="Ctrl-C during a compile raises CancelledError",
        ),
        Patch(
            "tensorflow.python.ops.script_ops:_maybe_copy_to_context_device",
            _brought_back,
            without="tf.py_function bodies must run under tf.device('/CPU:0')",
        ),
        Patch(
            f"{_CONTEXT}:Context.is_custom_device",  # asked by checkpoints only: NPUs' variables are saved as GPUs' are
            _instead(lambda *_: False, device.is_npu_name),
            without="Keras 3 cannot restore a tf.train.Checkpoint of variables that several NPUs hold",
        ),
        Patch(
            "tensorflow.python.distribute.mirrored_strategy:all_local_devices",
            _npus_first,
            without="MirroredStrategy needs the list of NPUs as its argument",
        ),
        Patch(
            "tensorflow.python.distribute.mirrored_strategy:MirroredExtended._make_collective_ops_with_fallbacks",
            distribution.without_collectives,
            without="MirroredStrategy over NPUs needs cross_device_ops=tf.distribute.ReductionToOneDevice()",
        ),
        Patch(
            "tensorflow.python.distribute.cross_device_ops:AllReduceCrossDeviceOps._batch_all_reduce",
            distribution.all_reduce_here,
            without="MirroredStrategy over NPUs cannot take NcclAllReduce or HierarchicalCopyAllReduce",
            needs=(
                "tensorflow.python.distribute.cross_device_ops:_simple_reduce",
                "tensorflow.python.distribute.cross_device_ops:_simple_gather",
            ),
        ),
        *(
            Patch(
                f"tensorflow.python.pywrap_tfe:{name}",
                make,
                without="operators refuse inputs on two NPUs: move one with tf.identity first",
                needs=("tensorflow.python.eager.core:_NotOkStatusException",),
            )
            for name, make in (
                ("TFE_Py_FastPathExecute", crossing.by_arguments),
                ("TFE_Py_Execute", crossing.by_list),
                ("TFE_Py_ExecuteCancelable", crossing.by_list),
            )
        ),
        *(
            Patch(
                f"tensorflow.python.ops.resource_variable_ops:{name}",
                make,
                without="variables of several NPUs name the first as their device",
            )
            for name, make in (
                ("_variable_handle_from_shape_and_dtype", variables.remembering_device),
                ("BaseResourceVariable.device", variables.remembered_device),
            )
        ),
        # Less work
        Patch(
            "tensorflow.python.framework.constant_op:convert_to_eager_tensor",
            converting_once(device.is_npu_name),
            without="large NumPy arrays are copied twice",
        ),
        Patch(
            "tensorflow.python.data.util.structure:normalize_element",
            converting_for_datasets,
            without="memory of arrays that datasets were made of returns to the system later",
        ),
        Patch("tensorflow:data.Dataset.__iter__", _prefetching, without="batches are not prepared ahead"),
        Patch(
            f"{_FUNCTION}.concrete_function:ConcreteFunction.replace_capture_with_deferred_capture",
            calls.noticed_captures,
            without="calls of tf.function take TensorFlow's own, longer way",
        ),
        Patch(
            f"{_FUNCTION}.polymorphic_function:Function.__call__",
            calls.shortened(device.is_npu_name),
            without="calls of tf.function take TensorFlow's own, longer way",
            needs=(
                f"{_FUNCTION}.concrete_function:ConcreteFunction.replace_capture_with_deferred_capture",
                f"{_FUNCTION}.polymorphic_function:_frequent_tracing_detector_manager",
                "tensorflow.python.pywrap_tfe:TFE_Py_TapeSetIsEmpty",
                "tensorflow.python.saved_model.save_context:in_save_context",
            ),
        ),
    ),
)

# Apart, because it loads Keras.
_KERAS_PATCHES = PatchTable(
    "Keras",
    ("2.15.0", "3.15.1"),
    (
        Patch(
            "tensorflow:keras.Model.compile",
            loops.with_loop_size,
            without="the option loop_size has no effect on Keras models",
        ),
    ),
)


def add_names() -> None:
    """Offer names that migration guides use and TensorFlow does not have."""
    tf.config.set_optimizer_experimental_options = tf.config.optimizer.set_experimental_options


def patch_keras() -> None:
    """Let `compile()` of Keras models take its number of steps from the options, once these name one."""
    if options.loop_size != 1:
        _apply_to_keras()


@functools.cache
def _apply_to_keras() -> None:
    _KERAS_PATCHES.apply()
