"""Names of `tf.contrib` without a counterpart in TensorFlow 2, reimplemented on top of it."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

__all__ = [
    "HParams",
    "batch_and_drop_remainder",
    "index_table_from_tensor",
    "stack_bidirectional_dynamic_rnn",
]


class HParams:
    """Named hyperparameters whose values can be parsed from text.

    >>> hparams = HParams(rate=0.1, layers=[64, 32], name="net")
    >>> hparams.parse("rate=0.5,layers=[8,4]").values()
    {'rate': 0.5, 'layers': [8, 4], 'name': 'net'}
    """

    def __init__(self, **values: Any) -> None:
        self.__dict__["_values"] = {}
        for name, value in values.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: Any) -> None:
        """Add a hyperparameter."""
        if name in self._values:
            raise ValueError(f"hyperparameter '{name}' exists already")
        self._values[name] = list(value) if isinstance(value, (list, tuple)) else value

    def set_hparam(self, name: str, value: Any) -> None:
        """Set the value of an existing hyperparameter, converted to its type."""
        old = self.get(name)
        self._values[name] = type(old)(value) if old is not None and not isinstance(old, list) else value

    def del_hparam(self, name: str) -> None:
        """Remove a hyperparameter."""
        self._values.pop(name, None)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a hyperparameter, or the default."""
        return self._values.get(name, default)

    def values(self) -> dict[str, Any]:
        """All hyperparameters."""
        return dict(self._values)

    def parse(self, text: str) -> HParams:
        """Override values from "name=value,…"; lists as [a,b]."""
        for item in _split(text):
            name, _, value = item.partition("=")
            if name.strip() not in self._values:
                raise ValueError(f"unknown hyperparameter '{name.strip()}'")
            self._values[name.strip()] = _like(self._values[name.strip()], value.strip())
        return self

    def override_from_dict(self, values: Mapping[str, Any]) -> HParams:
        """Override existing values."""
        for name, value in values.items():
            if name not in self._values:
                raise KeyError(name)
            self.set_hparam(name, value)
        return self

    def parse_json(self, text: str) -> HParams:
        """Override values from a JSON object."""
        return self.override_from_dict(json.loads(text))

    def to_json(self, **options: Any) -> str:
        """All hyperparameters as a JSON object."""
        return json.dumps(self._values, **options)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"there is no hyperparameter '{name}'") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__["_values"][name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __repr__(self) -> str:
        return f"HParams({', '.join(f'{k}={v!r}' for k, v in self._values.items())})"


def _split(text: str) -> Iterable[str]:
    """Split at commas outside brackets."""
    depth, start = 0, 0
    for position, letter in enumerate(text):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    if text[start:].strip():
        yield text[start:]


def _like(old: Any, text: str) -> Any:
    if isinstance(old, bool):
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    if isinstance(old, str):
        return text
    value = ast.literal_eval(text)
    return type(old)(value) if isinstance(old, (int, float)) else value


def batch_and_drop_remainder(batch_size: int) -> Callable[[Any], Any]:
    """A transformation for `dataset.apply`: batches of exactly this size."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def index_table_from_tensor(
    mapping: Any, num_oov_buckets: int = 0, default_value: int = -1, name: str | None = None
) -> Any:
    """A lookup table from the strings of a tensor to their indices."""
    keys = tf.convert_to_tensor(mapping)
    values = tf.range(tf.size(keys, out_type=tf.int64), dtype=tf.int64)
    initializer = tf.lookup.KeyValueTensorInitializer(keys, values)
    if num_oov_buckets:
        return tf.lookup.StaticVocabularyTable(initializer, num_oov_buckets, name=name)
    return tf.lookup.StaticHashTable(initializer, default_value, name=name)


def stack_bidirectional_dynamic_rnn(
    cells_fw: Sequence[Any], cells_bw: Sequence[Any], inputs: Any, dtype: Any = None, sequence_length: Any = None,
    time_major: bool = False, scope: Any = None,
) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:  # fmt: skip
    """Stacked bidirectional layers: outputs, and the states of both directions."""
    forward, backward = [], []
    with tf.variable_scope(scope or "stack_bidirectional_rnn"):
        for index, (cell_fw, cell_bw) in enumerate(zip(cells_fw, cells_bw, strict=True)):
            with tf.variable_scope(f"cell_{index}"):
                outputs, (state_fw, state_bw) = tf.nn.bidirectional_dynamic_rnn(
                    cell_fw,
                    cell_bw,
                    inputs,
                    sequence_length=sequence_length,
                    dtype=dtype,
                    time_major=time_major,
                )
                inputs = tf.concat(outputs, 2)
                forward.append(state_fw)
                backward.append(state_bw)
    return inputs, tuple(forward), tuple(backward)
