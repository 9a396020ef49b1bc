"""The channel between datasets and the device: batches are prepared while the step before them runs.

The device shares the host's memory, so that handing a batch over costs nothing; what remains is to have it ready. The
queue is tf.data's own: bounded, in order, with the end of the data and errors where they belong. TensorFlow
by itself adds one whose length it tunes from a single element upwards; here it is long from the first step on.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_adapter.options import options

__all__ = ["ahead"]

_LAST = ("PrefetchDataset",)  # datasets that prepare elements ahead by themselves
_AROUND = ("OptionsDataset",)


def ahead(dataset: Any) -> Any:
    """A dataset whose iterators prepare `options.prefetch` elements ahead.

    One that does so by itself stays as it is, and so does one that reads variables or other state of the program:
    its elements depend on when they are made, which is left to TensorFlow.

    >>> type(ahead(tf.data.Dataset.range(3))).__name__
    '_PrefetchDataset'
    """
    if not options.prefetch or _prefetches(dataset) or _reads_state(dataset):
        return dataset
    return dataset.prefetch(options.prefetch)


def _kind(dataset: Any) -> str:
    return type(dataset).__name__.lstrip("_").removesuffix("V1").removesuffix("V2")


def _prefetches(dataset: Any) -> bool:
    while _kind(dataset) in _AROUND:
        dataset = dataset._input_dataset
    return _kind(dataset) in _LAST


def _reads_state(dataset: Any) -> bool:
    """Whether a function of the dataset, or of one it is made of, holds a resource."""
    held = (t for f in dataset._functions() for t in f.function.captured_inputs)
    return any(t.dtype == tf.resource for t in held) or any(map(_reads_state, dataset._inputs()))
