"""SavedModels with text, tables, ragged and sparse inputs, signatures and sizes that depend on data, beside TensorFlow.

Each model is saved, compiled by `ge.compile` without TensorFlow's help, and called with several inputs. Every output
has to be what the SavedModel's own signature gives.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import ge
from ge.errors import GeError

__all__ = ["SAMPLES", "Outcome", "compare"]

TOLERANCE = 1e-4
Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Outcome:
    """What became of one signature of a model."""

    model: str
    signature: str
    status: str  # pass, wrong, refused or error
    detail: str = ""


Made = tuple[Any, dict[str, tuple[Any, Sequence[Feeds]]]]  # an object to save; signatures with their feeds
SAMPLES: dict[str, Callable[[Path], Made]] = {}


def _sample(function: Callable[[Path], Made]) -> Callable[[Path], Made]:
    SAMPLES[function.__name__.strip("_").replace("_", " ")] = function
    return function


def compare(name: str) -> list[Outcome]:
    """Save a model, compile each of its signatures, and compare all results."""
    tf.keras.utils.set_random_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        made, signatures = SAMPLES[name](Path(folder))
        path = str(Path(folder) / "model")
        with tf.device("/CPU:0"):
            tf.saved_model.save(made, path, signatures={k: f for k, (f, _) in signatures.items()})
            loaded = tf.saved_model.load(path)
        return [_judged(name, key, path, loaded, feeds) for key, (_, feeds) in signatures.items()]


def _judged(name: str, signature: str, path: str, loaded: Any, feeds: Sequence[Feeds]) -> Outcome:
    try:
        model = ge.compile(path, ge.CompileOptions(signature=signature))
        for feed in feeds:
            with tf.device("/CPU:0"):
                wanted = loaded.signatures[signature](**{k: tf.constant(v) for k, v in feed.items()})
            found = model.run([feed[key] for key in model.input_names])
            detail = _difference(found, [_array(wanted[k]) for k in sorted(wanted)])
            if detail:
                return Outcome(name, signature, "wrong", detail)
    except GeError as error:
        return Outcome(name, signature, "refused", str(error)[:300])
    except Exception as error:
        return Outcome(name, signature, "error", f"{type(error).__name__}: {error}"[:300])
    return Outcome(name, signature, "pass")


def _array(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.numpy(), object if tensor.dtype == tf.string else None)


def _difference(found: Sequence[Any], wanted: Sequence[np.ndarray]) -> str:
    for ours, theirs in zip(found, wanted, strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"{ours.dtype}{list(ours.shape)} where TensorFlow has {theirs.dtype}{list(theirs.shape)}"
        if ours.dtype.kind != "f":
            same = ours.tolist() == theirs.tolist()
        else:
            same = np.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        if not same:
            return "the results differ"
    return ""


def _text(*words: str) -> np.ndarray:
    return np.array([w.encode() for w in words], object)


def _function(*specs: Any) -> Callable[[Any], Any]:
    """A tf.function of these inputs."""
    return lambda body: tf.function(body, input_signature=list(specs))


def _module(**parts: Any) -> Any:
    module = tf.Module()
    for name, part in parts.items():
        setattr(module, name, part)
    return module


_STRINGS = tf.TensorSpec([None], tf.string, "x")
_LINES = (_text("The cat, the dog!", "a bird"), _text("dog dog dog"), _text("", "cat sat on the mat", "Dog?"))


@_sample
def _text_classifier(folder: Path) -> Made:
    """Keras's TextVectorization, an embedding and a network."""
    layer = tf.keras.layers.TextVectorization(output_sequence_length=6)
    layer.adapt(["the cat the dog", "a bird on the mat"])
    embedding = tf.Variable(tf.random.normal([20, 8]))
    weights = tf.Variable(tf.random.normal([8, 3]))

    @_function(_STRINGS)
    def classify(x: Any) -> Any:
        ids = layer(x)
        mean = tf.reduce_mean(tf.gather(embedding, ids), 1)
        return {"ids": ids, "scores": tf.nn.softmax(mean @ weights)}

    feeds = [{"x": lines} for lines in _LINES]
    return _module(layer=layer, embedding=embedding, weights=weights), {"classify": (classify, feeds)}


@_sample
def _vocabulary_file(folder: Path) -> Made:
    """A static table read from an asset, with buckets for unknown words; a second signature looks numbers up."""
    path = folder / "words.txt"
    path.write_text("cat\ndog\nbird\n")
    kinds = (tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER)
    words = tf.lookup.StaticVocabularyTable(tf.lookup.TextFileInitializer(str(path), *kinds), 4)
    keys = tf.constant([0, 1, 2], tf.int64)
    names = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(keys, ["cat", "dog", "bird"]), "nothing"
    )

    @_function(_STRINGS)
    def encode(x: Any) -> Any:
        return {"ids": words.lookup(x), "one_hot": tf.one_hot(words.lookup(x), 7)}

    @_function(tf.TensorSpec([None, 4], tf.float32, "scores"))
    def decode(scores: Any) -> Any:
        return {"best": names.lookup(tf.argmax(scores, 1)), "score": tf.reduce_max(scores, 1)}

    scores = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    texts = [{"x": _text("dog", "horse", "cat", "")}, {"x": _text("bird")}]
    module = _module(words=words, names=names)
    return module, {
        "encode": (encode, texts),
        "decode": (decode, [{"scores": scores}, {"scores": scores[:2]}]),
    }


@_sample
def _hashed_features(folder: Path) -> Made:
    """Hashed strings of every length, crossed and embedded; numbers from text."""
    table = tf.Variable(tf.random.normal([50, 4]))
    strong = tf.keras.layers.Hashing(11, salt=[3, 4])

    @_function(_STRINGS, tf.TensorSpec([None], tf.string, "age"))
    def embed(x: Any, age: Any) -> Any:
        fast = tf.strings.to_hash_bucket_fast(tf.strings.join([x, age], "_x_"), 50)
        years = tf.strings.to_number(age)
        return {"y": tf.gather(table, fast) * years[:, None], "strong": strong(x)}

    long = _text(*("word" * n for n in (0, 1, 2, 3, 5, 8, 9, 15, 16, 17, 25, 32, 33, 60)))
    ages = _text(*(str(n) for n in range(len(long))))
    return _module(table=table, strong=strong), {"embed": (embed, [{"x": long, "age": ages}])}


@_sample
def _ragged_bags(folder: Path) -> Made:
    """Ragged ids: means of embeddings, padded forms and lengths."""
    table = tf.Variable(tf.random.normal([10, 4]))

    @_function(tf.RaggedTensorSpec([None, None], tf.int64))
    def bags(ids: Any) -> Any:
        rows = tf.ragged.map_flat_values(lambda flat: tf.gather(table, flat), ids)
        return {
            "mean": tf.reduce_mean(rows, 1),
            "padded": ids.to_tensor(-1),
            "lengths": ids.row_lengths(),
            "largest": tf.reduce_max(rows, 1),
        }

    def feed(*lengths: int) -> dict[str, np.ndarray]:
        splits = np.cumsum([0, *lengths])
        return {"ids": np.arange(splits[-1]) % 10, "ids_1": splits}

    return _module(table=table), {"bags": (bags, [feed(2, 1, 3), feed(4), feed(1, 1, 1, 5)])}


@_sample
def _ragged_words(folder: Path) -> Made:
    """Words split inside of the model, looked up, and n-grams joined."""
    words = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["cat", "dog", "the"], tf.constant([1, 2, 3], tf.int64)), 0
    )

    @_function(_STRINGS)
    def count(x: Any) -> Any:
        plain = tf.strings.regex_replace(tf.strings.lower(x), "[^a-z ]", "")
        parts = tf.strings.split(plain)
        ids = tf.ragged.map_flat_values(words.lookup, parts)
        pairs = tf.strings.ngrams(parts, 2, separator=" ")
        return {
            "ids": ids.to_tensor(),
            "known": tf.reduce_sum(tf.cast(ids > 0, tf.float32), 1),
            "pairs": pairs.to_tensor("-"),
            "length": tf.strings.length(plain),
        }

    return _module(words=words), {"count": (count, [{"x": lines} for lines in _LINES])}


@_sample
def _sparse_linear(folder: Path) -> Made:
    """A sparse matrix times a dense one, its sums and its dense form."""
    weights = tf.Variable(tf.random.normal([6, 3]))

    @_function(tf.SparseTensorSpec([None, 6], tf.float32))
    def linear(x: Any) -> Any:
        product = tf.sparse.sparse_dense_matmul(x, weights)
        return {"y": tf.nn.relu(product), "dense": tf.sparse.to_dense(x), "sum": tf.sparse.reduce_sum(x, 1)}

    def feed(rows: int, *places: tuple[int, int]) -> dict[str, np.ndarray]:
        values = np.arange(1, len(places) + 1).astype(np.float32)
        return {"x": np.array(places), "x_1": values, "x_2": np.array([rows, 6])}

    feeds = [feed(3, (0, 1), (2, 0), (2, 5)), feed(2, (1, 3)), feed(3, (0, 0), (1, 1), (1, 2), (2, 2))]
    return _module(weights=weights), {"linear": (linear, feeds)}


@_sample
def _weighted_bags(folder: Path) -> Made:
    """Embeddings of sparse ids, rows without any included."""
    table = tf.Variable(tf.random.normal([12, 4]))

    @_function(tf.SparseTensorSpec([None, None], tf.int64))
    def bags(ids: Any) -> Any:
        found = tf.nn.safe_embedding_lookup_sparse(table, ids, combiner="mean")
        return {"y": tf.nn.l2_normalize(found, 1)}

    def feed(rows: int, *places: tuple[int, int]) -> dict[str, np.ndarray]:
        return {
            "ids": np.array(places),
            "ids_1": np.arange(len(places)) % 12,
            "ids_2": np.array([rows, 4]),
        }

    return _module(table=table), {"bags": (bags, [feed(3, (0, 0), (0, 1), (2, 0)), feed(2, (0, 0), (1, 3))])}


@_sample
def _detector(folder: Path) -> Made:
    """Boxes kept by their overlap, then everything about them; a second signature keeps those above a score."""
    kernel = tf.Variable(tf.random.normal([3, 3, 3, 5]))
    image = tf.TensorSpec([1, 12, 12, 3], tf.float32, "image")

    def heads(image: Any) -> tuple[Any, Any]:
        maps = tf.reshape(tf.nn.conv2d(image, kernel, 1, "SAME"), [-1, 5])
        corner = tf.abs(maps[:, :2])
        return tf.concat([corner, corner + tf.abs(maps[:, 2:4]) + 0.1], 1), tf.sigmoid(maps[:, 4])

    @_function(image)
    def detect(image: Any) -> Any:
        boxes, scores = heads(image)
        kept = tf.image.non_max_suppression(boxes, scores, 20, 0.4, 0.6)
        chosen = tf.gather(boxes, kept)
        area = tf.reduce_prod(chosen[:, 2:] - chosen[:, :2], 1)
        return {"boxes": chosen, "scores": tf.gather(scores, kept), "area": area, "count": tf.size(kept)}

    @_function(image)
    def threshold(image: Any) -> Any:
        boxes, scores = heads(image)
        chosen = tf.boolean_mask(boxes, scores > 0.5)
        centres = (chosen[:, :2] + chosen[:, 2:]) / 2
        return {"centres": centres, "spread": centres - tf.reduce_mean(centres, 0)}

    rng = np.random.default_rng(0)
    feeds = [{"image": rng.normal(size=(1, 12, 12, 3)).astype(np.float32) * s} for s in (1.0, 0.3, 2.0)]
    return _module(kernel=kernel), {"detect": (detect, feeds), "threshold": (threshold, feeds)}


@_sample
def _distinct_values(folder: Path) -> Made:
    """Distinct ids, their counts, and a product of each one's embedding."""
    table, weights = tf.Variable(tf.random.normal([9, 4])), tf.Variable(tf.random.normal([4, 2]))

    @_function(tf.TensorSpec([None], tf.int64, "ids"))
    def distinct(ids: Any) -> Any:
        found, places, counts = tf.unique_with_counts(ids)
        rows = tf.gather(table, found) @ weights
        return {"rows": rows, "back": tf.gather(rows, places), "counts": counts, "order": tf.sort(found)}

    feeds = [{"ids": np.array(ids)} for ids in ([3, 1, 3, 8], [2], [0, 1, 2, 3, 3, 3])]
    return _module(table=table, weights=weights), {"distinct": (distinct, feeds)}


@_sample
def _branches_on_text(folder: Path) -> Made:
    """A branch whose condition comes from text, with sizes of its own on each side."""
    weights = tf.Variable(tf.random.normal([4, 3]))

    @_function(tf.TensorSpec([], tf.string, "mode"), tf.TensorSpec([None, 4], tf.float32, "x"))
    def run(mode: Any, x: Any) -> Any:
        kept = tf.cond(
            tf.equal(tf.strings.lower(mode), "positive"),
            lambda: tf.boolean_mask(x, tf.reduce_sum(x, 1) > 0),
            lambda: -x,
        )
        return {"y": kept @ weights, "rows": tf.shape(kept)[0]}

    x = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    feeds = [{"mode": np.array(m, object), "x": x} for m in (b"POSITIVE", b"other", b"positive")]
    return _module(weights=weights), {"run": (run, feeds)}


@_sample
def _categories(folder: Path) -> Made:
    """Keras's StringLookup, IntegerLookup and CategoryEncoding beside a dense layer."""
    colours = tf.keras.layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="one_hot")
    sizes = tf.keras.layers.IntegerLookup(vocabulary=[10, 20, 40])
    weights = tf.Variable(tf.random.normal([4, 2]))

    @_function(tf.TensorSpec([None], tf.string, "colour"), tf.TensorSpec([None], tf.int64, "size"))
    def score(colour: Any, size: Any) -> Any:
        return {"y": tf.nn.tanh(tf.cast(colours(colour), tf.float32) @ weights), "size": sizes(size)}

    feeds = [
        {"colour": _text("red", "pink", "blue"), "size": np.array([10, 30, 40])},
        {"colour": _text("green"), "size": np.array([20])},
    ]
    return _module(colours=colours, sizes=sizes, weights=weights), {"score": (score, feeds)}


@_sample
def _formatted_results(folder: Path) -> Made:
    """Numbers of the network written as text, and parts of text."""
    weights = tf.Variable(tf.random.normal([3, 2]))

    @_function(tf.TensorSpec([None, 3], tf.float32, "x"), tf.TensorSpec([None], tf.string, "id"))
    def report(x: Any, id: Any) -> Any:
        best = tf.argmax(x @ weights, 1)
        head = tf.strings.substr(id, 0, 2)
        return {
            "line": tf.strings.join([head, tf.strings.as_string(best)], ":"),
            "all": tf.strings.reduce_join(head),
        }

    x = np.random.default_rng(2).normal(size=(3, 3)).astype(np.float32)
    return _module(weights=weights), {"report": (report, [{"x": x, "id": _text("abc", "de", "fgh")}])}
