"""Runs the nodes that compute on text or decode images on the host, with ONNX's reference evaluator."""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ge.errors import GeError

__all__ = ["HostPart"]


@dataclass(frozen=True)
class HostPart:
    """A standalone ONNX model, and the plan's ports that its values come from or go to."""

    model: bytes = b""
    ports: tuple[tuple[str, int, bool], ...] = ()  # value, port of the plan, whether it is text

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {"model": base64.b64encode(self.model).decode(), "ports": [list(p) for p in self.ports]}

    @classmethod
    def from_json(cls, data: Any) -> HostPart:
        """From JSON; raises KeyError, TypeError or ValueError if it is malformed."""
        ports = tuple((str(name), int(port), bool(text)) for name, port, text in data["ports"])
        return cls(base64.b64decode(data["model"], validate=True), ports)

    @cached_property
    def _evaluator(self) -> Any:
        import onnx
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(onnx.load_model_from_string(self.model), new_ops=_operators())

    def run(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name, for inputs taken from `values`."""
        if not self.model:
            return {}
        evaluator = self._evaluator
        feeds = {name: _as_text(values[name]) for name in evaluator.input_names}
        try:
            results = evaluator.run(None, feeds)
        except ImportError as error:
            raise GeError(
                "E10032", f"the host's part of the model needs a package: {error}", remedy="install it"
            ) from error
        except Exception as error:
            raise GeError("E10024", f"the host's part of the model failed: {error}") from error
        return {n: _as_objects(v) for n, v in zip(evaluator.output_names, results, strict=True)}


def _as_text(value: Any) -> Any:
    """Strings as object arrays, whatever form the caller used."""
    if isinstance(value, dict):
        return value
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


def _as_objects(value: Any) -> Any:
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else value


# -- operators that ONNX's evaluator lacks, or supports for small inputs only ---------------------------------


def _operators() -> list[Any]:
    from onnx.reference.op_run import OpRun

    class Tokenizer(OpRun):
        """ONNX Runtime's Tokenizer: words between separators, or the matches of an expression, padded."""

        op_domain = "com.microsoft"

        def _run(self, x, mark=0, mincharnum=1, pad_value="", separators=None, tokenexp=None):  # type: ignore[no-untyped-def]
            rows = [_tokens(str(t), mincharnum, separators, tokenexp) for t in x.reshape(-1)]
            rows = [["\x02", *row, "\x03"] for row in rows] if mark else rows
            width = max(map(len, rows), default=0)
            padded = [row + [pad_value] * (width - len(row)) for row in rows]
            return (np.array(padded, object).reshape(*x.shape, width),)

    class StringNormalizer(OpRun):
        """Words without stop words, in one case; ONNX's evaluator sets the locale of the whole process for it."""

        def _run(self, x, case_change_action="NONE", is_case_sensitive=0, locale=None, stopwords=None):  # type: ignore[no-untyped-def]
            return (_normalised(x, case_change_action, bool(is_case_sensitive), stopwords or []),)

    class TfIdfVectorizer(OpRun):
        """n-grams counted with a table of the pool."""

        def _run(self, x, **attributes):  # type: ignore[no-untyped-def]
            return (_tf_idf(x, attributes),)

    class CastMap(OpRun):
        """The values of a dictionary with integers as keys, in the order of the keys, as one row."""

        op_domain = "ai.onnx.ml"

        def _run(self, x, cast_to="TO_FLOAT", map_form="DENSE", max_map=1):  # type: ignore[no-untyped-def]
            return (_row_of_map(x, cast_to, map_form, int(max_map)),)

    return [CastMap, StringNormalizer, Tokenizer, TfIdfVectorizer]


def _as_word(value: Any) -> str:
    return value if isinstance(value, str) else f"{np.float32(value):f}"


def _row_of_map(x: Mapping[int, Any], cast_to: str, form: str, width: int) -> np.ndarray:
    conversions: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
        "TO_FLOAT": (float, np.float32, 0.0),
        "TO_INT64": (lambda v: int(float(v)), np.int64, 0),
        "TO_STRING": (_as_word, object, "0.f"),  # what ONNX Runtime writes for keys that are absent
    }
    convert, dtype, nothing = conversions[cast_to]
    if form == "DENSE":
        values = [convert(x[key]) for key in sorted(x)]
    else:
        if any(not 0 <= key < width for key in x):
            raise ValueError(f"the keys {sorted(x)} of CastMap do not fit max_map={width}")
        values = [convert(x[key]) if key in x else nothing for key in range(width)]
    return np.array(values, dtype).reshape(1, -1)


def _normalised(x: np.ndarray, change: str, sensitive: bool, stopwords: list[str]) -> np.ndarray:
    """Unicode's own case mapping, which the locales that exporters write agree with."""
    changes: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}
    mapped = changes[change]
    stops = set(stopwords) if sensitive else {word.lower() for word in stopwords}
    kept = [str(w) for w in x.reshape(-1) if (str(w) if sensitive else str(w).lower()) not in stops]
    words = [mapped(word) for word in kept] or [""]  # of nothing, one empty string remains
    flat = np.array(words, object)
    return flat if x.ndim == 1 else flat.reshape(1, -1)


def _tokens(text: str, least: int, separators: list[str] | None, expression: str | None) -> list[str]:
    if expression:
        found = [m.group(0) for m in re.finditer(expression, text)]
    elif not separators or list(separators) == [""]:
        found = list(text)
    else:
        found = [text]
        for separator in separators:
            found = [piece for part in found for piece in re.split(separator, part) if piece]
    return [token for token in found if len(token) >= least]


def _tf_idf(x: np.ndarray, attributes: Mapping[str, Any]) -> np.ndarray:
    """The count of each n-gram of the pool in each row, with its elements 0 to max_skip_count positions apart."""
    pool = list(attributes.get("pool_strings") or attributes.get("pool_int64s") or [])
    starts, places = [*attributes["ngram_counts"], len(pool)], list(attributes["ngram_indexes"])
    table: dict[tuple[Any, ...], int] = {}
    sizes: list[int] = []
    for size, (begin, end) in enumerate(itertools.pairwise(starts), 1):
        wanted = attributes["min_gram_length"] <= size <= attributes["max_gram_length"]
        grams = [tuple(pool[i : i + size]) for i in range(begin, end, size)]
        sizes += [size] if wanted and grams else []
        first = len(table)
        table.update({(size, *gram): first + k for k, gram in enumerate(grams)})
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    counts = np.zeros((len(rows), max(places, default=-1) + 1), np.float32)
    for row, items in zip(counts, rows.tolist(), strict=True):
        for size in sizes:
            for skip in range(1, int(attributes["max_skip_count"]) + 2 if size > 1 else 2):
                for start in range(len(items) - (size - 1) * skip):
                    place = table.get((size, *items[start : start + (size - 1) * skip + 1 : skip]))
                    if place is not None:
                        row[places[place]] += 1
    if attributes["mode"] == "IDF":
        counts = (counts > 0).astype(np.float32)
    if attributes["mode"] != "TF" and attributes.get("weights") is not None:
        spread = np.zeros(counts.shape[1], np.float32)
        spread[places] = attributes["weights"]
        counts = counts * spread
    return counts if x.ndim > 1 else counts.reshape(-1)
