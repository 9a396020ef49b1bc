"""From an FX graph of ATen calls to steps: parts for the NPU, and calls that stay with ATen.

1. Every call is offered to the plugins. One that none takes, or whose result would differ, runs on ATen.
2. Parts alternate: what depends on nothing but ATen calls of before is one part, as large as it can be.
3. Calls that draw random numbers keep their order, so that a seed gives the numbers that it gives without a compiler.
4. Writes into inputs (`copy_` at the end of the graph) become outputs that take the inputs' memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from ge.hybrid import assign_stages
from ge.ops.builder import GraphBuilder
from ge.ops.plugins import Unsupported
from ge.parsers.aten.parser import Call, Emitter
from torchair import ops as _ops  # noqa: F401  defines the operators of torch.ops.torchair
from torchair.converters import custom_converter
from torchair.layouts import array_of, desc_of, memory_order

__all__ = [
    "READ_MEMORY",
    "HostCall",
    "Layout",
    "Lowered",
    "NpuPart",
    "Refusal",
    "contiguous_strides",
    "draws",
    "lower",
    "placed_by_size",
    "views_below",
]

_COPY = torch.ops.aten.copy_.default
_RESHAPES = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("view", "_unsafe_view", "alias", "detach", "unsqueeze", "squeeze", "permute", "t")
)
# Their results depend on the memory of an operand, not on its elements only.
READ_MEMORY = frozenset(
    {torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_copy.default,
     torch.ops.aten.as_strided_scatter.default}
)  # fmt: skip
_DRAW = (["bernoulli"], ["run_and_save_rng_state"])


@dataclass(frozen=True)
class Refusal:
    """A call that stays with ATen, and why."""

    node: str
    operator: str
    reason: str
    trace: str = ""  # the lines of Python that led to the call, as PyTorch keeps them


@dataclass(frozen=True)
class Layout:
    """The memory layout of a tensor: shape, strides and axis order."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    order: tuple[int, ...] | None  # None: not dense

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        return cls(shape, strides, memory_order(shape, strides))

    @property
    def plain(self) -> bool:
        """Whether it is contiguous (as far as the order of axes goes)."""
        return self.order is None or self.order == tuple(range(len(self.shape)))


@dataclass
class NpuPart:
    """A part of the graph for the NPU: its graph, the nodes it reads and produces, and their layouts."""

    graph: ir.Graph
    inputs: list[fx.Node]
    input_layouts: list[Layout]
    outputs: list[fx.Node]
    output_layouts: list[tuple[Layout, torch.dtype]]
    output_devices: list[torch.device] = field(default_factory=list)
    donated: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class HostCall:
    """A call that ATen runs."""

    node: fx.Node


@dataclass
class Lowered:
    """The steps of a graph in order, writes into inputs that are left to do, and what stays with ATen."""

    steps: list[NpuPart | HostCall]
    writes: list[tuple[fx.Node, fx.Node]]
    refusals: list[Refusal]
    npu_calls: int
    operators: dict[str, bool]  # operator -> whether all its calls are the NPU's


def lower(
    module: fx.GraphModule,
    values: Mapping[fx.Node, Any],
    constants: Mapping[fx.Node, torch.Tensor],
    layouts: Mapping[fx.Node, Layout],
    free: Collection[fx.Node] = (),
) -> Lowered:
    """Cut a graph into steps; `values` are fake results of concrete shape, `constants` inputs that do not change.

    `free` results are read only by the backward graph and may have any axis order in memory.
    """
    return _Lowering(module, values, constants, layouts, free).run()


class _Lowering:
    def __init__(
        self,
        module: fx.GraphModule,
        values: Mapping[fx.Node, Any],
        constants: Mapping[fx.Node, torch.Tensor],
        layouts: Mapping[fx.Node, Layout],
        free: Collection[fx.Node] = (),
    ) -> None:
        self.free = free if _convolves(module) else ()
        self.module = module
        self.values = values
        self.constants = constants
        self.layouts = layouts
        self.refusals: dict[fx.Node, Refusal] = {}

    def run(self) -> Lowered:
        nodes = [n for n in self.module.graph.nodes if n.op == "call_function" and not self._is_number(n)]
        writes = [
            (n.args[0], n.args[1]) for n in nodes if n.target is _COPY and n.args[0].op == "placeholder"
        ]
        written = {target for target, _ in writes}
        body = [n for n in nodes if not (n.target is _COPY and n.args[0] in written)]
        self.scan(body)
        self._keep_views(body)
        output = next(n for n in self.module.graph.nodes if n.op == "output")
        given = [n for n in _flat(output.args[0]) if isinstance(n, fx.Node)]
        self._keep_aliases(given)
        self._leave_creation_to_aten(body)
        stages = self._stages(body)
        wanted = given + [v for _, v in writes]
        steps: list[NpuPart | HostCall] = []
        left = list(writes)
        last = max((number for number in stages.values()), default=0)
        for number in range(last + 1):
            mine = [n for n in body if stages.get(n) == number]
            if number % 2:
                if mine:
                    part = self._part(mine, wanted)
                    self._donate(part, left, number == last)
                    steps.append(part)
            else:
                steps.extend(HostCall(n) for n in mine)
        return Lowered(steps, left, list(self.refusals.values()), self._count(body), self._operators(body))

    # -- what can be mapped -----------------------------------------------------------------------------------

    def scan(self, body: Sequence[fx.Node]) -> None:
        """Offer every call to the plugins, in one graph; what is refused is an input from there on."""
        self.scanned = emission = _Emission(self, GraphBuilder("part"), self.constants)
        for node in body:
            if node.target is operator.getitem:
                emission.pick(node)
                continue
            try:
                emission.call(node)
            except Unsupported as refused:
                trace = str(node.meta.get("stack_trace") or "")
                self.refusals[node] = Refusal(node.name, _label(node.target), refused.reason, trace)
                emission.outside(node)
        for node in body:
            if node.target is operator.getitem and (
                node.args[0] in self.refusals or node.args[0] in self._followers
            ):
                self.refusals_follow(node)

    def refusals_follow(self, node: fx.Node) -> None:
        """An element of a refused call is the host's as well (it is not reported again)."""
        self._followers.add(node)

    @property
    def _followers(self) -> set[fx.Node]:
        return self.__dict__.setdefault("_follow", set())

    def is_host(self, node: fx.Node) -> bool:
        """Whether ATen runs the call."""
        return node in self.refusals or node in self._followers

    def _is_number(self, node: fx.Node) -> bool:
        """Sizes worked out from sizes: known when the graph is lowered."""
        value = self.values.get(node)
        return isinstance(value, (int, float, bool)) or _is_sizes(value)

    def _keep_views(self, body: Sequence[fx.Node]) -> None:
        """Views whose memory an ATen call reads are ATen's too: results of a part have no gaps and no offset."""
        for node in body:
            if node in self.refusals and node.target in READ_MEMORY:
                views, base = views_below(node)
                self._followers.update(views)
                self.free = [n for n in self.free if n is not base]

    def _keep_aliases(self, given: Sequence[fx.Node]) -> None:
        """Results that are views by an open size are ATen's: AOT Autograd reads the place of a view off it."""
        for node in given:
            self._followers.update(placed_by_size(node))

    def _leave_creation_to_aten(self, body: Sequence[fx.Node]) -> None:
        """Tensors that only ATen calls read are created by ATen."""
        for node in reversed(body):
            if self.is_host(node) or node.target is operator.getitem:
                continue
            reads = [n for n in node.all_input_nodes if isinstance(self.values.get(n), torch.Tensor)]
            users = [u for u in node.users if u.op != "output"]
            if not reads and users and len(users) == len(node.users) and all(self.is_host(u) for u in users):
                self._followers.add(node)

    def _stages(self, body: Sequence[fx.Node]) -> dict[fx.Node, int]:
        """Even stages are ATen's, odd ones the NPU's; a node comes after all it reads."""
        draws_of_host = [node for node in body if self.is_host(node) and draws(node)]
        earlier = dict(zip(draws_of_host[1:], draws_of_host, strict=False))  # draws keep their order
        return assign_stages(
            body,
            lambda node: [*node.all_input_nodes, *([earlier[node]] if node in earlier else [])],
            lambda node: int(not self.is_host(node)),
        )

    def _count(self, body: Sequence[fx.Node]) -> int:
        return sum(not self.is_host(n) and n.target is not operator.getitem for n in body)

    def _operators(self, body: Sequence[fx.Node]) -> dict[str, bool]:
        found: dict[str, bool] = {}
        for node in body:
            if node.target is not operator.getitem:
                name = _label(node.target)
                found[name] = found.get(name, True) and node not in self.refusals
        return found

    # -- parts --------------------------------------------------------------------------------------------------

    def _part(self, nodes: Sequence[fx.Node], wanted: Sequence[fx.Node]) -> NpuPart:
        inside = set(nodes)
        emission = self.scanned if not (self.refusals or self._followers) else self._emitted(nodes)
        builder = emission.builder
        needed = [n for n in nodes if any(u not in inside and u.op != "output" for u in n.users)]
        asked = dict.fromkeys([*(n for n in wanted if n in inside), *needed])
        outputs = [n for n in asked if isinstance(emission.made.get(n), ir.Value)]
        layouts: list[tuple[Layout, torch.dtype]] = []
        for node in outputs:
            fake = self.values[node]
            is_image = node in self.free and 4 <= fake.dim() <= 5 and fake.is_contiguous()
            layout = _channels_last(fake) if is_image else Layout.of(fake)
            if layout.order is None:
                shape = layout.shape
                layout = Layout(shape, contiguous_strides(shape), tuple(range(len(shape))))
            value = emission.made[node]
            if not layout.plain:
                value = builder.op("Transpose", value, perm=list(layout.order or ()))
            builder.output(value)
            layouts.append((layout, fake.dtype))
        read = list(emission.read)
        devices = [self.values[n].device for n in outputs]
        return NpuPart(builder.graph, read, [emission.read[n] for n in read], outputs, layouts, devices)

    def _emitted(self, nodes: Sequence[fx.Node]) -> _Emission:
        emission = _Emission(self, GraphBuilder("part"), self.constants)
        for node in nodes:
            if node.target is operator.getitem:
                emission.pick(node)
            else:
                emission.call(node)
        return emission

    def _donate(self, part: NpuPart, left: list[tuple[fx.Node, fx.Node]], last: bool) -> None:
        """Let written inputs take their new values in place, where this part is the last to read them."""
        if not last:
            return
        for target, value in list(left):
            if value not in part.outputs or target not in part.inputs:
                continue
            output, source = part.outputs.index(value), part.inputs.index(target)
            layout = part.input_layouts[source]
            made, dtype = part.output_layouts[output]
            returned = any(u.op == "output" for u in value.users)
            several = sum(v is value for _, v in left) > 1
            if returned or several or layout.order is None or dtype != self.values[target].dtype:
                continue
            if layout.plain and made.plain and layout.shape == made.shape:
                part.donated.append((output, source))
                left.remove((target, value))


class _Emission:
    """Calls emitted into one graph; nodes from outside become its inputs as they are read."""

    def __init__(
        self, owner: _Lowering, builder: GraphBuilder, constants: Mapping[fx.Node, torch.Tensor]
    ) -> None:
        self.owner = owner
        self.builder = builder
        self.emitter = Emitter(builder)
        self.constants = constants
        self.made: dict[fx.Node, Any] = {}
        self.read: dict[fx.Node, Layout] = {}

    def outside(self, node: fx.Node) -> None:
        """A node that another step makes: read when it is needed."""

    def pick(self, node: fx.Node) -> None:
        """One result of a call with several."""
        source, index = node.args
        made = self.made.get(source)  # type: ignore[arg-type]
        if isinstance(made, (list, tuple)):
            self.made[node] = made[index]  # type: ignore[index]

    def call(self, node: fx.Node) -> None:
        """Emit a call."""
        custom = custom_converter(node.target)
        if custom is not None:
            self.made[node] = custom(self, node)
            return
        expected = self.owner.values.get(node)
        if expected is None:
            raise Unsupported("it gives nothing but has an effect")
        if getattr(node.target, "_schema", None) is None and _target(node.target) not in _HIGHER_ORDER:
            raise Unsupported("no plugin maps it", "it runs on the host")
        if any(_is_open(v) for v in _flat(expected)):
            raise Unsupported("the size of its result is known only after the run")
        call = Call(_target(node.target), node.name, self._arguments(node), _results(expected))
        made = self.emitter.emit(call)
        several = isinstance(expected, (list, tuple))
        self.made[node] = made if several else made[0]

    def argument(self, value: Any) -> Any:
        """An argument as plugins take it."""
        if isinstance(value, fx.Node):
            return self._node(value)
        if isinstance(value, (list, tuple)):
            return [self.argument(v) for v in value]
        if isinstance(value, torch.dtype):
            return str(value).removeprefix("torch.")
        if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            return None
        if isinstance(value, complex):
            raise Unsupported("complex numbers")
        return value

    def _node(self, node: fx.Node) -> Any:
        if node in self.made:
            return self.made[node]
        fake = self.owner.values.get(node)
        if not isinstance(fake, torch.Tensor):
            if fake is None and node.op == "get_attr":
                return self._attribute(node)
            if node not in self.owner.values:
                raise Unsupported(f"PyTorch does not say what {node.name}, which it reads, is")
            return fake
        if _is_open(fake):
            raise Unsupported("the size of what it reads is known only after the run")
        desc = desc_of(fake)
        if desc is None:
            raise Unsupported(f"no engine accepts {str(fake.dtype).removeprefix('torch.')}")
        if node.op == "get_attr":
            tensor = getattr(self.owner.module, str(node.target))
            self.made[node] = self.builder.constant(array_of(tensor).copy(), node.name)
            return self.made[node]
        if node in self.constants:
            self.made[node] = self._constant(node, self.constants[node])
            return self.made[node]
        layout = self.owner.layouts.get(node) or Layout.of(fake)
        if layout.plain:
            value = self.builder.input(node.name, desc.shape, desc.dtype)
        else:
            order = list(layout.order or ())
            stored = self.builder.input(node.name, [desc.shape[a] for a in order], desc.dtype)
            value = self.builder.op("Transpose", stored, perm=[order.index(a) for a in range(len(order))])
        self.read[node] = layout
        self.made[node] = value
        return value

    def _constant(self, node: fx.Node, tensor: torch.Tensor) -> ir.Value:
        return self.builder.constant(array_of(tensor), node.name)

    def _attribute(self, node: fx.Node) -> Any:
        found = getattr(self.owner.module, str(node.target))
        if isinstance(found, fx.GraphModule):
            return self._body(found)
        raise Unsupported(f"{node.target} is a {type(found).__name__}")

    def _body(self, module: fx.GraphModule) -> Callable[[GraphBuilder, Sequence[Any]], list[Any]]:
        """A nested graph as a function of a builder and its operands."""

        def emit(builder: GraphBuilder, operands: Sequence[Any]) -> list[Any]:
            values = {n: n.meta["val"] for n in module.graph.nodes if "val" in n.meta}
            inner = _Emission(_Lowering(module, values, {}, {}), builder, {})
            places = [n for n in module.graph.nodes if n.op == "placeholder"]
            inner.made.update(zip(places, operands, strict=True))
            result: Any = ()
            for node in module.graph.nodes:
                if node.op == "output":
                    result = node.args[0]
                elif node.op == "call_function" and node.target is operator.getitem:
                    inner.pick(node)
                elif node.op == "call_function" and not inner.owner._is_number(node):
                    inner.call(node)
            return [inner.argument(v) for v in _flat(result)]

        return emit

    def _arguments(self, node: fx.Node) -> dict[str, Any]:
        """Arguments by the names of the schema, defaults filled in."""
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            names = _HIGHER_ORDER[_target(node.target)]
            return dict(zip(names, map(self.argument, node.args), strict=False))
        found: dict[str, Any] = {}
        for index, port in enumerate(schema.arguments):
            if index < len(node.args):
                given = node.args[index]
            elif port.name in node.kwargs:
                given = node.kwargs[port.name]
            else:
                given = port.default_value if port.has_default_value() else None
            found[port.name] = self.argument(given)
        if node.target in READ_MEMORY:
            source: Any = self.owner.values.get(node.args[0])  # type: ignore[arg-type]
            found["self_strides"] = tuple(source.stride())
            found["storage_offset"] = self._offset(node, found["storage_offset"], source)
        return found

    def _offset(self, node: fx.Node, given: int | None, source: torch.Tensor) -> int:
        """Where a call that reads memory begins, counted from its operand's first element."""
        if given is None:
            return 0
        if views_below(node)[1].op != "call_function":
            raise Unsupported("a view of an input's memory from its beginning")
        return given - int(source.storage_offset())


_HIGHER_ORDER = {
    "higher_order.cond": ("pred", "true_fn", "false_fn", "operands"),
    "higher_order.while_loop": ("cond_fn", "body_fn", "carried_inputs", "additional_inputs"),
}


def _convolves(module: fx.GraphModule) -> bool:
    return any(n.target is torch.ops.aten.convolution.default for n in module.graph.nodes)


def _channels_last(fake: torch.Tensor) -> Layout:
    """The order in which convolutions leave their results."""
    shape = tuple(fake.shape)
    order = (0, *range(2, len(shape)), 1)
    stored = contiguous_strides([shape[a] for a in order])
    strides = tuple(stored[order.index(a)] for a in range(len(shape)))
    found = Layout(shape, strides, memory_order(shape, strides))
    return found if found.order == order else Layout.of(fake)


def _target(target: Any) -> str:
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    return str(target)


def _label(target: Any) -> str:
    return _target(target)


def _results(value: Any) -> list[Any]:
    return [desc_of(v) for v in value] if isinstance(value, (list, tuple)) else [desc_of(value)]


def views_below(node: fx.Node) -> tuple[list[fx.Node], fx.Node]:
    """The views through which a call reads its first operand, and the tensor that has the memory."""
    found: list[fx.Node] = []
    source: Any = node.args[0]
    while _is_view(source):
        found.append(source)
        source = source.args[0]
    return found, source


def placed_by_size(node: fx.Node) -> list[fx.Node]:
    """The views that make a result, where an open size decides which elements of a memory it has.

    Other shapes of an intermediate value are not among them: a part gives these as they are.
    """
    if not _is_view(node):
        return []
    below, base = views_below(node)
    views = [v for v in (node, *below) if v.target is not operator.getitem]
    by_size = any(isinstance(size.meta.get("val"), torch.SymInt) for v in views for size in v.all_input_nodes)
    reshaped = base.op != "placeholder" and all(v.target in _RESHAPES for v in views)
    return [node, *below] if by_size and not reshaped else []


def _is_view(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return _is_view(node.args[0])  # type: ignore[arg-type]
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.arguments:
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and not alias.is_write


def draws(node: fx.Node) -> bool:
    """Whether the order of a call among its like matters: it, or a branch of it, draws random numbers or prints."""
    if node.target is torch.ops.torchair.npu_print.default:
        return True
    for read in node.all_input_nodes:
        if read.op == "get_attr" and read.graph.owning_module is not None:
            inner = operator.attrgetter(str(read.target))(read.graph.owning_module)
            if isinstance(inner, fx.GraphModule) and any(map(draws, inner.graph.nodes)):
                return True
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags or _label(node.target).split(".")[1:2] in _DRAW


def _is_sizes(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple, torch.Size))
        and bool(value)
        and all(isinstance(v, int) for v in value)
    )


def _is_open(value: Any) -> bool:
    """Whether a tensor's shape is not yet known."""
    return isinstance(value, torch.Tensor) and not all(isinstance(d, int) for d in value.shape)


def _flat(value: Any) -> list[Any]:
    return [v for item in value for v in _flat(item)] if isinstance(value, (list, tuple)) else [value]


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))
