"""The cache in memory, and the keys that all caches share: what decides a compile changes them."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ge
from ge import identity, running, versions
from ge.identity import compile_identity, process_identity
from ge.ops.custom import search
from ge.target import named
from npu_runtime.bounded import BoundedCache

OPERATOR = """
from ge import ops


class IdentityProbe(ops.Operator):
    x = ops.Input("T", ops.FLOATS)
    y = ops.Output("T")

    @staticmethod
    def compute(op, x):
        return x + {amount}
"""


def test_the_cache_drops_what_was_unused_for_longest() -> None:
    cache = BoundedCache[str, int](2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), len(cache)) == (1, None, 3, 2)


def test_a_key_of_none_is_not_kept() -> None:
    cache = BoundedCache[str, int](2)
    assert cache.put(None, 7) == 7
    assert cache.get(None) is None and len(cache) == 0


def test_several_threads_share_a_cache() -> None:
    cache = BoundedCache[int, int](8)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for step in range(2000):
            key = (seed * 7 + step) % 16
            found = cache.get(key)
            if found is not None and found != key * key:
                wrong.append(key)
            cache.put(key, key * key)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == [] and len(cache) == 8


def test_options_targets_and_passes_are_part_of_every_key() -> None:
    plain = ge.CompileOptions()
    others = [
        replace(plain, precision_mode="force_fp32"),
        replace(plain, disabled_passes={"fuse_softmax"}),
        replace(plain, target="portable"),
        replace(plain, target=replace(named("portable"), cores=64)),
    ]
    assert len({compile_identity(options) for options in (plain, *others)}) == 5
    assert compile_identity(replace(plain, dump_dir="elsewhere")) == compile_identity(plain)


def test_versions_and_machines_are_part_of_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ge.CompileOptions(target="portable")
    keys = {compile_identity(plain)}
    with monkeypatch.context() as other:
        other.setattr(versions, "versions", lambda: {"onednn": "0"})
        keys.add(compile_identity(plain))
    with monkeypatch.context() as other:
        other.setattr(identity.kernels, "machine", lambda: "another")
        keys.add(compile_identity(plain))
    assert len(keys) == 3


def test_operators_of_users_are_part_of_every_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_OPP_PATH", str(tmp_path))
    keys = set()
    for amount in (1.0, 22.0):
        (tmp_path / "probe.py").write_text(OPERATOR.format(amount=amount))
        search.refresh()
        keys.add((compile_identity(ge.CompileOptions()), process_identity()))
    (tmp_path / "probe.py").unlink()
    search.refresh()
    assert len(keys) == 2


def test_an_operator_is_compiled_again_when_the_environment_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    a = np.random.RandomState(0).rand(64, 64).astype(np.float32)
    exact = ge.run_operator("MatMul", a, a)
    kept = len(running._models)
    ge.run_operator("MatMul", a, a)
    assert len(running._models) == kept
    monkeypatch.setenv("NPU_PRECISION_MODE", "force_fp16")
    assert 0 < abs(ge.run_operator("MatMul", a, a) - exact).max() < 0.5
