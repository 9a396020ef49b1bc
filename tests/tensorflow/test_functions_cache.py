"""Compiled functions in memory and on disk: found by content, sealed, made anew when damaged."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from tests.tensorflow.comparing import NPU, equal
from tf_adapter import cache, lowering
from tf_adapter.graphs import called_functions
from tf_adapter.options import options

X = tf.constant(np.random.RandomState(0).rand(2, 4).astype(np.float32))
WEIGHTS = np.arange(16, dtype=np.float32).reshape(4, 4) * 0.1


class Store:
    """A folder of compiled functions, and how often something was compiled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.compiles = 0

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*/*.om"))

    def call(self, weights: np.ndarray = WEIGHTS) -> list[Any]:
        """Call a function as a new process would: traced anew, with nothing in memory."""
        cache.clear()
        table = tf.Variable(weights)

        def function(x: Any) -> Any:
            total = tf.zeros([4])
            for i in tf.range(3):
                total += x[0] * tf.cast(i, tf.float32)
            return tf.nn.softmax(x @ table), total, tf.constant(3), x

        with tf.device(NPU):
            results = tf.function(function)(X)
        with tf.device("/CPU:0"):
            wanted = [tf.nn.softmax(X.numpy() @ weights), X[0] * 3.0, tf.constant(3), X]
        for one, other in zip(wanted, results, strict=True):
            equal(one, other)
        return results


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    made = Store(tmp_path / "models")
    original = lowering.compile_plan

    def counted(*args: Any, **named: Any) -> Any:
        made.compiles += 1
        return original(*args, **named)

    monkeypatch.setattr(lowering, "compile_plan", counted)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("NPU_KEY_FILE", raising=False)
    with options.override(cache_dir=made.folder):
        yield made


def test_the_same_function_is_compiled_once(store: Store) -> None:
    for _ in range(3):
        store.call()
    assert store.compiles == len(store.files()) == 1


def test_the_folder_stays_within_its_limit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.call()
    (oldest,) = store.files()
    os.utime(oldest, (1, 1))
    monkeypatch.setattr(cache, "LIMIT_BYTES", oldest.stat().st_size * 3 // 2)
    store.call(WEIGHTS + 1)
    assert oldest not in store.files()
    store.call()
    assert store.compiles == 3


def test_the_order_of_attributes_is_not_part_of_the_key() -> None:
    body, cond = (attr_value_pb2.AttrValue(func={"name": name}) for name in ("body_1", "cond_1"))
    one, other = {"body": body, "cond": cond}, {"cond": cond, "body": body}
    assert called_functions("While", one) == called_functions("While", other) == ["body_1", "cond_1"]


def test_other_contents_are_compiled(store: Store) -> None:
    store.call()
    store.call(WEIGHTS + 1)
    assert store.compiles == len(store.files()) == 2


def test_options_are_part_of_the_key(store: Store) -> None:
    store.call()
    with options.override(disabled_passes="fuse_softmax"):
        store.call()
    assert store.compiles == len(store.files()) == 2


def test_a_damaged_file_is_made_anew(store: Store) -> None:
    store.call()
    (path,) = store.files()
    path.write_bytes(path.read_bytes()[:-100])
    store.call()
    assert store.compiles == 2
    store.call()
    assert store.compiles == 2


def test_a_file_sealed_by_someone_else_is_not_used(store: Store, tmp_path: Path) -> None:
    store.call()
    for key in (tmp_path / "config").rglob("*.key"):
        key.unlink()
    store.call()
    assert store.compiles == 2


def test_memory_holds_the_latest(store: Store) -> None:
    cache.clear()
    with tf.device(NPU):
        for size in range(cache.MOST + 3):
            tf.function(lambda x: x * 3.0 + 1.0)(tf.ones([size + 1]))
    assert cache.size() == cache.MOST


def test_another_process_finds_what_the_first_one_compiled(tmp_path: Path) -> None:
    code = """
        import tensorflow as tf, tf_adapter
        variables = [tf.Variable(tf.fill([4, 4], float(i))) for i in range(6)]

        @tf.function
        def f(x):
            for v in variables:
                x = tf.nn.relu(x @ v)
            return x

        f(tf.ones([2, 4]))
        from ge.compile_cache import counters
        print(counters.compiled, counters.loaded)
    """
    environment = {k: v for k, v in os.environ.items() if k != "NPU_CACHE_DIR"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "3"}
    found = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env=environment,
            check=True,
            timeout=600,
            stdout=subprocess.PIPE,
            text=True,
        )
        found.append((*map(int, done.stdout.split()), len(list((tmp_path / "tf-adapter").rglob("*.om")))))
    (compiled, loaded, files), second = found
    assert compiled == files > 0 and loaded == 0
    assert second == (0, compiled, files)
