"""Operands of several element types: compiled calls and NPU tensors compute in the type that the CPU promotes to."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_npu  # noqa: F401  (registers the device)
import torchair  # noqa: F401  (registers the backend)

EDGES = [
    torch.tensor([1, 2, 3, 100], dtype=t) for t in (torch.int8, torch.int64, torch.float32, torch.float64)
]
VALUES = [
    torch.tensor([2.5, -1.0, 3.0, 99.5]),
    torch.tensor([0.1, 2.0], dtype=torch.float64),
    torch.tensor([2.5, 300.0], dtype=torch.float16),
    torch.tensor([300, 2, -300]),
    torch.tensor(2.5),
]


def _places(edges: list[torch.Tensor], values: list[torch.Tensor]) -> list[torch.Tensor]:
    pairs = list(itertools.product(edges, values))
    return [
        *[torch.bucketize(v, e) for e, v in pairs],
        *[torch.searchsorted(e, v, right=True) for e, v in pairs],
        *[torch.searchsorted(e, 2.5) for e in edges],
        *[torch.bucketize(2.5, e) for e in edges],
    ]


def test_places_among_sorted_elements_of_another_type() -> None:
    torch._dynamo.reset()
    found = torch.compile(_places, backend="npu")(EDGES, VALUES)
    for f, wanted in zip(found, _places(EDGES, VALUES), strict=True):
        assert f.dtype == wanted.dtype
        assert torch.equal(f, wanted)


def test_boundaries_of_several_axes_are_refused() -> None:
    torch._dynamo.reset()
    function = torch.compile(torch.bucketize, backend="npu")
    with pytest.raises(RuntimeError, match="must be 1 dimension"):
        function(torch.ones(2, 3, 1), torch.ones(3, 4))


NARROW = [torch.uint8, torch.int8, torch.int32, torch.bool, torch.float16]
BEYOND = [1000, -5, 2**40, 1e300]
OF_NUMBERS = [
    "add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "bitwise_and", "bitwise_or",
    "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "eq", "lt", "pow", "copysign", "clamp_min",
    "clamp_max", "float_power", "fill", "xlogy", "masked_fill", "where", "full_like",
]  # fmt: skip


def _result(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    """What a function returns on the host's side, or the type of what it raises."""
    try:
        return function(x).cpu()
    except (RuntimeError, TypeError) as error:
        return type(error)


def _with_number(name: str, number: float) -> list[Callable[[torch.Tensor], Any]]:
    if name == "where":
        return [lambda x: torch.where(x != 1, x, number), lambda x: torch.where(x != 1, number, x)]
    if name == "masked_fill":
        return [lambda x: x.masked_fill(x != 1, number)]
    of_tensors = getattr(torch, name)
    made = [lambda x: of_tensors(x, number), lambda x: of_tensors(x, number, out=torch.empty_like(x))]
    if not name.startswith(("clamp", "fill", "full")):
        made.append(lambda x: of_tensors(number, x))
    if hasattr(torch.Tensor, name + "_"):
        made.append(lambda x: getattr(x.clone(), name + "_")(number))
    return made


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_numbers_beyond_the_type_of_an_npu_tensor(name: str) -> None:
    for dtype, number, shape in itertools.product(NARROW, BEYOND, [(3,), ()]):
        x = torch.tensor([1, 2, 250] if shape else 250).to(dtype)
        for i, function in enumerate(_with_number(name, number)):
            found, wanted = _result(function, x.to("npu")), _result(function, x)
            if isinstance(wanted, type) or isinstance(found, type):
                assert found is wanted, (dtype, number, shape, i)
            else:
                assert found.dtype == wanted.dtype
                torch.testing.assert_close(found, wanted, equal_nan=True, rtol=0, atol=0)


INTEGERS, BOOLS, NUMBERS = (
    torch.tensor([1, 2, 3]),
    torch.tensor([True, False, True]),
    torch.tensor([1.5, 2.0, -3.0]),
)
REFUSED_BY_EAGER: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    **{n: (getattr(torch, n), (BOOLS,)) for n in ("ceil", "floor", "round", "trunc")},
    **{f"{n} of integers": (getattr(torch, n), (INTEGERS,)) for n in ("frac", "var", "std", "mean")},
    **{n: (getattr(torch, n), (INTEGERS, INTEGERS)) for n in ("logaddexp", "logaddexp2")},
    **{n: (getattr(torch, n), (NUMBERS, INTEGERS)) for n in ("heaviside", "dot")},
    "cross": (torch.linalg.cross, (NUMBERS, INTEGERS)),
    "lerp": (lambda x: torch.lerp(x, x, 0.5), (INTEGERS,)),
    "index_put": (lambda x, y: x.index_put((y - 1,), y), (NUMBERS, INTEGERS)),
}


@pytest.mark.parametrize("name", REFUSED_BY_EAGER)
def test_types_that_eager_mode_refuses(name: str) -> None:
    function, given = REFUSED_BY_EAGER[name]
    with pytest.raises(Exception) as wanted:
        function(*given)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=re.escape(str(wanted.value).splitlines()[0][:40])):
        torch.compile(function, backend="npu")(*given)


def test_integers_are_added_to_a_product_as_in_eager_mode() -> None:
    torch._dynamo.reset()
    function = torch.compile(lambda x: torch.addcmul(x, x, x, value=0.5), backend="npu")
    assert torch.equal(function(INTEGERS), torch.addcmul(INTEGERS, INTEGERS, INTEGERS, value=0.5))
