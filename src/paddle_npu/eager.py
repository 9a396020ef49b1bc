"""Programs of the device's eager kernels, one per operator, attributes and input shapes."""

from __future__ import annotations

import ast
import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle.jit.sot.utils import no_eval_frame

from ge.compiler import compile_graph
from ge.errors import GeError
from ge.parsers.paddle.parser import convert
from ge.parsers.paddle.program import Block, Operation, Port, Program
from paddle_npu.counting import STATE

__all__ = ["program"]

# PaddlePaddle's numbers of element types in its C interface.
_DTYPES = (
    *("", "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "bfloat16", "complex64", "complex128"),
)
_WINDOW = ("strides", "paddings", "padding_algorithm", "dilations", "groups", "data_format")
_GROUPED = ("strides", "paddings", "padding_algorithm", "groups", "dilations", "data_format")
_STATISTICS = ("use_global_stats", "trainable_statistics")
# Attributes in the order of the kernels' arguments.
_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "matmul": ("transpose_x", "transpose_y"),
    "conv2d": _WINDOW,
    "depthwise_conv2d": _GROUPED,
    "batch_norm": ("is_test", "momentum", "epsilon", "data_format", *_STATISTICS),
    "batch_norm_grad": ("momentum", "epsilon", "data_format", "is_test", *_STATISTICS),
    "layer_norm": ("epsilon", "begin_norm_axis"),
    "softmax": ("axis",),
    "gelu": ("approximate",),
    "add_grad": ("axis",),
    "multiply_grad": ("axis",),
}
Run = Callable[[Sequence[int], Sequence[int]], Any]


@dataclass(frozen=True)
class _Signature:
    """A call of a kernel; absent inputs and unused results have the number 0."""

    name: str
    inputs: list[Port]
    attributes: list[Any]
    outputs: list[Port]

    @classmethod
    def read(cls, key: str) -> _Signature:
        """Parse the text of `device.cc`: `name;i11,2,3;…;a<attribute>;…;o11,2,3;`."""
        name, *parts = key.rstrip(";").split(";")
        numbers = itertools.count(1)
        inputs, outputs = ([_port(p, numbers) for p in parts if p[0] == kind] for kind in "io")
        return cls(name, inputs, [ast.literal_eval(p[1:]) for p in parts if p[0] == "a"], outputs)

    def given(self) -> list[Port]:
        return [port for port in self.inputs if port.number]

    def wanted(self) -> list[Port]:
        return [port for port in self.outputs if port.number]


def _port(part: str, numbers: Iterator[int]) -> Port:
    code, *sizes = part[1:].split(",")
    return Port(next(numbers), tuple(map(int, sizes)), _DTYPES[int(code)]) if code else Port(0)


@no_eval_frame  # SOT would capture this and the engine where a kernel runs inside of a `to_static` function
def program(key: str) -> Run:
    """The program of a kernel call; falls back to PaddlePaddle's CPU kernel, with a warning."""
    return no_eval_frame(_program(key))


def _program(key: str) -> Run:
    signature = _Signature.read(key)
    try:
        return _on_engine(signature)
    except GeError as error:
        if STATE.strict or not hasattr(paddle._C_ops, signature.name):
            raise
        STATE.refused(f"pd_op.{signature.name}", error.cause)
        return _on_paddle(signature)


def _on_engine(signature: _Signature) -> Run:
    name, given, wanted = signature.name, signature.given(), signature.wanted()
    names = _ATTRIBUTES.get(name) or _ATTRIBUTES.get(name.removesuffix("_grad"), ())
    attributes = dict(zip(names, signature.attributes, strict=True))
    operands = [port.number for port in signature.inputs]
    operations = [
        *(Operation("pd_op.data", {"name": _label(p)}, (), (p,)) for p in given),
        Operation(f"pd_op.{name}", attributes, operands, signature.outputs),
        *(Operation("builtin.shadow_output", {"output_name": _label(p)}, (p.number,), ()) for p in wanted),
    ]
    made = convert(Program(name, Block((), operations)))
    sources, targets = [_label(p) for p in given], [_label(p) for p in wanted]
    reads = [sources.index(str(v.name)) for v in made.graph.inputs]
    writes = [targets.index(str(v.name)) for v in made.graph.outputs]
    known = {targets.index(key): np.ascontiguousarray(value) for key, value in made.constants.items()}
    missing = {*range(len(targets))} - {*writes} - {*known}
    if missing:
        raise GeError("E10022", f"the plugin gives no result {min(missing)}", operator=f"pd_op.{name}")
    model = compile_graph(made.graph, None, f"paddle_{name}") if writes else None

    def run(inputs: Sequence[int], outputs: Sequence[int]) -> None:
        STATE.counts.eager += 1
        if model is not None:
            model.run_addresses([inputs[i] for i in reads], [outputs[i] for i in writes])
        for index, value in known.items():
            ctypes.memmove(outputs[index], value.ctypes.data, value.nbytes)

    return run


def _label(port: Port) -> str:
    return f"v{port.number}"


def _on_paddle(signature: _Signature) -> Run:
    function = getattr(paddle._C_ops, signature.name)

    def run(inputs: Sequence[int], outputs: Sequence[int]) -> None:
        addresses = iter(inputs)
        tensors = [_tensor(p, next(addresses)) if p.number else None for p in signature.inputs]
        with paddle.no_grad():
            made = function(*tensors, *signature.attributes)
        results = list(made) if isinstance(made, tuple | list) else [made]
        kept = [r for r, p in zip(results, signature.outputs, strict=False) if p.number]
        for result, address in zip(kept, outputs, strict=True):
            plain = result.contiguous()
            ctypes.memmove(address, plain.data_ptr(), plain.numel().item() * plain.element_size())

    return run


def _tensor(port: Port, address: int) -> Any:
    """Copy a device tensor for PaddlePaddle's CPU kernels."""
    made = paddle.empty(list(port.shape), port.dtype, device="cpu")
    if address:
        ctypes.memmove(made.data_ptr(), address, made.numel().item() * made.element_size())
    return made
