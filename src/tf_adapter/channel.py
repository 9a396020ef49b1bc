"""The channel between datasets and the device: prepares the next batches while a step runs.

The device shares the host's memory, so that handing a batch over costs nothing; what remains is to have it ready. The
queue is tf.data's own: bounded, in order, with the end of the data and errors where they belong. TensorFlow
by itself adds one whose length it tunes from a single element upwards; here it is long from the first step on.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import tensorflow as tf

from tf_adapter.options import options

__all__ = ["ahead", "end_in_thread"]

_LAST = ("PrefetchDataset",)  # datasets that prepare elements ahead by themselves
_AROUND = ("OptionsDataset",)
_APART = "_npu_ends_apart"


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


def end_in_thread(iterator: Any) -> None:
    """Have what stands behind an iterator end on a thread of its own once the iterator is gone.

    The end of an iterator waits for the thread that tunes its dataset, which seems to sleep on to the end of its
    period, which doubles every time: a third of a second after a training of a third of a second.
    """
    kind = type(iterator)
    if "__del__" not in vars(kind):
        kind.__del__ = _end
    setattr(iterator, _APART, True)


def _end(iterator: Any) -> None:
    """Take the last reference away from an iterator that is going."""
    if not iterator.__dict__.pop(_APART, False):
        return
    last = [iterator.__dict__.pop("_iterator_resource", None)]
    if sys.is_finalizing():  # no thread starts any more
        return
    try:
        threading.Thread(target=last.clear, name="end of an iterator").start()
    except RuntimeError:  # no thread can be had
        last.clear()
