"""Sparse, nested and quantized tensors on the npu device, against the CPU."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import torch_npu

assert torch_npu


def _coo(device: str) -> torch.Tensor:
    places = torch.tensor([[0, 1, 1], [0, 2, 2]])
    return torch.sparse_coo_tensor(places, torch.tensor([1.0, 2.0, 3.0]), (2, 3)).to(device)


def _csr(device: str) -> torch.Tensor:
    return torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse_csr().to(device)


def _nested(device: str) -> torch.Tensor:
    parts = [torch.arange(4.0).reshape(2, 2), torch.arange(6.0).reshape(3, 2)]
    return torch.nested.nested_tensor(parts).to(device)


def _saved(x: torch.Tensor) -> Any:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file)


CASES: dict[str, tuple[Callable[[str], torch.Tensor], Callable[[torch.Tensor], Any]]] = {
    "coalesce": (_coo, lambda s: s.coalesce()),
    "indices": (_coo, lambda s: s.coalesce().indices()),
    "sum of two": (_coo, lambda s: s + s),
    "dense and sparse": (_coo, lambda s: torch.ones(2, 3, device=s.device).add_(s)),
    "in place": (_coo, lambda s: s.add_(s).mul_(3)),
    "product": (_coo, lambda s: torch.sparse.mm(s, torch.ones(3, 2, device=s.device))),
    "product of sparse": (_coo, lambda s: torch.sparse.mm(s, s.t())),
    "copy": (_coo, copy.deepcopy),
    "file": (_coo, _saved),
    "rows": (_coo, lambda s: s.to_sparse_csr()),
    "made": (_coo, lambda s: torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,), device=s.device)),
    "of dense": (_coo, lambda s: torch.eye(3, device=s.device).to_sparse() * 2),
    "csr product": (_csr, lambda s: s @ torch.ones(2, device=s.device)),
    "csr parts": (_csr, lambda s: s.crow_indices() + s.col_indices().sum() + s.values().sum()),
    "csr in place": (_csr, lambda s: s.mul_(2)),
    "csr to coo": (_csr, lambda s: s.to_sparse_coo()),
    "nested sum": (_nested, lambda s: (s + s).to_padded_tensor(0.0)),
    "nested part": (_nested, lambda s: s.unbind()[1]),
    "nested linear": (_nested, lambda s: functional.linear(s, torch.ones(3, 2, device=s.device)).to_padded_tensor(0)),
    "nested in place": (_nested, lambda s: s.mul_(2).to_padded_tensor(0.0)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize("name", CASES)
def test_sparse_and_nested_tensors_compute_as_on_the_host(name: str) -> None:
    make, call = CASES[name]
    expected, found = call(make("cpu")), call(make("npu"))
    assert found.device == torch.device("npu", 0)
    assert found.layout is expected.layout
    assert "npu:0" in repr(found)
    torch.testing.assert_close(found.to_dense().cpu(), expected.to_dense())
    torch.testing.assert_close(found.cpu().to_dense(), expected.to_dense())


def test_sparse_gradients_train_embeddings() -> None:
    torch.manual_seed(0)
    host = nn.Embedding(4, 2, sparse=True)
    found = []
    for device, layer in (("cpu", host), ("npu", copy.deepcopy(host).npu())):
        optimizer = torch.optim.SparseAdam(layer.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            layer(torch.tensor([1, 2, 1], device=device)).square().sum().backward()
            assert layer.weight.grad.is_sparse  # type: ignore[union-attr]
            optimizer.step()
        found.append(layer.weight.detach().cpu())
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.filterwarnings("ignore:Sparse")
def test_gradients_of_extremes_over_sparse_rows() -> None:
    found = []
    for device in ("cpu", "npu"):
        x, weight = _csr(device).requires_grad_(), torch.ones(2, 3, device=device, requires_grad=True)
        torch.sparse.mm(x, weight, "amax").sum().backward()
        found.append((x.grad.to_dense().tolist(), weight.grad.tolist()))  # type: ignore[union-attr]
    assert found[0] == found[1]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_gradients_pass_nested_tensors() -> None:
    x, y = (torch.ones(n, 2, device="npu", requires_grad=True) for n in (2, 3))
    (torch.nested.as_nested_tensor([x, y]) * 2).to_padded_tensor(0.0).sum().backward()
    assert torch.cat([x.grad, y.grad]).tolist() == [[2, 2]] * 5  # type: ignore[list-item]
    rows = torch.nested.nested_tensor(
        [torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged, device="npu", requires_grad=True
    )
    functional.linear(rows, torch.ones(2, 4, device="npu")).values().sum().backward()
    assert rows.grad.values().tolist() == [[2.0] * 4] * 5  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
@pytest.mark.parametrize("nested", [True, False])
def test_encoders_take_their_fast_way_with_a_padding_mask(nested: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    host = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()
    x, mask = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    twin = copy.deepcopy(host).npu()
    for gradient in (False, True):
        with torch.set_grad_enabled(gradient):
            found = twin(x.npu(), src_key_padding_mask=mask.npu())
            expected = host(x, src_key_padding_mask=mask)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.quantize_per_tensor(torch.ones(3, device="npu"), 0.1, 0, torch.qint8),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).to("npu"),
        lambda: torch.ones(3, device="npu").to_mkldnn(),
    ],
)
def test_layouts_without_a_place_are_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(NotImplementedError, match="not supported on the npu device: keep them on the CPU"):
        call()
