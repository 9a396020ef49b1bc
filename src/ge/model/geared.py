"""A model with gears: one plan per gear, loaded on first use, all sharing the same weights."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ge.errors import GeError
from ge.gears import Gears
from ge.implementations.selection import retarget
from ge.model.model import Model
from ge.plan import Plan, Port
from ge.target import host

__all__ = ["GearedModel", "build_model"]


def build_model(plan: Plan) -> Model:
    """Load a plan from a file; whatever the runtime rejects is an error of the file."""
    try:
        retarget(plan, host())
        return Model(plan)
    except GeError:
        raise
    except Exception as error:
        raise GeError(
            "E11008",
            f"the runtime refuses model {plan.name[:80]}: {error}",
            remedy="compile the original model with atc",
        ) from error


class GearedModel:
    """Called like a Model; the input shapes select the gear.

    >>> y = model(np.zeros((4, 3, 224, 224), np.float32))     # doctest: +SKIP
    """

    def __init__(self, plans: Sequence[Plan], gears: Gears) -> None:
        self.plans = list(plans)
        if any("interface" in plan.report for plan in self.plans):
            raise GeError(
                "E10020",
                f"model {self.name} takes or returns strings, sequences or dictionaries, which gears do not have",
                remedy="compile it for one shape",
            )
        self.gears = gears
        self._models: dict[int, Model] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self.plans[0].name

    @property
    def plan(self) -> Plan:
        """The plan with the largest inputs."""
        return max(self.plans, key=lambda p: sum(port.desc.nbytes for port in p.inputs))

    @property
    def inputs(self) -> list[Port]:
        return self.plan.inputs

    @property
    def outputs(self) -> list[Port]:
        return self.plan.outputs

    def find(self, shapes: Sequence[Sequence[int]]) -> int:
        """The gear for input shapes; raises an error that lists the gears if none fits."""
        wanted = [tuple(shape) for shape in shapes]
        for index, plan in enumerate(self.plans):
            if [port.desc.shape for port in plan.inputs] == wanted:
                return index
        given = ", ".join(
            f"{p.name}:{','.join(map(str, s))}" for p, s in zip(self.inputs, wanted, strict=False)
        )
        known = "; ".join(",".join(map(str, c)) for c in self.gears.choices)
        raise GeError(
            "E11101",
            f"no gear of the model fits the inputs {given}",
            remedy=f"use one of the {self.gears.kind.value} gears {known}, or compile one for these inputs",
        )

    def gear(self, index: int) -> Model:
        """The model of one gear."""
        with self._lock:
            if index not in self._models:
                self._models[index] = build_model(self.plans[index])
            return self._models[index]

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Run on arrays, passed by position or by name; returns one array, or a tuple of several."""
        ordered = [*arrays, *(named[p.name] for p in self.inputs[len(arrays) :] if p.name in named)]
        results = self.run(ordered)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, arrays: Sequence[Any], into: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
        """Run on arrays in the order of `inputs`."""
        if len(arrays) != len(self.inputs):
            raise GeError("E10020", f"model {self.name} takes {len(self.inputs)} inputs, got {len(arrays)}")
        try:
            shapes = [np.shape(a) for a in arrays]
        except ValueError as error:
            raise GeError("E10020", f"an input of model {self.name} is not an array: {error}") from error
        return self.gear(self.find(shapes)).run(arrays, into)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model to an `.om` file; returns its path."""
        from ge.model import om

        return om.save(self, path)

    def __repr__(self) -> str:
        choices = "; ".join(",".join(map(str, c)) for c in self.gears.choices)
        return f"GearedModel({self.name}: {self.gears.kind.value} {choices})"
