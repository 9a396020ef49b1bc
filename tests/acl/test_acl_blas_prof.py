"""acl.blas and acl.prof."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import acl

OK = acl.ACL_SUCCESS
RNG = np.random.default_rng(0)


def on_device(array: np.ndarray) -> int:
    address, ret = acl.rt.malloc(array.nbytes, acl.ACL_MEM_MALLOC_HUGE_FIRST)
    assert ret == OK
    host = acl.util.numpy_to_ptr(array)
    assert acl.rt.memcpy(address, array.nbytes, host, array.nbytes, acl.ACL_MEMCPY_HOST_TO_DEVICE) == OK
    return int(address)


def back(address: int, like: np.ndarray) -> np.ndarray:
    return np.frombuffer(acl.util.ptr_to_bytes(address, like.nbytes), like.dtype).reshape(like.shape)


@pytest.mark.parametrize(
    ("inner", "outer"), [("float32", "float32"), ("float16", "float16"), ("float16", "float32")]
)
@pytest.mark.parametrize("turned", [(0, 0), (1, 1)])
def test_products_of_matrices(device: int, inner: str, outer: str, turned: tuple[int, int]) -> None:
    m, n, k = 5, 7, 6
    a, b = RNG.standard_normal((m, k)).astype(inner), RNG.standard_normal((k, n)).astype(inner)
    old = RNG.standard_normal((m, n)).astype(outer)
    alpha, beta = (np.asarray(v, outer) for v in (2.0, 0.5))
    stored = [np.ascontiguousarray(x.T if t else x) for x, t in zip((a, b), turned, strict=True)]
    codes = {"float32": acl.ACL_FLOAT, "float16": acl.ACL_FLOAT16}
    out = on_device(old)
    stream, _ = acl.rt.create_stream()
    ret = acl.blas.gemm_ex(
        *turned, acl.ACL_TRANS_N, m, n, k, on_device(alpha), on_device(stored[0]), -1, codes[inner],
        on_device(stored[1]), -1, codes[inner], on_device(beta), out, -1, codes[outer],
        acl.ACL_COMPUTE_HIGH_PRECISION, stream,
    )  # fmt: skip
    assert ret == OK and acl.rt.synchronize_stream(stream) == OK, acl.get_recent_err_msg()
    wanted = 2 * a.astype(np.float64) @ b.astype(np.float64) + 0.5 * old
    np.testing.assert_allclose(back(out, old), wanted, rtol=1e-5 if outer == "float32" else 2e-3, atol=2e-3)
    if inner == outer == "float16":
        again = on_device(old)
        ret = acl.blas.hgemm(
            *turned, 0, m, n, k, on_device(alpha), on_device(stored[0]), -1, on_device(stored[1]), -1,
            on_device(beta), again, -1, 0, stream,
        )  # fmt: skip
        assert ret == OK and acl.rt.synchronize_stream(stream) == OK
        np.testing.assert_array_equal(back(again, old), back(out, old))
    assert acl.rt.destroy_stream(stream) == OK


@pytest.mark.parametrize("turned", [0, 1])
def test_products_with_vectors(device: int, turned: int) -> None:
    a = RNG.standard_normal((4, 6)).astype(np.float32)
    x, y = (RNG.standard_normal(size).astype(np.float32) for size in ((4, 6) if turned else (6, 4)))
    one, zero = np.ones((), np.float32), np.zeros((), np.float32)
    out, stream = on_device(y), acl.rt.create_stream()[0]
    ret = acl.blas.gemv_ex(
        turned, 4, 6, on_device(one), on_device(a), -1, acl.ACL_FLOAT, on_device(x), -1, acl.ACL_FLOAT,
        on_device(zero), out, -1, acl.ACL_FLOAT, 0, stream,
    )  # fmt: skip
    assert ret == OK and acl.rt.synchronize_stream(stream) == OK
    np.testing.assert_allclose(back(out, y), (a.T if turned else a) @ x, rtol=1e-5, atol=1e-6)
    wrong = acl.blas.gemv_ex(
        2,
        4,
        6,
        on_device(one),
        on_device(a),
        -1,
        0,
        on_device(x),
        -1,
        0,
        on_device(zero),
        out,
        -1,
        0,
        0,
        stream,
    )
    assert wrong == acl.ACL_ERROR_INVALID_PARAM and "transposition" in acl.get_recent_err_msg()
    assert acl.rt.destroy_stream(stream) == OK


def test_a_profile_tells_runs_and_tasks(device: int, model_file: str, tmp_path: Path) -> None:
    assert acl.prof.start(0) == acl.ACL_ERROR_UNINITIALIZE
    assert acl.prof.init(str(tmp_path / "profiles")) == OK
    config = acl.prof.create_config([0], 0, None, 1)
    model, ret = acl.mdl.load_from_file(model_file)
    desc = acl.mdl.create_desc()
    assert ret == OK and acl.mdl.get_desc(desc, model) == OK
    sets = []
    for side in ("input", "output"):
        made = acl.mdl.create_dataset()
        for index in range(getattr(acl.mdl, f"get_num_{side}s")(desc)):
            size = getattr(acl.mdl, f"get_{side}_size_by_index")(desc, index)
            acl.mdl.add_dataset_buffer(
                made, acl.create_data_buffer(on_device(np.zeros(size, np.uint8)), size)
            )
        sets.append(made)
    assert acl.mdl.execute(model, *sets) == OK
    assert acl.prof.start(config) == OK
    assert acl.mdl.execute(model, *sets) == OK and acl.mdl.execute(model, *sets) == OK
    assert acl.prof.stop(config) == OK, acl.get_recent_err_msg()
    (told,) = json.loads((tmp_path / "profiles" / "summary_0.json").read_text())["models"]
    assert told["runs"] == len(told["seconds"]) == 2 and told["tasks"]
    assert acl.prof.destroy_config(config) == OK and acl.prof.finalize() == OK
