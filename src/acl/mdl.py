"""acl.mdl: load compiled models, describe them, and execute them on datasets."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from acl import _gpu, _memory, _state
from acl import constants as c
from acl._aipp import *  # noqa: F403
from acl._aipp import AIPP_BYTES, Settings, dynamic_inputs, info, prepared, records, settings
from acl._conventions import AclError, Handles, plain, returns_code, returns_value
from acl._dump import dumping, parsed
from acl._state import current_context, on_device_of_thread, stream_of
from acl._tensors import DataBuffer, TensorSpec, buffers, item_bytes, specs
from acl.prof import recorder
from acl.util import ptr_to_bytes

# -- models -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PortInfo:
    """Description of an input or output."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    format: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * item_bytes(self.dtype)


class Loaded:
    """A loaded model. With gears it has an additional last input: the sizes of the chosen gear."""

    def __init__(self, model: Any, properties: Mapping[str, Any] | None = None) -> None:
        if getattr(model, "interface", None) is not None:
            raise AclError(
                c.ACL_ERROR_UNSUPPORTED_DATA_TYPE,
                "the model takes or returns strings, sequences or dictionaries: run it with acl.Model or ge.load",
            )
        self.model = model
        self.gears = getattr(model, "gears", None)
        self.properties = properties or {}
        self.current = 0 if self.gears is None else self._largest()
        self.actual: dict[int, tuple[int, ...]] = {}  # shapes of outputs that depend on the run
        self.dynamic_aipp = dynamic_inputs(self.plan(0))

    def _largest(self) -> int:
        return max(
            range(len(self.model.plans)), key=lambda i: sum(p.nbytes for p in self._ports(i, "inputs"))
        )

    def plan(self, gear: int) -> Any:
        """The plan of a gear."""
        return self.model.plan if self.gears is None else self.model.plans[gear]

    def _ports(self, gear: int, side: str) -> list[PortInfo]:
        ports = getattr(self.plan(gear), side)
        return [PortInfo(p.name, p.desc.shape, p.desc.dtype, p.format) for p in ports]

    @property
    def inputs(self) -> list[PortInfo]:
        """All inputs at maximum size, including the gear input."""
        ports = self._ports(0 if self.gears is None else self._largest(), "inputs")
        for index, record in self.dynamic_aipp.items():
            size = int(record["config"]["max_src_image_size"])
            ports[index] = PortInfo(ports[index].name, (size,), "uint8", "ND")
            ports.append(PortInfo(c.ACL_DYNAMIC_AIPP_NAME, (AIPP_BYTES,), "uint8", "ND"))
        if self.gears is not None:
            count = len(self.gears.choices[0])
            ports.append(PortInfo(c.ACL_DYNAMIC_TENSOR_NAME, (count,), "int64", "ND"))
        return ports

    @property
    def outputs(self) -> list[PortInfo]:
        """All outputs at maximum size."""
        sides = [self._ports(i, "outputs") for i in range(1 if self.gears is None else len(self.model.plans))]
        return [max(same, key=lambda p: p.nbytes) for same in zip(*sides, strict=True)]

    def current_outputs(self) -> list[PortInfo]:
        """The outputs of the current gear; shapes that depend on the run are those of the last run."""
        ports = self._ports(self.current, "outputs")
        return [PortInfo(p.name, self.actual.get(i, p.shape), p.dtype, p.format) for i, p in enumerate(ports)]

    def run(self, gear: int, inputs: list[int], outputs: list[int]) -> None:
        """Execute on checked addresses."""
        model = self.model if self.gears is None else self.model.gear(gear)
        model.announce()
        begin = time.perf_counter()
        self.actual = _gpu.run(model, inputs, outputs)
        if recorder.started:
            recorder.add(model, time.perf_counter() - begin)


models: Handles[Loaded] = Handles("model", c.ACL_ERROR_INVALID_MODEL_ID)
_ids = itertools.count(1)


def _load(source: str | bytes) -> int:
    current_context()
    from ge.model import om

    with on_device_of_thread():
        return models.add(Loaded(om.load(source)), next(_ids))


@returns_value(0)
def load_from_file(model_path: str) -> int:
    """Load an .om file. Returns (model_id, ret)."""
    return _load(model_path)


@returns_value(0)
def load_from_mem(model: int, model_size: int) -> int:
    """Load an .om file from memory. Returns (model_id, ret)."""
    return _load(ptr_to_bytes(model, model_size))


@returns_value(0)
def load_from_file_with_mem(
    model_path: str, work_ptr: int, work_size: int, weight_ptr: int, weight_size: int
) -> int:
    """Load an .om file; ignores the given memory. Returns (model_id, ret)."""
    return _load(model_path)


@returns_value(0)
def load_from_mem_with_mem(
    model: int, model_size: int, work_ptr: int, work_size: int, weight_ptr: int, weight_size: int
) -> int:
    """Load a model from memory; ignores the given work memory. Returns (model_id, ret)."""
    return _load(ptr_to_bytes(model, model_size))


@dataclass
class LoadConfig:
    """Source to load a model from, set option by option."""

    values: dict[int, Any] = field(default_factory=dict)


configs: Handles[LoadConfig] = Handles("configuration")


@plain(0)
def create_config_handle() -> int:
    """Create an empty load configuration."""
    return configs.add(LoadConfig())


@returns_code
def set_config_opt(handle: int, attr: int, value: Any) -> None:
    """Set ACL_MDL_PATH_PTR, or ACL_MDL_MEM_ADDR_PTR and ACL_MDL_MEM_SIZET. Returns ret."""
    configs.get(handle).values[attr] = value


@returns_code
def destroy_config_handle(handle: int) -> None:
    """Destroy a load configuration. Returns ret."""
    configs.remove(handle)


@returns_value(0)
def load_with_config(handle: int) -> int:
    """Load a model as configured. Returns (model_id, ret)."""
    values = configs.get(handle).values
    if c.ACL_MDL_PATH_PTR in values:
        return _load(str(values[c.ACL_MDL_PATH_PTR]))
    if c.ACL_MDL_MEM_ADDR_PTR in values:
        return _load(ptr_to_bytes(values[c.ACL_MDL_MEM_ADDR_PTR], values.get(c.ACL_MDL_MEM_SIZET, 0)))
    raise AclError(c.ACL_ERROR_INVALID_PARAM, "the configuration names no model")


@returns_code
def unload(model_id: int) -> None:
    """Release a model. Returns ret."""
    models.remove(model_id)


@returns_value(0, 0)
def query_size(file_name: str) -> tuple[int, int]:
    """(work_bytes, weight_bytes, ret) of an .om file."""
    return _sizes(file_name)


@returns_value(0, 0)
def query_size_from_mem(model: int, model_size: int) -> tuple[int, int]:
    """(work_bytes, weight_bytes, ret) of an .om file in memory."""
    return _sizes(ptr_to_bytes(model, model_size))


def _sizes(source: str | bytes) -> tuple[int, int]:
    from ge.model import om

    package = om.read(source)
    return max(plan.arena_bytes for plan in package.plans), sum(
        {id(a): a.nbytes for plan in package.plans for a in plan.constants}.values()
    )


# -- descriptions -----------------------------------------------------------------------------------


@dataclass
class Description:
    """Description of a model."""

    loaded: Loaded | None = None

    @property
    def model(self) -> Loaded:
        if self.loaded is None:
            raise AclError(c.ACL_ERROR_INVALID_PARAM, "the description is empty: call acl.mdl.get_desc first")
        return self.loaded


descriptions: Handles[Description] = Handles("model description")


@plain(0)
def create_desc() -> int:
    """Create an empty description."""
    return descriptions.add(Description())


@returns_code
def destroy_desc(model_desc: int) -> None:
    """Destroy a description. Returns ret."""
    descriptions.remove(model_desc)


@returns_code
def get_desc(model_desc: int, model_id: int) -> None:
    """Fill a description from a loaded model. Returns ret."""
    descriptions.get(model_desc).loaded = models.get(model_id)


@returns_code
def get_desc_from_file(model_desc: int, model_path: str) -> None:
    """Fill a description from an .om file without keeping the model. Returns ret."""
    from ge.model import om

    descriptions.get(model_desc).loaded = Loaded(om.load(model_path))


@plain(0)
def get_num_inputs(model_desc: int) -> int:
    """The number of inputs."""
    return len(descriptions.get(model_desc).model.inputs)


@plain(0)
def get_num_outputs(model_desc: int) -> int:
    """The number of outputs."""
    return len(descriptions.get(model_desc).model.outputs)


def _port(model_desc: int, side: str, index: int) -> PortInfo:
    ports: list[PortInfo] = getattr(descriptions.get(model_desc).model, side)
    if not isinstance(index, int) or not 0 <= index < len(ports):
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"the model has {len(ports)} {side}, there is no {index!r}")
    return ports[index]


def _dims(port: PortInfo) -> dict[str, Any]:
    return {"name": port.name, "dimCount": len(port.shape), "dims": list(port.shape)}


@plain(0)
def get_input_size_by_index(model_desc: int, index: int) -> int:
    """Maximum size of an input in bytes."""
    return _port(model_desc, "inputs", index).nbytes


@plain(0)
def get_output_size_by_index(model_desc: int, index: int) -> int:
    """Maximum size of an output in bytes."""
    return _port(model_desc, "outputs", index).nbytes


@plain("")
def get_input_name_by_index(model_desc: int, index: int) -> str:
    """The name of an input."""
    return _port(model_desc, "inputs", index).name


@plain("")
def get_output_name_by_index(model_desc: int, index: int) -> str:
    """The name of an output."""
    return _port(model_desc, "outputs", index).name


@plain(c.ACL_FORMAT_UNDEFINED)
def get_input_format(model_desc: int, index: int) -> int:
    """The format code of an input."""
    return c.FORMATS.get(_port(model_desc, "inputs", index).format, c.ACL_FORMAT_ND)


@plain(c.ACL_FORMAT_UNDEFINED)
def get_output_format(model_desc: int, index: int) -> int:
    """The format code of an output."""
    return c.FORMATS.get(_port(model_desc, "outputs", index).format, c.ACL_FORMAT_ND)


@plain(c.ACL_DT_UNDEFINED)
def get_input_data_type(model_desc: int, index: int) -> int:
    """The element type code of an input."""
    return c.DTYPE_CODES[_port(model_desc, "inputs", index).dtype]


@plain(c.ACL_DT_UNDEFINED)
def get_output_data_type(model_desc: int, index: int) -> int:
    """The element type code of an output."""
    return c.DTYPE_CODES[_port(model_desc, "outputs", index).dtype]


@returns_value({})
def get_input_dims(model_desc: int, index: int) -> dict[str, Any]:
    """({name, dimCount, dims}, ret) of an input; -1 for dimensions that gears vary."""
    port, loaded = _port(model_desc, "inputs", index), descriptions.get(model_desc).model
    if loaded.gears is None or index == len(loaded.inputs) - 1:
        return _dims(port)
    shapes = [plan.inputs[index].desc.shape for plan in loaded.model.plans]
    dims = [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=True)]
    return {"name": port.name, "dimCount": len(dims), "dims": dims}


get_input_dims_v2 = get_input_dims


@returns_value({})
def get_output_dims(model_desc: int, index: int) -> dict[str, Any]:
    """({name, dimCount, dims}, ret) of an output at maximum size."""
    return _dims(_port(model_desc, "outputs", index))


@returns_value({})
def get_cur_output_dims(model_desc: int, index: int) -> dict[str, Any]:
    """({name, dimCount, dims}, ret) of an output in the current gear or last run."""
    _port(model_desc, "outputs", index)
    return _dims(descriptions.get(model_desc).model.current_outputs()[index])


def _index_by_name(model_desc: int, side: str, name: str) -> int:
    for index, port in enumerate(getattr(descriptions.get(model_desc).model, side)):
        if port.name == name:
            return index
    raise AclError(c.ACL_ERROR_INVALID_PARAM, f"none of the {side} is named '{name}'")


@returns_value(0)
def get_input_index_by_name(model_desc: int, name: str) -> int:
    """(index, ret) of an input."""
    return _index_by_name(model_desc, "inputs", name)


@returns_value(0)
def get_output_index_by_name(model_desc: int, name: str) -> int:
    """(index, ret) of an output."""
    return _index_by_name(model_desc, "outputs", name)


@returns_value(0, 0)
def get_aipp_type(model_id: int, index: int) -> tuple[int, int]:
    """(type, attached_index, ret): how an input is pre-processed, and the input with its settings."""
    loaded = models.get(model_id)
    known = {int(r["input"]): r["mode"] for r in records(loaded.plan(0))}
    count = len(loaded.plan(0).inputs)
    if index >= count and index < count + len(loaded.dynamic_aipp):
        return c.ACL_DYNAMIC_AIPP_NODE, _NONE_ATTACHED
    if known.get(index) == "dynamic":
        return c.ACL_DATA_WITH_DYNAMIC_AIPP, count + list(loaded.dynamic_aipp).index(index)
    return (c.ACL_DATA_WITH_STATIC_AIPP if index in known else c.ACL_DATA_WITHOUT_AIPP), _NONE_ATTACHED


_NONE_ATTACHED = 0xFFFFFFFF


@returns_value({})
def get_first_aipp_info(model_id: int, index: int) -> dict[str, Any]:
    """({name: value}, ret): the static pre-processing of an input, by the names of the configuration file."""
    return info(models.get(model_id).plan(0), index)


@returns_code
def set_input_aipp(model_id: int, dataset: int, index: int, aipp: int) -> None:
    """Pre-process the next runs of a dataset; index is that of ACL_DYNAMIC_AIPP_NAME. Returns ret."""
    loaded, data = models.get(model_id), datasets.get(dataset)
    place = index - len(loaded.plan(0).inputs)
    if not 0 <= place < len(loaded.dynamic_aipp):
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"{index} is not the index of {c.ACL_DYNAMIC_AIPP_NAME}")
    data.aipp[list(loaded.dynamic_aipp)[place]] = settings.get(aipp)


@returns_code
def set_aipp_by_input_index(model_id: int, dataset: int, index: int, aipp: int) -> None:
    """Pre-process the next runs of a dataset; index is that of the images. Returns ret."""
    loaded, data = models.get(model_id), datasets.get(dataset)
    if index not in loaded.dynamic_aipp:
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"input {index} was not compiled with dynamic AIPP")
    data.aipp[index] = settings.get(aipp)


# -- datasets ---------------------------------------------------------------------------------------


@dataclass
class Dataset:
    """The buffers of a model's inputs or outputs, and the gear chosen for them."""

    items: list[int] = field(default_factory=list)
    descs: dict[int, int] = field(default_factory=dict)
    own: list[int] = field(default_factory=list)  # descriptions owned by the dataset
    gear: int | None = None
    aipp: dict[int, Settings] = field(default_factory=dict)  # pre-processing by input


datasets: Handles[Dataset] = Handles("dataset")


@plain(0)
def create_dataset() -> int:
    """Create an empty dataset."""
    return datasets.add(Dataset())


@returns_code
def destroy_dataset(dataset: int) -> None:
    """Destroy a dataset, not its buffers. Returns ret."""
    for desc in datasets.remove(dataset).own:
        with contextlib.suppress(AclError):  # the caller may have destroyed it
            specs.remove(desc)


@returns_value(0)
def add_dataset_buffer(dataset: int, data_buffer: int) -> int:
    """Append a data buffer. Returns (dataset, ret)."""
    buffers.get(data_buffer)
    datasets.get(dataset).items.append(data_buffer)
    return dataset


@plain(0)
def get_dataset_num_buffers(dataset: int) -> int:
    """The number of buffers."""
    return len(datasets.get(dataset).items)


@plain(0)
def get_dataset_buffer(dataset: int, index: int) -> int:
    """The data buffer at an index."""
    items = datasets.get(dataset).items
    if not 0 <= index < len(items):
        raise AclError(
            c.ACL_ERROR_INVALID_PARAM, f"the dataset has {len(items)} buffers, there is no {index}"
        )
    return items[index]


@returns_value(0)
def set_dataset_tensor_desc(dataset: int, tensor_desc: int, index: int) -> int:
    """Set the actual shape of an input. Returns (dataset, ret)."""
    specs.get(tensor_desc)
    datasets.get(dataset).descs[index] = tensor_desc
    return dataset


@plain(0)
def get_dataset_tensor_desc(dataset: int, index: int) -> int:
    """The description of a buffer's tensor; of an output, its actual shape after the run."""
    return datasets.get(dataset).descs.get(index, 0)


# -- gears ------------------------------------------------------------------------------------------


def _choose(
    model_id: int, dataset: int, index: int, wanted: Callable[[Any], tuple[int, ...]], kinds: str
) -> None:
    loaded, data = models.get(model_id), datasets.get(dataset)
    if loaded.gears is None or loaded.gears.kind.value not in kinds:
        raise AclError(c.ACL_ERROR_MODEL_NOT_DYNAMIC, f"the model was not compiled with {kinds} gears")
    if index != len(loaded.inputs) - 1:
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"{index} is not the index of {c.ACL_DYNAMIC_TENSOR_NAME}")
    choice = wanted(loaded.gears)
    if choice not in loaded.gears.choices:
        raise AclError(
            c.ACL_ERROR_GE_DYNAMIC_BATCH_SIZE_INVALID, f"{choice} is none of the gears {loaded.gears.choices}"
        )
    data.gear = loaded.current = loaded.gears.choices.index(choice)
    loaded.actual = {}
    if index < len(data.items):
        _store_choice(buffers.get(data.items[index]), choice)


def _store_choice(buffer: DataBuffer, choice: tuple[int, ...]) -> None:
    """Write the sizes into the gear input, where other runtimes read them."""
    content = (ctypes.c_int64 * len(choice))(*choice)
    if buffer.nbytes >= ctypes.sizeof(content):
        _memory.check_range(buffer.address, ctypes.sizeof(content), write=True)
        _memory.copy(buffer.address, ctypes.addressof(content), ctypes.sizeof(content))


@returns_code
def set_dynamic_batch_size(model_id: int, dataset: int, index: int, batch_size: int) -> None:
    """Choose the batch for the next execution. Returns ret."""
    _choose(model_id, dataset, index, lambda gears: (batch_size,), "batch")


@returns_code
def set_dynamic_hw_size(model_id: int, dataset: int, index: int, height: int, width: int) -> None:
    """Choose the image size for the next execution. Returns ret."""
    _choose(model_id, dataset, index, lambda gears: (height, width), "image_size")


@returns_code
def set_input_dynamic_dims(model_id: int, dataset: int, index: int, dims: dict[str, Any]) -> None:
    """Choose the dimensions ({name, dimCount, dims} of all inputs in order) for the next run. Returns ret."""
    values = [int(v) for v in dims["dims"]]
    _choose(model_id, dataset, index, lambda gears: _dynamic_values(gears, values), "dims")


def _dynamic_values(gears: Any, values: list[int]) -> tuple[int, ...]:
    """Values of the varying dimensions, from the concatenated dimensions of all inputs."""
    places = [d for shape in gears.inputs.values() for d in shape]
    if len(values) == len(places):
        return tuple(v for v, d in zip(values, places, strict=True) if d == -1)
    return tuple(values)


@returns_value({})
def get_dynamic_batch(model_desc: int) -> dict[str, Any]:
    """({batchCount, batch}, ret): the batches the model was compiled for."""
    gears = descriptions.get(model_desc).model.gears
    batches = (
        [choice[0] for choice in gears.choices] if gears is not None and gears.kind.value == "batch" else []
    )
    return {"batchCount": len(batches), "batch": batches}


@returns_value({})
def get_dynamic_hw(model_desc: int, index: int) -> dict[str, Any]:
    """({hwCount, hw}, ret): the image sizes the model was compiled for."""
    gears = descriptions.get(model_desc).model.gears
    sizes = gears.choices if gears is not None and gears.kind.value == "image_size" else ()
    return {"hwCount": len(sizes), "hw": [list(size) for size in sizes]}


@returns_value(0)
def get_input_dynamic_gear_count(model_desc: int, index: int) -> int:
    """(count, ret): the number of gears of the model."""
    gears = descriptions.get(model_desc).model.gears
    return len(gears.choices) if gears is not None and gears.kind.value == "dims" else 0


@returns_value([])
def get_input_dynamic_dims(model_desc: int, index: int, gear_count: int) -> list[dict[str, Any]]:
    """([{name, dimCount, dims}], ret): for each gear the concatenated dimensions of all inputs."""
    gears = descriptions.get(model_desc).model.gears
    if gears is None or gears.kind.value != "dims":
        return []
    rows = [[d for shape in gears.shapes(i).values() for d in shape] for i in range(len(gears.choices))]
    return [{"name": "", "dimCount": len(row), "dims": row} for row in rows[:gear_count]]


# -- execution --------------------------------------------------------------------------------------


@returns_code
def execute(model_id: int, input: int, output: int) -> None:
    """Run a model on datasets and wait for the results. Returns ret."""
    current_context()
    _execution(model_id, input, output)()


@returns_code
def execute_async(model_id: int, input: int, output: int, stream: int) -> None:
    """Run a model on datasets in a stream. Returns ret at once."""
    stream_of(stream).submit(_execution(model_id, input, output))


@returns_code
def execute_v2(model_id: int, input: int, output: int, stream: int, handle: int) -> None:
    """Run a model on datasets in a stream and wait for the results. Returns ret."""
    _execution(model_id, input, output)()


def _execution(model_id: int, inputs: int, outputs: int) -> Callable[[], None]:
    """Prepare a checked run; memory freed meanwhile stays alive until it is done."""
    loaded, feeds, results = models.get(model_id), datasets.get(inputs), datasets.get(outputs)
    gear = _gear(loaded, feeds)
    plan, place = loaded.plan(gear), on_device_of_thread()
    in_addresses, keep_in = _addresses(
        feeds, plan.inputs, "input", c.ACL_ERROR_MODEL_INPUT_NOT_MATCH, loaded.dynamic_aipp
    )
    out_addresses, keep_out = _addresses(results, plan.outputs, "output", c.ACL_ERROR_MODEL_OUTPUT_NOT_MATCH)

    def run() -> None:
        keep = [keep_in, keep_out, *_prepare(loaded, feeds, in_addresses)]
        loaded.current = gear
        with place:
            loaded.run(gear, in_addresses, out_addresses)
        if dumping.settings is not None:
            sides = {"input": (plan.inputs, in_addresses), "output": (plan.outputs, out_addresses)}
            dumping.write(plan.name, sides)
        _describe(results, loaded)
        del keep

    return run


@returns_code
def init_dump() -> None:
    """Enable dumps; `set_dump` configures them. Returns ret."""
    if dumping.initialised:
        raise AclError(c.ACL_ERROR_REPEAT_INITIALIZE, "dumps are initialised already")
    dumping.initialised = True


@returns_code
def set_dump(dump_cfg_path: str) -> None:
    """Configure dumps of models' and operators' tensors from a file. Returns ret."""
    if not dumping.initialised:
        raise AclError(c.ACL_ERROR_UNINITIALIZE, "call acl.mdl.init_dump first")
    dumping.turn(parsed(dump_cfg_path))


@returns_code
def finalize_dump() -> None:
    """Disable dumps. Returns ret."""
    if not dumping.initialised:
        raise AclError(c.ACL_ERROR_UNINITIALIZE, "call acl.mdl.init_dump first")
    dumping.initialised = False
    dumping.turn(None)


def _gear(loaded: Loaded, feeds: Dataset) -> int:
    if loaded.gears is None:
        return 0
    if feeds.gear is not None:
        return feeds.gear
    count = len(loaded.inputs) - 1
    if any(i not in feeds.descs for i in range(count)):
        raise AclError(
            c.ACL_ERROR_GE_DYNAMIC_BATCH_SIZE_INVALID, "no gear is chosen: call acl.mdl.set_dynamic_… first"
        )
    return int(loaded.model.find([specs.get(feeds.descs[i]).shape for i in range(count)]))


def _prepare(loaded: Loaded, feeds: Dataset, addresses: list[int]) -> list[np.ndarray]:
    """Pre-process images as set in the dataset; replaces their addresses and returns the results."""
    made = []
    for index, record in loaded.dynamic_aipp.items():
        if index not in feeds.aipp:
            raise AclError(
                c.ACL_ERROR_INVALID_PARAM,
                f"AIPP of input {index} is not set: call acl.mdl.set_input_aipp first",
            )
        buffer = buffers.get(feeds.items[index])
        raw = np.frombuffer(ptr_to_bytes(buffer.address, buffer.nbytes), np.uint8)
        made.append(prepared(feeds.aipp[index], record, loaded.plan(0).inputs[index], raw))
        addresses[index] = made[-1].ctypes.data
    return made


def _addresses(
    data: Dataset, ports: list[Any], side: str, code: int, prepared_later: Mapping[int, Any] | None = None
) -> tuple[list[int], list[object]]:
    """The checked addresses of a dataset's buffers, and the blocks they are in."""
    later = prepared_later or {}
    extra = len(later) or 1  # inputs without data: AIPP settings or gear
    items = (
        data.items[: len(ports)] if side == "input" and len(data.items) == len(ports) + extra else data.items
    )
    if len(items) != len(ports):
        raise AclError(code, f"the model has {len(ports)} {side}s, the dataset {len(data.items)} buffers")
    addresses: list[int] = []
    blocks: list[object] = []
    for index, (item, port) in enumerate(zip(items, ports, strict=True)):
        buffer = buffers.get(item)
        if index in later:
            blocks.append(_memory.check_range(buffer.address, buffer.nbytes, write=False))
            addresses.append(buffer.address)
            continue
        if buffer.nbytes < port.desc.nbytes:
            raise AclError(
                code, f"{side} '{port.name}' needs {port.desc.nbytes} bytes, its buffer has {buffer.nbytes}"
            )
        if port.desc.nbytes:
            blocks.append(_memory.check_range(buffer.address, port.desc.nbytes, write=side == "output"))
        addresses.append(buffer.address)
    return addresses, blocks


def _describe(results: Dataset, loaded: Loaded) -> None:
    """Set the actual shapes of an output dataset's buffers."""
    for index, port in enumerate(loaded.current_outputs()):
        spec = TensorSpec(port.dtype, port.shape, c.FORMATS.get(port.format, c.ACL_FORMAT_ND), port.name)
        if index in results.descs:
            specs.add(spec, results.descs[index])
        else:
            results.descs[index] = specs.add(spec)
            results.own.append(results.descs[index])


def clear() -> None:
    """Release everything (acl.finalize)."""
    _state.thread.context = None
    for table in (models, descriptions, datasets, configs, settings):
        table.clear()
