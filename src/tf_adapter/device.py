"""The NPU among TensorFlow's devices: registration, names, the configuration API, the default device.

TensorFlow has no way to add a device type from Python, so a few of its functions are patched (`compatibility.py`).
Devices are registered when the eager context starts, so that `tf.config` can still be used after the import.
"""

from __future__ import annotations

import functools
import importlib
import re
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.framework import device_spec

import npu_runtime
from ge.compatibility import CompatibilityWarning
from npu_runtime import tensorflow as native

__all__ = [
    "ParsedNames",
    "add_devices",
    "add_physical_devices",
    "apply_default",
    "apply_placement",
    "as_default",
    "details",
    "device_name",
    "everything_on_npu",
    "host_name",
    "is_default",
    "is_npu_device",
    "is_npu_name",
    "memory_info",
    "register",
    "reset_memory_stats",
    "runs_everything",
    "set_memory_growth",
    "set_memory_limit",
    "start_threads_on_default",
    "take_new_context",
    "worker_of",
]

TYPE = "NPU"
PARAMETER_SERVER = "ps"  # the job of servers that keep variables
_LIBRARIES = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")
_NAME = re.compile(rf"(?:.*/)?(?:device:|physical_device:)?{TYPE}(?::(\d+))?$", re.IGNORECASE)
_GPU = re.compile(r"(?:.*/)?(?:device:)?GPU(?::(\d+|\*))?", re.IGNORECASE)


class _State:
    """What this process has registered and chosen, and its name in a cluster."""

    registered = False
    default = False
    everything = False  # operators that gain nothing go to the NPU all the same
    task = "/job:localhost/replica:0/task:0"
    host = task  # of a coordinator, whose NPUs keep their names


@functools.cache
def _name(task: str, index: int) -> str:
    return f"{task}/device:{TYPE}:{index}"


def device_name(index: int = 0) -> str:
    """TensorFlow's full name of an NPU.

    Every call returns the same object: TensorFlow caches scalars by a pointer to the characters of the name.

    >>> device_name(1)
    '/job:localhost/replica:0/task:0/device:NPU:1'
    """
    return _name(_State.task, index)


def host_name() -> str:
    """TensorFlow's full name of the host's device."""
    return f"{_State.host}/device:CPU:0"


def register() -> None:
    """Make the NPUs known to TensorFlow; done by `import tf_adapter`, a second time does nothing."""
    if _State.registered:
        return
    _State.registered = True
    from tf_adapter import compatibility
    from tf_adapter.options import options

    root = Path(tf.__file__).parent
    native.load([str(root / name) for name in _LIBRARIES])
    compatibility.PATCHES.apply()
    compatibility.add_names()
    _set_callbacks()
    created = context._context is not None  # before `Context.__init__` was patched
    running = context.context()
    if created:
        start_threads_on_default(running)
    if running._initialized:
        add_physical_devices(running)
        add_devices(running)
    as_default(options.as_default)


def _set_callbacks() -> None:
    from tf_adapter import profiling
    from tf_adapter.options import options
    from tf_adapter.variables import assign_function, variable_types

    native.set_callbacks(
        _classify,
        _of_compiler("eager", "compile_op"),
        _of_compiler("callbacks", "function_compile"),
        _of_compiler("parts", "part_compile"),
        _of_compiler("parts", "part_run"),
        variable_types,
        assign_function,
        _of_compiler("servers", "part_of"),
    )
    options.subscribe(native.forget_all)
    options.subscribe(apply_placement)
    apply_placement()
    profiling.start()


def _of_compiler(module: str, name: str) -> Callable[..., Any]:
    """A function of a module that needs the compiler."""

    def call(*arguments: Any) -> Any:
        return getattr(_compiler()[module], name)(*arguments)

    return call


@functools.cache
def _compiler() -> dict[str, Any]:
    """The modules that compile for the device, loaded by the first operator or function that asks for a plan."""
    modules = {
        name: importlib.import_module(f"tf_adapter.{name}")
        for name in ("eager", "callbacks", "parts", "servers")
    }
    importlib.import_module("ge.ops.base").subscribe(native.forget_all)  # other operators, other plans
    return modules


def apply_placement() -> None:
    """Ask for every operator of the host where some must not run there, and compile those at their first call."""
    from tf_adapter.options import options

    hard = not context.context().soft_device_placement
    native.set_hard_placement(hard or not options.allow_host_fallback)
    at_once = _State.everything or not options.allow_host_fallback
    native.set_eager_threshold(0 if at_once else options.eager_threshold)


def everything_on_npu(on: bool = True) -> None:
    """Run every operator on the NPU that can, from its first call on: for tests of the operators themselves."""
    _State.everything = on
    apply_placement()
    native.forget_all()


def runs_everything() -> bool:
    """Whether operators that gain nothing go to the NPU all the same."""
    return _State.everything


def _classify(op: str) -> tuple[bool, bool]:
    """What the device asks of an operator; without soft placement, one that the NPU lacks is refused."""
    from tf_adapter.options import options

    eager = _compiler()["eager"]
    current = context.context()
    if not options.allow_host_fallback and not eager.is_supported(op):
        raise eager.unsupported(op, "no plugin maps it")
    hard = not current.soft_device_placement and isinstance(current.device_spec, _Asked)
    if hard and not eager.is_supported(op):
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            f"Could not satisfy device specification '{current.device_name}': Op type '{op}' is not supported on "
            "NPU, and soft placement is off. Place it with tf.device('/CPU:0'), or call "
            "tf.config.set_soft_device_placement(True).",
        )
    return eager.classify(op)


# -- names --------------------------------------------------------------------------------------------------------


class _Asked(device_spec.DeviceSpecV2):
    """The device of a scope that names an NPU, unlike the default device."""


class ParsedNames(dict[Any, Any]):
    """TensorFlow's cache of device scopes, which knows NPUs in any spelling.

    A scope without a name gives the default device back.
    """

    def __missing__(self, key: tuple[str, str | None]) -> tuple[str, Any]:
        if worker := _State.default and worker_of(key[1]):  # functions find its NPU (`servers.py`)
            name = f"{worker}/device:CPU:0"
            return name, device_spec.DeviceSpecV2.from_string(name)
        if _is_missing_gpu(key[1]) and context.context().soft_device_placement:
            return host_name(), device_spec.DeviceSpecV2.from_string(host_name())
        if _State.host != _State.task and _completes(key):
            found = device_spec.DeviceSpecV2.from_string(host_name()).make_merged_spec(
                device_spec.DeviceSpecV2.from_string(key[1])
            )
            return found.to_string(), found
        kind, index = (
            (device_spec.DeviceSpecV2, _default_index()) if key[1] is None else (_Asked, _local_index(key[1]))
        )
        if index is None:
            raise KeyError(key)
        return device_name(index), kind.from_string(device_name(index))

    def __setitem__(self, key: tuple[str, str | None], value: tuple[str, Any]) -> None:
        if not _is_missing_gpu(key[1]):  # where it goes depends on soft placement
            super().__setitem__(key, value)


def _completes(key: tuple[str, str | None]) -> bool:
    """Whether a scope without a job, which is not an NPU's, is inside the scope of an NPU."""
    outer, name = key
    inside = isinstance(name, str) and "job:" not in name and not is_npu_name(name)
    return inside and outer.startswith(_State.task)


def _is_missing_gpu(name: Any) -> bool:
    """Whether a scope names a GPU of this process that there is not; soft placement takes the CPU instead.

    TensorFlow does so itself, but not for operators that read tensors of an NPU.
    """
    found = _GPU.fullmatch(name) if isinstance(name, str) else None
    if found is None or not _is_here(name):
        return False
    count = len(context.context().list_physical_devices("GPU"))
    return count == 0 or ((found[1] or "0").isdigit() and int(found[1] or 0) >= count)


def _is_here(name: str) -> bool:
    """Whether a device's name is of this process; one without a job is."""
    if "job:" not in name:
        return True
    given = device_spec.DeviceSpecV2.from_string(name)
    own = [device_spec.DeviceSpecV2.from_string(text) for text in (_State.task, _State.host)]
    return any(given.job == spec.job and given.task in (None, spec.task) for spec in own)


def worker_of(place: Any) -> str:
    """The worker of a cluster that a device belongs to; empty for this process and for parameter servers."""
    if not isinstance(place, str) or "job:" not in place or _is_here(place):
        return ""
    spec = device_spec.DeviceSpecV2.from_string(place)
    works = spec.job != PARAMETER_SERVER and spec.device_type in (None, "CPU", TYPE)
    return f"/job:{spec.job}/replica:{spec.replica or 0}/task:{spec.task or 0}" if works else ""


def _default_index() -> int | None:
    return 0 if _State.default else None


def _local_index(name: Any) -> int | None:
    """The number of an NPU of this process; None for other names, an error where there is no such NPU."""
    found = _NAME.match(name) if isinstance(name, str) else None
    if found is None or found[1] is None or not _is_here(name):
        return None
    index, count = int(found[1]), npu_runtime.device_count()
    if index >= count:
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            f"Could not satisfy device specification '{name}': there {'is' if count == 1 else 'are'} {count} "
            f"NPU{'s' * (count > 1)} (NPU:0{f' to NPU:{count - 1}' * (count > 1)}). Use one of them, or set "
            "NPU_DEVICE_COUNT before tf_adapter is imported to have more.",
        )
    return index


def is_npu_name(device: Any) -> bool:
    """True if the name is that of an NPU, in any spelling."""
    return isinstance(device, str) and _NAME.match(device) is not None


def is_npu_device(device: Any) -> bool:
    """True for a PhysicalDevice or LogicalDevice that is an NPU."""
    return getattr(device, "device_type", None) == TYPE


def _index(device: Any) -> int:
    """The number of an NPU, from its name or from a PhysicalDevice."""
    name = getattr(device, "name", device)
    found = _NAME.match(name)
    index = int(found[1] or 0) if found else -1
    if not 0 <= index < npu_runtime.device_count():
        raise ValueError(
            f"No matching devices found for '{name}': there are {npu_runtime.device_count()} NPUs"
        )
    return index


# -- the eager context ----------------------------------------------------------------------------------------------


def _physical(index: int) -> Any:
    return context.PhysicalDevice(name=f"/physical_device:{TYPE}:{index}", device_type=TYPE)


def add_physical_devices(self: Any) -> None:
    """List the NPUs among a context's physical devices."""
    for index in range(npu_runtime.device_count()):
        device = _physical(index)
        if device not in self._physical_devices:
            self._physical_devices.append(device)
            self._visible_device_list.append(device)
            self._memory_growth_map[device] = None


def add_devices(self: Any) -> None:
    """Register with a context that has just started."""
    _join(self._collective_ops_server_def)
    _lead(self._server_def)
    count = npu_runtime.device_count()
    visible = [i for i in range(count) if _physical(i) in self._visible_device_list]
    for index in visible:
        name = device_name(index)
        if not pywrap_tfe.TFE_Py_IsCustomDevice(self._context_handle, name):
            device, info = native.create_device(index, name)
            pywrap_tfe.TFE_Py_RegisterCustomDevice(self._context_handle, device, name, info)
        local = "job:localhost" in name  # such names are short, as TensorFlow's own are
        logical = context.LogicalDevice(name=f"/device:{TYPE}:{index}" if local else name, device_type=TYPE)
        if logical not in self._logical_devices:
            self._logical_devices.append(logical)
    if 0 not in visible and _State.default:
        as_default(False)


def _join(server: Any) -> None:
    """Take the names that a cluster gives to the devices of this process."""
    if server is None:
        return
    before, _State.task = _State.task, _task_of(server)
    _State.host = _State.task
    native.set_host_device(host_name())
    if before != _State.task:
        context._device_parsing_cache.clear()
        current = context.context()
        if current.device_name and current.device_name.startswith(before):
            current._set_device("", device_spec.DeviceSpecV2())
        apply_default()


def _lead(server: Any) -> None:
    """Take the name that a cluster gives to the host of its coordinator; its servers know no NPU by name."""
    if server is not None:
        _State.host = _task_of(server)
        native.set_host_device(host_name())


def _task_of(server: Any) -> str:
    return f"/job:{server.job_name}/replica:0/task:{server.task_index}"


def memory_info(self: Any, device: str) -> dict[str, int]:
    """Bytes in use, now and at most."""
    info = npu_runtime.memory_info(_index(device))
    return {"current": info["current"], "peak": info["peak"]}


def reset_memory_stats(self: Any, device: str) -> None:
    """Start the peak anew."""
    npu_runtime.reset_peak(_index(device))


def details(self: Any, device: Any) -> dict[str, Any]:
    """What `get_device_details` says of an NPU."""
    version = npu_runtime.version()
    return {"device_name": f"{TYPE} {_index(device)} (CPU, {version.get('isa', 'x86-64')})"}


def set_memory_growth(self: Any, device: Any, enable: bool) -> None:
    """Memory is always taken as it is needed; the setting is kept for `get_memory_growth`."""
    _index(device)
    self._initialize_physical_devices()
    self._memory_growth_map[device] = enable


def set_memory_limit(self: Any, device: Any, configurations: list[Any]) -> None:
    """One logical device with a memory limit in MiB, as for a GPU."""
    if len(configurations) != 1:
        raise ValueError(
            f"an {TYPE} is one logical device, {len(configurations)} were asked for; NPU_DEVICE_COUNT sets how many "
            f"{TYPE}s there are"
        )
    self._initialize_physical_devices()
    limit = configurations[0].memory_limit
    npu_runtime.set_memory_limit(int(limit) << 20 if limit else 0, _index(device))
    self._virtual_device_map[device] = configurations


# -- the default device ---------------------------------------------------------------------------------------------


def is_default() -> bool:
    """Whether operators without a device go to NPU:0."""
    return _State.default


def as_default(on: bool = True) -> None:
    """Make NPU:0 the device of operators that name none, in this thread and in every thread started from now on.

    >>> import tf_adapter
    >>> tf_adapter.as_default(False)
    >>> tf_adapter.is_default()
    False
    >>> tf_adapter.as_default()
    """
    _State.default = on
    apply_default()


def apply_default(current: context.Context | None = None) -> None:
    """Make NPU:0 the device of this thread if it is the default and the thread names none."""
    current = current or context.context()
    if _State.default and not current.device_name:
        current._set_device(device_name(), device_spec.DeviceSpecV2.from_string(device_name()))
    elif not _State.default and current.device_name == device_name():
        current._set_device("", device_spec.DeviceSpecV2.from_string(""))


class _StartsEagerly:
    """TensorFlow's question whether a thread that uses a context for the first time runs eagerly.

    TensorFlow offers no starting device. It sets the thread's device to "" after it has asked, and releases the answer
    last: that is when the default device can be set.
    """

    def __init__(self, of: weakref.ref[context.Context]) -> None:
        self._of = of

    def __bool__(self) -> bool:
        return bool(context.default_execution_mode == context.EAGER_MODE)

    def __del__(self) -> None:
        current = self._of()
        started = current is not None and current._thread_local_data is not None
        if started and _State.default and _is_python_thread():
            apply_default(current)


def _is_python_thread() -> bool:
    """True in threads that Python started; TensorFlow's own run dataset functions, which stay on the host."""
    here = threading.get_ident()
    return any(t.ident == here and not isinstance(t, threading._DummyThread) for t in threading.enumerate())


_THREAD_STATE = (
    "is_eager",
    "device_name",
    "device_spec",
    "scope_name",
    "function_call_options",
    "executor",
    "op_callbacks",
)


def start_threads_on_default(created: context.Context) -> None:
    """Let threads that use this context for the first time start on the default device.

    A context has one such question. The record that holds it is made anew, with the state of the current thread; other
    threads keep theirs.
    """
    old = created._thread_local_data
    state = {name: getattr(old, name) for name in _THREAD_STATE}
    released = weakref.ref(old)
    del old
    created._thread_local_data = None
    if (held := released()) is not None:
        created._thread_local_data = held
        warnings.warn(
            "another thread is using TensorFlow: new threads start on the host. Import tf_adapter before threads "
            "start, or use tf.device('/NPU:0') in them",
            CompatibilityWarning,
            stacklevel=3,
        )
        return
    data = pywrap_tfe.EagerContextThreadLocalData(
        created,
        is_eager=functools.partial(_StartsEagerly, weakref.ref(created)),
        device_spec=device_spec.DeviceSpecV2.from_string(""),
    )
    for name, value in state.items():
        setattr(data, name, value)
    created._thread_local_data = data


def take_new_context() -> None:
    """Give the context that TensorFlow has just replaced the NPU's default device and placement."""
    native.forget_all()
    apply_placement()
    apply_default()
