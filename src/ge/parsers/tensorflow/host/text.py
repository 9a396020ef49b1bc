"""Operators on strings."""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.errors import GeError
from ge.parsers.tensorflow.host.hashes import fingerprint, siphash
from ge.parsers.tensorflow.host.operators import HostNode, each, host
from ge.parsers.tensorflow.tensor import storage_dtype

__all__: list[str] = []


@host("StringLower", "StringUpper")
def _case(n: HostNode, x: np.ndarray) -> np.ndarray:
    """Without an encoding only ASCII letters change."""
    lower = n.op == "StringLower"
    if n.attr("encoding", "") == "utf-8":
        return each(lambda s: (s.decode().lower() if lower else s.decode().upper()).encode(), x)
    return each(bytes.lower if lower else bytes.upper, x)


@host("StringStrip")
def _strip(n: HostNode, x: np.ndarray) -> np.ndarray:
    return each(bytes.strip, x)


@host("StringLength")
def _length(n: HostNode, x: np.ndarray) -> np.ndarray:
    if n.attr("unit", "BYTE") == "UTF8_CHAR":
        return each(lambda s: len(s.decode("utf-8", "replace")), x, np.int32)
    return each(len, x, np.int32)


@host("StringJoin")
def _join(n: HostNode, *parts: np.ndarray) -> np.ndarray:
    """Scalars go with every element."""
    separator = n.attr("separator", "").encode()
    shapes = [p.shape for p in parts if p.ndim] or [()]
    spread = [np.broadcast_to(p, shapes[0]).reshape(-1).tolist() for p in parts]
    made = np.empty(int(np.prod(shapes[0])), object)
    made[:] = [separator.join(row) for row in zip(*spread, strict=True)]
    return made.reshape(shapes[0])


@host("ReduceJoin")
def _reduce_join(n: HostNode, x: np.ndarray, axes: np.ndarray) -> np.ndarray:
    separator, keep = n.attr("separator", "").encode(), bool(n.attr("keep_dims", False))
    order = [int(a) % x.ndim for a in axes.reshape(-1)] if axes.size else list(reversed(range(x.ndim)))
    rest = [a for a in range(x.ndim) if a not in order]
    moved = np.transpose(x, [*rest, *order])
    kept = [x.shape[a] for a in rest]
    rows = moved.reshape(int(np.prod(kept)), -1)
    made = np.empty(len(rows), object)
    made[:] = [separator.join(row) for row in rows.tolist()]
    return made.reshape([1 if a in order else s for a, s in enumerate(x.shape)] if keep else kept)


@host("AsString")
def _as_string(n: HostNode, x: np.ndarray) -> np.ndarray:
    width, fill = int(n.attr("width", -1)), n.attr("fill", "")
    precision = int(n.attr("precision", -1))
    pad = f"{fill}{width}" if width > 0 else ""

    def text(item: Any) -> bytes:
        if isinstance(item, bytes):
            return item
        if isinstance(item, bool):
            return (f"%{pad}s" % ("true" if item else "false")).encode()
        if isinstance(item, int):
            return (f"%{pad}d" % item).encode()
        kind = "e" if n.attr("scientific") else "g" if n.attr("shortest") else "f"
        digits = f".{precision}" if precision >= 0 else ""
        return (f"%{pad}{digits}{kind}" % item).encode()

    made = np.empty(x.size, object)
    made[:] = [text(item) for item in x.reshape(-1).tolist()]
    return made.reshape(x.shape)


@host("StringToNumber")
def _to_number(n: HostNode, x: np.ndarray) -> np.ndarray:
    kind = storage_dtype(str(n.attr("out_type", "float32")))
    try:
        return each(lambda s: (int if kind.kind in "iu" else float)(s), x, kind)
    except ValueError as error:
        raise GeError(
            "E10024", f"a string is not a valid number: {error}", node=n.name, operator=n.op
        ) from error


@host("RegexReplace", "StaticRegexReplace")
def _replace(n: HostNode, x: np.ndarray, *given: np.ndarray) -> np.ndarray:
    texts = [bytes(a.reshape(-1)[0]) for a in given] or [n.attrs["pattern"], n.attrs["rewrite"]]
    pattern, rewrite = (t if isinstance(t, bytes) else str(t).encode() for t in texts)
    expression = _expression(pattern)
    pieces = re.sub(rb"\\(\d)", rb"\\g<\1>", rewrite)
    count = 0 if n.attr("replace_global", True) else 1
    return each(lambda s: expression.sub(pieces, s, count), x)


@host("RegexFullMatch", "StaticRegexFullMatch")
def _match(n: HostNode, x: np.ndarray, *given: np.ndarray) -> np.ndarray:
    text = given[0].reshape(-1)[0] if given else n.attrs["pattern"]
    expression = _expression(text if isinstance(text, bytes) else str(text).encode())
    return each(lambda s: expression.fullmatch(s) is not None, x, bool)


_CLASSES = {
    b"[:alpha:]": b"A-Za-z",
    b"[:digit:]": b"0-9",
    b"[:alnum:]": b"A-Za-z0-9",
    b"[:lower:]": b"a-z",
    b"[:upper:]": b"A-Z",
    b"[:space:]": rb"\s",
    b"[:punct:]": rb"!-/:-@\[-`{-~",
    b"[:word:]": rb"\w",
}


def _expression(pattern: bytes) -> re.Pattern[bytes]:
    """An expression of RE2 as Python's: classes of POSIX spelled out."""
    for name, members in _CLASSES.items():
        pattern = pattern.replace(name, members)
    try:
        return re.compile(pattern)
    except re.error as error:
        raise GeError("E10024", f"the expression {pattern!r} cannot be read: {error}") from error


@host("Substr")
def _substr(n: HostNode, x: np.ndarray, start: np.ndarray, size: np.ndarray) -> np.ndarray:
    characters = n.attr("unit", "BYTE") == "UTF8_CHAR"
    shape = np.broadcast_shapes(x.shape, start.shape)
    spread = [np.broadcast_to(a, shape).reshape(-1).tolist() for a in (x, start, size)]

    def part(text: bytes, begin: int, count: int) -> bytes:
        whole: Any = text.decode() if characters else text
        begin = begin + len(whole) if begin < 0 else begin
        if not 0 <= begin <= len(whole):
            raise GeError("E10024", f"position {begin} is outside of {text!r}", node=n.name, operator=n.op)
        found = whole[begin : begin + count]
        return found.encode() if characters else found

    made = np.empty(int(np.prod(shape)), object)
    made[:] = [part(*row) for row in zip(*spread, strict=True)]
    return made.reshape(shape)


@host("StringSplit", "StringSplitV2")
def _split(n: HostNode, x: np.ndarray, separator: np.ndarray) -> tuple[np.ndarray, ...]:
    mark, most = bytes(separator.reshape(-1)[0]), int(n.attr("maxsplit", -1))
    skip = n.op == "StringSplit" and bool(n.attr("skip_empty", True))
    rows = []
    for text in x.reshape(-1).tolist():
        if n.op == "StringSplit":
            marks = [bytes([m]) for m in mark] if mark else []
            words = (
                re.split(b"|".join(map(re.escape, marks)), text)
                if marks
                else [text[i : i + 1] for i in range(len(text))]
            )
            rows.append([w for w in words if w] if skip else words)
        else:
            rows.append(text.split(mark or None, most))
    return _sparse(rows)


def _sparse(rows: Sequence[Sequence[bytes]]) -> tuple[np.ndarray, ...]:
    """Rows of words as indices, values and shape of a sparse tensor."""
    places = [(r, c) for r, row in enumerate(rows) for c in range(len(row))]
    words = np.empty(len(places), object)
    words[:] = [word for row in rows for word in row]
    shape = np.array([len(rows), max(map(len, rows), default=0)], np.int64)
    return np.array(places, np.int64).reshape(-1, 2), words, shape


@host("StringToHashBucketFast")
def _fast(n: HostNode, x: np.ndarray) -> np.ndarray:
    return each(lambda s: fingerprint(s) % int(n.attr("num_buckets")), x, np.int64)


@host("StringToHashBucketStrong")
def _strong(n: HostNode, x: np.ndarray) -> np.ndarray:
    first, second = (int(k) for k in n.attr("key"))
    return each(lambda s: siphash(s, (first, second)) % int(n.attr("num_buckets")), x, np.int64)


@host("StringNGrams")
def _ngrams(n: HostNode, words: np.ndarray, splits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    separator = n.attr("separator", "").encode()
    left, right = n.attr("left_pad", "").encode(), n.attr("right_pad", "").encode()
    widths, padding = [int(w) for w in n.attr("ngram_widths")], int(n.attr("pad_width", 0))
    found: list[bytes] = []
    ends = [0]
    for begin, end in itertools.pairwise(splits):
        row = words[begin:end].tolist()
        before = len(found)
        for width in widths:
            pad = min(padding if padding >= 0 else width - 1, width - 1)
            padded = [left] * pad + row + [right] * pad
            found += [separator.join(padded[i : i + width]) for i in range(len(padded) - width + 1)]
        if n.attr("preserve_short_sequences", False) and len(found) == before and row:
            found.append(separator.join([left] * max(padding, 0) + row + [right] * max(padding, 0)))
        ends.append(len(found))
    made = np.empty(len(found), object)
    made[:] = found
    return made, np.array(ends, splits.dtype)


@host("UnicodeDecode", "UnicodeDecodeWithOffsets")
def _unicode(n: HostNode, x: np.ndarray) -> tuple[np.ndarray, ...]:
    encoding = n.attr("input_encoding", "UTF-8")
    rows = [s.decode(encoding, "replace") for s in x.reshape(-1).tolist()]
    splits = np.cumsum([0, *map(len, rows)]).astype(storage_dtype(str(n.attr("Tsplits", "int64"))))
    points = np.array([ord(c) for row in rows for c in row], np.int32)
    if n.op == "UnicodeDecode":
        return splits, points
    offsets = [o for row in rows for o in np.cumsum([0, *(len(c.encode(encoding)) for c in row)])[:-1]]
    return splits, points, np.array(offsets, np.int64)


@host("DecodeBase64", "EncodeBase64")
def _base64(n: HostNode, x: np.ndarray) -> np.ndarray:
    """The alphabet of URLs, padded if requested."""
    if n.op == "DecodeBase64":
        return each(lambda s: base64.urlsafe_b64decode(s + b"=" * (-len(s) % 4)), x)
    pad = bool(n.attr("pad", False))
    return each(lambda s: base64.urlsafe_b64encode(s).rstrip(b"" if pad else b"="), x)


@host("DecodeRaw")
def _raw(n: HostNode, x: np.ndarray) -> np.ndarray:
    kind = storage_dtype(str(n.attr("out_type")))
    order = kind.newbyteorder("<" if n.attr("little_endian", True) else ">")
    rows = [np.frombuffer(s, order).astype(kind) for s in x.reshape(-1).tolist()]
    return np.stack(rows).reshape(*x.shape, -1) if rows else np.zeros((*x.shape, 0), kind)
