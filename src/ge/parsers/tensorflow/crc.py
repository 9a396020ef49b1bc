"""CRC-32C of large byte strings in NumPy: many lanes advance together, then are joined by linearity."""

from __future__ import annotations

import functools

import numpy as np

__all__ = ["crc32c", "mask"]

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_LANE_COUNTS = (1 << 14, 1 << 9, 1 << 5)  # the most lanes that still get a few words each are used first
_WORDS_AT_LEAST = 16
_WORDS_AT_MOST = 1 << 11  # bounds the transposed copy to 64 MiB


@functools.cache
def _byte_table() -> np.ndarray:
    """The register's change for each value of its low byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


@functools.cache
def _word_table() -> np.ndarray:
    """The register's change for each value of its low 16 bits."""
    bytes_ = _byte_table()
    words = np.arange(1 << 16, dtype=np.uint32)
    once = bytes_[words & 255] ^ (words >> 8)
    return bytes_[once & 255] ^ (once >> 8)


def _serial(data: bytes, register: int) -> int:
    table = _byte_list()
    for byte in data:
        register = table[(register ^ byte) & 255] ^ (register >> 8)
    return register


@functools.cache
def _byte_list() -> list[int]:
    return [int(v) for v in _byte_table()]


def _apply(tables: np.ndarray, registers: np.ndarray) -> np.ndarray:
    """A linear operator, as four tables of the images of each byte, on many registers."""
    result = tables[0][registers & 255]
    for index in range(1, 4):
        result = result ^ tables[index][(registers >> np.uint32(8 * index)) & 255]
    return result


@functools.lru_cache(maxsize=64)
def _zeros_operator(count: int) -> np.ndarray:
    """The operator that advances a register over `count` zero bytes."""
    values = np.arange(256, dtype=np.uint32)
    result = np.stack([values << np.uint32(8 * i) for i in range(4)])  # identity
    bytes_ = _byte_table()
    step = np.stack([bytes_[r & 255] ^ (r >> 8) for r in result])  # one zero byte
    while count:
        if count & 1:
            result = np.stack([_apply(step, row) for row in result])
        step = np.stack([_apply(step, row) for row in step])
        count >>= 1
    return result


def _parallel(data: np.ndarray, lanes: int) -> int:
    """The register after `data` (whose length divides into lanes of whole words), starting from zero."""
    table = _word_table()
    words = np.ascontiguousarray(data.view("<u2").reshape(lanes, -1).T)
    registers = np.zeros(lanes, np.uint32)
    for column in words:
        registers ^= column
        registers = table[registers & 0xFFFF] ^ (registers >> np.uint32(16))
    operator = _zeros_operator(len(data) // lanes)
    while len(registers) > 1:
        registers = _apply(operator, registers[0::2]) ^ registers[1::2]
        operator = np.stack([_apply(operator, row) for row in operator])
    return int(registers[0])


def crc32c(data: bytes | memoryview | np.ndarray) -> int:
    """The CRC-32C (Castagnoli) of bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    view = np.frombuffer(data, np.uint8)
    register = 0xFFFFFFFF
    start = 0
    for lanes in _LANE_COUNTS:
        while (words := (len(view) - start) // (2 * lanes)) >= _WORDS_AT_LEAST:
            count = 2 * lanes * min(words, _WORDS_AT_MOST)
            carried = _apply(_zeros_operator(count), np.asarray([register], np.uint32))
            register = int(carried[0]) ^ _parallel(view[start : start + count], lanes)
            start += count
    return _serial(view[start:].tobytes(), register) ^ 0xFFFFFFFF


def mask(checksum: int) -> int:
    """A checksum as TensorFlow stores it (rotated and offset, so that checksums of checksums stay strong)."""
    return (((checksum >> 15) | (checksum << 17)) + _MASK_DELTA) & 0xFFFFFFFF
