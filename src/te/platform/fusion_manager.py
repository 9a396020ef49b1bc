"""Registration of compute functions for fusion, under its older names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tbe.dsl.registry import computes, register_compute

__all__ = ["FusionManager", "fusion_manager"]

F = TypeVar("F", bound=Callable[..., Any])


class FusionManager:
    """Keeps the compute functions operator files register."""

    def register(self, register_name: str) -> Callable[[F], F]:
        """Register the compute function of an operator.

        >>> @fusion_manager.register("thrice")
        ... def thrice_compute(x, y, kernel_name="thrice"):
        ...     return x
        >>> fusion_manager.has_op_compute("thrice")
        True
        """
        return register_compute(register_name)

    def has_op_compute(self, register_name: str) -> bool:
        """Whether there is a compute function of that name."""
        return register_name in computes

    def get_op_compute(self, register_name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the compute function of an operator."""
        return computes[register_name].function(*args, **kwargs)


fusion_manager = FusionManager()
register = fusion_manager.register
