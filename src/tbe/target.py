"""Code generation targets, and the compilation of LLVM IR text to object code."""

from __future__ import annotations

import platform
import threading
from dataclasses import dataclass
from functools import lru_cache

import llvmlite.binding as llvm

from npu_runtime import environment

__all__ = [
    "PORTABLE",
    "TRIPLE",
    "Machine",
    "code_identity",
    "compile_ir",
    "host_machine",
    "instruction_limit",
    "machine_for",
    "runs_here",
]


@dataclass(frozen=True)
class Machine:
    """The properties of a processor that the generator needs."""

    name: str
    cpu: str
    features: str
    vector_bytes: int
    fma: bool  # fused multiply-add in hardware
    half: bool  # float16 conversions in hardware
    masks: bool  # masked loads and stores of every element size (AVX-512)
    quick: bool = False  # a GPU, or its simulation: exp2 and reciprocals to 16 bits are cheap

    @property
    def permutes_bytes(self) -> bool:
        """True if an instruction permutes the bytes of two registers (AVX-512 VBMI)."""
        return "+avx512vbmi," in f"{self.features},"

    @property
    def registers(self) -> int:
        """The number of vector registers."""
        return 32 if self.masks or _ON_ARM else 16

    def lanes(self, bits: int) -> int:
        """Elements of `bits` bits in one vector register."""
        return max(1, self.vector_bytes * 8 // bits)


_ON_ARM = platform.machine() == "aarch64"
TRIPLE = f"{'aarch64' if _ON_ARM else 'x86_64'}-unknown-linux-gnu"
PORTABLE = Machine(
    "portable", "generic" if _ON_ARM else "x86-64-v2", "", 16, fma=_ON_ARM, half=_ON_ARM, masks=False
)
_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "fma", "f16c")
_AVX2 = ("avx2", "fma", "f16c")
_BEYOND = {  # by limit: prefixes of the features it excludes
    "sse4": ("avx", "fma", "f16c"),
    "avx2": ("avx512", "avx10", "amx"),
    "avx512": ("avx512bf16", "avx512fp16", "avx10", "amx"),
}
_NAMED = {
    "portable": PORTABLE,
    "avx2": Machine("avx2", "haswell", "", 32, fma=True, half=True, masks=False),
    "avx512": Machine("avx512", "skylake-avx512", "", 64, fma=True, half=True, masks=True),
    "avx512_bf16": Machine("avx512", "cooperlake", "", 64, fma=True, half=True, masks=True),
    "amx": Machine("avx512", "sapphirerapids", "", 64, fma=True, half=True, masks=True),
}
_NEEDS = {  # features that code for a name requires
    "portable": () if _ON_ARM else ("sse4.2",),
    "avx2": _AVX2,
    "avx512": _AVX512,
    "avx512_bf16": (*_AVX512, "avx512bf16"),
    "amx": (*_AVX512, "avx512bf16", "avx512fp16"),
}
_lock = threading.Lock()


def instruction_limit() -> str:
    """The largest instruction set that `NPU_MAX_ISA` allows; "" for no limit.

    >>> instruction_limit() in ("", "sse4", "avx2", "avx512")
    True
    """
    return environment.choice("NPU_MAX_ISA", environment.INSTRUCTION_SETS)


@lru_cache(maxsize=1)
def _features() -> dict[str, bool]:
    """The processor's features, without those beyond the limit."""
    found = dict(llvm.get_host_cpu_features())
    beyond = _BEYOND.get(instruction_limit(), ())
    return {name: on and not name.startswith(beyond) for name, on in found.items()}


@lru_cache(maxsize=1)
def host_machine() -> Machine:
    """The processor this process runs on."""
    if _ON_ARM:  # NEON is part of the architecture
        return PORTABLE
    features = _features()
    cpu = llvm.get_host_cpu_name()
    flat = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(features.items()))
    if all(features.get(f) for f in _AVX512):
        return Machine("avx512", cpu, flat, 64, fma=True, half=True, masks=True)
    if all(features.get(f) for f in _AVX2):
        return Machine("avx2", cpu, flat, 32, fma=True, half=True, masks=False)
    return PORTABLE


def machine_for(target: str) -> Machine:
    """The machine of a target name: "host", or a name with fixed features."""
    if target == "host":
        return host_machine()
    if target in _NAMED:
        return _NAMED[target]
    raise ValueError(f"unknown target {target!r}; expected one of host, {', '.join(_NAMED)}")


def code_identity(target: str) -> str:
    """What determines a target's machine code besides the expression: processor, features, compiler."""
    version = ".".join(map(str, llvm.llvm_version_info))
    if target.startswith("sm_"):
        return f"{target} LLVM {version}"
    machine = machine_for(target)
    return f"{machine.name} {machine.cpu} {machine.features} LLVM {version}"


def runs_here(target: str) -> bool:
    """True if this processor runs code for a target."""
    features = _features()
    return target == "host" or all(features.get(f) for f in _NEEDS[target])


@lru_cache(maxsize=8)
def _target_machine(machine: Machine) -> llvm.TargetMachine:
    llvm.initialize_native_target()  # the others would load several MiB of LLVM for nothing
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(TRIPLE)
    return target.create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=2, reloc="pic", codemodel="small", jit=False
    )


def compile_ir(text: str, machine: Machine) -> bytes:
    """Compile LLVM IR to an ELF object."""
    with _lock:
        module = llvm.parse_assembly(text)
        return _target_machine(machine).emit_object(module)
