"""The user's key: machine code in a model file runs only if the file is sealed with this key."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import warnings
from pathlib import Path

from npu_runtime import environment

__all__ = ["key_path", "sign", "verify"]

KEY_BYTES = 32
_PURPOSE = b"tf-adapter .om seal 1\0"


def key_path() -> Path:
    """The path of the key: NPU_KEY_FILE, else in the user's configuration directory."""
    given = environment.text("NPU_KEY_FILE")
    if given:
        return Path(given)
    config = os.environ.get("XDG_CONFIG_HOME")
    base = Path(config) if config else Path.home() / ".config"
    return base / "tf_adapter" / "om.key"


def sign(content: bytes) -> bytes:
    """Seal content with the user's key, which is created on first use."""
    key = _read_key() or _create_key()
    if key is None:
        warnings.warn(
            f"the key file {key_path()} cannot be used: kernels of this model are regenerated at each load; "
            "set NPU_KEY_FILE to a path that this user can write",
            stacklevel=2,
        )
        return bytes(KEY_BYTES)
    return _digest(key, content)


def verify(content: bytes, seal: bytes) -> bool:
    """True if the seal was made over this content with the user's key."""
    key = _read_key()
    return key is not None and hmac.compare_digest(_digest(key, content), seal)


def _digest(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, _PURPOSE + content, hashlib.sha256).digest()


def _read_key() -> bytes | None:
    """The key, or None if there is none that only this user can read and write."""
    try:
        handle = os.open(key_path(), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        private = (
            stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077 and status.st_uid == os.geteuid()
        )
        key = file.read(KEY_BYTES + 1) if private else b""
    return key if len(key) == KEY_BYTES else None


def _create_key() -> bytes | None:
    path = key_path()
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        try:
            os.link(temporary, path)  # the first process wins; an existing key is never replaced
        finally:
            temporary.unlink()
    except OSError:
        pass
    return _read_key()
