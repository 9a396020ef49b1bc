"""The cases of ONNX's backend test suite, as models with inputs and expected outputs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx

__all__ = ["KINDS", "Case", "collect"]

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted", "light")
_NUMERIC = frozenset(
    getattr(onnx.TensorProto, name)
    for name in (
        *("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "BOOL"),
        *(f"{kind}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)),
    )
)
# Random results: only shape and element type can be compared.
_RANDOM = frozenset(
    {"Bernoulli", "RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike", "Multinomial"}
)


@dataclass(frozen=True)
class Case:
    """One test of the suite."""

    kind: str
    name: str
    source: Any  # the suite's own record

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The model under test."""
        if self.source.model is not None:
            return self.source.model
        return onnx.load(str(self._path))

    @property
    def _path(self) -> Path:
        if self.kind == "light":
            return Path(onnx.__file__).parent.parent / self.source.url
        return Path(self.source.model_dir) / "model.onnx"

    @property
    def tolerances(self) -> tuple[float, float]:
        """Relative and absolute tolerance."""
        return self.source.rtol, self.source.atol

    @cached_property
    def numeric(self) -> bool:
        """True if all inputs and outputs are tensors of numbers or bools."""
        ports = [*self.model.graph.input, *self.model.graph.output]
        kinds = {p.type.WhichOneof("value") for p in ports}
        return kinds <= {"tensor_type"} and all(p.type.tensor_type.elem_type in _NUMERIC for p in ports)

    @cached_property
    def random(self) -> bool:
        """True if the values are random and cannot be compared."""
        types = {n.op_type for n in self.model.graph.node}
        return bool(types & _RANDOM) or ("Dropout" in types and "training" in self.name)

    @property
    def operators(self) -> list[str]:
        """The operator types in the model."""
        return sorted({n.op_type for n in self.model.graph.node})

    def data_sets(self) -> list[tuple[list[Any], list[Any]]]:
        """Pairs of inputs and expected outputs."""
        if self.source.data_sets is not None:
            return [([_plain(v) for v in i], [_plain(v) for v in o]) for i, o in self.source.data_sets]
        if self.kind == "light":
            return [self._light()]
        return [self._stored(folder) for folder in sorted(self._path.parent.glob("test_data_set*"))]

    def _light(self) -> tuple[list[Any], list[Any]]:
        from onnx.backend.test.runner import Runner

        stored = {t.name for t in self.model.graph.initializer}
        ports = [p for p in self.model.graph.input if p.name not in stored]
        inputs = [Runner.generate_dummy_data(p, seed=0, name=self.name, random=False) for p in ports]
        stem = str(self._path.with_suffix(""))
        return inputs, [
            _read_tensor(Path(f"{stem}_output_{i}.pb")) for i in range(len(self.model.graph.output))
        ]

    def _stored(self, folder: Path) -> tuple[list[Any], list[Any]]:
        def read(prefix: str, ports: Sequence[onnx.ValueInfoProto]) -> list[Any]:
            count = len(list(folder.glob(f"{prefix}_*.pb")))
            return [_read(folder / f"{prefix}_{i}.pb", ports[i].type) for i in range(count)]

        return read("input", self.model.graph.input), read("output", self.model.graph.output)


def _plain(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _read_tensor(path: Path) -> np.ndarray:
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return onnx.numpy_helper.to_array(tensor)


def _read(path: Path, kind: onnx.TypeProto) -> Any:
    if kind.HasField("sequence_type"):
        sequence = onnx.SequenceProto()
        sequence.ParseFromString(path.read_bytes())
        return onnx.numpy_helper.to_list(sequence)
    if kind.HasField("optional_type"):
        optional = onnx.OptionalProto()
        optional.ParseFromString(path.read_bytes())
        return onnx.numpy_helper.to_optional(optional)
    return _read_tensor(path)


def collect(kinds: Sequence[str]) -> list[Case]:
    """All cases of the given kinds, in the suite's order."""
    from onnx.backend.test.loader import load_model_tests

    found: list[Case] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in kinds:
            tests = load_model_tests(kind="real" if kind == "light" else kind)
            found += [Case(kind, t.name, t) for t in tests]
    return found
