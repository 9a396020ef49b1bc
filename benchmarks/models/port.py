"""Rebuilds a PyTorch module in Keras, channels last, layer by layer and with the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

__all__ = ["KerasPort", "KerasTensor"]

KerasTensor = Any  # keras.KerasTensor; Keras is imported only when a port is made


def array(tensor: Tensor) -> np.ndarray:
    """The tensor's values."""
    return tensor.detach().cpu().numpy()


class KerasPort:
    """Makes Keras layers out of the sub-modules of a PyTorch module, addressed by their paths.

    `policy` is the Keras dtype policy of every layer: "float32" or "mixed_bfloat16".
    """

    def __init__(self, module: nn.Module, policy: str = "float32") -> None:
        import keras

        self.module: Any = module
        self.ops = keras.ops
        self._layers = keras.layers
        self._policy = policy
        self._compute_dtype = keras.DTypePolicy(policy).compute_dtype
        self._modules = dict(module.named_modules())

    def at(self, path: str) -> Any:
        """The sub-module at a path such as `blocks.3.conv`."""
        return self._modules[path]

    def _apply(
        self, kind: str, x: KerasTensor, path: str, weights: list[np.ndarray], **arguments: Any
    ) -> KerasTensor:
        layer = getattr(self._layers, kind)(name=path.replace(".", "_"), dtype=self._policy, **arguments)
        y = layer(x)
        layer.set_weights(weights)
        return y

    def conv(self, x: KerasTensor, path: str) -> KerasTensor:
        """Conv2d, as DepthwiseConv2D when every channel is its own group."""
        conv = self.at(path)
        pad, stride = conv.padding[0], conv.stride[0]
        same = stride == 1 and pad == conv.kernel_size[0] // 2
        if pad and not same:
            x = self._layers.ZeroPadding2D(pad, dtype=self._policy)(x)
        common = {
            "kernel_size": conv.kernel_size,
            "strides": stride,
            "padding": "same" if same else "valid",
            "use_bias": conv.bias is not None,
        }
        bias = [] if conv.bias is None else [array(conv.bias)]
        if conv.groups > 1 and conv.groups == conv.in_channels == conv.out_channels:
            kernel = array(conv.weight).transpose(2, 3, 0, 1)
            return self._apply("DepthwiseConv2D", x, path, [kernel, *bias], **common)
        kernel = array(conv.weight).transpose(2, 3, 1, 0)
        return self._apply(
            "Conv2D", x, path, [kernel, *bias], filters=conv.out_channels, groups=conv.groups, **common
        )

    def norm(self, x: KerasTensor, path: str) -> KerasTensor:
        """BatchNorm2d, with its running statistics."""
        norm = self.at(path)
        weights = [array(t) for t in (norm.weight, norm.bias, norm.running_mean, norm.running_var)]
        return self._apply("BatchNormalization", x, path, weights, epsilon=norm.eps)

    def layer_norm(self, x: KerasTensor, path: str) -> KerasTensor:
        norm = self.at(path)
        return self._apply(
            "LayerNormalization", x, path, [array(norm.weight), array(norm.bias)], epsilon=norm.eps
        )

    def dense(self, x: KerasTensor, path: str) -> KerasTensor:
        linear = self.at(path)
        return self._apply(
            "Dense", x, path, [array(linear.weight).T, array(linear.bias)], units=linear.out_features
        )

    def embedding(self, ids: KerasTensor, path: str) -> KerasTensor:
        table = self.at(path)
        return self._apply(
            "Embedding",
            ids,
            path,
            [array(table.weight)],
            input_dim=table.num_embeddings,
            output_dim=table.embedding_dim,
        )

    def lstm_layer(self, x: KerasTensor, path: str, layer: int, sequences: bool) -> KerasTensor:
        """One layer of an LSTM: both frameworks order the gates input, forget, cell, output."""
        lstm = self.at(path)
        kernel, recurrent, bias, recurrent_bias = (
            array(getattr(lstm, f"{name}_l{layer}"))
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        weights = [kernel.T, recurrent.T, bias + recurrent_bias]
        return self._apply(
            "LSTM", x, f"{path}.{layer}", weights, units=lstm.hidden_size, return_sequences=sequences
        )

    def max_pool(self, x: KerasTensor, path: str) -> KerasTensor:
        """MaxPool2d of values that are not negative."""
        pool = self.at(path)
        if pool.padding:
            x = self._layers.ZeroPadding2D(pool.padding, dtype=self._policy)(x)
        return self._layers.MaxPooling2D(pool.kernel_size, pool.stride, dtype=self._policy)(x)

    def global_average(self, x: KerasTensor, keepdims: bool = False) -> KerasTensor:
        return self._layers.GlobalAveragePooling2D(keepdims=keepdims, dtype=self._policy)(x)

    def activation(self, x: KerasTensor, path: str) -> KerasTensor:
        """Any of the activations the zoo uses."""
        kind = self.at(path)
        if isinstance(kind, nn.GELU):
            return self.ops.gelu(x, approximate=kind.approximate == "tanh")
        table = {nn.ReLU6: self.ops.relu6, nn.SiLU: self.swish, nn.ReLU: self.relu, nn.Identity: lambda y: y}
        return table[type(kind)](x)

    def relu(self, x: KerasTensor) -> KerasTensor:
        return self.ops.relu(x)

    def swish(self, x: KerasTensor) -> KerasTensor:
        return self.ops.silu(x)

    def sigmoid(self, x: KerasTensor) -> KerasTensor:
        return self.ops.sigmoid(x)

    def add(self, x: KerasTensor, y: KerasTensor) -> KerasTensor:
        return self.ops.add(x, y)

    def multiply(self, x: KerasTensor, y: KerasTensor) -> KerasTensor:
        return self.ops.multiply(x, y)

    def parameter(self, tensor: Tensor) -> KerasTensor:
        """A bare parameter, as a constant of the compute dtype."""
        return self.ops.cast(self.ops.convert_to_tensor(array(tensor)), self._compute_dtype)
