"""Kernels kept on disk: found again by this user, never trusted otherwise."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path

import pytest

import tbe
from ge.build import kernel_store
from ge.build.kernel_store import KernelStore, open_store
from ge.build.kernels import KernelCache, KernelTable
from ge.model import keys
from npu_runtime.environment import UnwritableCacheWarning


@pytest.fixture(autouse=True)
def own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_KEY_FILE", str(tmp_path / "keys" / "key"))


def _expression(size: int = 40) -> tuple[list[tbe.Tensor], list[tbe.Tensor]]:
    x = tbe.placeholder((size,), "float32", name="x")
    return [x], [tbe.unary("exp", x) + 1.0]


def _kernel(size: int = 40) -> tbe.Kernel:
    return tbe.build(*_expression(size), name="store_test")


@pytest.fixture
def store(tmp_path: Path) -> KernelStore:
    return KernelStore(tmp_path / "cache" / "kernels")


def test_a_stored_kernel_is_found_again(store: KernelStore) -> None:
    kernel = _kernel()
    assert store.get(kernel.fingerprint, "host") is None
    store.put("host", kernel)
    assert store.get(kernel.fingerprint, "host") == kernel
    assert store.get(kernel.fingerprint, "portable") is None
    assert store.get("another", "host") is None
    assert store.get(kernel.fingerprint, "host", tbe.Processor(l1_bytes=1 << 16)) is None


def test_another_generator_finds_nothing(store: KernelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edited or updated source tree does not run the machine code of the one before."""
    kernel = _kernel()
    store.put("host", kernel)
    monkeypatch.setattr(kernel_store, "sources", lambda *packages: "edited")
    assert store.get(kernel.fingerprint, "host") is None


def _only_file(store: KernelStore) -> Path:
    (path,) = store.folder.iterdir()
    return path


@pytest.mark.parametrize("position", [0, 5, 40, 300, -1, -33])
def test_a_damaged_file_is_not_used(store: KernelStore, position: int) -> None:
    kernel = _kernel()
    store.put("host", kernel)
    path = _only_file(store)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    assert store.get(kernel.fingerprint, "host") is None
    store.put("host", kernel)
    assert store.get(kernel.fingerprint, "host") == kernel


@pytest.mark.parametrize("length", [0, 3, 31, 32, 33, 200])
def test_a_truncated_file_is_not_used(store: KernelStore, length: int) -> None:
    kernel = _kernel()
    store.put("host", kernel)
    path = _only_file(store)
    path.write_bytes(path.read_bytes()[:length])
    assert store.get(kernel.fingerprint, "host") is None


def test_a_strangers_file_is_not_used(
    store: KernelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = _kernel()
    monkeypatch.setenv("NPU_KEY_FILE", str(tmp_path / "stranger"))
    store.put("host", kernel)
    monkeypatch.setenv("NPU_KEY_FILE", str(tmp_path / "mine"))
    keys.sign(b"makes the key")
    assert store.get(kernel.fingerprint, "host") is None


def test_a_file_under_another_name_is_not_used(store: KernelStore) -> None:
    """Code of one expression must not stand in for another's."""
    one, other = _kernel(40), _kernel(48)
    store.put("host", one)
    first = _only_file(store)
    store.put("host", other)
    second = next(p for p in store.folder.iterdir() if p != first)
    second.write_bytes(first.read_bytes())
    assert store.get(other.fingerprint, "host") is None


def test_the_folder_stays_within_its_limit(tmp_path: Path) -> None:
    kernel = _kernel()
    store = KernelStore(tmp_path / "small", limit_bytes=100_000)
    for number in range(60):
        store.put("host", dataclasses.replace(kernel, fingerprint=f"kernel {number}"))
    assert sum(p.stat().st_size for p in store.folder.iterdir()) <= 100_000
    assert store.get("kernel 59", "host") is not None


def test_what_was_used_last_stays(tmp_path: Path) -> None:
    kernel = _kernel()
    store = KernelStore(tmp_path / "small", limit_bytes=100_000)
    store.put("host", dataclasses.replace(kernel, fingerprint="used"))
    for path in store.folder.iterdir():
        os.utime(path, (1, 1))
    for number in range(60):
        store.put("host", dataclasses.replace(kernel, fingerprint=f"kernel {number}"))
        assert store.get("used", "host") is not None
    assert store.get("kernel 0", "host") is None


def test_a_missing_key_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("NPU_KEY_FILE", str(tmp_path / "file" / "key"))
    store = KernelStore(tmp_path / "cache")
    with pytest.warns(UserWarning, match="key file"):
        store.put("host", _kernel())
    assert not list(store.folder.iterdir())


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    store = KernelStore(tmp_path / "file" / "kernels")
    with pytest.warns(UnwritableCacheWarning, match="Not a directory"):
        store.put("host", _kernel())
    assert store.get(_kernel().fingerprint, "host") is None


def test_several_writers_at_once(store: KernelStore) -> None:
    kernel = _kernel()
    wrong: list[tbe.Kernel] = []

    def work() -> None:
        for _ in range(20):
            store.put("host", kernel)
            found = store.get(kernel.fingerprint, "host")
            if found != kernel:
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(os.listdir(store.folder)) == 1


def test_a_later_process_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two books with caches of their own stand for two processes."""
    monkeypatch.setenv("NPU_CACHE_DIR", str(tmp_path / "cache"))
    first = KernelTable("host", cache=KernelCache())
    first.add(*_expression(56), "later")
    first.compile()
    monkeypatch.setattr(tbe, "build", lambda *_, **__: pytest.fail("compiled again"))
    second = KernelTable("host", cache=KernelCache())
    second.add(*_expression(56), "later")
    second.compile()
    assert second.kernel(0) == first.kernel(0)


def test_kernels_are_in_the_users_cache_folder_unless_it_is_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NPU_CACHE_DIR", "off")
    assert open_store() is None
    monkeypatch.delenv("NPU_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = open_store()
    assert store is not None and store.folder == tmp_path / "tf-adapter" / "kernels"
