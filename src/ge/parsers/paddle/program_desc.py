"""Translates PaddlePaddle programs of version 2 (`model.pdmodel`) to the operations of version 3.

An operation of version 2 has named slots, each with a list of variables, and attributes. `_TABLE` says how it becomes
one of version 3: its new name, its operands in order and its results. Variables may be assigned several times; every
assignment gives a value of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import message

from ge.errors import GeError
from ge.parsers.paddle.program import STORED, Block, Operation, Port, Program
from ge.parsers.schema import declare

__all__ = ["MESSAGES", "read"]

_SCHEMA: dict[str, tuple[str, ...]] = {
    "ProgramDesc": ("1 blocks BlockDesc*",),
    "BlockDesc": ("1 idx int32", "2 parent_idx int32", "3 vars VarDesc*", "4 ops OpDesc*"),
    "VarDesc": ("1 name string", "2 type VarType", "3 persistable bool"),
    "VarType": ("1 type int32", "3 dense DenseDesc"),
    "DenseDesc": ("1 tensor TensorDesc",),
    "TensorDesc": ("1 data_type int32", "2 dims int64*"),
    "OpDesc": ("1 inputs Slot*", "2 outputs Slot*", "3 type string", "4 attrs Attr*"),
    "Slot": ("1 parameter string", "2 arguments string*"),
    "Attr": (
        "1 name string",
        "2 type int32",
        "3 i int32",
        "4 f float",
        "5 s bytes",
        "6 ints int32*",
        "7 floats float*",
        "8 strings bytes*",
        "10 b bool",
        "11 bools bool*",
        "12 block_idx int32",
        "13 l int64",
        "15 longs int64*",
        "16 float64s double*",
        "19 float64 double",
        "20 scalar Scalar",
        "21 scalars Scalar*",
    ),
    "Scalar": ("1 type int32", "2 b bool", "3 i int64", "4 r double"),
}
MESSAGES: dict[str, type[message.Message]] = declare("ge.paddle", _SCHEMA, syntax="proto2")

# The field that holds an attribute, by the number of its type.
_FIELDS = {
    0: "i", 1: "f", 2: "s", 3: "ints", 4: "floats", 5: "strings", 6: "b", 7: "bools", 8: "block_idx", 9: "l",
    11: "longs", 12: "float64s", 15: "float64", 16: "scalar", 17: "scalars",
}  # fmt: skip
_SCALARS = {1: "b", 2: "i", 3: "r"}

# Version 2's name, version 3's, operands > results, and attributes with a new name (new=old).
#   Slot    a variable, or an absent one        Slot*      all variables of the slot as a list
#   @name   an attribute as a constant operand  A|B|@name  the first of them that is there
#   Slot?   a result whose description in files is not reliable
_TABLE = """
abs, acos, acosh, asin, asinh, atan, atanh, bitwise_not, ceil, cos, cosh, digamma, erf, erfinv, exp, expm1, \
    floor, lgamma, log, log10, log1p, log2, logical_not, logsigmoid, reciprocal, relu, round, rsqrt, sigmoid, sign, \
    silu, sin, sinh, softsign, sqrt, square, tan, tanh, tanh_shrink, trunc, mish, celu, elu, selu, softplus, \
    thresholded_relu, gelu, assign, log_softmax, softmax = X > Out
isfinite_v2 isfinite X > Out
isinf_v2 isinf X > Out
isnan_v2 isnan X > Out
leaky_relu leaky_relu X > Out : negative_slope=alpha
hard_sigmoid hardsigmoid X > Out
brelu hardtanh X > Out
prelu prelu X Alpha > Out
scale scale X ScaleTensor|@scale > Out
clip clip X Min|@min Max|@max > Out
pow pow X > Out : y=factor
cast cast X > Out : dtype=out_dtype
bitwise_and, bitwise_or, bitwise_xor, equal, not_equal, less_than, less_equal, greater_than, greater_equal, \
    logical_and, logical_or, logical_xor = X Y > Out
elementwise_add add X Y > Out
elementwise_sub subtract X Y > Out
elementwise_mul multiply X Y > Out
elementwise_div divide X Y > Out
elementwise_max maximum X Y > Out
elementwise_min minimum X Y > Out
elementwise_pow elementwise_pow X Y > Out
elementwise_mod remainder X Y > Out
elementwise_floordiv floor_divide X Y > Out
elementwise_fmax fmax X Y > Out
elementwise_fmin fmin X Y > Out
atan2 atan2 X1 X2 > Out
sum add_n X* > Out
where where Condition X Y > Out
matmul_v2 matmul X Y > Out : transpose_x=trans_x transpose_y=trans_y
bmm bmm X Y > Out
mv mv X Vec > Out
dot dot X Y > Out
addmm addmm Input X Y > Out : alpha=Alpha beta=Beta
einsum einsum Operands* > Out InnerCache XShape
conv2d conv2d Input Filter > Output
depthwise_conv2d depthwise_conv2d Input Filter > Output
conv3d conv3d Input Filter > Output
conv2d_transpose conv2d_transpose Input Filter @output_size > Output
depthwise_conv2d_transpose depthwise_conv2d_transpose Input Filter @output_size > Output
conv3d_transpose conv3d_transpose Input Filter > Output
pool2d pool2d X @ksize > Out
pool3d pool3d X > Out : kernel_size=ksize
max_pool2d_with_index max_pool2d_with_index X > Out Mask : kernel_size=ksize
nearest_interp_v2 nearest_interp X OutSize SizeTensor* Scale > Out : data_format=data_layout
bilinear_interp_v2 bilinear_interp X OutSize SizeTensor* Scale > Out : data_format=data_layout
bicubic_interp_v2 bicubic_interp X OutSize SizeTensor* Scale > Out : data_format=data_layout
linear_interp_v2 linear_interp X OutSize SizeTensor* Scale > Out : data_format=data_layout
trilinear_interp_v2 trilinear_interp X OutSize SizeTensor* Scale > Out : data_format=data_layout
batch_norm batch_norm X Mean Variance Scale Bias > Y MeanOut VarianceOut SavedMean? SavedVariance? ReserveSpace? : \
    data_format=data_layout
layer_norm layer_norm X Scale Bias > Y Mean Variance
group_norm group_norm X Scale Bias > Y Mean Variance : data_format=data_layout
instance_norm instance_norm X Scale Bias > Y SavedMean? SavedVariance?
dropout dropout X Seed @dropout_prob > Out Mask : mode=dropout_implementation
lookup_table_v2 embedding Ids W > Out
one_hot_v2 one_hot X depth_tensor|@depth > Out
reduce_sum sum X @dim > Out : keepdim=keep_dim dtype=out_dtype
reduce_mean mean X @dim > Out : keepdim=keep_dim
reduce_max max X @dim > Out : keepdim=keep_dim
reduce_min min X @dim > Out : keepdim=keep_dim
reduce_prod prod X @dim > Out : keepdim=keep_dim
reduce_all all X > Out : axis=dim keepdim=keep_dim
reduce_any any X > Out : axis=dim keepdim=keep_dim
mean mean_all X > Out
logsumexp logsumexp X > Out
p_norm p_norm X > Out
squared_l2_norm squared_l2_norm X > Out
arg_max argmax X @axis > Out
arg_min argmin X @axis > Out
argsort argsort X > Out Indices
top_k_v2 topk X K|@k > Out Indices
cumsum cumsum X @axis > Out
cumprod cumprod X > Out
reshape2 reshape X Shape|ShapeTensor*|@shape > Out XShape
flatten_contiguous_range flatten X > Out XShape
squeeze2 squeeze X @axes > Out XShape
unsqueeze2 unsqueeze X AxesTensor|AxesTensorList*|@axes > Out XShape
transpose2 transpose X > Out XShape : perm=axis
expand_v2 expand X Shape|expand_shapes_tensor*|@shape > Out
expand_as_v2 expand_as X Y > Out
tile tile X RepeatTimes|repeat_times_tensor*|@repeat_times > Out
concat concat X* AxisTensor|@axis > Out
stack stack X* > Y
unstack unstack X > Y*
unbind unbind X > Out*
meshgrid meshgrid X* > Out*
slice slice Input StartsTensor|StartsTensorList*|@starts EndsTensor|EndsTensorList*|@ends > Out
strided_slice strided_slice Input StartsTensor|StartsTensorList*|@starts EndsTensor|EndsTensorList*|@ends \
    StridesTensor|StridesTensorList*|@strides > Out
flip flip X > Out
roll roll X ShiftsTensor|@shifts > Out
pad pad X > Out
pad3d pad3d X Paddings|@paddings > Out : pad_value=value
diagonal diagonal Input > Out
pixel_shuffle pixel_shuffle X > Out
gather gather X Index Axis|@axis > Out
gather_nd gather_nd X Index > Out
index_select index_select X Index > Out : axis=dim
index_sample index_sample X Index > Out
take_along_axis take_along_axis Input Index > Result : axis=Axis
scatter scatter X Ids Updates > Out
scatter_nd_add scatter_nd_add X Index Updates > Out
shape shape Input > Out
size numel Input > Out
fill_any_like full_like X @value > Out
fill_constant_batch_size_like full_batch_size_like Input > Out
linspace linspace Start Stop Num > Out
increment increment X > Out : value=step
softmax_with_cross_entropy cross_entropy_with_softmax Logits Label > Softmax Loss
sigmoid_cross_entropy_with_logits sigmoid_cross_entropy_with_logits X Label Weight > Out
bce_loss bce_loss X Label > Out
huber_loss huber_loss X Y > Out Residual
label_smooth label_smooth X PriorDist > Out
accuracy accuracy Out Indices Label > Accuracy Correct Total
rnn rnn Input PreState* WeightList* SequenceLength > Out DropoutState State* Reserve
"""


@dataclass(frozen=True)
class _Rule:
    """How an operation is translated."""

    type: str
    operands: tuple[tuple[str, ...], ...]
    results: tuple[str, ...]
    attrs: Mapping[str, str] = field(default_factory=dict)


def _rules() -> Iterator[tuple[str, _Rule]]:
    for line in _TABLE.replace("\\\n", "").strip().splitlines():
        names, shared, rest = line.partition(" = ")
        first = [n.strip() for n in names.split(",")] if shared else [line.split()[0]]
        rest = rest if shared else " ".join(line.split()[2:])
        ports, _, renamed = rest.partition(" : ")
        operands, _, results = ports.partition(">")
        for name in first:
            yield (
                name,
                _Rule(
                    name if shared else line.split()[1],
                    tuple(tuple(choice.split("|")) for choice in operands.split()),
                    tuple(results.split()),
                    dict(pair.split("=") for pair in renamed.split()),
                ),
            )


_RULES = dict(_rules())
_ELEMENTWISE = "elementwise_"
_DTYPE_ATTRIBUTES = ("dtype", "out_dtype")


def read(content: bytes, name: str) -> Program:
    """A program from its binary form, without the values of its parameters."""
    made: Any = MESSAGES["ProgramDesc"]()
    try:
        made.ParseFromString(content)
        if not made.blocks:
            raise ValueError("it has no block")
        return Program(name, _Translator(made.blocks[0]).block())
    except (message.DecodeError, ValueError, KeyError, IndexError, RecursionError) as error:
        raise GeError(
            "E10022",
            f"{name} is not a program of PaddlePaddle 2 ({type(error).__name__}: {str(error)[:200]})",
            remedy="save the model again with paddle.jit.save or paddle.static.save_inference_model",
        ) from error


class _Translator:
    """Translates a block, operation by operation; variables have the number of their latest value."""

    def __init__(self, block: Any) -> None:
        self.source = block
        self.described = {v.name: v for v in block.vars}
        self.numbers: dict[str, int] = {}
        self.count = 0
        self.made: list[Operation] = []

    def block(self) -> Block:
        """The translated block: parameters first, as they are in files of version 3."""
        for variable in self.source.vars:
            if variable.persistable and variable.type.HasField("dense"):
                attrs = {"name": variable.name, "stored": True}
                self.made.append(Operation("builtin.parameter", attrs, (), [self.assigned(variable.name)]))
        for operation in self.source.ops:
            self.translate(operation)
        return Block((), self.made)

    def translate(self, operation: Any) -> None:
        """Append what an operation becomes; one without a rule keeps its name, which the parser reports."""
        inputs = {s.parameter: list(s.arguments) for s in operation.inputs}
        outputs = {s.parameter: list(s.arguments) for s in operation.outputs}
        attrs = {a.name: _attribute(a) for a in operation.attrs}
        special = _SPECIAL.get(operation.type)
        if special is not None:
            special(self, inputs, outputs, attrs)
            return
        rule = _RULES.get(operation.type)
        if rule is None:
            results = [self.assigned(v) for names in outputs.values() for v in names]
            self.emit(operation.type, attrs, [], results)
            return
        operands = [self.operand(choices, inputs, attrs) for choices in rule.operands]
        if operation.type.startswith(_ELEMENTWISE):
            operands[1] = self.aligned(inputs, operands[1], int(attrs.get("axis", -1)))
        attrs |= {new: attrs[old] for new, old in rule.attrs.items() if old in attrs}
        if rule.type in ("argmax", "argmin") and attrs.get("dtype", "Undefined") == "Undefined":
            attrs["dtype"] = "int64"
        results, lists = self.results(rule.results, outputs)
        self.emit(rule.type, attrs, operands, results)
        self.made += lists

    def emit(
        self, type_: str, attrs: Mapping[str, Any], operands: Sequence[int], results: Sequence[Port]
    ) -> None:
        """Append an operation of version 3."""
        self.made.append(Operation(f"pd_op.{type_}", dict(attrs), list(operands), list(results)))

    def fresh(self, shape: Sequence[int] = (), dtype: str = "") -> Port:
        """A new value."""
        self.count += 1
        return Port(self.count, tuple(shape), dtype)

    def assigned(self, name: str, described: bool = True) -> Port:
        """A new value of a variable; `described` tells whether the file's shape and type are to be relied upon."""
        variable = self.described.get(name)
        port = self.fresh()
        if described and variable is not None and variable.type.HasField("dense"):
            tensor = variable.type.dense.tensor
            port = Port(port.number, tuple(tensor.dims), STORED.get(tensor.data_type, ""))
        self.numbers[name] = port.number
        return port

    def results(
        self, slots: Sequence[str], outputs: Mapping[str, list[str]]
    ) -> tuple[list[Port], list[Operation]]:
        """The results of an operation, and the operations that take those apart that are lists."""
        found, lists = [], []
        for slot in slots:
            names = outputs.get(slot.rstrip("*?"), [])
            if slot.endswith("*"):
                found.append(self.fresh())
                parts = [self.assigned(n) for n in names]
                lists.append(Operation("builtin.split", {}, [found[-1].number], parts))
            else:
                found.append(self.assigned(names[0], not slot.endswith("?")) if names else Port(0))
        return found, lists

    def value(self, name: str) -> int:
        """The number of a variable's value; one that nothing assigned is absent."""
        return self.numbers.get(name, 0)

    def operand(
        self, choices: Sequence[str], inputs: Mapping[str, list[str]], attrs: Mapping[str, Any]
    ) -> int:
        """The first of the choices that is there: variables of a slot, or an attribute as a constant."""
        for choice in choices:
            if choice.startswith("@"):
                return self.constant(attrs.get(choice[1:]))
            names = inputs.get(choice.rstrip("*"), [])
            if names and choice.endswith("*"):
                return self.combined([self.value(n) for n in names])
            if names:
                return self.value(names[0])
        return 0

    def combined(self, numbers: Sequence[int]) -> int:
        port = self.fresh()
        self.made.append(Operation("builtin.combine", {}, list(numbers), [port]))
        return port.number

    def constant(self, value: Any) -> int:
        """An attribute as a value: numbers of a list are of type int64."""
        if value is None:
            return 0
        if isinstance(value, list):
            port = self.fresh((len(value),), "int64")
            self.emit("full_int_array", {"value": value, "dtype": "int64"}, [], [port])
        else:
            dtype = "float32" if isinstance(value, float) else "int64"
            port = self.fresh((1,), dtype)
            self.emit("full", {"shape": [1], "value": value, "dtype": dtype}, [], [port])
        return port.number

    def shaped(self, number: int, shape: Sequence[int]) -> int:
        port = self.fresh()
        self.emit("reshape", {}, [number, self.constant([int(d) for d in shape])], [port])
        return port.number

    def dims(self, name: str) -> list[int]:
        return list(self.described[name].type.dense.tensor.dims)

    def aligned(self, inputs: Mapping[str, list[str]], number: int, axis: int) -> int:
        """The second operand, whose first axis is `axis` of the first operand."""
        first, second = self.dims(inputs["X"][0]), self.dims(inputs["Y"][0])
        after = len(first) - axis - len(second)
        if axis < 0 or after <= 0:
            return number
        # 0 keeps a dimension, so that an open one stays as it is
        return self.shaped(number, [*(0 for _ in second), *(1 for _ in range(after))])


def _attribute(attr: Any) -> Any:
    """An attribute as a Python value."""
    if attr.type not in _FIELDS:
        return None
    value = getattr(attr, _FIELDS[attr.type])
    if attr.type == 16:
        value = getattr(value, _SCALARS[value.type])
    elif attr.type == 17:
        value = [getattr(v, _SCALARS[v.type]) for v in value]
    if isinstance(value, bytes):
        value = value.decode()
    elif not isinstance(value, (bool, int, float)):
        value = [v.decode() if isinstance(v, bytes) else v for v in value]
    if attr.name in _DTYPE_ATTRIBUTES and isinstance(value, int):
        return STORED.get(value, "Undefined")  # -1: what the operator has by default
    return value


_Slots = Mapping[str, list[str]]
_SPECIAL: dict[str, Callable[[_Translator, _Slots, _Slots, dict[str, Any]], None]] = {}


def _special(name: str) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        _SPECIAL[name] = function
        return function

    return register


@_special("feed")
def _feed(t: _Translator, inputs: _Slots, outputs: _Slots, attrs: dict[str, Any]) -> None:
    name = outputs["Out"][0]
    t.emit("data", {"name": name}, [], [t.assigned(name)])


@_special("fetch")
def _fetch(t: _Translator, inputs: _Slots, outputs: _Slots, attrs: dict[str, Any]) -> None:
    name = inputs["X"][0]
    t.emit("fetch", {"name": name}, [t.value(name)], [])


@_special("fill_constant")
def _fill_constant(t: _Translator, inputs: _Slots, outputs: _Slots, attrs: dict[str, Any]) -> None:
    """The value is text where a float would lose digits."""
    text = attrs.get("str_value")
    value = float(text) if text else attrs.get("value", 0.0)
    shape = t.operand(("ShapeTensor", "ShapeTensorList*"), inputs, attrs)
    given = t.operand(("ValueTensor",), inputs, attrs)
    made = [t.assigned(outputs["Out"][0])]
    if shape or given:
        number = given or t.constant(float(value))
        t.emit("full_with_tensor", attrs, [number, shape or t.constant(attrs["shape"])], made)
    else:
        t.emit("full", attrs | {"value": value}, [], made)


@_special("assign_value")
def _assign_value(t: _Translator, inputs: _Slots, outputs: _Slots, attrs: dict[str, Any]) -> None:
    """The elements are in the list of their type."""
    kinds = ("values", "fp32_values", "int32_values", "int64_values", "bool_values", "fp64_values")
    values: list[Any] = next((attrs[k] for k in kinds if attrs.get(k)), [])
    t.emit("assign_value", attrs | {"values": values}, [], [t.assigned(outputs["Out"][0])])


@_special("split")
def _split(t: _Translator, inputs: _Slots, outputs: _Slots, attrs: dict[str, Any]) -> None:
    x, axis = t.value(inputs["X"][0]), t.operand(("AxisTensor", "@axis"), inputs, attrs)
    sections = t.operand(("SectionsTensorList*",), inputs, attrs)
    if not sections and attrs.get("sections"):
        sections = t.constant(attrs["sections"])
    parts, lists = t.results(["Out*"], outputs)
    if sections:
        t.emit("split", {}, [x, sections, axis], parts)
    else:
        t.emit("split_with_num", {"num": len(outputs["Out"])}, [x, axis], parts)
    t.made += lists


@_special("swish")
def _swish(t: _Translator, inputs: _Slots, outputs: _Slots, attrs: dict[str, Any]) -> None:
    """x * sigmoid(beta * x)."""
    x, beta = t.value(inputs["X"][0]), float(attrs.get("beta", 1.0))
    if beta == 1.0:
        t.emit("silu", {}, [x], [t.assigned(outputs["Out"][0])])
        return
    scaled, gate = t.fresh(), t.fresh()
    t.emit("scale", {}, [x, t.constant(beta)], [scaled])
    t.emit("sigmoid", {}, [scaled.number], [gate])
    t.emit("multiply", {}, [x, gate.number], [t.assigned(outputs["Out"][0])])


@_special("relu6")
def _relu6(t: _Translator, inputs: _Slots, outputs: _Slots, attrs: dict[str, Any]) -> None:
    bounds = [t.constant(0.0), t.constant(float(attrs.get("threshold", 6.0)))]
    t.emit("clip", {}, [t.value(inputs["X"][0]), *bounds], [t.assigned(outputs["Out"][0])])


@_special("hard_swish")
def _hard_swish(t: _Translator, inputs: _Slots, outputs: _Slots, attrs: dict[str, Any]) -> None:
    """x * clip(x + offset, 0, threshold) / scale."""
    x = t.value(inputs["X"][0])
    threshold, scale, offset = (float(attrs.get(k, d)) for k, d in _HARD_SWISH.items())
    if (threshold, scale, offset) == tuple(_HARD_SWISH.values()):
        t.emit("hardswish", {}, [x], [t.assigned(outputs["Out"][0])])
        return
    shifted, gate, scaled = t.fresh(), t.fresh(), t.fresh()
    t.emit("scale", {"bias": offset}, [x, t.constant(1.0)], [shifted])
    t.emit("clip", {}, [shifted.number, t.constant(0.0), t.constant(threshold)], [gate])
    t.emit("scale", {}, [gate.number, t.constant(1 / scale)], [scaled])
    t.emit("multiply", {}, [x, scaled.number], [t.assigned(outputs["Out"][0])])


_HARD_SWISH = {"threshold": 6.0, "scale": 6.0, "offset": 3.0}


@_special("range")
def _range(t: _Translator, inputs: _Slots, outputs: _Slots, attrs: dict[str, Any]) -> None:
    made = t.assigned(outputs["Out"][0])
    t.emit("arange", {"dtype": made.dtype}, [t.value(inputs[s][0]) for s in ("Start", "End", "Step")], [made])


@_special("tril_triu")
def _triangle(t: _Translator, inputs: _Slots, outputs: _Slots, attrs: dict[str, Any]) -> None:
    kind = "tril" if attrs.get("lower", True) else "triu"
    t.emit(kind, attrs, [t.value(inputs["X"][0])], [t.assigned(outputs["Out"][0])])


@_special("flatten2")
def _flatten2(t: _Translator, inputs: _Slots, outputs: _Slots, attrs: dict[str, Any]) -> None:
    """Two dimensions: those before an axis, and the rest."""
    dims, axis = t.dims(inputs["X"][0]), int(attrs.get("axis", 1))
    if any(d < 0 for d in dims[1:]):
        raise ValueError("flatten2 of open dimensions")
    rows = 1
    for d in dims[axis:]:
        rows *= d
    shape = t.constant([-1, rows])
    t.emit("reshape", {}, [t.value(inputs["X"][0]), shape], [t.assigned(outputs["Out"][0])])


@_special("matmul")
def _matmul(t: _Translator, inputs: _Slots, outputs: _Slots, attrs: dict[str, Any]) -> None:
    turns = {"transpose_x": attrs.get("transpose_X"), "transpose_y": attrs.get("transpose_Y")}
    operands = [t.value(inputs[s][0]) for s in ("X", "Y")]
    alpha = float(attrs.get("alpha", 1.0))
    made = t.fresh() if alpha != 1.0 else t.assigned(outputs["Out"][0])
    t.emit("matmul", turns, operands, [made])
    if alpha != 1.0:
        t.emit("scale", {}, [made.number, t.constant(alpha)], [t.assigned(outputs["Out"][0])])


@_special("mul")
def _mul(t: _Translator, inputs: _Slots, outputs: _Slots, attrs: dict[str, Any]) -> None:
    """A product of matrices that operands are taken for: the first dimensions of each are its rows."""
    rows, columns = (int(attrs.get(k, 1)) for k in ("x_num_col_dims", "y_num_col_dims"))
    x, y = (t.value(inputs[s][0]) for s in ("X", "Y"))
    of_x, of_y = t.dims(inputs["X"][0]), t.dims(inputs["Y"][0])
    inner = 1
    for d in of_x[rows:]:
        inner *= d
    flat = t.shaped(x, [-1, inner]) if len(of_x) != 2 or rows != 1 else x
    weights = t.shaped(y, [inner, -1]) if len(of_y) != 2 or columns != 1 else y
    product = t.fresh()
    t.emit("matmul", {}, [flat, weights], [product])
    shape = [*of_x[:rows], *of_y[columns:]]
    if sum(d < 0 for d in shape) > 1:
        raise ValueError("a product of several open dimensions")
    t.emit("reshape", {}, [product.number, t.constant(shape)], [t.assigned(outputs["Out"][0])])
