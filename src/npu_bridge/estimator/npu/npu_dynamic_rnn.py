"""Recurrent layers over whole sequences, time first."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

__all__ = ["DynamicGRUV2", "DynamicRNN"]


class _Recurrent:
    """Checks what the layers have in common, and makes their variables once."""

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
        self._reverse = direction == "REDIRECTIONAL"
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

    def _steps(self, length: int) -> range:
        return range(length - 1, -1, -1) if self._reverse else range(length)

    def _state(self, given: Any, batch: Any) -> Any:
        if given is None:
            return tf.zeros([batch, self._hidden_size], self._dtype)
        return tf.reshape(given, [batch, self._hidden_size])

    @staticmethod
    def _kept(step: Any, lengths: Any, new: Any, old: Any) -> Any:
        """The new state where the sequence goes on, the old one behind its end."""
        return new if lengths is None else tf.where(tf.expand_dims(step < lengths, 1), new, old)

    def _scan(self, x: Any, seq_length: Any, states: tuple[Any, ...], cell: Any) -> list[Any]:
        """Run the cell over time; its results, stacked along time."""
        if len(x.shape) != 3 or x.shape[0] is None:
            raise ValueError(f"inputs must be (time, batch, features) with a known time, got {x.shape}")
        length = int(x.shape[0])
        lengths = None if seq_length is None else tf.cast(seq_length, tf.int32)
        results: list[Any] = [None] * length
        for step in self._steps(length):
            values = cell(x[step], states)
            states = tuple(
                self._kept(step, lengths, new, old)
                for new, old in zip(values[: len(states)], states, strict=True)
            )
            results[step] = (*states, *values[len(states) :])
        return [tf.stack(column) for column in zip(*results, strict=True)]


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
        batch, inputs = tf.shape(x)[1], int(x.shape[2])
        if weight is None or bias is None:
            if self._weights is None:
                self._weights = self._make_weights(inputs, inputs + self._hidden_size, ("w", "b"))
            weight, bias = self._weights

        def cell(now: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
            h, c = states
            i, j, f, o = tf.split(tf.matmul(tf.concat([now, h], 1), weight) + bias, 4, axis=1)
            i, j, f, o = tf.sigmoid(i), tf.tanh(j), tf.sigmoid(f + self._forget_bias), tf.sigmoid(o)
            c = f * c + i * j
            if self._cell_clip > 0:
                c = tf.clip_by_value(c, -self._cell_clip, self._cell_clip)
            tanhc = tf.tanh(c)
            return o * tanhc, c, i, j, f, o, tanhc

        states = (self._state(init_h, batch), self._state(init_c, batch))
        h, c, i, j, f, o, tanhc = self._scan(x, seq_length, states, cell)
        return h, h, c, i, j, f, o, tanhc


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
        self._update_first = gate_order == "zrh"
        self._reset_after = reset_after

    def __call__(
        self, x: Any, seq_length: Any = None, init_h: Any = None, weight_input: Any = None,
        weight_hidden: Any = None, bias_input: Any = None, bias_hidden: Any = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Run over a sequence."""
        batch, inputs = tf.shape(x)[1], int(x.shape[2])
        given: tuple[Any, ...] = (weight_input, weight_hidden, bias_input, bias_hidden)
        if any(w is None for w in given):
            if self._weights is None:
                self._weights = self._make_weights(inputs, 0, ("wx", "wh", "bx", "bh"))
            given = self._weights
        wx, wh, bx, bh = given

        def cell(now: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
            (h,) = states
            from_x = tf.split(tf.matmul(now, wx) + bx, 3, axis=1)
            from_h = tf.split(tf.matmul(h, wh) + bh, 3, axis=1)
            z, r = (0, 1) if self._update_first else (1, 0)
            update, reset = tf.sigmoid(from_x[z] + from_h[z]), tf.sigmoid(from_x[r] + from_h[r])
            if self._reset_after:
                hidden = from_h[2]
                new = tf.tanh(from_x[2] + reset * hidden)
            else:
                hidden = tf.matmul(reset * h, wh[:, 2 * self._hidden_size :]) + bh[2 * self._hidden_size :]
                new = tf.tanh(from_x[2] + hidden)
            return (1 - update) * new + update * h, update, reset, new, hidden

        h, update, reset, new, hidden = self._scan(x, seq_length, (self._state(init_h, batch),), cell)
        return h, h, update, reset, new, hidden
