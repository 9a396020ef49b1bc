"""Names of the DSL that are refused: the cube unit's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["CUBE", "refuse_cube"]

# function -> the operator of the Graph Engine that does it
CUBE = {
    "conv": "Conv",
    "conv2d": "Conv",
    "conv3d": "Conv",
    "conv_compute": "Conv",
    "conv2d_backprop_filter_compute": "ConvGradWeights",
    "conv2d_backprop_input_compute": "ConvTranspose",
    "conv2d_dx": "ConvTranspose",
    "conv3d_backprop_filter": "ConvGradWeights",
    "conv3d_backprop_input": "ConvTranspose",
    "conv2d_backprop_filter": "ConvGradWeights",
    "conv2d_backprop_input": "ConvTranspose",
    "deconvolution_compute": "ConvTranspose",
    "depthwise_conv2d_compute": "Conv",
    "depthwise_conv2d_backprop_filter_d_compute": "ConvGradWeights",
    "depthwise_conv2d_backprop_input_d_compute": "ConvTranspose",
    "matmul": "MatMul",
    "gemm": "MatMul",
    "get_matmul_performance_format": "MatMul",
    "pooling2d": "MaxPool or AvgPool",
    "pooling3d": "MaxPool or AvgPool",
    "dilation": "Conv with dilations",
    "max_pooling3d_grad_grad": "MaxPool",
}


def refuse_cube(name: str) -> Callable[..., Any]:
    """A function that says which operator to use instead."""

    def refused(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            f"{name} is a function of the cube unit, not of the vector DSL; "
            f"use the Graph Engine's operator {CUBE[name]} beside this one"
        )

    refused.__name__ = name
    refused.__doc__ = f"Refused: use the Graph Engine's operator {CUBE[name]}."
    return refused
