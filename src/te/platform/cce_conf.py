"""The processor's description, under its older names."""

from __future__ import annotations

from typing import Any

from tbe.common.platform import (
    api_check_support,
    get_soc_spec,
    intrinsic_check_support,
    set_current_compile_soc_info,
)

__all__ = [
    "CceProductParams",
    "api_check_support",
    "get_soc_spec",
    "intrinsic_check_support",
    "te_set_version",
]

te_set_version = set_current_compile_soc_info

_OLDER = {
    "Unified_Buffer": "UB_SIZE",
    "L1_Buffer": "L1_SIZE",
    "Core_num": "CORE_NUM",
    "Compiler_arch": "SOC_VERSION",
}


class CceProductParams:
    """Entries of the processor's description by their oldest names."""

    def getParams(self, name: str) -> Any:
        """One entry.

        >>> CceProductParams().getParams("Unified_Buffer")
        262144
        """
        return get_soc_spec(_OLDER.get(name, name))

    get_params = getParams
