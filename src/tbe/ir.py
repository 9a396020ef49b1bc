"""A writer of LLVM IR text: typed values, vector constants, and the instructions the generator uses."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Sequence
from typing import Union

from tbe.target import Machine

__all__ = ["Builder", "Lines", "Value"]

Lines = list[Union[str, "Lines"]]
_BITS = {"float": 32, "double": 64, "i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "half": 16}
_FOLDED: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}
_MANGLED = {"float": "f32", "double": "f64", "half": "f16"}


class Value:
    """An SSA value or constant: its text, element type and number of lanes (1 is a scalar)."""

    __slots__ = ("elem", "lanes", "name", "ty")

    def __init__(self, name: str, elem: str, lanes: int) -> None:
        self.name = name
        self.elem = elem
        self.lanes = lanes
        self.ty = elem if lanes == 1 else f"<{lanes} x {elem}>"

    def __repr__(self) -> str:
        return f"{self.ty} {self.name}"

    @property
    def is_const(self) -> bool:
        """True if the value is a literal."""
        return self.name[0] != "%"


def vector_type(elem: str, lanes: int) -> str:
    """The LLVM type of `lanes` elements."""
    return elem if lanes == 1 else f"<{lanes} x {elem}>"


def _literal(elem: str, value: float | int | bool) -> str:
    if elem == "float":
        try:
            packed = struct.pack("<f", value)
        except OverflowError:
            packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
        value = struct.unpack("<f", packed)[0]
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if elem == "double":
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if elem == "i1":
        return "true" if value else "false"
    bits = _BITS[elem]
    number = int(value) & ((1 << bits) - 1)
    return str(number - (1 << bits) if number >> (bits - 1) else number)


class Builder:
    """Appends instructions to `out`. Nested lists in `out` reserve places for code hoisted there later."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.out: Lines = []
        self.block = "entry"
        self._count = 0
        self.declared: dict[str, str] = {}
        self.functions: dict[str, list[str]] = {}

    # -- text ---------------------------------------------------------------------------------------------

    def fresh(self) -> str:
        """A new value name."""
        self._count += 1
        return f"%v{self._count}"

    def label(self, hint: str) -> str:
        """A new block label."""
        self._count += 1
        return f"{hint}{self._count}"

    def line(self, text: str) -> None:
        """Append one instruction without a result."""
        self.out.append(text)

    def emit(self, text: str, elem: str, lanes: int) -> Value:
        """Append one instruction and return its result."""
        self._count += 1
        name = f"%v{self._count}"
        self.out.append(f"{name} = {text}")
        return Value(name, elem, lanes)

    def start_block(self, label: str) -> None:
        """Begin a basic block."""
        self.out.append(f"{label}:")
        self.block = label

    # -- constants ----------------------------------------------------------------------------------------

    def const(self, elem: str, lanes: int, value: float | int | bool) -> Value:
        """A number in every lane."""
        text = _literal(elem, value)
        return Value(text if lanes == 1 else f"splat ({elem} {text})", elem, lanes)

    def like(self, x: Value, value: float | int | bool) -> Value:
        """A number in every lane, of the type of x."""
        return self.const(x.elem, x.lanes, value)

    def vector(self, elem: str, values: Sequence[float | int | bool]) -> Value:
        """A constant vector."""
        if len(values) == 1:
            return self.const(elem, 1, values[0])
        return Value("<" + ", ".join(f"{elem} {_literal(elem, v)}" for v in values) + ">", elem, len(values))

    def splat(self, x: Value, lanes: int) -> Value:
        """A scalar in every lane."""
        if lanes == 1 or x.lanes == lanes:
            return x
        if x.is_const:
            return Value(f"splat ({x.elem} {x.name})", x.elem, lanes)
        ty = vector_type(x.elem, lanes)
        first = self.emit(f"insertelement {ty} poison, {x.elem} {x.name}, i64 0", x.elem, lanes)
        return self.emit(
            f"shufflevector {ty} {first.name}, {ty} poison, <{lanes} x i32> zeroinitializer", x.elem, lanes
        )

    def join(self, values: Sequence[Value]) -> Value:
        """A vector of scalars."""
        joined = values[0] if len(values) == 1 else Value("poison", values[0].elem, len(values))
        for lane, x in enumerate(values if len(values) > 1 else ()):
            joined = self.emit(
                f"insertelement {joined.ty} {joined.name}, {x.elem} {x.name}, i64 {lane}", x.elem, len(values)
            )
        return joined

    # -- instructions -------------------------------------------------------------------------------------

    def op(self, opcode: str, a: Value, b: Value) -> Value:
        """A binary instruction; opcode may include flags. Sums and products of constant integers are folded."""
        known = _FOLDED.get(opcode.partition(" ")[0])
        if known is not None and a.lanes == 1 and a.is_const and b.is_const:
            return self.const(a.elem, 1, known(int(a.name), int(b.name)))
        return self.emit(f"{opcode} {a.ty} {a.name}, {b.name}", a.elem, a.lanes)

    def fadd(self, a: Value, b: Value) -> Value:
        """a + b, rounded once, never contracted."""
        return self.op("fadd", a, b)

    def fsub(self, a: Value, b: Value) -> Value:
        """a - b, rounded once, never contracted."""
        return self.op("fsub", a, b)

    def fmul(self, a: Value, b: Value) -> Value:
        """a * b, rounded once, never contracted."""
        return self.op("fmul", a, b)

    def fdiv(self, a: Value, b: Value) -> Value:
        """a / b."""
        return self.op("fdiv", a, b)

    def fneg(self, a: Value) -> Value:
        """-a."""
        return self.emit(f"fneg {a.ty} {a.name}", a.elem, a.lanes)

    def icmp(self, relation: str, a: Value, b: Value) -> Value:
        """Integer comparison."""
        return self.emit(f"icmp {relation} {a.ty} {a.name}, {b.name}", "i1", a.lanes)

    def fcmp(self, relation: str, a: Value, b: Value) -> Value:
        """Floating-point comparison."""
        return self.emit(f"fcmp {relation} {a.ty} {a.name}, {b.name}", "i1", a.lanes)

    def select(self, c: Value, a: Value, b: Value) -> Value:
        """a where c holds, else b."""
        return self.emit(f"select {c.ty} {c.name}, {a.ty} {a.name}, {b.ty} {b.name}", a.elem, a.lanes)

    def convert(self, opcode: str, x: Value, elem: str) -> Value:
        """A conversion instruction: sext, fpext, sitofp, ..."""
        ty = vector_type(elem, x.lanes)
        return self.emit(f"{opcode} {x.ty} {x.name} to {ty}", elem, x.lanes)

    def bitcast(self, x: Value, elem: str) -> Value:
        """The same bits as another type of the same size."""
        return self.convert("bitcast", x, elem)

    def shuffle(self, a: Value, b: Value | None, lanes: Sequence[int]) -> Value:
        """Choose lanes of a followed by b."""
        mask = ", ".join(f"i32 {i}" for i in lanes)
        other = f"{b.ty} {b.name}" if b is not None else f"{a.ty} poison"
        if len(lanes) == 1:
            if a.lanes == 1:
                return a
            return self.emit(f"extractelement {a.ty} {a.name}, i64 {lanes[0]}", a.elem, 1)
        return self.emit(
            f"shufflevector {a.ty} {a.name}, {other}, <{len(lanes)} x i32> <{mask}>", a.elem, len(lanes)
        )

    def extract(self, x: Value, lane: int) -> Value:
        """One lane."""
        return x if x.lanes == 1 else self.emit(f"extractelement {x.ty} {x.name}, i64 {lane}", x.elem, 1)

    def intrinsic(
        self, name: str, *args: Value, elem: str | None = None, extra: str = "", suffix: str = ""
    ) -> Value:
        """Call an overloaded LLVM intrinsic on values of one type."""
        first = args[0]
        mangled = suffix or _mangle(first)
        function = f"llvm.{name}.{mangled}"
        elem = elem or first.elem
        result = vector_type(elem, first.lanes)
        if function not in self.declared:
            kinds = ", ".join(a.ty for a in args) + (", i1" if extra else "")
            self.declared[function] = f"declare {result} @{function}({kinds})"
        values = ", ".join(f"{a.ty} {a.name}" for a in args) + extra
        return self.emit(f"call {result} @{function}({values})", elem, first.lanes)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c rounded once (or to within double rounding if the machine has no such instruction)."""
        if self.machine.fma:
            return self.intrinsic("fma", a, b, c)
        if a.elem == "float":
            wide = [self.convert("fpext", x, "double") for x in (a, b, c)]
            return self.convert("fptrunc", self.fadd(self.fmul(wide[0], wide[1]), wide[2]), "float")
        high, low = self._two_product(a, b)
        total = self.fadd(high, c)
        back = self.fsub(total, high)
        error = self.fadd(self.fsub(high, self.fsub(total, back)), self.fsub(c, back))
        exact = self.fadd(total, self.fadd(error, low))
        plain = self.fadd(self.fmul(a, b), c)
        return self.select(self.fcmp("uno", exact, exact), plain, exact)

    def _two_product(self, a: Value, b: Value) -> tuple[Value, Value]:
        """a * b as an unevaluated sum, by splitting the factors."""
        product = self.fmul(a, b)

        def halves(x: Value) -> tuple[Value, Value]:
            scaled = self.fmul(x, self.like(x, 134217729.0))
            high = self.fsub(scaled, self.fsub(scaled, x))
            return high, self.fsub(x, high)

        ah, al = halves(a)
        bh, bl = halves(b)
        error = self.fsub(self.fmul(ah, bh), product)
        error = self.fadd(self.fadd(error, self.fmul(ah, bl)), self.fmul(al, bh))
        return product, self.fadd(error, self.fmul(al, bl))

    def muladd(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c in the fastest way."""
        if self.machine.fma:
            return self.intrinsic("fma", a, b, c)
        return self.fadd(self.fmul(a, b), c)

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Horner's rule; the coefficient of the highest power comes first."""
        result = self.like(x, coefficients[0])
        for c in coefficients[1:]:
            result = self.muladd(result, x, self.like(x, c))
        return result

    # -- memory -------------------------------------------------------------------------------------------

    def gep(self, elem: str, base: Value, offset: Value) -> Value:
        """Address arithmetic in elements."""
        if offset.name == "0":
            return base
        return self.emit(
            f"getelementptr {elem}, ptr {base.name}, {offset.ty} {offset.name}", "ptr", offset.lanes
        )

    def load(self, elem: str, lanes: int, address: Value, align: int, mask: Value | None = None) -> Value:
        """Load consecutive elements; lanes outside the mask are not accessed, and their values are undefined.

        A single lane is broadcast to the others: LLVM 22 folds a quotient of lanes known to be zero to zero and drops
        the select that would replace it, as a sum over the tail has one; the quotient is NaN.
        """
        ty = vector_type(elem, lanes)
        if mask is None:
            return self.emit(f"load {ty}, ptr {address.name}, align {align}", elem, lanes)
        lane = _only_lane(mask)
        if lane is not None:
            one = self.load(elem, 1, self.gep(elem, address, self.const("i64", 1, lane)), align)
            return self.splat(one, lanes)
        function = f"llvm.masked.load.v{lanes}{_MANGLED.get(elem, elem)}.p0"
        self.declared.setdefault(function, f"declare {ty} @{function}(ptr, i32, <{lanes} x i1>, {ty})")
        return self.emit(
            f"call {ty} @{function}(ptr {address.name}, i32 {align}, {mask.ty} {mask.name}, {ty} zeroinitializer)",
            elem,
            lanes,
        )

    def stream(self, x: Value, address: Value) -> None:
        """Store a whole vector with a non-temporal store; the address must be aligned to the vector's size."""
        size = x.lanes * _BITS[x.elem] // 8
        self.line(f"store {x.ty} {x.name}, ptr {address.name}, align {size}, !nontemporal !0")

    def fence(self) -> None:
        """Make non-temporal stores visible before anything that follows."""
        self.declared.setdefault("llvm.x86.sse.sfence", "declare void @llvm.x86.sse.sfence()")
        self.line("call void @llvm.x86.sse.sfence()")

    def store(self, x: Value, address: Value, align: int, mask: Value | None = None) -> None:
        """Store consecutive elements."""
        if mask is None:
            self.line(f"store {x.ty} {x.name}, ptr {address.name}, align {align}")
            return
        lane = _only_lane(mask)
        if lane is not None:
            self.store(self.extract(x, lane), self.gep(x.elem, address, self.const("i64", 1, lane)), align)
            return
        function = f"llvm.masked.store.v{x.lanes}{_MANGLED.get(x.elem, x.elem)}.p0"
        self.declared.setdefault(function, f"declare void @{function}({x.ty}, ptr, i32, {mask.ty})")
        self.line(
            f"call void @{function}({x.ty} {x.name}, ptr {address.name}, i32 {align}, {mask.ty} {mask.name})"
        )

    def gather(self, elem: str, addresses: Value, align: int, mask: Value) -> Value:
        """Load elements from a vector of addresses."""
        lanes = addresses.lanes
        ty = vector_type(elem, lanes)
        function = f"llvm.masked.gather.v{lanes}{_MANGLED.get(elem, elem)}.v{lanes}p0"
        self.declared.setdefault(
            function, f"declare {ty} @{function}(<{lanes} x ptr>, i32, <{lanes} x i1>, {ty})"
        )
        return self.emit(
            f"call {ty} @{function}(<{lanes} x ptr> {addresses.name}, i32 {align}, {mask.ty} {mask.name}, "
            f"{ty} zeroinitializer)",
            elem,
            lanes,
        )

    def scatter(self, x: Value, addresses: Value, align: int, mask: Value) -> None:
        """Store elements to a vector of addresses."""
        function = f"llvm.masked.scatter.v{x.lanes}{_MANGLED.get(x.elem, x.elem)}.v{x.lanes}p0"
        self.declared.setdefault(
            function, f"declare void @{function}({x.ty}, <{x.lanes} x ptr>, i32, {mask.ty})"
        )
        self.line(
            f"call void @{function}({x.ty} {x.name}, <{x.lanes} x ptr> {addresses.name}, i32 {align}, "
            f"{mask.ty} {mask.name})"
        )

    # -- control ------------------------------------------------------------------------------------------

    def loop(
        self,
        start: Value,
        stop: Value,
        step: int,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value]],
    ) -> list[Value]:
        """A counted loop that runs at least once; returns the carried values after the last iteration."""
        label, exit_label = self.label("loop"), self.label("done")
        before = self.block
        self.line(f"br label %{label}")
        self.start_block(label)
        counter = Value(self.fresh(), "i64", 1)
        phis = [Value(self.fresh(), v.elem, v.lanes) for v in carried]
        place = len(self.out)
        self.out.append([])
        seen = self.counted(counter)
        results = list(body(seen, phis))
        following = self.emit(f"add nuw nsw i64 {seen.name}, {step}", "i64", 1)
        more = self.icmp("slt", following, stop)
        self.line(f"br i1 {more.name}, label %{label}, label %{exit_label}")
        self.out[place] = [
            f"{phi.name} = phi {phi.ty} [{first.name}, %{before}], [{after.name}, %{self.block}]"
            for phi, first, after in zip(
                [counter, *phis], [start, *carried], [following, *results], strict=False
            )
        ]
        self.start_block(exit_label)
        return results

    def counted(self, counter: Value) -> Value:
        """The counter of a loop as its body sees it: passed through empty inline assembly.

        Addresses are already in the processor's addressing modes, and LLVM's search for better ones (loop strength
        reduction) takes a third of the compile time.
        """
        return self.emit(f'call i64 asm "", "=r,0"(i64 {counter.name})', "i64", 1)

    def when(self, condition: Value, body: Callable[[], None]) -> None:
        """Run the body if a scalar condition holds."""
        label, exit_label = self.label("then"), self.label("done")
        self.line(f"br i1 {condition.name}, label %{label}, label %{exit_label}")
        self.start_block(label)
        body()
        self.line(f"br label %{exit_label}")
        self.start_block(exit_label)

    def outlined(
        self, name: str, args: Sequence[Value], elem: str, body: Callable[[Builder, list[Value]], Value]
    ) -> Value:
        """Call a function of this module, emitting it on first use."""
        lanes = args[0].lanes
        function = f"tbe.{name}.v{lanes}{elem}"
        result = vector_type(elem, lanes)
        if function not in self.functions:
            self.functions[function] = []
            inner = Builder(self.machine)
            inner.declared, inner.functions = self.declared, self.functions
            parameters = [Value(f"%a{i}", a.elem, a.lanes) for i, a in enumerate(args)]
            answer = body(inner, parameters)
            kinds = ", ".join(f"{p.ty} {p.name}" for p in parameters)
            self.functions[function] = [
                f"define internal {result} @{function}({kinds}) #1 {{",
                "entry:",
                *flatten(inner.out),
                f"ret {answer.ty} {answer.name}",
                "}",
            ]
        values = ", ".join(f"{a.ty} {a.name}" for a in args)
        return self.emit(f"call {result} @{function}({values})", elem, lanes)


def _only_lane(mask: Value) -> int | None:
    """The lane of a constant mask with one lane set; LLVM 22 stores narrowed ones too wide."""
    if mask.name[0] != "<" or mask.name.count("true") != 1:
        return None
    return mask.name[1:-1].split(", ").index("i1 true")


def _mangle(x: Value) -> str:
    base = _MANGLED.get(x.elem, x.elem)
    return base if x.lanes == 1 else f"v{x.lanes}{base}"


def flatten(lines: Lines) -> list[str]:
    """The text of nested lists of lines."""
    flat: list[str] = []
    for item in lines:
        if isinstance(item, str):
            flat.append(item)
        else:
            flat.extend(flatten(item))
    return flat
