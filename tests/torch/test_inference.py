"""Compiled models kept on disk, known sizes, scopes, and printing from inside a graph."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchair
from tests.torch.test_export_and_decode import Decoder, generate
from torchair.executable import observe
from torchair.inference import cache_compile, set_dim_gears


@pytest.fixture(autouse=True)
def fresh(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setenv("NPU_KEY_FILE", str(tmp_path_factory.mktemp("key") / "om.key"))


class Net(nn.Module):
    scale = 2.0

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 16), nn.Linear(16, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, sign: int = 1) -> torch.Tensor:
        return self.second(self.drop(self.first(x).relu())) * self.scale * sign


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net().eval()


def call(model: nn.Module, folder: Path | None, *args: Any) -> tuple[Any, Any]:
    """A fresh cached method, called once: itself and whether the answer is eager mode's."""
    torch._dynamo.reset()
    cached: Any = cache_compile(model.forward, cache_dir=folder)
    with torch.no_grad():
        torch.testing.assert_close(cached(*args), model(*args), rtol=1e-4, atol=1e-5)
    return cached, (cached.loads, cached.compiles)


def test_a_second_model_like_the_first_is_loaded(tmp_path: Path) -> None:
    x = torch.randn(3, 8)
    assert call(net(), tmp_path, x)[1] == (0, 1)
    cached, counts = call(net(), tmp_path, x)
    assert counts == (1, 0)
    for _ in range(3):
        x = torch.randn(3, 8)
        torch.testing.assert_close(cached(x), net()(x), rtol=1e-4, atol=1e-5)
    assert (cached.loads, cached.compiles) == (1, 0)


def test_a_folder_that_is_not_named_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("torchair.inference.LIMIT_BYTES", 0)
    model, x = net(), torch.randn(3, 8)
    assert call(model, None, x)[1] == (0, 1)
    assert not [p for p in (tmp_path / "graphs").rglob("*") if p.is_file()]
    monkeypatch.setattr("torchair.inference.LIMIT_BYTES", 1 << 30)
    assert call(model, None, x)[1] == (0, 1)
    assert call(model, None, x)[1] == (1, 0)
    monkeypatch.setattr("torchair.inference.LIMIT_BYTES", 0)
    assert call(model, tmp_path / "named", x)[1] == (0, 1)
    assert call(model, tmp_path / "named", x)[1] == (1, 0)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(8, 6, 2, batch_first=True), nn.GRU(6, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(self.lstm(x)[0])[0]


def test_recurrent_layers_are_kept(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Recurrent().eval(), torch.randn(2, 7, 8)
    with torch._dynamo.config.patch(allow_rnn=True):
        assert call(model, tmp_path, x)[1] == (0, 1)
        assert call(model, tmp_path, x)[1] == (1, 0)


@pytest.mark.parametrize("change", ["weights", "sizes", "argument", "attribute", "training", "options"])
def test_what_differs_is_compiled_anew(change: str, tmp_path: Path) -> None:
    x = torch.randn(3, 8)
    call(net(), tmp_path, x)
    model, args = net(), [x]
    if change == "weights":
        model = net(1)
    elif change == "sizes":
        args = [torch.randn(5, 8)]
    elif change == "argument":
        args.append(-1)
    elif change == "attribute":
        model.scale = 3.0
    elif change == "training":
        model.first.train()
    else:
        config = torchair.CompilerConfig()
        config.ge_config.precision_mode = "allow_mix_precision_bf16"
        cached: Any = cache_compile(model.forward, cache_dir=tmp_path, config=config)
        cached(x)
        assert (cached.loads, cached.compiles) == (0, 1)
        return
    assert call(model, tmp_path, *args)[1] == (0, 1)
    assert call(net(), tmp_path, x)[1] == (1, 0)


def _scaled_by(factor: float) -> Any:
    return lambda x: x * factor


FUNCTIONS = {
    "of PyTorch": (functional.relu, functional.gelu, torch.tanh, torch.neg),
    "of the user": (lambda x: x + 1, lambda x: x - 1),
    "closures": (_scaled_by(2.0), _scaled_by(3.0)),
    "partial": (partial(functional.leaky_relu, negative_slope=0.1), partial(functional.elu, alpha=0.5)),
}


class Activated(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.function = nn.Linear(8, 4), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.layer(x))


@pytest.mark.parametrize("functions", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_module_with_another_function_is_compiled_anew(functions: Any, tmp_path: Path) -> None:
    x = torch.randn(3, 8)
    for function in functions:
        assert call(Activated(function).eval(), tmp_path, x)[1] == (0, 1)
    for function in functions:
        assert call(Activated(function).eval(), tmp_path, x)[1] == (1, 0)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_function_that_is_replaced_is_followed(loaded: bool, tmp_path: Path) -> None:
    model, x = Activated(functional.relu).eval(), torch.randn(3, 8)
    if loaded:
        call(model, tmp_path, x)
    cached, _ = call(model, tmp_path, x)
    for function in (torch.tanh, functional.relu, torch.neg):
        model.function = function
        torch.testing.assert_close(cached(x), model(x), rtol=1e-4, atol=1e-5)
    assert cached.compiles == 3 - loaded


def test_changed_parameters_of_a_loaded_model_are_followed(tmp_path: Path) -> None:
    x, model = torch.randn(3, 8), net()
    call(net(), tmp_path, x)
    cached, counts = call(model, tmp_path, x)
    assert counts == (1, 0)
    with torch.no_grad():
        model.first.weight.mul_(2)
        torch.testing.assert_close(cached(x), model(x), rtol=1e-4, atol=1e-5)
    assert (cached.loads, cached.compiles) == (1, 1)


@pytest.mark.parametrize("kind", ["graph", "program"])
@pytest.mark.parametrize("damage", ["flipped", "truncated", "foreign"])
def test_files_that_are_not_this_users_own_are_not_used(
    kind: str, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(3, 8)
    call(net(), tmp_path, x)
    (path,) = tmp_path.rglob(f"*.{kind}")
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[-1] ^= 1
    elif damage == "truncated":
        del data[len(data) // 2 :]
    else:
        monkeypatch.setenv("NPU_KEY_FILE", str(tmp_path / "another.key"))
    path.write_bytes(data)
    assert call(net(), tmp_path, x)[1] == (0, 1)


@torch.no_grad()
def test_caches_of_keys_and_values_are_written_by_loaded_programs(tmp_path: Path) -> None:
    def decoder() -> Decoder:
        torch.manual_seed(0)
        return Decoder().eval()

    model = decoder()
    expected, reference = generate(model, model, 6)
    for counts in [(0, 2), (2, 0)]:
        torch._dynamo.reset()
        model = decoder()
        cached: Any = cache_compile(model.forward, cache_dir=tmp_path)
        found, logits = generate(model, cached, 6)
        assert found == expected
        torch.testing.assert_close(logits, reference, rtol=1e-4, atol=1e-4)
        assert (cached.loads, cached.compiles) == counts


class Mixed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x.cos() + 1)[1:].abs() + x[1:]


class Viewed(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, x.view(2, -1)


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1


def test_calls_of_aten_are_kept_too(tmp_path: Path) -> None:
    x = torch.randn(8)
    assert call(Mixed(), tmp_path, x)[1] == (0, 1)
    assert call(Mixed(), tmp_path, x)[1] == (1, 0)


@pytest.mark.parametrize("model", [Viewed(), Broken()])
def test_what_cannot_be_kept_runs_and_says_so(
    model: nn.Module, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    call(model, tmp_path, torch.randn(4))
    assert "is not kept on disk" in caplog.text
    assert list(tmp_path.rglob("*.graph")) == []


def test_only_methods_of_modules_are_taken() -> None:
    with pytest.raises(TypeError, match="takes a method"):
        cache_compile(lambda x: x)


class Builtins(Net):
    """Built-in functions, of which Dynamo keeps a dictionary in the traced module."""

    def forward(self, x: torch.Tensor, sign: int = 1) -> torch.Tensor:
        for number, layer in enumerate(iter((self.first, self.second))):
            x = layer(x) if isinstance(layer, nn.Linear) else x
            x = x * int(number + 1) * sign
        return x


_SCRIPT = """
import sys, torch
from tests.torch import test_inference
from torchair.inference import cache_compile
x = torch.arange(24.).reshape(3, 8)
torch.manual_seed(0)
cached = cache_compile(getattr(test_inference, sys.argv[2])().eval().forward, cache_dir=sys.argv[1])
print(cached.loads, cached.compiles, cached(x).sum().item(), cached.loads, cached.compiles)
"""


@pytest.mark.parametrize("name", ["Net", "Builtins"])
def test_another_process_starts_with_the_files_of_the_first(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SCRIPT, str(tmp_path), name]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(2)
    )
    assert first[3:] == ["0", "1"]
    assert second[3:] == ["1", "0"]
    assert first[2] == second[2]


@torch.no_grad()
def test_known_sizes_are_compiled_at_once() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * x.shape[0]).relu() + 1

    compiled = torch.compile(function, backend="npu")
    x = torch.randn(4, 3)
    set_dim_gears(x, {0: [2, 4, 8]})
    with observe() as reports:
        for rows in (4, 2, 8, 4, 2, 5, 8, 5):
            x = x if rows == 4 else torch.randn(rows, 3)
            torch.testing.assert_close(compiled(x), function(x))
    assert len([r for r in reports if not r.refusals]) == 3
    assert all(r.npu_calls for r in reports)


def test_known_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="not among"):
        set_dim_gears(torch.ones(3), {0: [1, 2]})
    with pytest.raises(ValueError, match="axis 1"):
        set_dim_gears(torch.ones(3), {1: [3]})


@torch.no_grad()
def test_scopes_do_not_cut_the_graph() -> None:
    from torchair import scope

    def function(x: torch.Tensor) -> torch.Tensor:
        with scope.npu_stream_switch("side", 1), scope.limit_core_num(1, 1):
            y = x.sin()
        with scope.super_kernel("block"), scope.op_never_timeout(True):
            return scope.npu_wait_tensor(x, y) * 2 + y

    x = torch.randn(5)
    with observe() as reports:
        found = torch.compile(function, backend="npu", fullgraph=True)(x)
    torch.testing.assert_close(found, function(x))
    assert len(reports) == 1
    with pytest.raises(ValueError, match="a name"):
        scope.npu_stream_switch("")


@torch.no_grad()
def test_values_are_printed_from_inside_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torchair.ops.npu_print("sum", y.sum())
        z = y * 2
        torchair.ops.npu_print("all", z, 7, summarize_size=1)
        return z - 1

    x = torch.arange(4.0)
    compiled = torch.compile(function, backend="npu", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), torch.arange(4.0) * 2 + 1)
        assert capsys.readouterr().out.splitlines() == ["sum tensor(10.)", "all tensor([2.,  ..., 8.]) 7"]
