"""Values that `tf.distribute` moves between the NPUs of a machine.

NPUs share the machine's memory, so nothing is sent: each device of a destination adds up (or concatenates) the
replicas' values itself, all in the same order, which gives all devices the same bits. In functions such a sum is part
of the step that reads it: gradients are added while a variable is updated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import cross_device_ops, distribute_utils, values

import npu_runtime
from tf_adapter import device

__all__ = ["SharedMemory", "all_reduce_here", "npu_of_worker", "on_workers", "without_collectives"]

Function = Callable[..., Any]


class SharedMemory(cross_device_ops.CrossDeviceOps):
    """The reductions and copies of a strategy whose replicas are NPUs of one machine."""

    def reduce_implementation(
        self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any
    ) -> Any:
        def reduced(place: str) -> Any:
            return cross_device_ops._simple_reduce(per_replica_value, place, tf.add_n, reduce_op)

        return self._on_each(reduced, per_replica_value, destinations)

    def batch_reduce_implementation(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        return [self.reduce_implementation(reduce_op, v, to, options) for v, to in value_destination_pairs]

    def _gather_implementation(
        self, per_replica_value: Any, destinations: Any, axis: int, options: Any
    ) -> Any:
        def gathered(place: str) -> Any:
            return cross_device_ops._simple_gather(per_replica_value, place, axis)

        return self._on_each(gathered, per_replica_value, destinations)

    def _on_each(self, make: Callable[[str], Any], value: Any, destinations: Any) -> Any:
        known = cross_device_ops.check_destinations(destinations)
        places = cross_device_ops.get_devices_from(destinations if known else value)
        results = [make(place) for place in places]
        return results[0] if len(places) == 1 else distribute_utils.regroup(results, values.Mirrored)


def _are_npus(devices: Sequence[str]) -> bool:
    return all(device.is_npu_name(name) for name in devices)


def without_collectives(original: Function) -> Function:
    """Strategies over NPUs reduce in shared memory; TensorFlow's collectives know its own devices only."""

    def make(self: Any) -> Any:
        made = original(self)
        return SharedMemory() if _are_npus(self._devices) else made

    return make


def npu_of_worker(original: Function) -> Function:
    """A worker of `MultiWorkerMirroredStrategy` trains on its NPU; the host reduces by TensorFlow's collectives."""

    def devices(self: Any, cluster_resolver: Any, worker_device: str) -> Any:
        if not device.is_default():
            return original(self, cluster_resolver, worker_device)
        count = npu_runtime.device_count()
        if count > 1:
            raise tf.errors.UnimplementedError(
                None,
                None,
                f"a worker of MultiWorkerMirroredStrategy has one NPU, this one has {count}: start a worker for each "
                "NPU, with NPU_DEVICE_COUNT=1 and its share of the cores (NPU_DEVICE_CORES)",
            )
        return (f"{worker_device}/device:{device.TYPE}:0",), device.TYPE

    return devices


def on_workers(original: Function) -> Function:
    """Functions that are called on a worker of a cluster use the worker's NPU (`servers.py`)."""

    def call(self: Any, name: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        worker = device.worker_of(self.device_name) if self._server_def is not None else ""
        if worker and device.is_default():
            from tf_adapter import servers

            found = servers.function_for(tf.compat.as_text(name), worker)
            name = found.encode() if isinstance(name, bytes) else found
            inputs = [
                t._copy(device_name=self.device_name)
                if device.is_npu_name(t.device) and t.dtype != tf.resource
                else t
                for t in inputs
            ]
        return original(self, name, inputs, *args, **named)

    return call


def all_reduce_here(original: Function) -> Function:
    """`NcclAllReduce` and `HierarchicalCopyAllReduce` are about the wires between GPUs; NPUs share memory."""

    def reduce_all(self: Any, reduce_op: Any, per_replica_values: Any) -> Any:
        if not all(_are_npus(value._devices) for value in per_replica_values):
            return original(self, reduce_op, per_replica_values)
        return [SharedMemory().reduce(reduce_op, value, value) for value in per_replica_values]

    return reduce_all
