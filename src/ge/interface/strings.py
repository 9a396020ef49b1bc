"""Strings as 64-bit identifiers: equal strings have equal identifiers, so strings can be moved and compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from ge.errors import GeError

__all__ = ["Dictionary", "identifier", "identify"]


def identifier(text: str) -> int:
    """The identifier of a string: 63 bits of its BLAKE2 digest.

    >>> identifier("cat") == identifier("cat") != identifier("dog")
    True
    """
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _plain(item: object) -> str:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)


def identify(strings: object) -> np.ndarray:
    """An array of identifiers for an array of strings (or bytes in UTF-8)."""
    array = np.asarray(strings)
    flat = [identifier(_plain(item)) for item in array.reshape(-1).tolist()]
    return np.asarray(flat, np.int64).reshape(array.shape)


class Dictionary:
    """Strings by identifier."""

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self._strings: dict[int, str] = {}
        self.add(strings)

    def add(self, strings: Iterable[object]) -> None:
        """Add strings; rejects two strings with the same identifier."""
        for item in strings:
            text = _plain(item)
            known = self._strings.setdefault(identifier(text), text)
            if known != text:
                raise GeError("E10024", f"the strings {known!r} and {text!r} have the same identifier")

    def copy(self) -> Dictionary:
        """An independent copy with the same strings."""
        other = Dictionary()
        other._strings = dict(self._strings)
        return other

    def look_up(self, identifiers: np.ndarray) -> np.ndarray:
        """The strings of identifiers, as an object array; 0 is the empty string."""
        found = np.empty(identifiers.size, object)
        for place, number in enumerate(identifiers.reshape(-1).tolist()):
            found[place] = self._strings.get(number, "") if number else ""
        return found.reshape(identifiers.shape)
