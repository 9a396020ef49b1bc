"""The record of a model's structured inputs and outputs, stored as JSON in the plan and in `.om` files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ge.errors import GeError
from ge.interface.host import HostPart
from ge.interface.strings import Dictionary, identify

__all__ = ["Interface", "Leaf", "Tree"]


@dataclass(frozen=True)
class Leaf:
    """A tensor of the plan by its port, or a value of the host part by its name."""

    port: int = -1
    host: str = ""
    text: bool = False
    keys: tuple[Any, ...] = ()  # of the dictionaries that each row becomes


@dataclass(frozen=True)
class Tree:
    """A list of values: a sequence, or an optional (absent without items)."""

    items: tuple[Tree | Leaf, ...] = ()
    optional: bool = False


def _encode(item: Tree | Leaf) -> dict[str, Any]:
    if isinstance(item, Leaf):
        return {"port": item.port, "host": item.host, "text": item.text, "keys": list(item.keys)}
    return {"items": [_encode(i) for i in item.items], "optional": item.optional}


def _decode(data: Any, depth: int = 0) -> Tree | Leaf:
    if not isinstance(data, Mapping) or depth > 8:
        raise GeError("E11006", "the interface of the model is not a tree of ports")
    if "items" in data:
        return Tree(tuple(_decode(i, depth + 1) for i in data["items"]), bool(data.get("optional")))
    return Leaf(int(data["port"]), str(data["host"]), bool(data["text"]), tuple(data["keys"]))


@dataclass(frozen=True)
class Interface:
    """How a caller's values become the plan's inputs, and the plan's outputs the returned values."""

    names: tuple[str, ...]
    inputs: tuple[Tree | Leaf, ...]
    outputs: tuple[Tree | Leaf, ...]
    strings: tuple[str, ...] = ()  # the model's own strings
    before: HostPart = field(default_factory=HostPart)
    after: HostPart = field(default_factory=HostPart)

    @cached_property
    def _known(self) -> Dictionary:
        return Dictionary(self.strings)

    # -- files ----------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "names": list(self.names),
            "inputs": [_encode(i) for i in self.inputs],
            "outputs": [_encode(o) for o in self.outputs],
            "strings": list(self.strings),
            "before": self.before.to_json(),
            "after": self.after.to_json(),
        }

    @classmethod
    def from_json(cls, data: Any) -> Interface:
        """From JSON, checked."""
        try:
            return cls(
                tuple(str(n) for n in data["names"]),
                tuple(_decode(i) for i in data["inputs"]),
                tuple(_decode(o) for o in data["outputs"]),
                tuple(str(s) for s in data["strings"]),
                HostPart.from_json(data["before"]),
                HostPart.from_json(data["after"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise GeError("E11006", f"the interface of the model is malformed: {error}") from error

    def check(self, inputs: int, outputs: int) -> None:
        """Reject ports that the plan does not have, inputs that nothing fills, values without a producer."""
        given = [leaf.port for tree in self.inputs for leaf in _leaves(tree) if leaf.port >= 0]
        filled = [*given, *(port for _, port, _ in self.before.ports)]
        read = [leaf.port for tree in self.outputs for leaf in _leaves(tree) if not leaf.host]
        read += [port for _, port, _ in self.after.ports]
        if sorted(filled) != list(range(inputs)) or not all(0 <= p < outputs for p in read):
            raise GeError("E11006", "the interface of the model does not fit its ports")

    # -- runs -----------------------------------------------------------------------------------------------

    def feeds(self, values: Sequence[Any], count: int) -> tuple[list[Any], Run]:
        """The plan's `count` input arrays for the caller's values, and the state that `results` needs."""
        if not isinstance(values, list | tuple) or len(values) != len(self.inputs):
            got = len(values) if isinstance(values, list | tuple) else f"a {type(values).__name__}"
            raise GeError("E10020", f"the model takes {len(self.inputs)} inputs, got {got}")
        run = Run(self._known.copy() if self._returns_text else None, {})
        feeds: list[Any] = [None] * count
        for name, tree, value in zip(self.names, self.inputs, values, strict=True):
            self._spread(name, tree, value, feeds, run)
        for name, value in self.before.run(run.host).items():
            run.host[name] = value
        for name, port, text in self.before.ports:
            self._place(Leaf(port, text=text), run.host[name], feeds, run)
        return feeds, run

    @property
    def _returns_text(self) -> bool:
        leaves = [leaf for tree in self.outputs for leaf in _leaves(tree)]
        return any(leaf.text for leaf in leaves) or any(text for _, _, text in self.after.ports)

    def _spread(self, name: str, tree: Tree | Leaf, value: Any, feeds: list[Any], run: Run) -> None:
        if isinstance(tree, Leaf):
            if tree.host:
                run.host[tree.host] = _host_value(name, value)
            if tree.port >= 0:
                self._place(tree, value, feeds, run)
            return
        if tree.optional:
            if (value is None) != (not tree.items):
                state = "absent" if not tree.items else "present"
                raise GeError("E10020", f"the model was compiled for input '{name}' {state}")
            value = [] if value is None else [value]
        if not isinstance(value, list | tuple) or len(value) != len(tree.items):
            got = f"{len(value)} elements" if isinstance(value, list | tuple) else f"a {type(value).__name__}"
            raise GeError(
                "E10020",
                f"input '{name}' is a sequence of {len(tree.items)} tensors, got {got}",
                remedy="compile the model for sequences of this length",
            )
        for item, part in zip(tree.items, value, strict=True):
            self._spread(name, item, part, feeds, run)

    @staticmethod
    def _place(leaf: Leaf, value: Any, feeds: list[Any], run: Run) -> None:
        if leaf.text:
            array = np.asarray(value, object)
            if run.dictionary is not None:
                run.dictionary.add(array.reshape(-1).tolist())
            value = identify(array)
        feeds[leaf.port] = value

    def results(self, arrays: Sequence[np.ndarray], run: Run) -> list[Any]:
        """The caller's results for the plan's output arrays."""
        for name, port, text in self.after.ports:
            run.host[name] = run.text(arrays[port]) if text else arrays[port]
        run.host.update(self.after.run(run.host))
        return [_gathered(tree, arrays, run) for tree in self.outputs]


@dataclass
class Run:
    """The state of a run between `feeds` and `results`."""

    dictionary: Dictionary | None
    host: dict[str, Any]

    def text(self, identifiers: np.ndarray) -> np.ndarray:
        """The strings of identifiers."""
        assert self.dictionary is not None, "strings are given back"
        return self.dictionary.look_up(identifiers)


def _host_value(name: str, value: Any) -> Any:
    """An array for the host's part, or a dictionary as it is."""
    if isinstance(value, dict):
        return value
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise GeError("E10020", f"input '{name}' is not an array: {error}") from error


def _leaves(tree: Tree | Leaf) -> list[Leaf]:
    return [tree] if isinstance(tree, Leaf) else [leaf for item in tree.items for leaf in _leaves(item)]


def _gathered(tree: Tree | Leaf, arrays: Sequence[np.ndarray], run: Run) -> Any:
    if isinstance(tree, Tree):
        items = [_gathered(item, arrays, run) for item in tree.items]
        return items if not tree.optional else items[0] if items else None
    if tree.host:
        return run.host[tree.host]
    array = arrays[tree.port]
    if tree.keys:
        rows = array.reshape(-1, len(tree.keys)).tolist()
        return [dict(zip(tree.keys, row, strict=True)) for row in rows]
    return run.text(array) if tree.text else array
