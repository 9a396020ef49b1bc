"""The base class of operators: prototype, verification, inference, information and computation.

A class body is the specification; built-in and user operators share it:

    class Relu(Operator):
        '''max(x, 0), NaN kept.'''

        x = Input("T", NUMBERS)
        y = Output("T")
        pattern = Pattern.ELEMENTWISE

        @staticmethod
        def compute(op, x):
            return tbe.unary("relu", x)

Whatever an operator does not define is derived: the shapes and types of a vector operator's outputs from its
expression, its constant folding from evaluating that expression.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

import tbe
from ge.errors import GeError
from ge.ir.types import TENSORS, TensorDesc
from ge.ir.values import constant_of, desc_of
from ge.ops.dataflow import Aligned, Dataflow
from ge.ops.traits import Cost, Epilogue, Formula, ImageFormat, Precision, Sign, WeightAxes
from ge.ops.views import Views
from ge.plan import Task, View

__all__ = [
    "REQUIRED",
    "Attr",
    "Engine",
    "Input",
    "NodeView",
    "Operator",
    "Output",
    "Pattern",
    "adopt",
    "candidates",
    "dataflow_of",
    "fail",
    "fingerprint",
    "has_dynamic_size",
    "is_custom",
    "is_whole_view",
    "lookup",
    "node_type",
    "of_post_op",
    "pattern_of",
    "plain_type",
    "program_of",
    "register",
    "registered",
    "registered_custom",
    "source_of",
    "subscribe",
    "takes",
    "unregister",
]

REQUIRED: Any = object()
_COMPLETE = "ge.complete_attributes"

# Packages whose operators and plugins are built in; all others are custom.
BUILT_IN = frozenset({"ge", "tbe", "tf_adapter", "npu_device", "npu_bridge", "torchair", "torch_npu", "acl"})
# Nodes of an operator that replaces a built-in one have this type, so that no pass takes them for the built-in.
CUSTOM_MARK = "@custom"


class Engine(enum.Enum):
    """The engine of a node, in order of preference (see ge.engines)."""

    AI_CORE = "AI Core"  # oneDNN primitives: convolution, matrix product, pooling, recurrent cells
    VECTOR = "vector"  # kernels generated from the operator's expression
    AI_CPU = "AI CPU"  # C++ kernels for irregular work
    CONTROL = "control"  # branches and loops, run by the executor itself
    VIEW = "view"  # no work: the output is the input's memory in another shape


class Pattern(enum.Enum):
    """How an operator's outputs depend on its inputs; determines which nodes may share a kernel."""

    ELEMENTWISE = "elementwise"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    INJECTIVE = "injective"
    OPAQUE = "opaque"


@dataclass(frozen=True)
class Input:
    """An input port. Ports of one `group` have the same element type."""

    group: str = ""
    dtypes: frozenset[str] = TENSORS
    optional: bool = False
    variadic: bool = False


@dataclass(frozen=True)
class Output:
    """An output port."""

    group: str = ""
    variadic: bool = False


@dataclass(frozen=True)
class Attr:
    """An attribute: its type, its default (REQUIRED if there is none) and its allowed values."""

    type: Any
    default: Any = REQUIRED
    choices: tuple[Any, ...] = ()
    item: Any = int  # element type of a list


class NodeView:
    """An operator's view of one node: attributes with defaults, descriptions and constants of its inputs.

    `op.axes` reads the attribute; `op.input(0)` is the TensorDesc of the first input, None if it is absent.
    """

    __slots__ = ("_attrs", "inputs", "name", "outputs", "type", "values")

    def __init__(
        self,
        type_: str,
        name: str,
        values: Sequence[ir.Value | None],
        attrs: Mapping[str, Any],
        outputs: Sequence[TensorDesc] = (),
    ) -> None:
        self.type = type_
        self.name = name
        self.values = tuple(values)
        self.inputs = tuple(None if v is None else desc_of(v) for v in self.values)
        self.outputs = tuple(outputs)
        self._attrs = attrs

    @classmethod
    def of(cls, node: ir.Node) -> NodeView:
        """The view of an existing node."""
        outputs = [desc_of(v) for v in node.outputs if v.shape is not None]
        return cls(node.op_type, node.name or "", node.inputs, _attributes_of(node), outputs)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._attrs[name]
        except KeyError:
            raise AttributeError(f"operator {self.type} has no attribute '{name}'") from None

    @property
    def attrs(self) -> Mapping[str, Any]:
        return self._attrs

    def input(self, index: int) -> TensorDesc | None:
        """The description of an input, None if absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def const(self, index: int) -> np.ndarray | None:
        """The constant value of an input, None if it is not constant."""
        return constant_of(self.values[index]) if index < len(self.values) else None


def _attributes_of(node: ir.Node) -> Mapping[str, Any]:
    """A node's attributes including defaults, kept with the node until they or its operator change."""
    operator = lookup(node.op_type)
    given = tuple(node.attributes.data.values())
    known = node.meta.data.get(_COMPLETE)
    if known is not None and known[0] is operator and _same_objects(known[1], given):
        return known[2]
    completed = operator.complete({attr.name: attr.value for attr in given}, node.name or "")
    node.meta[_COMPLETE] = operator, given, completed
    return completed


def _same_objects(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def fail(op: NodeView, cause: str, remedy: str = "", code: str = "E10002") -> GeError:
    """The error of a node that violates its operator's rules."""
    return GeError(code, cause, node=op.name, operator=op.type, remedy=remedy)


@dataclass(frozen=True)
class CompiledProgram:
    """The machine code of a TIK program (`tbe.tik.native.MachineCode`)."""

    symbol: str
    object: bytes
    arena: int  # bytes


@dataclass
class Prototype:
    """The declarations of an operator class, collected once."""

    inputs: dict[str, Input] = field(default_factory=dict)
    outputs: dict[str, Output] = field(default_factory=dict)
    attrs: dict[str, Attr] = field(default_factory=dict)


class Operator:
    """Base of all operators. Subclasses declare ports and attributes and override what cannot be derived."""

    type: ClassVar[str] = ""
    prototype: ClassVar[Prototype] = Prototype()
    pattern: ClassVar[Pattern] = Pattern.OPAQUE
    engine: ClassVar[Engine | None] = None  # None: derived from what the class defines
    aicpu: ClassVar[str] = ""  # name of the C++ kernel
    task_kind: ClassVar[str] = "aicpu"  # the runtime's task kind, for an operator with a C++ kernel
    overwrites: ClassVar[bool] = False  # the kernel may overwrite its first input with its first output
    dataflow: ClassVar[Dataflow | None] = None  # for passes (see ge.ops.dataflow)
    views: ClassVar[Views | None] = None  # of an operator that only moves data (see ge.ops.views)
    precision: ClassVar[Precision] = Precision()  # in precision modes
    image_format: ClassVar[ImageFormat | None] = None  # of an operator on images
    cost: ClassVar[Cost] = Cost.CHEAP  # per element, for kernel fusion
    moves: ClassVar[bool] = False  # results are elements of the inputs at other positions, of any type
    selects: ClassVar[bool] = False  # results are elements of the inputs, chosen by order: maxima, minima
    sign: ClassVar[Sign] = Sign.ANY  # of its results
    commutative: ClassVar[bool] = False  # its two inputs may be swapped
    # For operands of one shape: the sum of its results is its result on the sums; always, or for some nodes.
    linear: ClassVar[bool | Callable[..., bool]] = False
    nests: ClassVar[bool] = False  # a reduction that may run axis by axis, and is the identity on one element
    keeps_means: ClassVar[bool] = False  # an image's channels keep the means of its input
    piecewise_constant: ClassVar[bool] = False  # its gradient is zero
    idempotent: ClassVar[bool] = False  # applied to its own result, it changes nothing
    involution: ClassVar[bool] = False  # applied to its own result, it gives its input
    broadcasts: ClassVar[bool] = False  # the result is the input under a larger shape, by NumPy's rules
    quantises: ClassVar[bool] = False  # between bytes and the numbers they stand for, element by element
    aligned_rows: ClassVar[bool] = (
        False  # on GPUs: its kernels read rows 16 bytes at a time, or it turns rows
    )
    light: ClassVar[bool] = False  # its C++ kernel is worth no compilation of its own
    formula: ClassVar[Formula] = Formula.NONE  # of an elementwise operator
    epilogue: ClassVar[Epilogue | None] = None  # the equivalent epilogue of products and convolutions
    takes_epilogues: ClassVar[bool] = False  # a product with weights, a bias and the attribute post_ops
    weight_axes: ClassVar[Callable[..., WeightAxes] | None] = None  # the channels of a product with weights
    algorithm_names: ClassVar[
        tuple[str, ...]
    ] = ()  # names by which scripts choose among its algorithms, if it has several
    may_round: ClassVar[bool] = (
        False  # a product whose left operand may be rounded to 8 bits, if the options say so
    )
    reads_once: ClassVar[bool] = False  # reads each element of the inputs at most once
    may_fail: ClassVar[bool] = False  # depending on its input values: a run must not skip any part of it
    foldable: ClassVar[bool] = True  # False for side effects or nondeterministic results (random numbers)
    folds_late: ClassVar[bool] = False  # not folded while the graph is built, because a pass matches it
    dynamic_outputs: ClassVar[bool] = False  # actual output shapes are known only after the run
    # Information: the element types of inputs, then outputs, that an implementation accepts together; () means all.
    combinations: ClassVar[Sequence[Sequence[str]]] = ()  # of the tensor expression
    aicpu_combinations: ClassVar[Sequence[Sequence[str]]] = ()  # of the C++ kernel
    # The gradients of the inputs, in the graph API (see ge.ops.gradients).
    gradient: ClassVar[Callable[..., Any] | None] = None
    sized_outputs: ClassVar[tuple[int, ...]] = ()  # those among them whose shapes are known nevertheless

    # The outputs as arrays, for arrays and attributes, in NumPy: the reference of the workbench (tbe.bench).
    reference: ClassVar[Callable[..., Any] | None] = None

    # An AI Core operator: the views of its inputs, and of its output, that are as fast as contiguous ones.
    strided_inputs: ClassVar[tuple[Callable[[View], bool], ...]] = ()
    strided_output: ClassVar[Callable[[View], bool] | None] = None

    # A vector operator: its value as tbe expressions of its inputs.
    compute: ClassVar[Callable[..., tbe.Tensor | tuple[tbe.Tensor, ...]] | None] = None
    # A custom vector operator: its TIK program for a node and its inferred outputs, None without one.
    program: ClassVar[Callable[..., Any] | None] = None
    # An AI Core operator: its task for the runtime; the operator permutes or extends the views it receives.
    task: ClassVar[Callable[..., Task] | None] = None
    # A composite operator: rewritten into others while the graph is built (`builder` is a GraphBuilder);
    # returning NotImplemented keeps the node itself.
    expand: ClassVar[Callable[..., Any] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.type = cls.__dict__.get("type") or cls.__name__
        cls.prototype = Prototype(
            inputs=_declared(cls, Input), outputs=_declared(cls, Output), attrs=_declared(cls, Attr)
        )
        if cls.__dict__.get("engine") is None:
            cls.engine = cls._derived_engine()

    @classmethod
    def _derived_engine(cls) -> Engine | None:
        table = (
            (cls.task is not None, Engine.AI_CORE),
            (cls.compute is not None, Engine.VECTOR),
            (bool(cls.aicpu), Engine.AI_CPU),
        )
        return next((engine for present, engine in table if present), cls.engine)

    @staticmethod
    def verify(op: NodeView) -> None:
        """Raise `fail(op, …)` if attributes and inputs do not match."""

    @staticmethod
    def infer(op: NodeView) -> TensorDesc | Sequence[TensorDesc]:
        """Descriptions of the outputs; derived from `compute` for vector operators."""
        operator = lookup(op.type)
        if operator.compute is None:
            raise NotImplementedError(f"operator {op.type} declares neither infer nor compute")
        return [TensorDesc(tuple(t.shape), t.dtype) for t in operator.expression(op)[1]]

    @classmethod
    def is_dynamic(cls, node: ir.Node, output: int) -> bool:
        """True if the actual shape of an output is known only after the run."""
        return cls.dynamic_outputs and output not in cls.sized_outputs

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
        """The outputs for constant inputs, or None if this operator is not folded."""
        operator = lookup(op.type)
        if operator.compute is not None and operator._expressed(op):
            placeholders, outputs = operator.expression(op)
            feeds = {
                p: a for p, a in zip(placeholders, arrays, strict=True) if p is not None and a is not None
            }
            return list(tbe.evaluate(outputs, feeds))
        if operator.aicpu and not operator.dynamic_outputs:
            import npu_runtime

            outs = [(d.dtype, d.shape) for d in op.outputs]
            given: list[Any] = list(arrays)
            return list(npu_runtime.run_aicpu(operator.aicpu, given, outs, operator.kernel_attrs(op)))
        return None

    @classmethod
    def _expressed(cls, op: NodeView) -> bool:
        """True if the expression, and no other implementation, computes a node."""
        if not is_custom(cls):
            return True
        from ge.ops.custom import guard

        return bool(guard.traced(cls, op).expression)

    @staticmethod
    def kernel_attrs(op: NodeView) -> dict[str, Any]:
        """The attributes of the AI CPU kernel."""
        return {k: v for k, v in op.attrs.items() if v is not None}

    @staticmethod
    def refuse(op: NodeView) -> str:
        """Why the AI Core primitive cannot run this node, "" if it can."""
        return ""

    @staticmethod
    def unsuitable(op: NodeView) -> str:
        """Why a custom operator leaves a node to the next implementation of its type, "" if it accepts it."""
        return ""

    @staticmethod
    def rules(op: NodeView) -> dict[int, dict[str, Any]]:
        """Inputs whose values may be invalid: the attributes of `Checked` for indices, none for divisors."""
        return {}

    @staticmethod
    def flops(op: NodeView) -> int:
        """The FLOPs of one execution, for reports."""
        return sum(d.size for d in op.outputs)

    @classmethod
    def expression(cls, op: NodeView) -> tuple[list[tbe.Tensor | None], tuple[tbe.Tensor, ...]]:
        """The operator's computation over fresh placeholders."""
        assert cls.compute is not None
        places: list[tbe.Tensor | None] = [
            None if d is None else tbe.placeholder(d.shape, d.dtype, name=f"x{i}")
            for i, d in enumerate(op.inputs)
        ]
        return places, cls.apply(op, places)

    @classmethod
    def apply(cls, op: NodeView, tensors: Sequence[tbe.Tensor | None]) -> tuple[tbe.Tensor, ...]:
        """The operator's computation over given expressions."""
        assert cls.compute is not None
        if is_custom(cls):
            from ge.ops.custom import guard

            return guard.traced(cls, op).apply(tensors)
        return cls.computed(op, tensors)

    @classmethod
    def computed(cls, op: NodeView, tensors: Sequence[tbe.Tensor | None]) -> tuple[tbe.Tensor, ...]:
        """What `compute` itself returns for given expressions."""
        assert cls.compute is not None
        result = cls.compute(op, *tensors)
        return tuple(result) if isinstance(result, tuple | list) else (result,)

    @classmethod
    def on_tensors(
        cls, tensors: Sequence[tbe.Tensor | None], attrs: Mapping[str, Any]
    ) -> tuple[tbe.Tensor, ...]:
        """The operator over expressions outside any graph, with the checks of a node."""
        from ge.ops.builder import GraphBuilder

        if cls.compute is None:
            raise GeError("E10003", "has no computation by expressions", operator=cls.type)
        builder = GraphBuilder(cls.type)
        values = [
            None if t is None else builder.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(tensors)
        ]
        op = NodeView(cls.type, cls.type, values, cls.complete(attrs))
        cls.check(op)
        return cls.apply(op, tensors)

    @classmethod
    def describe(cls, op: NodeView) -> list[TensorDesc]:
        """Descriptions of the outputs; the code of custom operators runs in another process."""
        if is_custom(cls):
            from ge.ops.custom import guard

            return list(guard.traced(cls, op).outputs)
        inferred = cls.infer(op)
        return [inferred] if isinstance(inferred, TensorDesc) else list(inferred)

    @classmethod
    def complete(cls, given: Mapping[str, Any], node: str = "") -> dict[str, Any]:
        """Attributes including defaults; unknown names, wrong types and values raise."""
        if not given.keys() <= cls.prototype.attrs.keys():
            unknown = sorted(given.keys() - cls.prototype.attrs.keys())
            valid = ", ".join(cls.prototype.attrs) or "none"
            raise GeError(
                "E10003", f"unknown attribute {unknown}", node=node, operator=cls.type, remedy=f"use {valid}"
            )
        return {name: cls._attribute(name, attr, given, node) for name, attr in cls.prototype.attrs.items()}

    @classmethod
    def _attribute(cls, name: str, attr: Attr, given: Mapping[str, Any], node: str) -> Any:
        value = given.get(name, attr.default)
        if value is REQUIRED:
            raise GeError("E10003", f"attribute '{name}' is missing", node=node, operator=cls.type)
        if value is None:
            return None
        try:
            value = _COERCE[attr.type](value, attr) if attr.type in _COERCE else value
        except (TypeError, ValueError) as error:
            cause = f"attribute '{name}' must be a {attr.type.__name__}, got {value!r} ({error})"
            raise GeError("E10003", cause, node=node, operator=cls.type) from error
        if attr.choices and value not in attr.choices:
            raise GeError(
                "E10003",
                f"attribute '{name}' is {value!r}",
                node=node,
                operator=cls.type,
                remedy=f"use one of {', '.join(map(repr, attr.choices))}",
            )
        return value

    @classmethod
    def check(cls, op: NodeView) -> None:
        """Check a node against the prototype, then against the operator's own rules."""
        ports = list(cls.prototype.inputs.items())
        groups: dict[str, str] = {}
        variadic = bool(ports) and ports[-1][1].variadic
        if len(op.inputs) > len(ports) and not variadic:
            raise fail(op, f"takes at most {len(ports)} inputs, got {len(op.inputs)}")
        for index, (name, port) in enumerate(_ports(ports, len(op.inputs))):
            desc = op.input(index)
            if desc is None:
                if not port.optional and not port.variadic:
                    raise fail(op, f"input '{name}' is missing")
                continue
            if desc.dtype not in port.dtypes:
                raise fail(
                    op,
                    f"input '{name}' is {desc}, no engine accepts {desc.dtype}",
                    f"cast it to one of {', '.join(sorted(port.dtypes))}",
                    code="E10004",
                )
            expected = groups.setdefault(port.group, desc.dtype) if port.group else desc.dtype
            if expected != desc.dtype:
                raise fail(
                    op, f"input '{name}' is {desc.dtype} where {expected} is expected", "insert a Cast"
                )
        if is_custom(cls):
            from ge.ops.custom import guard

            guard.verify(cls, op)
        else:
            cls.verify(op)


def _ports(ports: list[tuple[str, Input]], count: int) -> Iterator[tuple[str, Input]]:
    yield from ports
    for _ in range(count - len(ports)):
        yield ports[-1]


def _declared(cls: type, kind: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        found.update({name: value for name, value in vars(base).items() if isinstance(value, kind)})
    return found


_COERCE: dict[type, Callable[[Any, Attr], Any]] = {
    bool: lambda v, a: bool(v),
    int: lambda v, a: int(v),
    float: lambda v, a: float(v),
    str: lambda v, a: v.decode() if isinstance(v, bytes) else str(v),
    list: lambda v, a: tuple(a.item(x) for x in v),
}

_REGISTRY: dict[
    str, list[type[Operator]]
] = {}  # by type: the built-in operator, then the custom ones, newest last
_CUSTOM: set[type[Operator]] = set()
_SUBSCRIBERS: list[Callable[[], Any]] = []
_GRADIENTS: dict[type[Operator], type[Operator]] = {}  # operator -> the one that computes its gradients


def register(operator: type[Operator], *, custom: bool | None = None) -> type[Operator]:
    """Register an operator; one declared outside this package takes precedence over the built-in of its type.

    Usable as a class decorator.
    """
    if custom is None:
        custom = operator.__module__.partition(".")[0] not in BUILT_IN
    found = _REGISTRY.setdefault(operator.type, [])
    if not custom and found:
        raise ValueError(f"operator {operator.type} is registered twice")
    found.append(operator)
    if custom:
        _CUSTOM.add(operator)
        _own_traits(operator)
        _announce(operator.type)
    if operator.gradient is not None:
        from ge.ops.gradients import gradient_operator

        _GRADIENTS[operator] = register(gradient_operator(operator), custom=custom)
    return operator


_TRAITS = (
    *("dataflow", "views", "precision", "cost", "reads_once", "may_fail"),
    *("image_format", "strided_inputs", "strided_output"),
    *("moves", "selects", "sign", "commutative", "linear", "nests", "keeps_means", "formula"),
    *("piecewise_constant", "idempotent", "involution", "broadcasts", "quantises", "aligned_rows", "light"),
    *("epilogue", "takes_epilogues", "weight_axes", "algorithm_names", "may_round"),
)


def _own_traits(operator: type[Operator]) -> None:
    """Reset the traits of a custom operator that it does not declare itself.

    Traits of a base class of the library hold for that class only; a port or attribute may have a trait's name.
    """
    for name in _TRAITS:
        owner = next(c for c in operator.__mro__ if name in vars(c))
        port = isinstance(vars(owner)[name], Input | Output | Attr)
        if port or owner.__module__.partition(".")[0] in BUILT_IN:
            setattr(operator, name, vars(Operator)[name])


def registered_custom() -> list[type[Operator]]:
    """The custom operators by type, those of one type in registration order."""
    types = dict.fromkeys(operator.type for operator in _CUSTOM)
    return [operator for type_ in sorted(types) for operator in _REGISTRY[type_] if operator in _CUSTOM]


def adopt(operators: Iterable[type[Operator]]) -> None:
    """Register another process's custom operators here, in the same order."""
    for operator in operators:
        _REGISTRY.setdefault(operator.type, []).append(operator)
        _CUSTOM.add(operator)


def is_custom(operator: type[Operator]) -> bool:
    """True if the operator is custom."""
    return operator in _CUSTOM


def is_whole_view(node: ir.Node) -> bool:
    """True if a node's output is its input's memory, in the same or another shape."""
    return node.domain == "ge" and lookup(node.op_type).engine is Engine.VIEW


def unregister(operator: type[Operator]) -> None:
    """Remove an operator; the one it had replaced becomes active again."""
    if operator in _REGISTRY.get(operator.type, ()):
        _REGISTRY[operator.type].remove(operator)
        _CUSTOM.discard(operator)
        _announce(operator.type)
    if operator in _GRADIENTS:
        unregister(_GRADIENTS.pop(operator))


def subscribe(callback: Callable[[], Any]) -> None:
    """Call a function when custom operators change, so that it can drop what was compiled with others."""
    if callback not in _SUBSCRIBERS:
        _SUBSCRIBERS.append(callback)


def _announce(type_: str) -> None:
    """Update the graph API's function of a type to the active operator, and notify subscribers."""
    for callback in _SUBSCRIBERS:
        callback()
    library = sys.modules.get("ge.ops")
    if library is not None and hasattr(library, "functions"):
        library.functions.refresh(vars(library), type_)


def candidates(type_: str) -> list[type[Operator]]:
    """The implementations of a type in order of precedence: custom ones first, newest first."""
    found = _REGISTRY.get(plain_type(type_))
    if not found:
        raise _unknown(type_)
    return found[::-1]


def lookup(type_: str) -> type[Operator]:
    """The operator of a node's type: a plain type is the built-in one, a marked type its custom replacement."""
    found = _REGISTRY.get(type_)
    if found:
        return found[-1] if found[0] in _CUSTOM else found[0]
    plain, _, steps = type_.partition(CUSTOM_MARK)
    users = [o for o in _REGISTRY.get(plain, ()) if is_custom(o)][::-1]
    place = int(steps) if steps.isdigit() else 0
    if type_ == plain or place >= len(users):
        raise _unknown(type_)
    return users[place]


def of_post_op(post_op: str) -> tuple[str, dict[str, Any]] | None:
    """The type and the attributes of the built-in operator that a post-op stands for; None if there is none."""
    for type_, operators in _REGISTRY.items():
        epilogue = operators[0].epilogue if operators and not is_custom(operators[0]) else None
        attrs = None if epilogue is None else epilogue.attrs_of(post_op)
        if attrs is not None:
            return type_, attrs
    return None


def _unknown(type_: str) -> GeError:
    remedy = "register it, or name the directory of its file in NPU_OPP_PATH" if CUSTOM_MARK in type_ else ""
    return GeError(
        "E10001",
        f"operator type '{type_}' is not in the operator library",
        operator=plain_type(type_),
        remedy=remedy,
    )


def plain_type(type_: str) -> str:
    """The operator type of a node's type.

    >>> plain_type("Relu@custom")
    'Relu'
    """
    return type_.partition(CUSTOM_MARK)[0]


def node_type(operator: type[Operator]) -> str:
    """The node type of an operator: its own, marked if another operator has it."""
    found = _REGISTRY[operator.type]
    plain = found[-1] if is_custom(found[0]) else found[0]
    if operator is plain:
        return operator.type
    steps = [o for o in found if is_custom(o)][::-1].index(operator)
    return operator.type + CUSTOM_MARK + (str(steps) if steps else "")


def source_of(operator: type[Operator]) -> str:
    """The origin of an operator: its package, its file, or its module."""
    given = operator.__dict__.get("source")
    if given:
        return str(given)
    try:
        return inspect.getfile(operator)
    except (OSError, TypeError):
        return operator.__module__


def fingerprint() -> str:
    """A hash of the active custom operators and plugins, part of the keys of compiled models."""
    from ge.ops import plugins

    parts = [f"{operator.type}:{code_digest(operator)}" for operator in registered_custom()]
    parts += [
        f"{p.framework}:{p.domain}:{p.operator}:{p.since}:{_code(p.function)}" for p in plugins.custom()
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32] if parts else ""


def code_digest(operator: type[Operator]) -> str:
    """A hash of an operator's declaration and code."""
    given = operator.__dict__.get("digest")
    return str(given) if given else _code(operator)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=4096)
def _code(item: Any) -> str:
    """A hash of a class's or function's source and of the values it closes over."""
    try:
        text = inspect.getsource(item)
    except (OSError, TypeError):
        text = repr(sorted(vars(item)))
    members = vars(item).values() if isinstance(item, type) else [item]
    functions = [inspect.unwrap(getattr(member, "__func__", member)) for member in members]
    cells = [cell for function in functions for cell in getattr(function, "__closure__", None) or ()]
    return hashlib.sha256(f"{[c.cell_contents for c in cells]!r}{text}".encode()).hexdigest()


def pattern_of(node: ir.Node) -> Pattern:
    """How a node's outputs depend on its inputs; for custom operators derived from the expression."""
    operator = lookup(node.op_type)
    if not is_custom(operator) or operator.compute is None:
        return operator.pattern
    from ge.ops.custom import guard

    return guard.traced(operator, NodeView.of(node)).pattern


def program_of(node: ir.Node) -> CompiledProgram | None:
    """The machine code of a node whose operator is a TIK program."""
    operator = lookup(node.op_type)
    if not is_custom(operator) or operator.program is None:
        return None
    from ge.ops.custom import guard

    return guard.traced(operator, NodeView.of(node)).program


_ALIGNED = Aligned()


def dataflow_of(node: ir.Node) -> Dataflow | None:
    """How a node's outputs depend on positions of its inputs, None if unknown."""
    if node.domain != "ge":
        return None
    operator = lookup(node.op_type)
    if is_custom(operator):
        if operator.unsuitable is not Operator.unsuitable:  # it may accept these shapes and reject others
            return None
        return operator.dataflow
    if operator.dataflow is None and operator.pattern in (Pattern.ELEMENTWISE, Pattern.BROADCAST):
        return _ALIGNED
    return operator.dataflow


def takes(node: ir.Node, dtype: str) -> bool:
    """True if the node's operator accepts inputs of one element type."""
    operator = lookup(node.op_type)
    known = not operator.combinations or any(set(row) == {dtype} for row in operator.combinations)
    return known and all(dtype in port.dtypes for port in operator.prototype.inputs.values())


def has_dynamic_size(value: ir.Value) -> bool:
    """True if the actual shape of a value is known only after the run."""
    node = value.producer()
    if node is None or node.domain != "ge":
        return False
    return lookup(node.op_type).is_dynamic(node, value.index() or 0)


def registered() -> dict[str, type[Operator]]:
    """All active operators by type."""
    return {name: found[-1] for name, found in sorted(_REGISTRY.items()) if found}
