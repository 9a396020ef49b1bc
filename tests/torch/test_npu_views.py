"""Views of NPU tensors and operators that change a tensor in place, against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_npu

assert torch_npu

Case = tuple[tuple[int, ...], Callable[[torch.Tensor], Any]]

# An operator that changes sizes in place each, by the name of its overload.
IN_PLACE: dict[str, Case] = {
    "as_strided_": ((2, 3), lambda x: x.as_strided_((2, 2), (1, 2), 1)),
    "detach_": ((2, 3), lambda x: x.detach_()),
    "resize_": ((2, 3), lambda x: x.resize_(4)),
    "resize_as_": ((2, 3), lambda x: x.resize_as_(torch.empty(3, 1, device=x.device))),
    "set_": ((2, 3), lambda x: x.set_()),
    "set_.source_Storage": ((2, 3), lambda x: x.set_(x.untyped_storage())),
    "set_.source_Storage_storage_offset": ((2, 3), lambda x: x.set_(x.untyped_storage(), 1, (2, 2), (1, 2))),
    "set_.source_Tensor": ((2, 3), lambda x: x.set_(torch.ones(4, device=x.device))),
    "set_.source_Tensor_storage_offset": ((2, 3), lambda x: x.set_(torch.ones(4, device=x.device), 1, (2,), (2,))),
    "squeeze_": ((2, 1, 3, 1), lambda x: x.squeeze_()),
    "squeeze_.dim": ((2, 1, 3, 1), lambda x: x.squeeze_(1)),
    "squeeze_.dims": ((2, 1, 3, 1), lambda x: x.squeeze_((1, 3))),
    "swapaxes_": ((2, 3), lambda x: x.swapaxes_(0, 1)),
    "swapdims_": ((2, 3), lambda x: x.swapdims_(0, 1)),
    "t_": ((2, 3), lambda x: x.t_()),
    "transpose_": ((2, 3, 1), lambda x: x.transpose_(0, 2)),
    "unsqueeze_": ((2, 3), lambda x: x.unsqueeze_(-1)),
}  # fmt: skip


def _numbers(shape: tuple[int, ...], device: str) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.arange(count, dtype=torch.float32).reshape(shape).clone().to(device)


def _described(x: torch.Tensor) -> Any:
    return x.tolist(), x.shape, x.stride(), x.storage_offset(), x._version, x.is_leaf, x.requires_grad


def test_every_operator_that_changes_sizes_in_place_is_tested() -> None:
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")]
    found = set()
    for name in names:
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        if torch.Tag.inplace_view in op.tags:
            found.add(name.removeprefix("aten::"))
    assert found == set(IN_PLACE)


@pytest.mark.parametrize(
    ("name", "aliased"), [(n, a) for n in IN_PLACE for a in (False, True) if not (a and n == "detach_")]
)
def test_sizes_change_in_place(name: str, aliased: bool) -> None:
    shape, call = IN_PLACE[name]
    found = []
    for device in ("cpu", "npu"):
        x = _numbers(shape, device)
        base = x
        if aliased:
            base = _numbers((2, *shape), device)
            x = base[1]
        given = call(x)
        assert given is x
        found.append(_described(x))
        if x.numel() and "Tensor" not in name:
            x.fill_(7)  # where it is the memory of before, the base sees it
            found[-1] = (found[-1], base.sum().item())
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["squeeze_", "swapaxes_", "t_", "transpose_", "unsqueeze_", "as_strided_"])
def test_gradients_pass_changes_of_sizes(name: str) -> None:
    shape, call = IN_PLACE[name]
    found = []
    for device in ("cpu", "npu"):
        x = _numbers(shape, device).requires_grad_()
        y = x * 2
        call(y)
        y.mul_(torch.arange(y.numel(), device=device).reshape(y.shape))
        y.sum().backward()
        found.append((x.grad.tolist(), y._version))  # type: ignore[union-attr]
    assert found[0] == found[1]


def test_spectrograms_are_the_hosts() -> None:
    x = torch.randn(2, 64)
    window = torch.hann_window(16)
    found = torch.stft(x.npu(), 16, window=window.npu(), return_complex=True)
    torch.testing.assert_close(found.cpu(), torch.stft(x, 16, window=window, return_complex=True))
    back = torch.istft(found, 16, window=window.npu(), length=64)
    torch.testing.assert_close(back.cpu(), x, rtol=1e-4, atol=1e-5)


def test_a_released_storage_has_no_bytes_until_it_is_restored() -> None:
    x = torch.arange(4.0, device="npu")
    view, storage = x[1:], x.untyped_storage()
    storage.resize_(0)
    assert storage.nbytes() == view.untyped_storage().size() == 0
    storage.resize_(16)
    assert storage.nbytes() == 16 and view.tolist() == [1.0, 2.0, 3.0]
    storage.resize_(0)
    view.resize_(2).fill_(5.0)  # restores the memory for all tensors of the storage
    assert storage.nbytes() == 16 and x[1:3].tolist() == [5.0, 5.0]


def test_storages_grow_where_nothing_else_shares_them() -> None:
    x = torch.arange(4.0, device="npu")
    x.resize_(2, 3)
    assert x.shape == (2, 3)
    assert x.flatten()[:4].tolist() == [0, 1, 2, 3]
    part = x[1]
    part.resize_(2)
    part.fill_(9)
    assert x[1, :2].tolist() == [9, 9]
    with pytest.raises(RuntimeError, match="Resize a clone"):
        part.resize_(100)
    with pytest.raises(RuntimeError, match="not resizable"):
        x.untyped_storage().resize_(1)
    image = torch.zeros(1, device="npu").resize_(1, 2, 3, 3, memory_format=torch.channels_last)
    assert image.stride() == (18, 1, 6, 2)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_results_are_resized_as_on_the_host() -> None:
    for shape in ((0,), (2,), (6,), (3, 2)):
        out = torch.empty(shape, device="npu")
        given = torch.add(torch.ones(2, 3, device="npu"), 1, out=out)
        assert given is out
        assert out.tolist() == [[2.0] * 3] * 2
    values, places = torch.empty(1, device="npu"), torch.empty(1, dtype=torch.int64, device="npu")
    torch.max(torch.arange(6.0, device="npu").reshape(2, 3), 1, out=(values, places))
    assert (values.tolist(), places.tolist()) == ([2, 5], [2, 2])


def test_operands_that_overlap_are_refused_or_read_first() -> None:
    found = []
    for device in ("cpu", "npu"):
        x = _numbers((3, 3), device)
        with pytest.raises(RuntimeError, match="single memory location"):
            x.add_(x.t())
        with pytest.raises(RuntimeError, match="single memory location"):
            torch.add(x, x.t(), out=x)
        x.add_(x)
        x[0].copy_(x[1])
        x[:, 1].mul_(x[:, 2])
        found.append(x.tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.cat([x, y], out=x),
        lambda x, y: x.ldexp_(torch.ones(4, *x.shape, device=x.device)),
        lambda x, y: torch.mul(x, torch.ones(4, *x.shape, device=x.device), out=x),
        lambda x, y: y.view(-1).index_put_((torch.arange(3, device=x.device),), y.view(-1)[1:4]),
        lambda x, y: (i := torch.arange(3, device=x.device)).index_put_((i,), i.clone()),
    ],
)
def test_what_would_overwrite_or_resize_its_operands_is_refused(function: Callable[..., Any]) -> None:
    for device in ("cpu", "npu"):
        x, y = _numbers((3, 3), device), _numbers((3, 3), device)
        before = y.tolist()
        with pytest.raises(RuntimeError, match=r"unsupported operation|match the broadcast shape"):
            function(x, y)
        assert y.tolist() == before


@pytest.mark.parametrize("written", ["itself", "its conjugate", "a conjugate"])
def test_solutions_replace_their_right_sides(written: str) -> None:
    for device in ("cpu", "npu"):
        z = torch.complex(_numbers((3, 3), device), _numbers((3, 3), device).exp())
        a = z.tril() + 3 * torch.eye(3, device=device)
        right = z if written == "itself" else z.conj()
        want, out = right.clone(), right if written == "a conjugate" else z
        torch.linalg.solve_triangular(a, right, upper=False, out=out)
        torch.testing.assert_close(a @ out, want)


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.ldexp(_numbers((4,), d), torch.arange(4, device=d)),
        lambda d: _numbers((4,), d).ldexp_(torch.arange(4, device=d)),
        lambda d: torch.complex(_numbers((4,), d), _numbers((4,), d)).conj_physical_(),
        lambda d: torch.kaiser_window(5, device=d),
        lambda d: torch.kaiser_window(5, periodic=False, beta=3.0, device=d),
    ],
)
def test_operators_without_kernels_for_other_devices_run_on_the_host(make: Callable[[str], Any]) -> None:
    found = make("npu")
    assert found.is_npu
    torch.testing.assert_close(found.cpu(), make("cpu"))


def test_a_number_is_copied_to_a_tensor() -> None:
    for kind, number in (
        (torch.float32, torch.inf),
        (torch.int8, 3),
        (torch.bool, True),
        (torch.complex64, 2j),
    ):
        x = torch.zeros(2, 3, dtype=kind, device="npu")
        assert x[:, 1:].copy_(number).tolist() == torch.full((2, 2), number, dtype=kind).tolist()
        assert not x[:, 0].any()


def test_indices_of_the_device_do_not_index_the_host() -> None:
    x, places = torch.arange(6.0), torch.tensor([2, 0], device="npu")
    for function in (lambda: x[places], lambda: x.index_put_((places,), torch.zeros(2))):
        with pytest.raises(RuntimeError, match=r"indices should be either .* \(cpu\)"):
            function()
    assert x.npu()[places.cpu()].tolist() == [2, 0]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_results_are_on_the_device_that_is_asked_for(device: str) -> None:
    x = torch.zeros(2, 3, device="npu")
    for made in (
        x.new_empty_strided((2, 2), (1, 2), device=device),
        x.new_zeros(2, device=device),
        torch.full_like(x, 2, device=device),
        torch.randn_like(x, device=device),
    ):
        assert made.device.type == device
    assert torch.zeros(3).new_empty_strided((2, 2), (1, 2), device="npu").is_npu


def test_data_of_a_tensor_is_exchanged() -> None:
    x = torch.nn.Parameter(torch.zeros(2, 3, device="npu"))
    fresh = torch.ones(4, device="npu")
    x.data = fresh
    fresh.add_(1)
    assert x.tolist() == [2, 2, 2, 2]
    x.data.t()
    torch.utils.swap_tensors(x, other := torch.nn.Parameter(torch.zeros(1, device="npu")))
    assert (x.shape, other.tolist()) == ((1,), [2, 2, 2, 2])


def test_copies_of_views_read_all_of_the_memory() -> None:
    found = []
    for device in ("cpu", "npu"):
        x = _numbers((6,), device)[2:]
        copied = torch.as_strided_copy(x, (2, 2), (2, 1), 0)
        scattered = torch.as_strided_scatter(x, torch.zeros(2, device=device), (2,), (1,), 1)
        found.append((copied.tolist(), scattered.tolist(), x.unfold(0, 2, 1).tolist()))
    assert found[0] == found[1]
