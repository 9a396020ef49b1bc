"""acl.op: single operators, precompiled or compiled on first use, and run in a stream."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from acl import _gpu, _memory
from acl import constants as c
from acl._conventions import AclError, Handles, plain, returns_code, returns_value
from acl._state import on_device_of_thread, stream_of
from acl._tensors import TensorSpec, buffers, specs

if TYPE_CHECKING:
    from npu_runtime.bounded import BoundedCache

CACHED_MODELS = 256


@dataclass
class Attributes:
    """The attributes of an operator."""

    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OpHandle:
    """An operator prepared for execution."""

    model: Any
    feeds: tuple[int, ...]  # positions of the non-constant inputs


attributes: Handles[Attributes] = Handles("operator attribute")
handles: Handles[OpHandle] = Handles("operator handle")
_compiled: dict[str, Any] = {}  # by key: the path of a model file, or a loaded model


@functools.cache
def _models() -> BoundedCache[tuple[Any, ...], Any]:
    """The operators compiled when they were called; made at the first use, as it loads the runtime."""
    from npu_runtime.bounded import BoundedCache

    return BoundedCache(CACHED_MODELS)


# -- attributes -------------------------------------------------------------------------------------


@plain(0)
def create_attr() -> int:
    """Create an empty set of attributes."""
    return attributes.add(Attributes())


@plain(None)
def destroy_attr(attr: int) -> None:
    """Destroy a set of attributes."""
    attributes.remove(attr)


def _setter(convert: Callable[[Any], Any], doc: str) -> Callable[[int, str, Any], int]:
    def set_attr(attr: int, name: str, value: Any) -> None:
        attributes.get(attr).values[name] = convert(value)

    set_attr.__doc__ = f"{doc} Returns ret."
    return returns_code(set_attr)


def _each(convert: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    return lambda values: [convert(v) for v in np.asarray(values).tolist()] if len(values) else []


set_attr_bool = _setter(bool, "Set a truth value.")
set_attr_int = _setter(int, "Set a whole number.")
set_attr_float = _setter(float, "Set a number.")
set_attr_string = _setter(str, "Set a text.")
set_attr_data_type = _setter(lambda v: c.DTYPES[int(v)], "Set an element type.")
set_attr_list_bool = _setter(_each(bool), "Set truth values.")
set_attr_list_int = _setter(_each(int), "Set whole numbers.")
set_attr_list_float = _setter(_each(float), "Set numbers.")
set_attr_list_string = _setter(_each(str), "Set texts.")

# -- models -----------------------------------------------------------------------------------------


@returns_code
def set_model_dir(model_dir: str) -> None:
    """Use the operators of a directory, as compiled by `atc --singleop`. Returns ret."""
    from ge.model import om

    folder = Path(model_dir)
    if not folder.is_dir():
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"there is no directory {folder}")
    for path in sorted(folder.rglob("*.om")):
        key = om.summary(path)["properties"].get("singleop")
        if isinstance(key, str):
            _compiled[key] = path


@returns_code
def load(model: int, model_size: int) -> None:
    """Use a compiled operator from memory. Returns ret."""
    from acl.util import ptr_to_bytes
    from ge.model import om

    data = ptr_to_bytes(model, model_size)
    key = om.summary(data)["properties"].get("singleop")
    if not isinstance(key, str):
        raise AclError(c.ACL_ERROR_PARSE_MODEL, "the model is not one of a single operator")
    _compiled[key] = om.load(data)
    _models().clear()  # precompiled operators take precedence over cached ones


def _spec_of(op_type: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attr: int) -> Any:
    from ge.ir.types import TensorDesc
    from ge.singleop import OpTensor, SingleOp

    def tensor(spec: TensorSpec) -> OpTensor:
        return OpTensor(TensorDesc(spec.shape, spec.dtype), c.FORMAT_NAMES.get(spec.format, "ND"), spec.const)

    values = attributes.get(attr).values if attr else {}
    return SingleOp(op_type, tuple(map(tensor, inputs)), tuple(map(tensor, outputs)), dict(values))


def _prepare(op_type: str, input_desc: Sequence[int], output_desc: Sequence[int], attr: int) -> OpHandle:
    """The operator's model; compiled unless cached."""
    inputs, outputs = [specs.get(d) for d in input_desc], [specs.get(d) for d in output_desc]
    op = _spec_of(op_type, inputs, outputs, attr)
    feeds = tuple(i for i, spec in enumerate(inputs) if spec.const is None)
    from ge.identity import process_identity
    from ge.ops.custom import search

    search.refresh()  # before computing the key, which includes the active operators
    key = (op.key, process_identity())
    model = _models().get(key)
    return OpHandle(model if model is not None else _models().put(key, _compile(op)), feeds)


def _compile(op: Any) -> Any:
    from ge.compiler import compile_graph
    from ge.model import om

    if op.key not in _compiled:
        return compile_graph(op.graph(), None, op.type)
    found = _compiled[op.key]
    return om.load(found) if isinstance(found, Path) else found


# -- execution --------------------------------------------------------------------------------------


@returns_code
def execute_v2(
    op_type: str,
    input_desc: Sequence[int],
    inputs: Sequence[int],
    output_desc: Sequence[int],
    outputs: Sequence[int],
    attr: int,
    stream: int,
) -> None:
    """Run an operator in a stream. Returns ret at once."""
    handle = _prepare(op_type, input_desc, output_desc, attr)
    stream_of(stream).submit(_execution(handle, inputs, outputs))


execute = execute_v2


@returns_code
def compile(
    op_type: str,
    input_desc: Sequence[int],
    output_desc: Sequence[int],
    attr: int,
    engine_type: int = 0,
    compile_flag: int = 0,
    op_path: str = "",
) -> None:
    """Compile an operator for later execution. Returns ret."""
    _prepare(op_type, input_desc, output_desc, attr)


@returns_code
def compile_and_execute(
    op_type: str,
    input_desc: Sequence[int],
    inputs: Sequence[int],
    output_desc: Sequence[int],
    outputs: Sequence[int],
    attr: int,
    engine_type: int,
    compile_flag: int,
    op_path: str,
    stream: int,
) -> None:
    """Compile an operator and run it in a stream. Returns ret."""
    handle = _prepare(op_type, input_desc, output_desc, attr)
    stream_of(stream).submit(_execution(handle, inputs, outputs))


@returns_code
def update_params(op_type: str, input_desc: Sequence[int], output_desc: Sequence[int], attr: int) -> None:
    """Has no effect; operators are compiled for the actual shapes. Returns ret."""
    _prepare(op_type, input_desc, output_desc, attr)


@returns_value(0)
def create_handle(op_type: str, input_desc: Sequence[int], output_desc: Sequence[int], attr: int) -> int:
    """Prepare an operator for repeated execution. Returns (handle, ret)."""
    return handles.add(_prepare(op_type, input_desc, output_desc, attr))


@plain(None)
def destroy_handle(handle: int) -> None:
    """Destroy a prepared operator."""
    handles.remove(handle)


@returns_code
def execute_with_handle(handle: int, inputs: Sequence[int], outputs: Sequence[int], stream: int) -> None:
    """Run a prepared operator in a stream. Returns ret at once."""
    stream_of(stream).submit(_execution(handles.get(handle), inputs, outputs))


@returns_code
def cast(src_desc: int, src_buffer: int, dst_desc: int, dst_buffer: int, truncate: int, stream: int) -> None:
    """Convert a tensor to another element type in a stream. Returns ret at once."""
    stream_of(stream).submit(_execution(_cast(src_desc, dst_desc), [src_buffer], [dst_buffer]))


@returns_value(0)
def create_handle_for_cast(src_desc: int, dst_desc: int, truncate: int) -> int:
    """Prepare a conversion for repeated execution. Returns (handle, ret)."""
    return handles.add(_cast(src_desc, dst_desc))


def _cast(src_desc: int, dst_desc: int) -> OpHandle:
    attr = attributes.add(Attributes({"to": specs.get(dst_desc).dtype}))
    try:
        return _prepare("Cast", [src_desc], [dst_desc], attr)
    finally:
        attributes.remove(attr)


def _execution(handle: OpHandle, inputs: Sequence[int], outputs: Sequence[int]) -> Callable[[], None]:
    """Prepare a run with checked buffers; memory freed meanwhile stays alive until it is done."""
    plan = handle.model.plan
    given = [buffers.get(inputs[place]) if place < len(inputs) else None for place in handle.feeds]
    results = [buffers.get(item) for item in outputs]
    keep, addresses = [], []
    for buffer, port, write, code in (
        *((b, p, False, c.ACL_ERROR_OP_INPUT_NOT_MATCH) for b, p in zip(given, plan.inputs, strict=True)),
        *((b, p, True, c.ACL_ERROR_OP_OUTPUT_NOT_MATCH) for b, p in zip(results, plan.outputs, strict=True)),
    ):
        if buffer is None or buffer.nbytes < port.desc.nbytes:
            raise AclError(code, f"'{port.name}' needs a buffer of {port.desc.nbytes} bytes")
        keep.append(_memory.check_range(buffer.address, port.desc.nbytes, write=write))
        addresses.append(buffer.address)
    split, place = len(given), on_device_of_thread()

    def run() -> None:
        held = keep
        with place:
            _gpu.run(handle.model, addresses[:split], addresses[split:])
        del held

    return run


def clear() -> None:
    """Release everything (acl.finalize)."""
    attributes.clear()
    handles.clear()
    _models().clear()
    _compiled.clear()
