"""What `op_select_format` and `get_op_support_info` of operator files are written with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

__all__ = [
    "ReduceInput",
    "ReduceOutput",
    "SplitInput",
    "SplitOutput",
    "gen_param",
    "get_dynamic_param_in_json",
    "get_op_cal_info",
    "is_shape_4d",
]


class OpParam:
    """The types and formats of one input or output."""

    class Element:
        """Position ("input0"), name, types and formats of one parameter."""

        def __init__(
            self, classify: str, name: str, datatype: str, format: str, unknownshape_format: str | None = None
        ) -> None:
            self.classify = classify
            self.name = name
            self.datatype = datatype
            self.format = format
            self.unknownshape_format = unknownshape_format

    def __init__(self, element: OpParam.Element) -> None:
        self.element = element


def gen_param(
    classify: str, name: str, datatype: str, format: str, unknownshape_format: str | None = None
) -> OpParam:
    """Types and formats of a parameter; lists are written with commas.

    >>> gen_param(classify="input0", name="x", datatype="float16,float", format="ND,ND").element.name
    'x'
    """
    return OpParam(OpParam.Element(classify, name, datatype, format, unknownshape_format))


def get_dynamic_param_in_json(params: Sequence[OpParam]) -> str:
    """The answer of `op_select_format`.

    >>> get_dynamic_param_in_json([gen_param("input0", "x", "float", "ND")])
    '{"input0": {"name": "x", "dtype": "float", "format": "ND"}}'
    """
    answer: dict[str, dict[str, Any]] = {}
    for param in params:
        one = param.element
        answer[one.classify] = {"name": one.name, "dtype": one.datatype, "format": one.format}
        if one.unknownshape_format is not None:
            answer[one.classify]["unknownshape_format"] = one.unknownshape_format
    return json.dumps(answer)


def SplitInput(*params: Sequence[Any]) -> list[dict[str, Any]]:
    """Inputs that may be cut along axes: [index, axes, head overlap, tail overlap] each."""
    return [
        {
            "idx": p[0],
            "axis": p[1],
            "headOverLap": p[2] if len(p) > 2 else [],
            "tailOverLap": p[3] if len(p) > 3 else [],
        }
        for p in params
    ]


def SplitOutput(*params: Sequence[Any]) -> list[dict[str, Any]]:
    """Outputs that are then cut along axes: [index, axes] each."""
    return [{"idx": p[0], "axis": p[1]} for p in params]


def ReduceInput(*params: Sequence[Any]) -> list[dict[str, Any]]:
    """Inputs that are reduced along axes: [index, axes] each."""
    return [{"idx": p[0], "axis": p[1]} for p in params]


def ReduceOutput(*params: Sequence[Any]) -> list[dict[str, Any]]:
    """Outputs of reductions: [index, kind, whether they are added up atomically] each."""
    return [{"idx": p[0], "reduceType": p[1], "isAtomic": p[2]} for p in params]


def get_op_cal_info(
    axis_split_matrix: Any = None,
    axis_reduce_list: Any = None,
    l1_fusion_enable: Any = 0,
    min_tbe_l1: Any = None,
) -> str:
    """The answer of `get_op_support_info`: how an operator may be cut."""
    split = [{"inputList": i, "outputList": o} for i, o in axis_split_matrix or ()]
    reduce = [{"inputList": i, "outputList": o} for i, o in axis_reduce_list or ()]
    info = {
        "splitMaps": split,
        "reduceMaps": reduce,
        "l1FusionEnable": l1_fusion_enable,
        "minTbeL1Space": min_tbe_l1 or 0,
    }
    return json.dumps({"_op_slice_info": info})


def is_shape_4d(shape: Sequence[int]) -> bool:
    """Whether a shape has four dimensions."""
    return len(shape) == 4
