"""Recurrent layers over whole sequences, time first."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from npu_device import gen_npu_ops

__all__ = ["DynamicGRUV2", "DynamicRNN"]


class _Recurrent:
    """Shared checks of the layers; creates their variables once."""

    gates = 0

    def __init__(
        self, hidden_size: int, dtype: Any, direction: str, cell_depth: int, activation: str
    ) -> None:
        if direction not in ("UNIDIRECTIONAL", "REDIRECTIONAL"):
            raise ValueError(f"direction must be UNIDIRECTIONAL or REDIRECTIONAL, not {direction}")
        if cell_depth != 1 or activation != "tanh":
            raise ValueError("cell_depth must be 1 and activation 'tanh'")
        self._hidden_size = hidden_size
        self._dtype = tf.as_dtype(dtype)
        self._direction = direction
        self._scope = tf.get_variable_scope()
        self._weights: tuple[Any, ...] | None = None

    def _make_weights(self, inputs: int, rows: int, names: tuple[str, ...]) -> tuple[Any, ...]:
        width = self.gates * self._hidden_size
        shapes = {"w": [rows, width], "b": [width], "wx": [inputs, width], "wh": [self._hidden_size, width]}
        shapes |= {"bx": [width], "bh": [width]}
        with tf.variable_scope(self._scope, default_name="dynamic_rnn", auxiliary_name_scope=False):
            return tuple(
                tf.get_variable(
                    f"{type(self).__name__}_{name}",
                    shapes[name],
                    self._dtype,
                    tf.glorot_uniform_initializer() if name.startswith("w") else tf.zeros_initializer(),
                )
                for name in names
            )


class DynamicRNN(_Recurrent):
    """A long short-term memory over a whole sequence.

    Returns y, h, c and the gates i, j, f, o and tanh(c), each of shape (time, batch, hidden).
    """

    gates = 4

    def __init__(
        self,
        hidden_size: int,
        dtype: Any,
        cell_type: str = "LSTM",
        direction: str = "UNIDIRECTIONAL",
        cell_depth: int = 1,
        use_peephole: bool = False,
        keep_prob: float = 1.0,
        cell_clip: float = -1.0,
        num_proj: int = 0,
        time_major: bool = True,
        activation: str = "tanh",
        forget_bias: float = 0.0,
        is_training: bool = True,
    ) -> None:
        super().__init__(hidden_size, dtype, direction, cell_depth, activation)
        if cell_type != "LSTM" or use_peephole or num_proj or keep_prob != 1.0 or not time_major:
            raise ValueError(
                "DynamicRNN runs LSTM, time first, without peepholes, projection and dropout inside the cell"
            )
        del is_training
        self._cell_clip = cell_clip
        self._forget_bias = forget_bias

    def __call__(
        self, x: Any, seq_length: Any = None, init_h: Any = None, init_c: Any = None,
        weight: Any = None, bias: Any = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Run over a sequence."""
        inputs = int(x.shape[2])
        if weight is None or bias is None:
            if self._weights is None:
                self._weights = self._make_weights(inputs, inputs + self._hidden_size, ("w", "b"))
            weight, bias = self._weights
        return gen_npu_ops.dynamic_rnn(
            x,
            weight,
            bias,
            seq_length,
            init_h,
            init_c,
            direction=self._direction,
            cell_clip=self._cell_clip,
            forget_bias=self._forget_bias,
        )


class DynamicGRUV2(_Recurrent):
    """A gated recurrent unit over a whole sequence.

    Returns y, h, and the gates update, reset, new and the hidden part of new, each (time, batch, hidden).
    """

    gates = 3

    def __init__(
        self,
        hidden_size: int,
        dtype: Any,
        direction: str = "UNIDIRECTIONAL",
        cell_depth: int = 1,
        keep_prob: float = 1.0,
        cell_clip: float = -1.0,
        num_proj: int = 0,
        time_major: bool = True,
        activation: str = "tanh",
        gate_order: str = "zrh",
        reset_after: bool = True,
        is_training: bool = True,
    ) -> None:
        super().__init__(hidden_size, dtype, direction, cell_depth, activation)
        if (
            keep_prob != 1.0
            or cell_clip > 0
            or num_proj
            or not time_major
            or gate_order not in ("zrh", "rzh")
        ):
            raise ValueError(
                "DynamicGRUV2 runs time first, without dropout, clipping and projection; gate_order is zrh or rzh"
            )
        del is_training
        self._gate_order = gate_order
        self._reset_after = reset_after

    def __call__(
        self, x: Any, seq_length: Any = None, init_h: Any = None, weight_input: Any = None,
        weight_hidden: Any = None, bias_input: Any = None, bias_hidden: Any = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Run over a sequence."""
        inputs = int(x.shape[2])
        given: tuple[Any, ...] = (weight_input, weight_hidden, bias_input, bias_hidden)
        if any(w is None for w in given):
            if self._weights is None:
                self._weights = self._make_weights(inputs, 0, ("wx", "wh", "bx", "bh"))
            given = self._weights
        wx, wh, bx, bh = given
        return gen_npu_ops.dynamic_gru_v2(
            x,
            wx,
            wh,
            bx,
            bh,
            seq_length,
            init_h,
            direction=self._direction,
            gate_order=self._gate_order,
            reset_after=self._reset_after,
        )
