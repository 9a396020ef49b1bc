"""Keras callbacks."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from npu_bridge.estimator.npu.npu_hook import broadcast_global_variables

__all__ = ["NPUBroadcastGlobalVariablesCallback"]


class NPUBroadcastGlobalVariablesCallback(tf.keras.callbacks.Callback):
    """Broadcasts the root's variables before the first batch."""

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        self._root_rank = root_rank
        self._done = False

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Broadcast once."""
        del batch, logs
        if not self._done:
            tf.keras.backend.get_session().run(broadcast_global_variables(self._root_rank))
            self._done = True
