"""What operator files ask about the processor: everything the vector DSL has works here, in every type it takes."""

from __future__ import annotations

from typing import Any

from tbe import dsl
from tbe.dtypes import DTYPES
from tbe.tik.instructions import INSTRUCTIONS

__all__ = [
    "ASCEND_310",
    "ASCEND_910",
    "ELEMENTS_VECTOR_OP_FP16",
    "ELEMENTS_VECTOR_OP_FP32",
    "SOC_VERSION",
    "api_check_support",
    "get_bit_len",
    "get_block_size",
    "get_soc_spec",
    "intrinsic_check_support",
    "set_current_compile_soc_info",
]

SHORT_SOC_VERSION = "SHORT_SOC_VERSION"
FULL_SOC_VERSION = "FULL_SOC_VERSION"
SOC_VERSION = "SOC_VERSION"
AICORE_TYPE = "AICORE_TYPE"
CORE_NUM = "CORE_NUM"
UB_SIZE = "UB_SIZE"
L2_SIZE = "L2_SIZE"
L1_SIZE = "L1_SIZE"
ELEMENTS_VECTOR_OP_FP16 = 128
ELEMENTS_VECTOR_OP_FP32 = 64
ASCEND_310 = "Ascend310"
ASCEND_310P = "Ascend310P"
ASCEND_910 = "Ascend910"

# What operator files take decisions by: a processor with large buffers, so that they take the general way.
_SPECIFICATION: dict[str, Any] = {
    SHORT_SOC_VERSION: ASCEND_910,
    FULL_SOC_VERSION: "Ascend910A",
    SOC_VERSION: ASCEND_910,
    AICORE_TYPE: "AiCore",
    CORE_NUM: 32,
    UB_SIZE: 256 * 1024,
    L2_SIZE: 32 * 1024 * 1024,
    L1_SIZE: 1024 * 1024,
    "L0A_SIZE": 64 * 1024,
    "L0B_SIZE": 64 * 1024,
    "L0C_SIZE": 256 * 1024,
    "cube_vector_combine": "fuse",
}
_FIRST = ("te.lang.cce.", "tbe.dsl.", "te.lang.dynamic.")
_UNSUPPORTED = frozenset(dsl.refused.CUBE)


def get_soc_spec(key: str) -> Any:
    """An entry of the processor's description.

    >>> get_soc_spec("SHORT_SOC_VERSION")
    'Ascend910'
    """
    if key not in _SPECIFICATION:
        raise ValueError(f"unknown entry {key!r}; known are {', '.join(_SPECIFICATION)}")
    return _SPECIFICATION[key]


def api_check_support(api_name: str, dtype: str = "") -> bool:
    """Whether a function of the DSL works, in a type; conversions are asked for as "f322f16".

    >>> api_check_support("te.lang.cce.vadd", "float32"), api_check_support("tik.depthwise_conv2d")
    (True, False)
    """
    if api_name.startswith("tik."):
        return api_name[4:] in INSTRUCTIONS
    prefix = next((p for p in _FIRST if api_name.startswith(p)), None)
    if prefix is None:
        return False
    name = api_name[len(prefix) :]
    if name in _UNSUPPORTED or not hasattr(dsl, name):
        return False
    return not dtype or "2" in dtype or dtype.lower() in DTYPES


def intrinsic_check_support(intrinsic: str, dtype: str = "") -> bool:
    """Whether an instruction of the vector unit is there; those of the DSL's functions are."""
    name = intrinsic.removeprefix("Intrinsic_")
    if name.startswith("vconv"):
        return True
    return hasattr(dsl, name) and name not in _UNSUPPORTED


def get_block_size() -> int:
    """Bytes of a block."""
    return 32


def get_bit_len(dtype: str) -> int:
    """Bits of an element."""
    return DTYPES[dtype.lower()].size * 8


def set_current_compile_soc_info(*_: Any, **__: Any) -> None:
    """Accepted: kernels are built for the device the Graph Engine runs on."""
