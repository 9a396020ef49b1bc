"""The hashes of TensorFlow's strings: Google's FarmHash fingerprint and SipHash, as their publications define them."""

from __future__ import annotations

__all__ = ["fingerprint", "siphash"]

_MASK = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F


def _fetch(data: bytes, place: int, width: int = 8) -> int:
    return int.from_bytes(data[place : place + width], "little")


def _rotate(value: int, count: int) -> int:
    return value if not count else ((value >> count) | (value << (64 - count))) & _MASK


def _mix(value: int) -> int:
    return value ^ (value >> 47)


def _pair(u: int, v: int, factor: int) -> int:
    a = _mix(((u ^ v) * factor) & _MASK)
    return (_mix(((v ^ a) * factor) & _MASK) * factor) & _MASK


def fingerprint(data: bytes) -> int:
    """FarmHash's Fingerprint64, which tf.strings.to_hash_bucket_fast takes.

    >>> fingerprint(b"") == 0x9AE16A3B2F90404F
    True
    """
    if len(data) <= 16:
        return _to_16(data)
    if len(data) <= 32:
        return _to_32(data)
    if len(data) <= 64:
        return _to_64(data)
    return _long(data)


def _to_16(data: bytes) -> int:
    size = len(data)
    if size >= 8:
        factor = (_K2 + size * 2) & _MASK
        a, b = (_fetch(data, 0) + _K2) & _MASK, _fetch(data, size - 8)
        c = (_rotate(b, 37) * factor + a) & _MASK
        d = ((_rotate(a, 25) + b) * factor) & _MASK
        return _pair(c, d, factor)
    if size >= 4:
        factor = (_K2 + size * 2) & _MASK
        return _pair((size + (_fetch(data, 0, 4) << 3)) & _MASK, _fetch(data, size - 4, 4), factor)
    if size:
        y = data[0] + (data[size >> 1] << 8)
        z = size + (data[size - 1] << 2)
        return (_mix((y * _K2 ^ z * _K0) & _MASK) * _K2) & _MASK
    return _K2


def _to_32(data: bytes) -> int:
    size = len(data)
    factor = (_K2 + size * 2) & _MASK
    a, b = (_fetch(data, 0) * _K1) & _MASK, _fetch(data, 8)
    c, d = (_fetch(data, size - 8) * factor) & _MASK, (_fetch(data, size - 16) * _K2) & _MASK
    first = (_rotate((a + b) & _MASK, 43) + _rotate(c, 30) + d) & _MASK
    return _pair(first, (a + _rotate((b + _K2) & _MASK, 18) + c) & _MASK, factor)


def _to_64(data: bytes) -> int:
    size = len(data)
    factor = (_K2 + size * 2) & _MASK
    a, b = (_fetch(data, 0) * _K2) & _MASK, _fetch(data, 8)
    c, d = (_fetch(data, size - 8) * factor) & _MASK, (_fetch(data, size - 16) * _K2) & _MASK
    y = (_rotate((a + b) & _MASK, 43) + _rotate(c, 30) + d) & _MASK
    z = _pair(y, (a + _rotate((b + _K2) & _MASK, 18) + c) & _MASK, factor)
    e, f = (_fetch(data, 16) * factor) & _MASK, _fetch(data, 24)
    g = ((y + _fetch(data, size - 32)) * factor) & _MASK
    h = ((z + _fetch(data, size - 24)) * factor) & _MASK
    first = (_rotate((e + f) & _MASK, 43) + _rotate(g, 30) + h) & _MASK
    return _pair(first, (e + _rotate((f + a) & _MASK, 18) + g) & _MASK, factor)


def _weak(data: bytes, place: int, a: int, b: int) -> tuple[int, int]:
    w, x, y, z = (_fetch(data, place + 8 * i) for i in range(4))
    a = (a + w) & _MASK
    b = _rotate((b + a + z) & _MASK, 21)
    c = a
    a = (a + x + y) & _MASK
    b = (b + _rotate(a, 44)) & _MASK
    return (a + z) & _MASK, (b + c) & _MASK


def _long(data: bytes) -> int:
    seed = 81
    x, y = seed, (seed * _K1 + 113) & _MASK
    z = (_mix((y * _K2 + 113) & _MASK) * _K2) & _MASK
    v, w = (0, 0), (0, 0)
    x = (x * _K2 + _fetch(data, 0)) & _MASK
    end = (len(data) - 1) // 64 * 64
    last = end + ((len(data) - 1) & 63) - 63
    for place in range(0, end, 64):
        x, y, z, v, w = _round(data, place, x, y, z, v, w, _K1, 1)
    factor = (_K1 + ((z & 0xFF) << 1)) & _MASK
    w = ((w[0] + ((len(data) - 1) & 63)) & _MASK, w[1])
    v = ((v[0] + w[0]) & _MASK, v[1])
    w = ((w[0] + v[0]) & _MASK, w[1])
    x, y, z, v, w = _round(data, last, x, y, z, v, w, factor, 9)
    first = (_pair(v[0], w[0], factor) + _mix(y) * _K0 + z) & _MASK
    return _pair(first, (_pair(v[1], w[1], factor) + x) & _MASK, factor)


def _round(
    data: bytes,
    place: int,
    x: int,
    y: int,
    z: int,
    v: tuple[int, int],
    w: tuple[int, int],
    factor: int,
    weight: int,
) -> tuple[int, int, int, tuple[int, int], tuple[int, int]]:
    """One block of 64 bytes; the last block has another factor and weight."""
    x = (_rotate((x + y + v[0] + _fetch(data, place + 8)) & _MASK, 37) * factor) & _MASK
    y = (_rotate((y + v[1] + _fetch(data, place + 48)) & _MASK, 42) * factor) & _MASK
    x ^= (w[1] * weight) & _MASK
    y = (y + v[0] * weight + _fetch(data, place + 40)) & _MASK
    z = (_rotate((z + w[0]) & _MASK, 33) * factor) & _MASK
    v = _weak(data, place, (v[1] * factor) & _MASK, (x + w[0]) & _MASK)
    w = _weak(data, place + 32, (z + w[1]) & _MASK, (y + _fetch(data, place + 16)) & _MASK)
    return z, y, x, v, w


def siphash(data: bytes, key: tuple[int, int]) -> int:
    """SipHash-2-4 of 64 bits, which tf.strings.to_hash_bucket_strong takes.

    >>> hex(siphash(bytes(range(15)), (0x0706050403020100, 0x0F0E0D0C0B0A0908)))
    '0xa129ca6149be45e5'
    """
    k0, k1 = (k & _MASK for k in key)
    state = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]
    full = len(data) & ~7
    words = [_fetch(data, place) for place in range(0, full, 8)]
    words.append(int.from_bytes(data[full:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        state[3] ^= word
        _sip_rounds(state, 2)
        state[0] ^= word
    state[2] ^= 0xFF
    _sip_rounds(state, 4)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _sip_rounds(v: list[int], count: int) -> None:
    def left(value: int, bits: int) -> int:
        return _rotate(value, 64 - bits)

    for _ in range(count):
        v[0] = (v[0] + v[1]) & _MASK
        v[2] = (v[2] + v[3]) & _MASK
        v[1] = left(v[1], 13) ^ v[0]
        v[3] = left(v[3], 16) ^ v[2]
        v[0] = left(v[0], 32)
        v[2] = (v[2] + v[1]) & _MASK
        v[0] = (v[0] + v[3]) & _MASK
        v[1] = left(v[1], 17) ^ v[2]
        v[3] = left(v[3], 21) ^ v[0]
        v[2] = left(v[2], 32)
