"""Lookup tables: made, filled from constants, files or the checkpoint, and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ge.errors import GeError
from ge.parsers.tensorflow.host.operators import HostNode, host
from ge.parsers.tensorflow.tensor import storage_dtype

__all__ = ["FILLING", "Table"]

FILLING = (
    "LookupTableImportV2",
    "LookupTableImport",
    "InitializeTableV2",
    "InitializeTable",
    "InitializeTableFromTextFileV2",
)
_WHOLE_LINE, _LINE_NUMBER = -2, -1


class Table:
    """Values by key; keys of several numbers are tuples."""

    def __init__(self, name: str, keys: np.dtype, values: np.dtype) -> None:
        self.name, self.key_type, self.value_type = name, keys, values
        self.items: dict[Any, Any] = {}
        self.filled = False

    def fill(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Replace the content."""
        self.items = dict(zip(keys.tolist(), values.tolist(), strict=True))
        self.filled = True

    def find(self, keys: np.ndarray, default: np.ndarray) -> np.ndarray:
        """The values of keys; the default for those that are not there."""
        fallback = default.reshape(-1).tolist()
        missing = fallback[0] if len(fallback) == 1 else fallback
        found = [self.items.get(key, missing) for key in keys.reshape(-1).tolist()]
        made = np.empty((keys.size, *default.shape), self.value_type)
        for place, item in enumerate(found):
            made[place] = item
        return made.reshape(*keys.shape, *default.shape)


@host(
    "HashTableV2",
    "HashTable",
    "MutableHashTableV2",
    "MutableHashTable",
    "MutableHashTableOfTensorsV2",
    "AnonymousHashTable",
)
def _table(n: HostNode) -> Table:
    name = str(n.attr("shared_name") or n.name)
    kinds = (storage_dtype(str(n.attr(k))) for k in ("key_dtype", "value_dtype"))
    found = n.resources.tables.get(name)
    if found is None:
        found = n.resources.tables[name] = Table(name, *kinds)
    return found


@host(*FILLING[:4])
def _fill(n: HostNode, table: Table, keys: np.ndarray, values: np.ndarray) -> tuple[()]:
    table.fill(keys, values)
    return ()


@host("InitializeTableFromTextFileV2")
def _fill_from_file(n: HostNode, table: Table, file: np.ndarray) -> tuple[()]:
    """Keys and values are the line, its number, or a column of it."""
    name = file.reshape(-1)[0].decode()
    path = Path(name)
    if not path.is_file():
        raise GeError(
            "E10100", f"the table reads the file {name}, which is not there", node=n.name, operator=n.op
        )
    delimiter, size = n.attr("delimiter", "\t").encode(), int(n.attr("vocab_size", -1))
    lines = path.read_bytes().splitlines()[int(n.attr("offset", 0)) :]
    lines = lines[:size] if size >= 0 else lines

    def column(index: int, kind: np.dtype) -> np.ndarray:
        if index == _LINE_NUMBER:
            return np.arange(len(lines), dtype=np.int64)
        words = lines if index == _WHOLE_LINE else [line.split(delimiter)[index] for line in lines]
        made = np.empty(len(words), object)
        made[:] = words
        return made if kind.kind == "O" else made.astype(bytes).astype(kind)

    keys, values = int(n.attr("key_index", _WHOLE_LINE)), int(n.attr("value_index", _LINE_NUMBER))
    table.fill(column(keys, table.key_type), column(values, table.value_type))
    return ()


@host("LookupTableFindV2", "LookupTableFind")
def _find(n: HostNode, table: Table, keys: np.ndarray, default: np.ndarray) -> np.ndarray:
    if not table.filled:
        raise GeError(
            "E10107",
            f"the table '{table.name}' has no content: nothing in the file fills it",
            node=n.name,
            operator=n.op,
            remedy="give the SavedModel folder, with its checkpoint and assets",
        )
    return table.find(keys, default)


@host("LookupTableSizeV2", "LookupTableSize")
def _size(n: HostNode, table: Table) -> np.ndarray:
    return np.asarray(len(table.items), np.int64)


@host("LookupTableExportV2")
def _export(n: HostNode, table: Table) -> tuple[np.ndarray, np.ndarray]:
    keys, values = np.empty(len(table.items), table.key_type), np.empty(len(table.items), table.value_type)
    keys[:], values[:] = list(table.items), list(table.items.values())
    return keys, values


@host("RestoreV2")
def _restore(n: HostNode, prefix: np.ndarray, names: np.ndarray, parts: np.ndarray) -> tuple[Any, ...]:
    """What a table is restored from; variables are read by the parser itself."""
    checkpoint = n.resources.checkpoint
    if checkpoint is None:
        raise GeError("E10107", "the model has no checkpoint", node=n.name, operator=n.op)
    texts = [name.decode() for name in names.reshape(-1).tolist()]
    return tuple(checkpoint.read(text) if text in checkpoint else None for text in texts)
