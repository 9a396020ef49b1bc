"""GPU architectures that kernels are generated for, and the compilation of LLVM IR to PTX."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache

import llvmlite.binding as llvm

from tbe.target import Machine, host_machine

__all__ = ["ARCHITECTURES", "Architecture", "architecture_of", "compile_to_ptx", "simulated_machine"]

_lock = threading.Lock()
_TRIPLE = "nvptx64-nvidia-cuda"


@dataclass(frozen=True)
class Architecture:
    """The properties of a GPU generation that the generator needs."""

    name: str
    ptx: str  # the oldest PTX version that supports the architecture, so that older drivers accept the text
    multiprocessors: int  # of the largest part

    @property
    def busy_threads(self) -> int:
        """Threads from which all multiprocessors have enough warps to hide memory latency."""
        return 1024 * self.multiprocessors

    @property
    def machine(self) -> Machine:
        """The instruction set for the expression writer: scalar threads with fused multiply-add."""
        return Machine(self.name, self.name, f"+{self.ptx}", 16, fma=True, half=True, masks=False, quick=True)


ARCHITECTURES = {
    a.name: a
    for a in (
        Architecture("sm_80", "ptx70", 108),
        Architecture("sm_86", "ptx71", 84),
        Architecture("sm_89", "ptx78", 142),
        Architecture("sm_90", "ptx78", 132),
        Architecture("sm_100", "ptx86", 148),
    )
}


def architecture_of(name: str) -> Architecture:
    """The architecture of a name such as "sm_90"."""
    try:
        return ARCHITECTURES[name]
    except KeyError:
        raise ValueError(
            f"unknown architecture {name!r}; expected one of {', '.join(ARCHITECTURES)}"
        ) from None


def simulated_machine() -> Machine:
    """The host processor without vector instructions: it runs the same scalar code as a GPU's threads."""
    host = host_machine()
    return Machine(
        "simulated", host.cpu, host.features, 16, fma=host.fma, half=host.half, masks=False, quick=True
    )


@lru_cache(maxsize=8)
def _target_machine(machine: Machine) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(_TRIPLE)
    return target.create_target_machine(cpu=machine.cpu, features=machine.features, opt=3, jit=False)


def compile_to_ptx(text: str, machine: Machine) -> str:
    """Compile LLVM IR to PTX, after LLVM's standard optimisations."""
    with _lock:
        module = llvm.parse_assembly(text)
        module.verify()
        target = _target_machine(machine)
        builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=2))
        builder.getModulePassManager().run(module, builder)
        return str(target.emit_assembly(module))
