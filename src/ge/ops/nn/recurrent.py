"""Recurrent layers: primitives for the common cells, loops over time for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ge.ir.types import FLOATS, TensorDesc
from ge.ir.values import desc_of
from ge.ops.base import Attr, Input, NodeView, Operator, Output, fail, lookup, register
from ge.ops.flow.control import repeat
from ge.ops.math.checks import indices_of
from ge.ops.math.reduce import widened_array
from ge.ops.nn.tasks import decomposes
from ge.ops.plugins import Node, Results, Unsupported, plugin
from ge.ops.traits import Precision
from ge.plan import Task, View

DIRECTIONS = ("forward", "reverse", "bidirectional")


class Recurrent(Operator):
    """A layer over a sequence x (T, N, I), with D directions and H units.

    w (D, I, G, H), r (D, H, G, H) and bias (D, G, H) hold G gates; initial states and results h (D, N, H);
    y (T, N, D * H).
    """

    x = Input("T", FLOATS)
    w = Input("T", FLOATS)
    r = Input("T", FLOATS)
    bias = Input("", FLOATS)
    h0 = Input("T", FLOATS)
    y = Output("T")
    h = Output("T")
    direction = Attr(str, "forward", choices=DIRECTIONS)

    @staticmethod
    def verify(op: NodeView) -> None:
        x, w, r = (op.inputs[i].shape for i in range(3))  # type: ignore[union-attr]
        directions = 2 if op.direction == "bidirectional" else 1
        hidden = w[-1] if len(w) == 4 else -1
        if len(x) != 3 or w[:2] != (directions, x[2]) or r != (directions, hidden, w[2], hidden):
            raise fail(
                op, f"input {list(x)}, weight {list(w)} and recurrent weight {list(r)} do not go together"
            )
        state = (directions, x[1], hidden)
        for port in op.inputs[4:]:
            if port is not None and port.shape != state:
                raise fail(op, f"an initial state is {port} where {list(state)} is expected")

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        x, state = op.inputs[0], op.inputs[4]
        assert x is not None and state is not None
        y = TensorDesc((*x.shape[:2], state.shape[0] * state.shape[2]), x.dtype)
        return [y, *[TensorDesc(state.shape, x.dtype)] * (len(op.inputs) - 4)]

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        x, w, r, bias, *states = (widened_array(a) for a in arrays)
        cell = _CELLS[op.type]
        runs = []
        for index in range(w.shape[0]):
            backwards = op.direction == "reverse" or index == 1
            runs.append(
                cell_over_time(
                    cell(op), x, w[index], r[index], bias[index], [s[index] for s in states], backwards
                )
            )
        y = np.concatenate([run[0] for run in runs], axis=-1)
        return [y, *(np.stack(s) for s in zip(*(run[1] for run in runs), strict=True))]

    @staticmethod
    def flops(op: NodeView) -> int:
        x, w, r = (op.inputs[i] for i in range(3))
        assert x is not None and w is not None and r is not None
        return 2 * x.shape[0] * x.shape[1] * (w.size + r.size)

    @staticmethod
    def expand(builder: Any, op: NodeView, *values: Any) -> Any:
        """The primitives support 32-bit and 16-bit floats; other types, and all without primitives, become loops."""
        if op.inputs[0].dtype != "float64" and not decomposes(lookup(op.type), op, builder.target):  # type: ignore[union-attr]
            return NotImplemented
        return _stepwise(builder, op, values)


def _task(op: NodeView, cell: str, inputs: Sequence[View], outputs: Sequence[View]) -> Task:
    x, w, r, bias, *states = inputs
    views = [
        x,
        *(s.reshape((1, *s.shape)) for s in states),
        *(v.reshape((1, *v.shape)) for v in (w, r, bias)),
    ]
    results = [outputs[0], *(o.reshape((1, *o.shape)) for o in outputs[1:])]
    return Task("rnn", op.name, views, results, {"cell": cell, "direction": op.direction})


@register
class LSTM(Recurrent):
    """Long short-term memory; gates in the order input, forget, cell, output."""

    c0 = Input("T", FLOATS)
    c = Output("T")
    precision = Precision(narrows=True, product=True, keeps=(3,), widens=True)

    @staticmethod
    def task(op: NodeView, inputs: list[View], outputs: list[View]) -> Task:
        return _task(op, "lstm", inputs, outputs)


@register
class GRU(Recurrent):
    """Gated recurrent unit; gates in the order update, reset, new.

    With linear_before_reset the new gate's recurrent part has a bias of its own, the fourth of `bias`.
    """

    linear_before_reset = Attr(bool, False)
    precision = Precision(widens=True)

    @staticmethod
    def task(op: NodeView, inputs: list[View], outputs: list[View]) -> Task:
        return _task(op, "gru_lbr" if op.linear_before_reset else "gru", inputs, outputs)


@register
class RNN(Recurrent):
    """A plain recurrent layer."""

    activation = Attr(str, "tanh", choices=("tanh", "relu"))
    precision = Precision(widens=True)

    @staticmethod
    def task(op: NodeView, inputs: list[View], outputs: list[View]) -> Task:
        return _task(op, f"vanilla_{op.activation}", inputs, outputs)


# -- reference ---------------------------------------------------------------------------------------------

Cell = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[np.ndarray]], list[np.ndarray]]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return (1 / (1 + np.exp(-x))).astype(x.dtype)


def _lstm_cell(op: NodeView) -> Cell:
    def step(
        x: np.ndarray, w: np.ndarray, r: np.ndarray, bias: np.ndarray, states: list[np.ndarray]
    ) -> list[np.ndarray]:
        h, c = states
        i, f, g, o = np.moveaxis(np.tensordot(x, w, 1) + np.tensordot(h, r, 1) + bias, 1, 0)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        return [_sigmoid(o) * np.tanh(c), c]

    return step


def _gru_cell(op: NodeView) -> Cell:
    def step(
        x: np.ndarray, w: np.ndarray, r: np.ndarray, bias: np.ndarray, states: list[np.ndarray]
    ) -> list[np.ndarray]:
        (h,) = states
        a = np.moveaxis(np.tensordot(x, w, 1) + bias[:3], 1, 0)
        z, reset = (_sigmoid(a[k] + h @ r[:, k]) for k in range(2))
        if op.linear_before_reset:
            new = np.tanh(a[2] + reset * (h @ r[:, 2] + bias[3]))
        else:
            new = np.tanh(a[2] + (reset * h) @ r[:, 2])
        return [z * h + (1 - z) * new]

    return step


def _rnn_cell(op: NodeView) -> Cell:
    def step(
        x: np.ndarray, w: np.ndarray, r: np.ndarray, bias: np.ndarray, states: list[np.ndarray]
    ) -> list[np.ndarray]:
        a = x @ w[:, 0] + states[0] @ r[:, 0] + bias[0]
        return [np.tanh(a) if op.activation == "tanh" else np.maximum(a, 0)]

    return step


_CELLS = {"LSTM": _lstm_cell, "GRU": _gru_cell, "RNN": _rnn_cell}


def cell_over_time(
    cell: Cell,
    x: np.ndarray,
    w: np.ndarray,
    r: np.ndarray,
    bias: np.ndarray,
    states: list[np.ndarray],
    backwards: bool,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """One direction of a layer: the output of each step, and the last states."""
    y = np.zeros((*x.shape[:2], r.shape[0]), x.dtype)
    for t in range(x.shape[0])[:: -1 if backwards else 1]:
        states = cell(x[t], w, r, bias, states)
        y[t] = states[0]
    return y, states


# -- step by step ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Feedback:
    """What a cell sees beside its input: a function of its output of the step before."""

    start: Any  # (N, F)
    after: Callable[[Any, Any], Any]  # (builder, output) -> the next value


@dataclass
class Options:
    """What ONNX asks of a cell beyond the primitives."""

    activations: list[Callable[[Any, Any], Any]]  # (builder, value) -> value, for this direction
    clip: float | None = None
    peepholes: tuple[Any, ...] | None = None  # input, output, forget: vectors of H
    input_forget: bool = False
    linear_before_reset: bool = False
    lengths: Any = None  # (N,) the valid number of steps of each sequence
    feedback: Feedback | None = None


def _gates(b: Any, x: Any, h: Any, w: Any, r: Any, bias: Any, count: int, clip: float | None) -> list[Any]:
    """The pre-activations of `count` gates, from matrices (I, G * H) and (H, G * H)."""
    total = b.op("Add", b.op("MatMul", x, w, bias), b.op("MatMul", h, r))
    hidden = desc_of(total).shape[-1] // count
    parts = b.ops("Split", [total], axis=1, sizes=[hidden] * count)
    return [_clipped(b, p, clip) for p in parts]


def _clipped(b: Any, x: Any, clip: float | None) -> Any:
    return x if clip is None else b.op("Clip", x, min=-clip, max=clip)


def _lstm_step(b: Any, x: Any, states: list[Any], w: Any, r: Any, bias: Any, o: Options) -> list[Any]:
    h, c = states
    first, second, third = o.activations
    total = b.op("Add", b.op("MatMul", x, w, bias), b.op("MatMul", h, r))
    hidden = desc_of(total).shape[-1] // 4
    i, f, g, out = b.ops("Split", [total], axis=1, sizes=[hidden] * 4)
    if o.peepholes is not None:
        i = b.op("Add", i, b.op("Mul", o.peepholes[0], c))
        f = b.op("Add", f, b.op("Mul", o.peepholes[2], c))
    i = first(b, _clipped(b, i, o.clip))
    f = b.op("Sub", 1.0, i) if o.input_forget else first(b, _clipped(b, f, o.clip))
    g = second(b, _clipped(b, g, o.clip))
    c = b.op("Add", b.op("Mul", f, c), b.op("Mul", i, g))
    if o.peepholes is not None:
        out = b.op("Add", out, b.op("Mul", o.peepholes[1], c))
    return [b.op("Mul", first(b, _clipped(b, out, o.clip)), third(b, c)), c]


def _gru_step(b: Any, x: Any, states: list[Any], w: Any, r: Any, bias: Any, o: Options) -> list[Any]:
    (h,) = states
    first, second = o.activations
    hidden = desc_of(h).shape[-1]
    extra = b.op("Slice", bias, starts=[3 * hidden], ends=[4 * hidden]) if o.linear_before_reset else None
    bias = b.op("Slice", bias, starts=[0], ends=[3 * hidden])
    xz, xr, xn = b.ops("Split", [b.op("MatMul", x, w, bias)], axis=1, sizes=[hidden] * 3)
    rows = desc_of(r).shape[0]
    gates = b.op("MatMul", h, b.op("Slice", r, starts=[0, 0], ends=[rows, 2 * hidden]))
    hz, hr = b.ops("Split", [gates], axis=1, sizes=[hidden] * 2)
    z = first(b, _clipped(b, b.op("Add", xz, hz), o.clip))
    reset = first(b, _clipped(b, b.op("Add", xr, hr), o.clip))
    rn = b.op("Slice", r, starts=[0, 2 * hidden], ends=[rows, 3 * hidden])
    if o.linear_before_reset:
        new = b.op("Mul", reset, b.op("MatMul", h, rn, extra))
    else:
        new = b.op("MatMul", b.op("Mul", reset, h), rn)
    new = second(b, _clipped(b, b.op("Add", xn, new), o.clip))
    return [b.op("Add", b.op("Mul", z, h), b.op("Mul", b.op("Sub", 1.0, z), new))]


def _rnn_step(b: Any, x: Any, states: list[Any], w: Any, r: Any, bias: Any, o: Options) -> list[Any]:
    (gate,) = _gates(b, x, states[0], w, r, bias, 1, o.clip)
    return [o.activations[0](b, gate)]


_STEPS: dict[str, Callable[..., list[Any]]] = {"LSTM": _lstm_step, "GRU": _gru_step, "RNN": _rnn_step}


def _one_direction(
    b: Any, type_: str, x: Any, weights: Sequence[Any], states: list[Any], backwards: bool, o: Options
) -> tuple[Any, list[Any]]:
    """One direction of a layer as a loop over time; weights (w, r, bias) have their gates concatenated."""
    steps = desc_of(x).shape[0]
    if backwards and o.lengths is not None:
        x = b.op("ReverseSequence", x, o.lengths, time_axis=0, batch_axis=1)
    elif backwards:
        x = b.op("Reverse", x, axes=[0])

    count = len(states)
    if o.feedback is not None:
        states = [*states, o.feedback.start]

    def step(inner: Any, counter: Any, before: list[Any]) -> tuple[list[Any], list[Any]]:
        now = inner.op("Gather", x, counter, axis=0)
        if o.feedback is not None:
            now = inner.op("Concat", now, before[-1], axis=1)
        after = _STEPS[type_](inner, now, before[:count], *weights, o)
        if o.feedback is not None:
            after.append(o.feedback.after(inner, after[0]))
        if o.lengths is None:
            return after, [after[0]]
        lengths = inner.op("Cast", o.lengths, to="int64")
        alive = inner.op("Reshape", inner.op("Less", counter, lengths), shape=[desc_of(lengths).shape[0], 1])
        kept = [inner.op("Select", alive, new, old) for new, old in zip(after, before, strict=True)]
        return kept, [inner.op("Select", alive, after[0], 0.0)]

    last, (y,) = repeat(b, steps, states, step)
    if backwards and o.lengths is not None:
        y = b.op("ReverseSequence", y, o.lengths, time_axis=0, batch_axis=1)
    elif backwards:
        y = b.op("Reverse", y, axes=[0])
    return y, last[:count]


def _plain(type_: str) -> Callable[[Any, Any], Any]:
    return lambda b, x: b.op(type_, x)


def _flat_gates(b: Any, value: Any, index: int, rank: int) -> Any:
    """One direction of a weight with its gates concatenated along the last axis."""
    shape = desc_of(value).shape
    part = (
        value
        if shape[0] == 1
        else b.op("Slice", value, starts=[index] + [0] * (rank - 1), ends=[index + 1, *shape[1:]])
    )
    return b.op("Reshape", part, shape=[*shape[1:-2], shape[-2] * shape[-1]])


def _stepwise(b: Any, op: NodeView, values: Sequence[Any]) -> tuple[Any, ...]:
    """A layer in the library's own form, as a loop over time."""
    x, w, r, bias, *states = values
    table = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
    names = table[op.type] if op.type != "RNN" or op.activation == "tanh" else ["Relu"]
    o = Options([_plain(t) for t in names], linear_before_reset=bool(op.attrs.get("linear_before_reset")))
    ys, lasts = [], []
    for index in range(desc_of(w).shape[0]):
        flat = [_flat_gates(b, v, index, len(desc_of(v).shape)) for v in (w, r, bias)]
        first = [b.op("Gather", s, np.asarray(index), axis=0) for s in states]
        y, last = _one_direction(b, op.type, x, flat, first, op.direction == "reverse" or index == 1, o)
        ys.append(y)
        lasts.append(last)
    y = ys[0] if len(ys) == 1 else b.op("Concat", *ys, axis=2)
    return (y, *(_stacked(b, list(s)) for s in zip(*lasts, strict=True)))


def _stacked(b: Any, values: list[Any]) -> Any:
    rows = [b.op("Reshape", v, shape=[1, *desc_of(v).shape]) for v in values]
    return rows[0] if len(rows) == 1 else b.op("Concat", *rows, axis=0)


# -- ONNX --------------------------------------------------------------------------------------------------

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# The position of each of the library's gates among ONNX's.
_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (0, 1, 2), "RNN": (0,)}
_DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _activation(name: str, alpha: float | None, beta: float | None) -> Callable[[Any, Any], Any]:
    """An ONNX activation function by name (case does not matter)."""

    def scaled(b: Any, x: Any, inner: str) -> Any:
        scaled_x = x if beta is None else b.op("Mul", x, float(beta))
        y = b.op(inner, scaled_x)
        return y if alpha is None else b.op("Mul", y, float(alpha))

    def given(**attrs: float | None) -> dict[str, float]:
        return {k: float(v) for k, v in attrs.items() if v is not None}

    table: dict[str, Callable[[Any, Any], Any]] = {
        "sigmoid": _plain("Sigmoid"),
        "tanh": _plain("Tanh"),
        "relu": _plain("Relu"),
        "softsign": _plain("Softsign"),
        "softplus": _plain("Softplus"),
        "leakyrelu": lambda b, x: b.op("LeakyRelu", x, **given(alpha=alpha)),
        "thresholdedrelu": lambda b, x: b.op("ThresholdedRelu", x, **given(alpha=alpha)),
        "elu": lambda b, x: b.op("Elu", x, **given(alpha=alpha)),
        "hardsigmoid": lambda b, x: b.op("HardSigmoid", x, **given(alpha=alpha, beta=beta)),
        "scaledtanh": lambda b, x: scaled(b, x, "Tanh"),
        "affine": lambda b, x: b.op("Add", b.op("Mul", x, float(alpha or 1.0)), float(beta or 0.0)),
    }
    if name.lower() not in table:
        raise Unsupported(
            f"activation {name!r} of a recurrent layer is unknown", f"use one of {', '.join(table)}"
        )
    return table[name.lower()]


@dataclass
class _Layer:
    """An ONNX recurrent node, with its operands in the library's layout."""

    n: Node
    x: Any
    w: Any  # (D, I, G, H)
    r: Any
    bias: Any  # (D, G or G + 1, H)
    states: list[Any]
    direction: str
    hidden: int
    batch_first: bool


def _read_layer(n: Node) -> _Layer:
    gates, order = _GATES[n.type], list(_ORDER[n.type])
    batch_first = bool(n.attr("layout", 0))
    x: Any = n.op("Transpose", n.inputs[0], perm=[1, 0, 2]) if batch_first else n.inputs[0]
    batch = desc_of(x).shape[1]
    directions, hidden = n.desc(2).shape[0], n.desc(2).shape[2]
    direction = n.attr("direction", "forward")
    if direction not in DIRECTIONS or (directions == 2) != (direction == "bidirectional"):
        raise Unsupported(
            f"direction {direction!r} of {n.type} does not match {directions} direction(s) of weights"
        )

    def weight(value: Any) -> Any:
        inner = desc_of(value).shape[2]
        split = n.op("Reshape", value, shape=[directions, gates, hidden, inner])
        if order != sorted(order):
            split = n.op("Gather", split, np.asarray(order), axis=1)
        return n.op("Transpose", split, perm=[0, 3, 1, 2])

    def state(index: int) -> Any:
        dtype = n.desc().dtype
        if n.input(index) is None:
            zero = n.builder.constant(0.0, dtype=dtype)
            return n.op("BroadcastTo", zero, shape=[directions, batch, hidden])
        return n.op("Transpose", n.inputs[index], perm=[1, 0, 2]) if batch_first else n.inputs[index]

    states = [state(5), state(6)] if n.type == "LSTM" else [state(5)]
    bias = _bias(n, directions, gates, hidden, order)
    return _Layer(
        n, x, weight(n.inputs[1]), weight(n.inputs[2]), bias, states, direction, hidden, batch_first
    )


def _bias(n: Node, directions: int, gates: int, hidden: int, order: list[int]) -> Any:
    """The sum of both biases; the new gate of a GRU with linear_before_reset keeps its second bias separate."""
    apart = n.type == "GRU" and bool(n.attr("linear_before_reset", 0))
    if n.input(3) is None:
        zero = n.builder.constant(0.0, dtype=n.desc().dtype)
        return n.op("BroadcastTo", zero, shape=[directions, gates + apart, hidden])
    both = n.op("Reshape", n.inputs[3], shape=[directions, 2, gates, hidden])
    first, second = (n.op("Gather", both, np.asarray(i), axis=1) for i in range(2))
    if not apart:
        total = n.op("Add", first, second)
        return total if order == sorted(order) else n.op("Gather", total, np.asarray(order), axis=1)
    zr = n.op(
        "Add", *(n.op("Slice", v, starts=[0, 0, 0], ends=[directions, 2, hidden]) for v in (first, second))
    )
    new = [n.op("Slice", v, starts=[0, 2, 0], ends=[directions, 3, hidden]) for v in (first, second)]
    return n.op("Concat", zr, *new, axis=1)


@plugin(onnx=["LSTM", "GRU", "RNN"])
def _recurrent(n: Node) -> Results:
    return recurrent(n)


def recurrent(n: Node, feedback: Sequence[Feedback] = ()) -> Results:
    """The results of an LSTM, GRU or RNN of ONNX; `feedback` has one element for every direction, or none."""
    layer = _read_layer(n)
    directions = 2 if layer.direction == "bidirectional" else 1
    names = [str(a) for a in n.attr("activations") or _DEFAULTS[n.type] * directions]
    plain = [a.lower() for a in names] == [a.lower() for a in _DEFAULTS[n.type] * directions]
    relu = n.type == "RNN" and {a.lower() for a in names} == {"relu"}
    special = (
        feedback
        or n.attr("clip") is not None
        or n.input(7) is not None
        or bool(n.attr("input_forget", 0))
        or _shortened(n) is not None
        or not (plain or relu)
    )
    if special:
        y, states = _special(layer, names, directions, feedback)
    else:
        extra: dict[str, Any] = {}
        if n.type == "GRU":
            extra["linear_before_reset"] = bool(n.attr("linear_before_reset", 0))
        if n.type == "RNN":
            extra["activation"] = "relu" if relu else "tanh"
        made = n.builder.ops(
            n.type, [layer.x, layer.w, layer.r, layer.bias, *layer.states], direction=layer.direction, **extra
        )
        y, states = made[0], list(made[1:])
    return _results(layer, y, states, directions)


def _shortened(n: Node) -> Any:
    """The lengths of the sequences, None if all are as long as x."""
    lengths = n.maybe_const(4)
    steps = n.desc().shape[1 if n.attr("layout", 0) else 0]
    if n.input(4) is None or (lengths is not None and (lengths == steps).all()):
        return None
    return indices_of(n, n.inputs[4], [steps + 1], "sequence_lens", from_end=False)


def _special(
    layer: _Layer, names: list[str], directions: int, feedback: Sequence[Feedback]
) -> tuple[Any, list[Any]]:
    n = layer.n
    alphas, betas = list(n.attr("activation_alpha") or []), list(n.attr("activation_beta") or [])
    takes_beta = {"hardsigmoid", "scaledtanh", "affine"}
    takes_alpha = {"leakyrelu", "thresholdedrelu", "elu", *takes_beta}
    functions = [
        _activation(
            a,
            alphas.pop(0) if a.lower() in takes_alpha and alphas else None,
            betas.pop(0) if a.lower() in takes_beta and betas else None,
        )
        for a in names
    ]
    each = len(functions) // directions
    ys, lasts = [], []
    for index in range(directions):
        flat = [
            _flat_gates(n.builder, v, index, len(desc_of(v).shape)) for v in (layer.w, layer.r, layer.bias)
        ]
        o = Options(functions[index * each : (index + 1) * each], n.attr("clip"), _peepholes(layer, index))
        o.input_forget = bool(n.attr("input_forget", 0))
        o.linear_before_reset = bool(n.attr("linear_before_reset", 0))
        o.lengths = _shortened(n)
        o.feedback = feedback[index] if feedback else None
        first = [n.op("Gather", s, np.asarray(index), axis=0) for s in layer.states]
        backwards = layer.direction == "reverse" or index == 1
        y, last = _one_direction(n.builder, n.type, layer.x, flat, first, backwards, o)
        ys.append(y)
        lasts.append(last)
    y = ys[0] if len(ys) == 1 else n.op("Concat", *ys, axis=2)
    return y, [_stacked(n.builder, list(s)) for s in zip(*lasts, strict=True)]


def _peepholes(layer: _Layer, index: int) -> tuple[Any, ...] | None:
    n = layer.n
    if n.input(7) is None:
        return None
    row = n.op("Gather", n.inputs[7], np.asarray(index), axis=0)
    return n.builder.ops("Split", [row], axis=0, sizes=[layer.hidden] * 3)


def _results(layer: _Layer, y: Any, states: list[Any], directions: int) -> Results:
    """y (T, N, D * H) in ONNX's layout: (T, D, N, H), or (N, T, D, H) if the batch comes first."""
    n = layer.n
    steps, batch = desc_of(layer.x).shape[:2]
    y = n.op("Reshape", y, shape=[steps, batch, directions, layer.hidden])
    y = n.op("Transpose", y, perm=[1, 0, 2, 3] if layer.batch_first else [0, 2, 1, 3])
    if layer.batch_first:
        states = [n.op("Transpose", s, perm=[1, 0, 2]) for s in states]
    return (y, *states)[: n.outputs]
