"""Attention and its gradient by one task are what float64 gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import npu_runtime as rt
from tests.native.native_support import (
    BF16,
    FLOATS,
    VECTORS,
    Array,
    Operand,
    close,
    needs_own_kernels,
    randn,
    run_single,
)

pytestmark = needs_own_kernels

CASES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(FLOATS),
        "batch": st.integers(1, 2),
        "heads": st.integers(1, 3),
        "queries": st.one_of(st.integers(1, 20), st.sampled_from([63, 64, 65, 130, 197])),
        "keys": st.one_of(st.integers(1, 20), st.sampled_from([63, 64, 65, 130, 197])),
        "depth": st.sampled_from([2, 8, 16, 34, 64, 80]),
        "width": st.sampled_from([2, 16, 34, 64, 80]),
        "causal": st.booleans(),
        "by_tokens": st.booleans(),  # heads lie side by side in memory
    }
)
TOLERANCE = {"float32": 4e-6, "bfloat16": 1.2e-2}
OF_SUMS = {"float32": 4e-6, "bfloat16": 2e-5}
OF_GRADIENTS = {"float32": 4e-5, "bfloat16": 4e-2}  # differences of sums of products


def _operand(array: Array, by_tokens: bool) -> Operand:
    """The array in the order of its axes, or with the heads of a token side by side."""
    if not by_tokens:
        return Operand(array)
    return Operand(np.ascontiguousarray(array.transpose(0, 2, 1, 3)), (0, 2, 1, 3))


def _blank(shape: tuple[int, ...], dtype: Any, by_tokens: bool) -> Operand:
    return _operand(np.full(shape, np.nan, dtype), by_tokens)


def _seen(operand: Operand) -> Array:
    return operand.array if operand.perm is None else operand.array.transpose(operand.perm)


def _doubles(*arrays: Array) -> list[torch.Tensor]:
    return [torch.from_numpy(a.astype(np.float64)).requires_grad_() for a in arrays]


def _attention(operands: list[torch.Tensor], scale: float, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64: the result and the logarithms of the sums."""
    q, k, v = operands
    scores = q @ k.transpose(-2, -1) * scale
    scores = scores if mask is None else scores + mask
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def _causal(queries: int, keys: int) -> torch.Tensor:
    hidden = ~torch.ones(queries, keys, dtype=torch.bool).tril()
    return torch.zeros(queries, keys, dtype=torch.float64).masked_fill(hidden, -torch.inf)


def _made(case: dict[str, Any]) -> list[Array]:
    lead, dtype = (case["batch"], case["heads"]), case["dtype"]
    q = randn(*lead, case["queries"], case["depth"], dtype=dtype)
    k = randn(*lead, case["keys"], case["depth"], seed=1, dtype=dtype)
    v = randn(*lead, case["keys"], case["width"], seed=2, dtype=dtype)
    return [q, k, v]


@settings(max_examples=80, deadline=None)
@given(case=CASES, scale=st.sampled_from([0.125, 1.0, -0.25]))
def test_forward_and_backward(case: dict[str, Any], scale: float) -> None:
    q, k, v = _made(case)
    dtype, by_tokens, causal = case["dtype"], case["by_tokens"], case["causal"]
    mask = _causal(case["queries"], case["keys"]) if causal else None
    wide = _doubles(q, k, v)
    expected, expected_sums = _attention(wide, scale, mask)
    y = _blank(tuple(expected.shape), dtype, by_tokens)
    sums = np.full(expected_sums.shape, np.nan, np.float32)
    attrs = {"scale": scale, "causal": causal}
    operands = [_operand(a, by_tokens) for a in (q, k, v)]
    assert run_single("attention", operands, [y, sums], attrs) == f"fused:{VECTORS}"
    close(_seen(y), expected.detach().numpy(), TOLERANCE[dtype.name])
    close(sums, expected_sums.detach().numpy(), OF_SUMS[dtype.name])

    dy = randn(*expected.shape, seed=3, dtype=dtype)
    expected.backward(torch.from_numpy(dy.astype(np.float64)))
    gradients = [_blank(a.shape, dtype, by_tokens) for a in (q, k, v)]
    reads = [_operand(dy, by_tokens), *operands, y, sums]
    assert run_single("attention_grad", reads, gradients, attrs) == f"fused:{VECTORS}"
    for found, given_ in zip(gradients, wide, strict=True):
        assert given_.grad is not None
        close(_seen(found), given_.grad.numpy(), OF_GRADIENTS[dtype.name])


MASKS = [(1, 1, 1, 21), (1, 1, 9, 21), (2, 1, 1, 21), (2, 3, 9, 21), (9, 21)]


@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("kind", ["bool", "float32"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_masks(shape: tuple[int, ...], kind: str, dtype: np.dtype[Any]) -> None:
    case = {"dtype": dtype, "batch": 2, "heads": 3, "queries": 9, "keys": 21, "depth": 16, "width": 16}
    q, k, v = _made(case)
    kept = np.random.default_rng(5).random(shape) < 0.6
    kept[..., 0] = True
    added = randn(*shape, seed=6)
    mask: Array = kept if kind == "bool" else added
    wide_mask = np.where(kept, 0.0, -np.inf) if kind == "bool" else added
    expected, sums = _attention(_doubles(q, k, v), 0.25, torch.from_numpy(wide_mask.astype(np.float64)))
    y, found = np.full(expected.shape, np.nan, dtype), np.full(sums.shape, np.nan, np.float32)
    run_single("attention", [q, k, v, mask], [y, found], {"scale": 0.25})
    close(y, expected.detach().numpy(), TOLERANCE[dtype.name])
    close(found, sums.detach().numpy(), OF_SUMS[dtype.name])


FILLS = {"hidden": -np.inf, "finite": -2.3e38, "little": -1.5}


@pytest.mark.parametrize("shape", [(1, 1, 1, 37), (70, 37), (2, 1, 70, 37), (2, 3, 70, 37)], ids=str)
@pytest.mark.parametrize("kind", ["added", "far", *FILLS])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients_with_masks(shape: tuple[int, ...], kind: str, dtype: Any) -> None:
    """Also of queries all of whose keys are hidden by a finite number: each of their keys has the same weight."""
    case = {"dtype": dtype, "batch": 2, "heads": 3, "queries": 70, "keys": 37, "depth": 16, "width": 18}
    arrays = _made(case)
    operands = _doubles(*arrays)
    rng = np.random.default_rng(7)
    attrs: dict[str, Any] = {"scale": 0.25}
    if kind in FILLS:
        mask: Array = rng.random(shape) < 0.6
        mask[..., 0] = True
        if kind != "hidden" and shape[-2] > 1:
            mask[..., 3:9, :] = False
        if kind != "hidden":
            attrs["fill"] = FILLS[kind]
        scores = operands[0] @ operands[1].transpose(-2, -1) * 0.25
        scores = torch.where(torch.from_numpy(mask), scores, torch.tensor(FILLS[kind], dtype=torch.float64))
    else:
        mask = rng.standard_normal(shape).astype(np.float32)
        if kind == "far":  # all scores of the first queries become one number
            mask[..., : max(1, shape[-2] // 4), :] = -1e30
        scores = operands[0] @ operands[1].transpose(-2, -1) * 0.25 + torch.from_numpy(
            mask.astype(np.float64)
        )
    expected, expected_sums = torch.softmax(scores, -1) @ operands[2], torch.logsumexp(scores, -1)
    y, sums = np.full(expected.shape, np.nan, dtype), np.full(expected_sums.shape, np.nan, np.float32)
    run_single("attention", [*arrays, mask], [y, sums], attrs)
    close(y, expected.detach().numpy(), TOLERANCE[dtype.name])
    dy = randn(*expected.shape, seed=3, dtype=dtype)
    expected.backward(torch.from_numpy(dy.astype(np.float64)))
    found = [np.full(a.shape, np.nan, dtype) for a in arrays]
    run_single("attention_grad", [dy, *arrays, y, sums, mask], found, attrs)
    for ours, theirs in zip(found, operands, strict=True):
        assert theirs.grad is not None
        close(ours, theirs.grad.numpy(), OF_GRADIENTS[dtype.name])


def test_large_scores_do_not_overflow() -> None:
    q, k = (300 * randn(1, 1, 7, 8, seed=s) for s in (0, 1))
    v = randn(1, 1, 7, 8, seed=2)
    expected, _ = _attention(_doubles(q, k, v), 1.0, None)
    y = np.full(v.shape, np.nan, np.float32)
    run_single("attention", [q, k, v], [y], {"scale": 1.0})
    close(y, expected.detach().numpy(), 1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lift", [-400.0, 80.0, 400.0])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients_of_scores_far_from_zero(dtype: Any, lift: float, causal: bool) -> None:
    """All scores of a query are lifted alike, but for keys far below the others: they have no weight."""
    case = {"dtype": dtype, "batch": 1, "heads": 2, "queries": 37, "keys": 29, "depth": 16, "width": 16}
    q, k, v = _made(case)
    q[..., 0], q[..., 1], k[..., 0] = dtype.type(lift), dtype.type(1), dtype.type(1)
    k[..., 1] = np.where(np.arange(29) % 5 == 4, -300, 0).astype(dtype)
    wide = _doubles(q, k, v)
    expected, expected_sums = _attention(wide, 1.0, _causal(37, 29) if causal else None)
    y, sums = np.full(expected.shape, np.nan, dtype), np.full(expected_sums.shape, np.nan, np.float32)
    attrs = {"scale": 1.0, "causal": causal}
    run_single("attention", [q, k, v], [y, sums], attrs)
    close(y, expected.detach().numpy(), 50 * TOLERANCE[dtype.name])
    close(sums, expected_sums.detach().numpy(), OF_SUMS[dtype.name])
    dy = randn(*expected.shape, seed=3, dtype=dtype)
    expected.backward(torch.from_numpy(dy.astype(np.float64)))
    found = [np.full(a.shape, np.nan, dtype) for a in (q, k, v)]
    run_single("attention_grad", [dy, q, k, v, y, sums], found, attrs)
    for ours, theirs in zip(found, wide, strict=True):
        assert theirs.grad is not None
        close(ours, theirs.grad.numpy(), 10 * OF_GRADIENTS[dtype.name])


def test_one_head_is_shared_by_threads() -> None:
    q, k, v = (randn(197, 64, seed=s) for s in range(3))
    expected, _ = _attention(_doubles(q, k, v), 0.125, None)
    y = np.full(v.shape, np.nan, np.float32)
    run_single("attention", [q, k, v], [y], {"scale": 0.125})
    close(y, expected.detach().numpy(), TOLERANCE["float32"])


BAD = [
    ([(1, 1, 4, 3), (1, 1, 4, 3), (1, 1, 4, 3)], BF16, "pairs"),
    ([(1, 1, 4, 8), (1, 1, 5, 6), (1, 1, 5, 8)], np.float32, "do not fit"),
    ([(1, 2, 4, 8), (1, 1, 5, 8), (1, 1, 5, 8)], np.float32, "leading dimensions differ"),
    ([(1, 1, 4, 8), (1, 1, 4, 8), (1, 1, 4, 8)], np.float64, "no kernel"),
    ([(1, 1, 1, 4, 8), (1, 1, 1, 4, 8), (1, 1, 1, 4, 8)], np.float32, "two leading dimensions"),
]


@pytest.mark.parametrize(("shapes", "dtype", "why"), BAD, ids=[b[-1] for b in BAD])
def test_what_is_refused(shapes: list[tuple[int, ...]], dtype: Any, why: str) -> None:
    q, k, v = (randn(*s, dtype=dtype) for s in shapes)
    y = np.empty((*q.shape[:-1], v.shape[-1]), dtype)
    with pytest.raises(rt.UnsupportedTask, match=why):
        run_single("attention", [q, k, v], [y], {"scale": 1.0})
