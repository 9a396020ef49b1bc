"""Compiles TIK programs to machine code: loops and branches are kept, repeats become loops over vectors.

The code performs the interpreter's checks conservatively: if one fails, it returns the statement, and the interpreter
runs the program again and reports the rule. `NotNative` names the part of a program that cannot be compiled; such
programs are interpreted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tbe import convert, elf, vector_math
from tbe.dtypes import DTYPES, numpy_dtype
from tbe.ir import Builder, Lines, Value, flatten
from tbe.target import TRIPLE, Machine, compile_ir, machine_for
from tbe.tik.expression import Expression, Variable
from tbe.tik.statements import Assign, Branch, Call, End, Loop, Statement, Store
from tbe.tik.tensor import Memory, Tensor

if TYPE_CHECKING:
    from tbe.tik.builder import Program

__all__ = ["MachineCode", "NativeProgram", "NotNative", "Writer", "machine_code", "written"]

ALIGNMENT = 64


class NotNative(Exception):
    """A program, or a part of one, cannot be compiled."""


class Writer:
    """Generates code for statements; `tbe.tik.vectors` does for instructions."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self.program = program
        self.b = Builder(machine)
        self.stack: Lines = []
        self.b.out.append(self.stack)
        self.places: dict[Memory, Value] = {}
        self.arena = 0  # bytes
        self.status = Value("%status", "ptr", 1)
        self.atomic = self._slot("i64")
        self._slots: dict[Variable, tuple[Value, Value]] = {}  # value, and a flag that it has been set
        self._set: set[Variable] = set()  # variables that are definitely set
        self._loops: list[tuple[str, str]] = []  # labels of `continue` and `break`
        self.has_atomic = any(call.name == "set_atomic_add" for call in _calls(program.body))
        self._failures: dict[int, str] = {}
        self._statement = 0

    # -- the whole ------------------------------------------------------------------------------------------

    def text(self, symbol: str) -> str:
        """The LLVM module of the program."""
        b = self.b
        b.line(f"store i64 0, ptr {self.atomic.name}")
        self._place_memories()
        self.statements(self.program.body)
        b.line("ret void")
        for number, label in self._failures.items():
            b.start_block(label)
            b.line(f"store i64 {number}, ptr {self.status.name}")
            b.line("ret void")
        width = b.machine.vector_bytes * 8
        attributes = f'nounwind "no-builtins" "target-cpu"="{b.machine.cpu}" "prefer-vector-width"="{width}"'
        functions = "\n".join("\n".join(lines) for lines in b.functions.values())
        body, declared = "\n".join(flatten(b.out)), "\n".join(b.declared.values())
        return (
            f'target triple = "{TRIPLE}"\n{declared}\n'
            f"define void @{symbol}(ptr %args, i64 %lo, i64 %hi) #0 {{\nentry:\n{body}\n}}\n{functions}\n"
            f"attributes #0 = {{ {attributes} }}\nattributes #1 = {{ noinline {attributes} }}\n"
        )

    def _argument(self, number: int) -> Value:
        slot = self.b.gep("ptr", Value("%args", "ptr", 1), self.i64(number))
        return self.b.emit(f"load ptr, ptr {slot.name}, align 8", "ptr", 1)

    def _place_memories(self) -> None:
        """Assign an address to every memory: an argument, or a part of the arena, which is the last argument."""
        inputs, outputs = self.program.inputs, self.program.outputs
        count = len(inputs)
        results = {t.memory: self._argument(count + n) for n, t in enumerate(outputs)}
        if len(results) < len(outputs):
            raise NotNative("a tensor is two outputs")
        self.status = self._argument(count + len(outputs))
        self.b.line(f"store i64 0, ptr {self.status.name}")
        arena = self._argument(count + len(outputs) + 1)
        changed = set(written(self.program.body))
        self.places.update(results)
        filled: set[Memory] = set()
        for number, port in enumerate(inputs):
            if isinstance(port, Variable):
                kind = "double" if DTYPES[port.dtype].is_float else "i64"
                given = self.b.emit(f"load {kind}, ptr {self._argument(number).name}, align 8", kind, 1)
                self.assign(port, given, "f" if kind == "double" else "i")
                continue
            memory = port.memory
            if memory in filled:
                raise NotNative("a tensor is two inputs")
            filled.add(memory)
            if memory in results or memory in changed:
                place = self.places.setdefault(memory, self._in_arena(arena, memory))
                self.copy(place, self._argument(number), self.i64(memory.nbytes))
            else:
                self.places[memory] = self._argument(number)
        for memory in self.program.memories:
            if memory.init is not None:
                raise NotNative(f"tensor {memory.name} has an initial value")
            place = self.places.setdefault(memory, self._in_arena(arena, memory))
            if memory.scope == "global" and memory not in filled:
                self.fill(place, self.i64(memory.nbytes))

    def _in_arena(self, arena: Value, memory: Memory) -> Value:
        if memory in self.places:
            return self.places[memory]
        place = self.b.gep("i8", arena, self.i64(self.arena))
        self.arena += -(-memory.nbytes // ALIGNMENT) * ALIGNMENT
        return place

    def _slot(self, elem: str, count: int = 1) -> Value:
        name = self.b.fresh()
        self.stack.append(f"{name} = alloca {elem}, i64 {count}, align 8")
        return Value(name, "ptr", 1)

    def room(self, elem: str, count: int) -> Value:
        """Allocate stack memory."""
        return self._slot(elem, count)

    # -- numbers --------------------------------------------------------------------------------------------

    def i64(self, value: int) -> Value:
        """An integer constant."""
        return self.b.const("i64", 1, value)

    def number(self, value: Any) -> tuple[Value, str]:
        """Evaluate a number: a value with its kind, "i" (i64), "f" (double) or "b" (i1)."""
        if isinstance(value, Tensor):
            return self.element(value)
        if isinstance(value, Variable):
            return self._read(value)
        if isinstance(value, Expression):
            if value.kind == "element":
                return self.element(value.parts[0])
            return self._operation(value.kind, [self.number(p) for p in value.parts])
        plain = value.item() if isinstance(value, np.generic) else value
        if isinstance(plain, bool):
            return self.b.const("i1", 1, plain), "b"
        if isinstance(plain, float):
            return self.b.const("double", 1, plain), "f"
        return self.i64(int(plain)), "i"

    def whole(self, value: Any, least: int, most: int) -> Value:
        """Evaluate an integer and check its range."""
        found, kind = self.number(value)
        if kind == "f":
            raise NotNative("a number that is not whole where a whole one is needed")
        found = self.as_int(found, kind)
        if found.is_const:
            self.require(self.b.const("i1", 1, least <= int(found.name) <= most))
            return found
        span = self.b.op("sub", found, self.i64(least))
        self.require(self.b.icmp("ule", span, self.i64(most - least)))
        return found

    def as_int(self, x: Value, kind: str) -> Value:
        if kind == "f":
            return convert.to_dtype(self.b, x, "float64", "int64")
        return self.b.convert("zext", x, "i64") if kind == "b" else x

    def _as_float(self, x: Value, kind: str) -> Value:
        if kind == "f":
            return x
        if x.is_const and kind == "i":
            return self.b.const("double", 1, float(int(x.name)))
        return self.b.convert("sitofp", self.as_int(x, kind), "double")

    def _as_bool(self, x: Value, kind: str) -> Value:
        if kind == "b":
            return x
        return (
            self.b.fcmp("une", x, self.b.like(x, 0.0)) if kind == "f" else self.b.icmp("ne", x, self.i64(0))
        )

    def _read(self, variable: Variable) -> tuple[Value, str]:
        slot, has = self._slot_of(variable)
        if variable not in self._set:
            self.require(self.b.emit(f"load i1, ptr {has.name}, align 1", "i1", 1))
        elem = "double" if DTYPES[variable.dtype].is_float else "i64"
        return self.b.emit(
            f"load {elem}, ptr {slot.name}, align 8", elem, 1
        ), "f" if elem == "double" else "i"

    def _slot_of(self, variable: Variable) -> tuple[Value, Value]:
        if variable.dtype == "uint64":
            raise NotNative("a scalar of type uint64")
        if variable not in self._slots:
            elem = "double" if DTYPES[variable.dtype].is_float else "i64"
            made = self._slots[variable] = self._slot(elem), self._slot("i1")
            self.stack.append(f"store i1 false, ptr {made[1].name}")
        return self._slots[variable]

    def assign(self, variable: Variable, value: Value, kind: str) -> None:
        """Assign a variable, converting to its type."""
        slot, has = self._slot_of(variable)
        made = self.wrapped(value, kind, variable.dtype)
        self.b.line(f"store {made.ty} {made.name}, ptr {slot.name}, align 8")
        if variable not in self._set:
            self.b.line(f"store i1 true, ptr {has.name}, align 1")
        self._set.add(variable)

    def wrapped(self, value: Value, kind: str, dtype: str) -> Value:
        """Wrap a number to a scalar's type: a double, or an i64."""
        b, info = self.b, DTYPES[dtype]
        if info.is_float:
            x = self._as_float(value, kind)
            if dtype == "float64":
                return x
            return convert.to_dtype(b, convert.to_dtype(b, x, "float64", dtype), dtype, "float64")
        x = self.as_int(value, kind)
        if info.bits >= 64 or dtype == "bool":
            return x
        narrow = b.convert("trunc", x, f"i{info.bits}")
        return b.convert("sext" if info.kind == "int" else "zext", narrow, "i64")

    def in_type(self, value: Any, dtype: str) -> Value:
        """Convert a number to the register form of an element type."""
        found, kind = self.number(value)
        made = self.wrapped(found, kind, dtype)
        return convert.to_dtype(self.b, made, "float64" if made.elem == "double" else "int64", dtype)

    def _operation(self, kind: str, parts: list[tuple[Value, str]]) -> tuple[Value, str]:
        b = self.b
        if kind in ("all", "any", "not"):
            flags = [self._as_bool(*p) for p in parts]
            if kind == "not":
                return b.op("xor", flags[0], b.const("i1", 1, True)), "b"
            made = flags[0]
            for flag in flags[1:]:
                made = b.op("and" if kind == "all" else "or", made, flag)
            return made, "b"
        if kind == "sqrt":
            return b.intrinsic("sqrt", self._as_float(*parts[0])), "f"
        if kind == "ones":
            return b.intrinsic("ctpop", self.as_int(*parts[0])), "i"
        if any(k == "f" for _, k in parts):
            return self._of_floats(kind, [self._as_float(*p) for p in parts])
        return self._of_ints(kind, [self.as_int(*p) for p in parts])

    def _of_floats(self, kind: str, x: list[Value]) -> tuple[Value, str]:
        b = self.b
        plain = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv", "//": "fdiv"}
        if kind in plain:
            return b.op(plain[kind], *x), "f"
        if kind in _FLOAT_RELATIONS:
            return b.fcmp(_FLOAT_RELATIONS[kind], *x), "b"
        if kind == "neg":
            return b.fneg(x[0]), "f"
        if kind == "abs":
            return b.intrinsic("fabs", x[0]), "f"
        if kind == "%":
            return vector_math.apply_binary(b, "fmod", *x), "f"
        if kind in ("max", "min"):
            first = b.fcmp("oge" if kind == "max" else "ole", x[0], x[1])
            return b.select(first, x[0], x[1]), "f"
        raise NotNative(f"{kind} of numbers that are not whole")

    def _of_ints(self, kind: str, x: list[Value]) -> tuple[Value, str]:
        b = self.b
        plain = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "<<": "shl", ">>": "ashr"}
        if kind in plain:
            return b.op(plain[kind], *x), "i"
        if kind in _INT_RELATIONS:
            return b.icmp(_INT_RELATIONS[kind], *x), "b"
        if kind == "neg":
            return b.op("sub", self.i64(0), x[0]), "i"
        if kind == "abs":
            return b.intrinsic("abs", x[0], extra=", i1 false"), "i"
        if kind in ("max", "min"):
            return b.intrinsic(f"s{kind}", *x), "i"
        if kind in ("/", "//", "%"):
            self.require(b.op("or", b.icmp("sgt", x[1], self.i64(0)), b.icmp("slt", x[1], self.i64(-1))))
            return b.emit(f"{'srem' if kind == '%' else 'sdiv'} i64 {x[0].name}, {x[1].name}", "i64", 1), "i"
        raise NotNative(f"{kind} of whole numbers")

    # -- memory ---------------------------------------------------------------------------------------------

    def count(self, tensor: Tensor) -> int:
        """Number of elements of a tensor's memory, in the tensor's type."""
        return tensor.memory.nbytes // DTYPES[tensor.dtype].size

    def start(self, tensor: Tensor) -> Value:
        """Index of a tensor's first element."""
        return self.as_int(*self.number(tensor.offset))

    def address(self, tensor: Tensor, place: Value) -> Value:
        """Address of an element of a tensor's memory."""
        bits = DTYPES[tensor.dtype].size * 8
        return self.b.gep(f"i{bits}", self.places[tensor.memory], place)

    def load(self, address: Value, dtype: str, lanes: int = 1, mask: Value | None = None) -> Value:
        """Load elements in register form."""
        size = DTYPES[dtype].size
        raw = self.b.load(convert.memory_type(self.b, dtype), lanes, address, size, mask)
        return convert.from_memory(self.b, raw, dtype)

    def store(self, x: Value, address: Value, dtype: str, mask: Value | None = None) -> None:
        """Store elements given in register form."""
        self.b.store(convert.to_memory(self.b, x, dtype), address, DTYPES[dtype].size, mask)

    def element(self, tensor: Tensor) -> tuple[Value, str]:
        """Load one element as a number."""
        dtype = tensor.dtype
        if dtype == "uint64":
            raise NotNative("an element of type uint64 as a number")
        x = self.load(self._checked(tensor), dtype)
        if DTYPES[dtype].is_float:
            return convert.to_dtype(self.b, x, dtype, "float64"), "f"
        return (x, "b") if dtype == "bool" else (convert.to_dtype(self.b, x, dtype, "int64"), "i")

    def _checked(self, tensor: Tensor) -> Value:
        place = self.start(tensor)
        self.require(self.b.icmp("ult", place, self.i64(self.count(tensor))))
        return self.address(tensor, place)

    def copy(self, target: Value, source: Value, nbytes: Value) -> None:
        """Copy bytes between disjoint ranges."""
        self._bytes(nbytes, lambda at, n: self._copy_piece(target, source, at, n))

    def _copy_piece(self, target: Value, source: Value, at: Value, lanes: int) -> None:
        piece = self.b.load("i8", lanes, self.b.gep("i8", source, at), 1)
        self.b.store(piece, self.b.gep("i8", target, at), 1)

    def fill(self, target: Value, nbytes: Value) -> None:
        """Set bytes to 0."""
        self._bytes(
            nbytes, lambda at, n: self.b.store(self.b.const("i8", n, 0), self.b.gep("i8", target, at), 1)
        )

    def _bytes(self, nbytes: Value, piece: Callable[[Value, int], None]) -> None:
        b, wide = self.b, 32
        body = b.op("and", nbytes, self.i64(-wide))
        self.times(body, lambda at: piece(at, wide), step=wide)
        rest = b.op("sub", nbytes, body)
        self.times(rest, lambda at: piece(b.op("add", body, at), 1))

    # -- statements -----------------------------------------------------------------------------------------

    def require(self, condition: Value) -> None:
        """End the program if a condition does not hold."""
        if condition.name == "true":
            return
        label = self._failures.setdefault(self._statement, self.b.label("fail"))
        following = self.b.label("ok")
        self.b.line(f"br i1 {condition.name}, label %{following}, label %{label}")
        self.b.start_block(following)

    def times(self, count: Value, body: Callable[[Value], None], step: int = 1) -> None:
        """Generate a loop over 0, step, 2 · step, … below a count, which may be 0."""

        def turn(at: Value, _: list[Value]) -> Sequence[Value]:
            body(at)
            return []

        if count.is_const and int(count.name) <= 0:
            return
        if count.is_const and int(count.name) <= step:
            body(self.i64(0))
        elif count.is_const:
            self.b.loop(self.i64(0), count, step, [], turn)
        else:
            some = self.b.icmp("sgt", count, self.i64(0))
            self.b.when(some, lambda: (self.b.loop(self.i64(0), count, step, [], turn), None)[1])

    def statements(self, body: Sequence[Statement]) -> None:
        """Generate code for statements."""
        from tbe.tik.vectors import INSTRUCTIONS

        for statement in body:
            self._statement += 1
            if isinstance(statement, Loop):
                self._loop(statement)
            elif isinstance(statement, Branch):
                self._branch(statement)
            elif isinstance(statement, End):
                self._end(statement.how)
            elif isinstance(statement, Assign):
                self.assign(statement.scalar, *self.number(statement.value))
            elif isinstance(statement, Store):
                place = statement.place
                self.store(self.in_type(statement.value, place.dtype), self._checked(place), place.dtype)
            else:
                write = INSTRUCTIONS.get(statement.name)
                if write is None:
                    raise NotNative(f"{statement.line}: {statement.name}")
                write(self, **dict(statement.arguments))

    def _end(self, how: str) -> None:
        if how == "return":
            self.b.line("ret void")
        elif not self._loops:
            raise NotNative(f"tik_{how} outside of a loop")
        else:
            self.b.line(f"br label %{self._loops[-1][how == 'break']}")
        self.b.start_block(self.b.label("after"))

    def _loop(self, loop: Loop) -> None:
        b = self.b
        begin, end = (self.as_int(*self.number(x)) for x in (loop.begin, loop.end))
        slot, _ = self._slot_of(loop.step)
        test, body, following, done = (b.label(n) for n in ("test", "body", "next", "end"))
        counter = self._slot("i64")
        b.line(f"store i64 {begin.name}, ptr {counter.name}")
        b.line(f"br label %{test}")
        b.start_block(test)
        step = b.emit(f"load i64, ptr {counter.name}", "i64", 1)
        more = b.icmp("slt", step, end)
        b.line(f"br i1 {more.name}, label %{body}, label %{done}")
        b.start_block(body)
        b.line(f"store i64 {step.name}, ptr {slot.name}")
        known = set(self._set)
        self._set.add(loop.step)
        self._loops.append((following, done))
        self.statements(loop.body)
        self._loops.pop()
        self._set = known
        b.line(f"br label %{following}")
        b.start_block(following)
        one = b.emit(f"load i64, ptr {counter.name}", "i64", 1)
        one = b.op("add", one, self.i64(1))
        b.line(f"store i64 {one.name}, ptr {counter.name}")
        b.line(f"br label %{test}")
        b.start_block(done)

    def _branch(self, branch: Branch) -> None:
        b, done, known = self.b, self.b.label("joined"), set(self._set)
        for condition, part in branch.parts:
            holds = self._as_bool(*self.number(condition))
            then, otherwise = b.label("then"), b.label("else")
            b.line(f"br i1 {holds.name}, label %{then}, label %{otherwise}")
            b.start_block(then)
            self.statements(part)
            self._set = set(known)
            b.line(f"br label %{done}")
            b.start_block(otherwise)
        b.line(f"br label %{done}")
        b.start_block(done)


_FLOAT_RELATIONS = {"<": "olt", "<=": "ole", ">": "ogt", ">=": "oge", "==": "oeq", "!=": "une"}
_INT_RELATIONS = {"<": "slt", "<=": "sle", ">": "sgt", ">=": "sge", "==": "eq", "!=": "ne"}


def _all(body: Sequence[Statement]) -> Iterator[Statement]:
    """Statements, including nested ones."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from _all(statement.body)
        elif isinstance(statement, Branch):
            for _, part in statement.parts:
                yield from _all(part)


def _calls(body: Sequence[Statement]) -> Iterator[Call]:
    return (s for s in _all(body) if isinstance(s, Call))


def written(body: Sequence[Statement]) -> Iterator[Memory]:
    """Memories written by statements."""
    for statement in _all(body):
        if isinstance(statement, Store):
            yield statement.place.memory
        elif isinstance(statement, Call):
            target = dict(statement.arguments).get("dst")
            if isinstance(target, Tensor):
                yield target.memory


@dataclass(frozen=True)
class MachineCode:
    """A function `void symbol(void** args, int64_t, int64_t)` of inputs, outputs, a status and an arena.

    The status is 64 bits, 0 if all checks passed.
    """

    symbol: str
    object: bytes
    arena: int  # bytes
    ir: str


def machine_code(program: Program, target: str = "host") -> MachineCode:
    """Compile a program; raises NotNative with the reason if that is impossible."""
    machine = machine_for(target)
    writer = Writer(program, machine)
    text = writer.text("@")
    symbol = f"tik_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    ir = text.replace("@@", f"@{symbol}")
    made = compile_ir(ir, machine)
    _, undefined = elf.symbols(made)
    if undefined:
        raise NotNative(f"the code refers to {', '.join(sorted(undefined))}")
    return MachineCode(symbol, made, max(writer.arena, 1), ir)


class NativeProgram:
    """The machine code of a program, loaded into the runtime."""

    def __init__(self, program: Program, target: str = "host") -> None:
        import npu_runtime

        code = machine_code(program, target)
        self.ir, self.object = code.ir, code.object
        self.inputs, self.outputs = list(program.inputs), list(program.outputs)
        self._assemble(npu_runtime, code.symbol, code.arena)

    def _assemble(self, rt: Any, symbol: str, arena: int) -> None:
        program = self.program = rt.Program(symbol)
        views = [self._view(program.input(n, _nbytes(p)), _nbytes(p)) for n, p in enumerate(self.inputs)]
        sizes = [*(t.memory.nbytes for t in self.outputs), 8]
        made = [self._view(program.output(n, size), size) for n, size in enumerate(sizes)]
        made.append(self._view(program.arena(0, arena), arena))
        attrs = {"kernel": rt.load_object(self.object, symbol), "total": 1, "grain": 1}
        program.task("kernel", symbol, views, made, attrs)
        program.finalize(max(arena, ALIGNMENT))

    @staticmethod
    def _view(buffer: int, nbytes: int) -> tuple[Any, ...]:
        return (buffer, "uint8", (nbytes,), (1,), 0)

    def __call__(self, values: Sequence[Any]) -> list[np.ndarray] | None:
        """Run; returns the outputs, or None if a check failed."""
        given = [_as_bytes(p, v) for p, v in zip(self.inputs, values, strict=True)]
        made = [np.empty(t.memory.nbytes, np.uint8) for t in self.outputs]
        status = np.zeros(8, np.uint8)
        self.program.run(given, [*made, status])
        if status.any():
            return None
        return [
            a.view(numpy_dtype(t.memory.dtype))[: t.size].reshape(t.shape)
            for a, t in zip(made, self.outputs, strict=True)
        ]


def _nbytes(port: Any) -> int:
    return 8 if isinstance(port, Variable) else port.memory.nbytes


def _as_bytes(port: Any, value: Any) -> np.ndarray:
    if isinstance(port, Variable):
        kind = np.float64 if DTYPES[port.dtype].is_float else np.int64
        return np.asarray([value], kind).view(np.uint8)
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
