"""acl.Model: a compiled model as a callable on arrays."""

from __future__ import annotations

import os
from typing import Any

from acl._state import on_device_of_thread

__all__ = ["Model"]


class Model:
    """A compiled model as a function of arrays; it runs on the device that `acl.rt.set_device` chose for the thread.

    >>> model = Model("resnet50.om")              # doctest: +SKIP
    >>> y = model(x)                              # doctest: +SKIP
    >>> y = model(image=x)                        # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str], *, trust: bool = False) -> None:
        from ge.model import om

        with on_device_of_thread():
            self._model = om.load(path, trust=trust)

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def inputs(self) -> list[Any]:
        """Name, shape and element type of each input."""
        return self._model.inputs

    @property
    def outputs(self) -> list[Any]:
        """Name, shape and element type of each output."""
        return self._model.outputs

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Run the model; returns one array or a tuple. The calling thread waits without holding the GIL."""
        with on_device_of_thread():
            return self._model(*arrays, **named)

    def run(self, arrays: list[Any]) -> list[Any]:
        """Run on arrays in the order of `inputs`; always returns a list."""
        with on_device_of_thread():
            return self._model.run(arrays)

    def profile(self, path: str | os.PathLike[str] = "", repeats: int = 10) -> str:
        """One line per task with its time, on zeros (with gears: the first one).

        With a path, also writes a trace for Perfetto.
        """
        from ge.model.model import Model as Single
        from ge.profile import table, trace

        model = self._model if isinstance(self._model, Single) else self._model.gear(0)
        tasks = model.profile(repeats=repeats)
        if path:
            trace(path, tasks, self.name)
        return table(tasks)

    def __repr__(self) -> str:
        return f"acl.{self._model!r}"
