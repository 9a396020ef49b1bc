"""Compile options: one typed record, parsed once at the edge (command line, environment, front door)."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ge.errors import GeError
from ge.target import Target, named
from npu_runtime import environment

__all__ = ["RECOMPUTE", "CompileOptions", "Implementation", "PrecisionMode"]


class PrecisionMode(enum.Enum):
    """How far element types may be lowered; the default keeps the user's."""

    KEEP = "must_keep_origin_dtype"
    MIX_BF16 = "allow_mix_precision_bf16"
    MIX_FP16 = "allow_mix_precision_fp16"
    FORCE_FP16 = "force_fp16"
    FORCE_FP32 = "force_fp32"
    CUBE_FP16 = "cube_fp16in_fp32out"

    @classmethod
    def parse(cls, text: str) -> PrecisionMode:
        """The mode of a name; other names used by ported scripts mean their nearest mode.

        >>> PrecisionMode.parse("allow_mix_precision").value
        'allow_mix_precision_fp16'
        """
        name = _SYNONYMS.get(text, text)
        for mode in cls:
            if mode.value == name:
                return mode
        raise GeError(
            "E10010", f"precision mode '{text}' is unknown", remedy=f"use one of {', '.join(cls.names())}"
        )

    @classmethod
    def names(cls) -> list[str]:
        """All names that `parse` takes."""
        return [*(m.value for m in cls), *_SYNONYMS]


_SYNONYMS = {
    "allow_mix_precision": "allow_mix_precision_fp16",
    "allow_fp32_to_fp16": "must_keep_origin_dtype",
    "origin": "must_keep_origin_dtype",
    "fp16": "force_fp16",
    "mixed_float16": "allow_mix_precision_fp16",
    "mixed_bfloat16": "allow_mix_precision_bf16",
    "cube_hif8": "must_keep_origin_dtype",
}


class Implementation(enum.Enum):
    """Which of several ways to compute the same product: that with the least time, or that with the least errors.

    FAST may save arithmetic at the cost of larger rounding errors (convolutions by Winograd, matrix products by
    Strassen); PRECISE never does.
    """

    FAST = "high_performance"
    PRECISE = "high_precision"

    @classmethod
    def parse(cls, text: str | Implementation) -> Implementation:
        """The implementation of a name; "…_for_all" means the same.

        >>> Implementation.parse("high_precision_for_all").name
        'PRECISE'
        """
        if isinstance(text, cls):
            return text
        for choice in cls:
            if str(text).removesuffix("_for_all") == choice.value:
                return choice
        valid = ", ".join(choice.value for choice in cls)
        raise GeError("E10010", f"implementation '{text}' is unknown", remedy=f"use one of {valid}")


RECOMPUTE = ("off", "light", "vector", "segments")
"""Nothing; what costs nothing, or one pass over memory; activations, normalisations and element-wise work; segments,
convolutions and products included."""


@dataclass(frozen=True)
class CompileOptions:
    """Everything a compile depends on besides the graph."""

    precision_mode: PrecisionMode = PrecisionMode.KEEP
    op_precision: Mapping[str, str] = field(default_factory=dict)  # node or operator name -> mode
    implementation: Implementation = Implementation.FAST
    op_implementation: Mapping[str, Implementation] = field(
        default_factory=dict
    )  # node or operator name -> choice
    disabled_passes: frozenset[str] = frozenset()
    dump_stages: frozenset[str] = frozenset()  # "all" or stage names
    dump_dir: Path = Path("npu_dump")
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    output_nodes: tuple[str, ...] = ()
    output_types: Mapping[str, str] = field(default_factory=dict)
    recompute: str = "light"  # one of RECOMPUTE: what is made again rather than kept in memory
    target: Target = "host"  # type: ignore[assignment]  # a target, or the name of one
    progress: bool = False
    # Directories with custom operators, searched in the whole process; text is split as NPU_OPP_PATH is.
    opp_path: tuple[Path, ...] | str = ()

    def __post_init__(self) -> None:
        if isinstance(self.target, str):
            object.__setattr__(self, "target", named(self.target))
        if self.recompute not in RECOMPUTE:
            raise GeError(
                "E10010",
                f"recompute '{self.recompute}' is unknown",
                remedy=f"use one of {', '.join(RECOMPUTE)}",
            )
        folders = self.opp_path.split(os.pathsep) if isinstance(self.opp_path, str) else self.opp_path
        if folders:
            from ge.ops.custom import search

            search.add_paths(f for f in folders if f)

    @classmethod
    def from_environment(cls, **given: object) -> CompileOptions:
        """Options with NPU_DUMP, NPU_DUMP_DIR, NPU_DISABLE_PASSES and NPU_OP_SELECT_IMPLMODE taken into account."""
        values: dict[str, object] = {}
        for field_, variable in (("dump_stages", "NPU_DUMP"), ("disabled_passes", "NPU_DISABLE_PASSES")):
            if names := environment.names(variable):
                values[field_] = names
        if environment.text("NPU_DUMP_DIR"):
            values["dump_dir"] = Path(environment.text("NPU_DUMP_DIR"))
        modes = [c.value + end for c in Implementation for end in ("", "_for_all")]
        if mode := environment.choice("NPU_OP_SELECT_IMPLMODE", modes):
            values["implementation"] = Implementation.parse(mode)
        return cls(**{**values, **given})  # type: ignore[arg-type]
