"""acl.blas: matrix and vector products, queued on streams and run by the Graph Engine."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from acl import _memory
from acl import constants as c
from acl._conventions import AclError, returns_code
from acl._state import stream_of
from acl._tensors import item_bytes

__all__ = ["gemm_ex", "gemv_ex", "hgemm", "hgemv"]


@functools.lru_cache(maxsize=64)
def _product(rows: int, columns: int, depth: int, turned: tuple[bool, bool], inner: str, outer: str) -> Any:
    """alpha · a · b + beta · c as a compiled model."""
    from ge.compiler import compile_graph
    from ge.ops.builder import GraphBuilder

    g = GraphBuilder("gemm")
    a = g.input("a", (depth, rows) if turned[0] else (rows, depth), inner)
    b = g.input("b", (columns, depth) if turned[1] else (depth, columns), inner)
    old = g.input("c", (rows, columns), outer)
    alpha, beta = (g.op("Cast", g.input(name, (), outer), to="float32") for name in ("alpha", "beta"))
    left, right = (
        g.op("Transpose", value, perm=[1, 0]) if flip else value
        for value, flip in zip((a, b), turned, strict=True)
    )
    left, right = (g.op("Cast", value, to="float32") for value in (left, right))
    scaled = g.op("Mul", alpha, g.op("MatMul", left, right))
    added = g.op("Add", scaled, g.op("Mul", beta, g.op("Cast", old, to="float32")))
    g.output(g.op("Cast", added, to=outer) if outer != "float32" else added, "y")
    return compile_graph(g.graph)


_TYPES = ("float16", "float32")


class _Matrix:
    """A caller's memory, accessed as an array."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str, block: object) -> None:
        self.address, self.shape, self.dtype = address, shape, dtype
        self.block = block  # keeps the memory alive after acl.rt.free until the work is done
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * item_bytes(dtype)

    def read(self) -> np.ndarray:
        return np.frombuffer(_memory.read(self.address, self.nbytes), self.dtype).reshape(self.shape)

    def write(self, values: np.ndarray) -> None:
        given = np.ascontiguousarray(values, self.dtype)
        _memory.copy(self.address, given.ctypes.data, self.nbytes)


def _matrix(address: int, shape: tuple[int, ...], code: int, write: bool = False) -> _Matrix:
    """Check a caller's memory."""
    name = c.DTYPES.get(code, "")
    if name not in _TYPES:
        raise AclError(
            c.ACL_ERROR_UNSUPPORTED_DATA_TYPE, f"products take {', '.join(_TYPES)}, not {name or code}"
        )
    nbytes = int(np.prod(shape, dtype=np.int64)) * item_bytes(name)
    return _Matrix(address, shape, name, _memory.check_range(address, nbytes, write=write))


def _turned(code: int) -> bool:
    if code not in (c.ACL_TRANS_N, c.ACL_TRANS_T):
        raise AclError(
            c.ACL_ERROR_INVALID_PARAM, f"a transposition of {code}: only N (0) and T (1) are supported"
        )
    return code == c.ACL_TRANS_T


def _check_packed(*strides: int) -> None:
    if any(stride != -1 for stride in strides):
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"matrices are packed (-1), not {strides} apart")


@returns_code
def gemm_ex(
    trans_a: int, trans_b: int, trans_c: int, m: int, n: int, k: int, alpha: int, matrix_a: int, lda: int,
    data_type_a: int, matrix_b: int, ldb: int, data_type_b: int, beta: int, matrix_c: int, ldc: int,
    data_type_c: int, type: int, stream: int,
) -> None:  # fmt: skip
    """C = alpha · op(A) · op(B) + beta · C, at addresses; alpha and beta have the type of C. Returns ret at once."""
    _check_packed(lda, ldb, ldc)
    turned = (_turned(trans_a), _turned(trans_b))
    if _turned(trans_c):
        raise AclError(c.ACL_ERROR_INVALID_PARAM, "C cannot be transposed")
    if data_type_a != data_type_b:
        raise AclError(c.ACL_ERROR_UNSUPPORTED_DATA_TYPE, "A and B have different element types")
    a = _matrix(matrix_a, (k, m) if turned[0] else (m, k), data_type_a)
    b = _matrix(matrix_b, (n, k) if turned[1] else (k, n), data_type_b)
    out = _matrix(matrix_c, (m, n), data_type_c, write=True)
    factors = [_matrix(address, (), data_type_c) for address in (alpha, beta)]

    def work() -> None:
        model = _product(m, n, k, turned, c.DTYPES[data_type_a], c.DTYPES[data_type_c])
        out.write(model(a.read(), b.read(), out.read(), *(f.read() for f in factors)))

    stream_of(stream).submit(work)


@returns_code
def hgemm(
    trans_a: int, trans_b: int, trans_c: int, m: int, n: int, k: int, alpha: int, matrix_a: int, lda: int,
    matrix_b: int, ldb: int, beta: int, matrix_c: int, ldc: int, type: int, stream: int,
) -> None:  # fmt: skip
    """C = alpha · op(A) · op(B) + beta · C in float16. Returns ret at once."""
    half = c.ACL_FLOAT16
    ret = gemm_ex(
        trans_a, trans_b, trans_c, m, n, k, alpha, matrix_a, lda, half, matrix_b, ldb, half, beta, matrix_c, ldc,
        half, type, stream,
    )  # fmt: skip
    _pass_on(ret)


@returns_code
def gemv_ex(
    trans_a: int, m: int, n: int, alpha: int, a: int, lda: int, data_type_a: int, x: int, incx: int, data_type_x: int,
    beta: int, y: int, incy: int, data_type_y: int, type: int, stream: int,
) -> None:  # fmt: skip
    """y = alpha · op(A) · x + beta · y, A of m rows and n columns. Returns ret at once."""
    _check_packed(incx, incy)
    rows, depth = (n, m) if _turned(trans_a) else (m, n)
    ret = gemm_ex(
        trans_a, c.ACL_TRANS_N, c.ACL_TRANS_N, rows, 1, depth, alpha, a, lda, data_type_a, x, -1, data_type_x, beta, y,
        -1, data_type_y, type, stream,
    )  # fmt: skip
    _pass_on(ret)


@returns_code
def hgemv(
    trans_a: int, m: int, n: int, alpha: int, a: int, lda: int, x: int, incx: int, beta: int, y: int, incy: int,
    type: int, stream: int,
) -> None:  # fmt: skip
    """y = alpha · op(A) · x + beta · y in float16. Returns ret at once."""
    half = c.ACL_FLOAT16
    _pass_on(gemv_ex(trans_a, m, n, alpha, a, lda, half, x, incx, half, beta, y, incy, half, type, stream))


def _pass_on(ret: int) -> None:
    if ret != c.ACL_SUCCESS:
        from acl._conventions import last_message

        raise AclError(ret, last_message().partition(": ")[2])
