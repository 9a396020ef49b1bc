"""The differences between a GPU and its simulation on the host: entry points, thread indices, barriers, shuffles.

The body of a kernel is the same text for both, so that a machine without a GPU can run all its threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from tbe.cuda.architectures import Architecture, simulated_machine
from tbe.ir import Builder, Value, flatten
from tbe.target import TRIPLE, Machine

__all__ = ["Nvptx", "Platform", "Simulated"]

_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "float": 32, "double": 64}


class Platform:
    """The platform-dependent parts of a kernel."""

    machine: Machine

    def begin(self, b: Builder, count: int) -> list[Value]:
        """Emit the start of an entry point; returns the addresses of its buffers."""
        raise NotImplementedError

    def thread(self, b: Builder) -> Value:
        """The index of the thread in its block (i32)."""
        raise NotImplementedError

    def block(self, b: Builder) -> Value:
        """The index of the block (i32)."""
        raise NotImplementedError

    def shared(self, b: Builder) -> Value:
        """The address of the block's shared memory."""
        raise NotImplementedError

    def barrier(self, b: Builder) -> None:
        """Wait for all threads of the block."""
        raise NotImplementedError

    def exchange(self, b: Builder, x: Value, distance: int) -> Value:
        """The 32-bit value of the thread whose lane index differs in the bit `distance` (butterfly shuffle)."""
        raise NotImplementedError

    def module(self, b: Builder, symbol: str, threads: int, shared: int, parameters: Sequence[str]) -> str:
        """The whole module."""
        raise NotImplementedError

    def shuffle(self, b: Builder, x: Value, distance: int) -> Value:
        """The scalar of any type of the thread whose lane index differs in the bit `distance`."""
        bits = _BITS[x.elem]
        if bits == 64:
            whole = b.bitcast(x, "i64") if x.elem == "double" else x
            high = b.convert("trunc", b.op("lshr", whole, b.const("i64", 1, 32)), "i32")
            parts = [self.exchange(b, part, distance) for part in (b.convert("trunc", whole, "i32"), high)]
            low, high = (b.convert("zext", part, "i64") for part in parts)
            joined = b.op("or", low, b.op("shl", high, b.const("i64", 1, 32)))
            return b.bitcast(joined, "double") if x.elem == "double" else joined
        if x.elem == "float":
            return b.bitcast(self.exchange(b, b.bitcast(x, "i32"), distance), "float")
        if bits == 32:
            return self.exchange(b, x, distance)
        return b.convert("trunc", self.exchange(b, b.convert("zext", x, "i32"), distance), x.elem)


class Nvptx(Platform):
    """Code for a GPU; every buffer is a parameter."""

    def __init__(self, architecture: Architecture) -> None:
        self.machine = architecture.machine

    def begin(self, b: Builder, count: int) -> list[Value]:
        return [Value(f"%p{n}", "ptr", 1) for n in range(count)]

    def _call(self, b: Builder, function: str, result: str = "i32", arguments: str = "") -> Value:
        kinds = ", ".join(part.split()[0] for part in arguments.split(", ")) if arguments else ""
        b.declared.setdefault(function, f"declare {result} @{function}({kinds}) #2")
        if result == "void":
            b.line(f"call void @{function}({arguments})")
            return Value("0", "i32", 1)
        return b.emit(f"call {result} @{function}({arguments})", result, 1)

    def thread(self, b: Builder) -> Value:
        return self._call(b, "llvm.nvvm.read.ptx.sreg.tid.x")

    def block(self, b: Builder) -> Value:
        return self._call(b, "llvm.nvvm.read.ptx.sreg.ctaid.x")

    def shared(self, b: Builder) -> Value:
        return b.emit("addrspacecast ptr addrspace(3) @shared to ptr", "ptr", 1)

    def barrier(self, b: Builder) -> None:
        self._call(b, "llvm.nvvm.barrier0", "void")

    def exchange(self, b: Builder, x: Value, distance: int) -> Value:
        arguments = f"i32 -1, i32 {x.name}, i32 {distance}, i32 31"
        return self._call(b, "llvm.nvvm.shfl.sync.bfly.i32", "i32", arguments)

    def module(self, b: Builder, symbol: str, threads: int, shared: int, parameters: Sequence[str]) -> str:
        kinds = ", ".join(f"ptr {attributes} %p{n}" for n, attributes in enumerate(parameters))
        memory = f"@shared = internal addrspace(3) global [{shared} x i8] undef, align 16\n" if shared else ""
        return (
            f'target triple = "nvptx64-nvidia-cuda"\n{_declarations(b)}\n{memory}'
            f"define ptx_kernel void @{symbol}({kinds}) #0 {{\nentry:\n{_body(b)}\n}}\n{_functions(b)}\n"
            f'attributes #0 = {{ nounwind "nvvm.maxntid"="{threads}" }}\nattributes #1 = {{ nounwind }}\n'
            "attributes #2 = { nounwind convergent }\n"
        )


class Simulated(Platform):
    """Code for the host: `void symbol(void** args, Thread* thread)` runs one thread of one block.

    Thread is { int32 thread, int32 block, void* shared, void (*barrier)(Thread*),
    int32 (*exchange)(Thread*, int32 value, int32 distance) }; barriers and exchanges switch to other threads.
    """

    def __init__(self) -> None:
        self.machine = simulated_machine()

    def begin(self, b: Builder, count: int) -> list[Value]:
        args = Value("%args", "ptr", 1)
        slots = [b.gep("ptr", args, b.const("i64", 1, n)) for n in range(count)]
        return [b.emit(f"load ptr, ptr {slot.name}, align 8", "ptr", 1) for slot in slots]

    def _field(self, b: Builder, offset: int, elem: str) -> Value:
        address = b.gep("i8", Value("%thread", "ptr", 1), b.const("i64", 1, offset))
        return b.emit(f"load {elem}, ptr {address.name}, align 4", elem, 1)

    def thread(self, b: Builder) -> Value:
        return self._field(b, 0, "i32")

    def block(self, b: Builder) -> Value:
        return self._field(b, 4, "i32")

    def shared(self, b: Builder) -> Value:
        return self._field(b, 8, "ptr")

    def barrier(self, b: Builder) -> None:
        b.line(f"call void {self._field(b, 16, 'ptr').name}(ptr %thread)")

    def exchange(self, b: Builder, x: Value, distance: int) -> Value:
        function = self._field(b, 24, "ptr")
        return b.emit(f"call i32 {function.name}(ptr %thread, i32 {x.name}, i32 {distance})", "i32", 1)

    def module(self, b: Builder, symbol: str, threads: int, shared: int, parameters: Sequence[str]) -> str:
        attributes = f'nounwind "no-builtins" "target-cpu"="{self.machine.cpu}"'
        return (
            f'target triple = "{TRIPLE}"\n{_declarations(b)}\n'
            f"define void @{symbol}(ptr %args, ptr %thread) #0 {{\nentry:\n{_body(b)}\n}}\n{_functions(b)}\n"
            f"attributes #0 = {{ {attributes} }}\nattributes #1 = {{ noinline {attributes} }}\n"
        )


def _body(b: Builder) -> str:
    return "\n".join(flatten(b.out))


def _functions(b: Builder) -> str:
    return "\n".join("\n".join(lines) for lines in b.functions.values())


def _declarations(b: Builder) -> str:
    return "\n".join(b.declared.values())
