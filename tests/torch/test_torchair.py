"""The torch.compile backend: what it promises beside right numbers for whole networks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ge
import torchair
from ge import tensor_dump
from ge.errors import GeError
from ge.target import host
from torchair.executable import CompiledGraph, observe


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def check(function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """Compiled and eager results, and the arguments after them, are the same."""
    left, right = copy.deepcopy(args), copy.deepcopy(args)
    with observe() as reports:
        found = torch.compile(function, backend="npu", **options)(*right)
    torch.testing.assert_close(found, function(*left))
    torch.testing.assert_close(right, left)
    assert [r.failure for r in reports if r.failure] == []
    return reports


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.add(x, y)


def test_the_listing_of_the_guide() -> None:
    config = torchair.CompilerConfig()
    npu_backend = torchair.get_npu_backend(compiler_config=config)
    opt_model = torch.compile(Model(), backend=npu_backend)
    x, y = torch.randn(2, 2), torch.randn(2, 2)
    assert torch.equal(opt_model(x, y), x + y)


@torch.no_grad()
def test_inputs_are_written_in_place() -> None:
    def cache(kv: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        kv[:, 1:2].copy_(x)
        return kv.sum()

    def several(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x[0].zero_()
        return x * 2

    check(cache, torch.zeros(2, 3), torch.ones(2, 1))
    check(several, torch.randn(3, 4))
    check(several, torch.randn(4, 3).t())


@torch.no_grad()
def test_views_aliases_and_numbers_are_returned() -> None:
    check(lambda x: (x.t(), x, x.shape[0], x[1:], None), torch.randn(5, 2))
    compiled = torch.compile(lambda x: x.view(-1), backend="npu")
    x = torch.randn(2, 2)
    assert compiled(x).data_ptr() == x.data_ptr()


@torch.no_grad()
def test_memory_orders_are_eager_modes() -> None:
    x = torch.randn(2, 3, 4, 5)
    last = x.to(memory_format=torch.channels_last)
    weight = torch.randn(2, 3, 3, 3)

    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a.permute(0, 2, 3, 1) * 2, F.conv2d(b, weight), b + 1, a[:, ::2] * 3

    check(function, x, last)
    found = torch.compile(function, backend="npu")(x, last)
    expected = function(x, last)
    assert [f.stride() for f in found] == [e.stride() for e in expected]


@torch.no_grad()
def test_branches_and_loops_are_in_the_graph() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def branch(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a.sin() - 1, (x,))

    def loop(x: torch.Tensor) -> torch.Tensor:
        return while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, a * 1.5), (torch.tensor(0), x))[1]

    for sign in (1, -1):
        reports = check(branch, sign * torch.rand(5), fullgraph=True)
        assert reports[0].refusals == []
        torch._dynamo.reset()
    assert check(loop, torch.randn(5), fullgraph=True)[0].refusals == []


@torch.no_grad()
def test_unmapped_operators_run_on_aten_inside_the_graph() -> None:
    reports = check(lambda x: torch.fft.fft(x.cos()).abs() + x.sin(), torch.randn(8), fullgraph=True)
    assert {r.operator for r in reports[0].refusals} == {"aten._fft_r2c.default", "aten.abs.default"}
    text = str(torchair.explain(lambda x: torch.fft.fft(x).abs() + x.sin(), torch.randn(8)))
    assert "aten._fft_r2c.default x1 on ATen: no plugin maps it" in text
    check(lambda x: x[x > 0] * 2, torch.randn(5))  # a graph break


def test_random_numbers_are_fresh_and_follow_the_seed() -> None:
    compiled = torch.compile(
        lambda x: F.dropout(x.transpose(0, 1) * 2, 0.3) + torch.rand(5, 7), backend="npu"
    )
    x = torch.randn(7, 5, requires_grad=True)
    first, second = compiled(x), compiled(x)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    found = compiled(x)
    torch.manual_seed(3)
    torch.testing.assert_close(found, F.dropout(x.transpose(0, 1) * 2, 0.3) + torch.rand(5, 7))


@torch.no_grad()
def test_changed_parameters_are_followed_without_endless_compiles() -> None:
    linear = nn.Linear(4, 4)
    compiled, x = torch.compile(linear, backend="npu"), torch.randn(2, 4)
    with observe() as reports:
        for step in range(200):
            if step % 20 == 3:
                linear.weight.mul_(1.1)
            if step == 50:
                linear.weight.data = torch.randn(4, 4)
            torch.testing.assert_close(compiled(x), linear(x))
    assert len(reports) <= 5


@torch.no_grad()
def test_sizes_that_come_back_are_compiled() -> None:
    compiled = torch.compile(lambda x: x.view(-1, 2) * x.shape[0] + 1, backend="npu", dynamic=True)
    with observe() as reports:
        for size in [4, 6] * 6:
            x = torch.randn(size, 2)
            torch.testing.assert_close(compiled(x), x * size + 1)
    assert [r.programs for r in reports[1:]] == [1, 1]
    assert all(r.refusals == [] for r in reports[1:])


def test_autocast_is_in_the_graph() -> None:
    weight = torch.randn(3, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        reports = check(lambda x: F.linear(x, weight).relu(), torch.randn(4, 8))
    assert reports[0].refusals == []


def test_training_with_graph_breaks() -> None:
    layer = nn.Linear(4, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = layer(x).relu()
        torch._dynamo.graph_break()
        return (y * x).sum()

    compiled, x = torch.compile(function, backend="npu"), torch.randn(3, 4)
    function(x).backward()
    expected = layer.weight.grad.clone()
    layer.zero_grad()
    compiled(x).backward()
    torch.testing.assert_close(layer.weight.grad, expected)


@pytest.mark.parametrize("norm_first", [False, True])
@torch.no_grad()
def test_the_encoder_layer_of_pytorch_is_taken_apart(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first).eval()
    reports = check(layer, torch.randn(2, 7, 32), fullgraph=True)
    assert reports[0].refusals == []


def test_options_are_checked() -> None:
    config = torchair.CompilerConfig()
    with pytest.raises(ValueError, match="use one of"):
        config.debug.graph_dump.type = "doc"
    with pytest.raises(AttributeError, match="has no option 'graph_dmp'"):
        config.debug.graph_dmp = "txt"
    with pytest.raises(TypeError, match="CompilerConfig is expected"):
        torchair.get_npu_backend(compiler_config={})  # type: ignore[arg-type]


def test_idle_options_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    config = torchair.CompilerConfig()
    with caplog.at_level("WARNING", "ge.options"):
        config.experimental_config.cc_parallel_enable = True
        config.experimental_config.cc_parallel_enable = True
    assert [r.message for r in caplog.records if "cc_parallel_enable" in r.message] != []
    assert len([r for r in caplog.records if "cc_parallel_enable" in r.message]) == 1


@torch.no_grad()
def test_scopes_are_traced_and_say_once_that_they_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    from torchair import scope

    def function(x: torch.Tensor) -> torch.Tensor:
        with scope.limit_core_num(1, 1), scope.npu_stream_switch("second"):
            return x + 1

    scope._said.clear()
    with caplog.at_level("WARNING", "torchair"):
        check(function, torch.ones(3), fullgraph=True)
        function(torch.ones(3))
    told = [r.message for r in caplog.records if "scope.limit_core_num" in r.message]
    assert len(told) == 1


def test_graphs_are_dumped(tmp_path: Any) -> None:
    config = torchair.CompilerConfig()
    config.debug.graph_dump.type = "py"
    config.debug.graph_dump.path = str(tmp_path)
    config.debug.fx_summary.type = "csv"
    config.debug.fx_summary.path = str(tmp_path)
    torch.compile(Model(), backend=torchair.get_npu_backend(compiler_config=config))(
        torch.ones(2), torch.ones(2)
    )
    names = sorted(p.name.rpartition("_")[0] for p in tmp_path.iterdir())
    assert names == ["aten_inference", "summary_inference"]
    assert "aten.add.Tensor,1" in next(tmp_path.glob("summary*")).read_text()


def compiled_with(config: torchair.CompilerConfig, function: Callable[..., Any], *args: Any) -> Any:
    torch._dynamo.reset()
    backend = torchair.get_npu_backend(compiler_config=config)
    return torch.compile(function, backend=backend, fullgraph=True)(*args)


@torch.no_grad()
def test_every_option_that_means_something_does_it(tmp_path: Path) -> None:
    linear, x = nn.Linear(64, 64).eval(), torch.randn(4, 64)
    expected = linear(x)

    for mode in ("max-autotune", "reduce-overhead"):
        config = torchair.CompilerConfig()
        config.mode = mode
        torch.testing.assert_close(compiled_with(config, linear, x), expected)

    for form, written in (("txt", {".txt"}), ("pbtxt", {".txt", ".air"}), ("py", {".py"})):
        config = torchair.CompilerConfig()
        config.debug.graph_dump.type = form
        config.debug.graph_dump.path = str(tmp_path / form)
        compiled_with(config, linear, x)
        assert {p.suffix for p in (tmp_path / form).iterdir()} == written

    config = torchair.CompilerConfig()
    config.debug.run_eagerly = True
    with observe() as reports:
        assert torch.equal(compiled_with(config, linear, x), expected)
    assert reports == []

    config = torchair.CompilerConfig()
    config.debug.data_dump.type = "npy"
    config.debug.data_dump.path = str(tmp_path / "data")
    assert torch.equal(compiled_with(config, lambda a: (a + 1).split(2), x)[1], (x + 1)[2:])
    arrays = {p.name.split("_", 3)[3].rpartition("_")[0]: np.load(p) for p in (tmp_path / "data").iterdir()}
    np.testing.assert_array_equal(arrays["add"], (x + 1).numpy())
    assert len(arrays) >= 4  # the input, the sum and its two pieces

    config = torchair.CompilerConfig()
    config.dump_config.enable_dump = True
    config.dump_config.dump_path = str(tmp_path / "tensors")
    try:
        result = compiled_with(config, linear, x)
    finally:
        tensor_dump.apply({})
    written = [np.load(path) for path in (tmp_path / "tensors").rglob("*.output.0.npy")]
    assert any(np.array_equal(array, result.numpy()) for array in written)

    config = torchair.CompilerConfig()
    config.ge_config.precision_mode = "allow_mix_precision"  # a name that ported scripts use, for float16
    torch.testing.assert_close(compiled_with(config, linear, x), expected, rtol=1e-2, atol=1e-2)
    config.ge_config.precision_mode = "mixed_bfloat16"
    error = (compiled_with(config, linear, x) - expected).abs().max()
    assert error < 5e-2
    assert (error > 0) == ("bfloat16" in host().narrow_floats)

    config = torchair.CompilerConfig()
    config.ge_config.op_select_implmode = "high_precision"
    torch.testing.assert_close(compiled_with(config, linear, x), expected)

    switches = tmp_path / "fusion.cfg"
    switches.write_text('{"Switch": {"GraphFusion": {"ALL": "off"}}}')
    config = torchair.CompilerConfig()
    config.fusion_config.fusion_switch_file = str(switches)
    assert config.options().disabled_passes
    torch.testing.assert_close(compiled_with(config, linear, x), expected)

    config = torchair.CompilerConfig()
    config.export.export_mode = True
    config.export.export_path_dir = str(tmp_path / "exported")
    config.export.export_name = "linear"
    compiled_with(config, linear, x)
    model = ge.compile(str(tmp_path / "exported" / "linear.air"))
    np.testing.assert_allclose(model(x.numpy()), expected.numpy(), rtol=1e-5, atol=1e-5)


def test_a_compiler_of_single_graphs_is_what_aot_autograd_takes() -> None:
    from functorch.compile import aot_function

    compiled = aot_function(
        lambda x: (x * x).sum(), fw_compiler=torchair.get_compiler(torchair.CompilerConfig())
    )
    x = torch.randn(3, requires_grad=True)
    compiled(x).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_gradients_are_on_or_off_as_the_caller_says() -> None:
    linear, x = nn.Linear(4, 4), torch.randn(2, 4)
    compiled = torch.compile(linear, backend="npu", fullgraph=True)
    with torch.no_grad():
        assert not compiled(x).requires_grad
    with torch.inference_mode():
        assert compiled(x).is_inference()
    compiled(x).sum().backward()
    torch.testing.assert_close(linear.bias.grad, torch.full((4,), 2.0))


def test_buffers_are_written_in_training() -> None:
    ours = nn.BatchNorm1d(4)
    theirs, x = copy.deepcopy(ours), torch.randn(8, 4)
    compiled = torch.compile(ours, backend="npu", fullgraph=True)
    for _ in range(3):
        compiled(x).sum().backward()
        theirs(x).sum().backward()
    torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("padding", [None, 3])
def test_gradients_of_embeddings(dtype: torch.dtype, padding: int | None) -> None:
    ours = nn.Embedding(4000, 24, padding_idx=padding).to(dtype)
    theirs, places = copy.deepcopy(ours), torch.randint(0, 40, (6, 11))
    places[0] = 3
    factors = torch.arange(24)
    compiled = torch.compile(lambda x: (ours(x) * factors).sum(), backend="npu", fullgraph=True)
    for _ in range(2):  # the memory of the first gradient is used again
        ours.zero_grad()
        compiled(places).backward()
        assert ours.weight.grad is not None
        ours.weight.grad.mul_(2)
    theirs(places).mul(factors).sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad * 2)


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_depthwise_convolutions(stride: int) -> None:
    def network(kernel: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 32, 1),
            nn.SiLU(),
            nn.Conv2d(32, 32, kernel, stride, kernel // 2, groups=32),
            nn.SiLU(),
        )

    for kernel in (3, 5):
        ours, x = network(kernel), torch.randn(2, 3, 11, 12)
        theirs = copy.deepcopy(ours)
        torch.compile(ours, backend="npu", fullgraph=True)(x).square().sum().backward()
        theirs(x).square().sum().backward()
        for (name, found), expected in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-3, msg=name)


def test_gradients_of_branches() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos() * 2, (x,)).sum()

    for sign in (1, -1):
        torch._dynamo.reset()
        x = (sign * torch.rand(5)).requires_grad_()
        (expected,) = torch.autograd.grad(function(x), x)
        (found,) = torch.autograd.grad(torch.compile(function, backend="npu", fullgraph=True)(x), x)
        torch.testing.assert_close(found, expected)


def test_autocast_trains() -> None:
    ours = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    theirs, x = copy.deepcopy(ours), torch.randn(4, 8)
    compiled = torch.compile(ours, backend="npu", fullgraph=True)
    for model in (compiled, theirs):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
    for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(left.grad, right.grad, rtol=5e-2, atol=5e-3)


def test_a_converter_of_the_user_maps_an_operator() -> None:
    library = torch.library.Library("torchair_test", "DEF")
    library.define("shift(Tensor x, float amount) -> Tensor")
    library.impl("shift", lambda x, amount: x + amount, "CPU")
    library.impl("shift", lambda x, amount: torch.empty_like(x), "Meta")
    target = torch.ops.torchair_test.shift.default

    @torchair.register_fx_node_ge_converter(target)
    def convert(x: Any, amount: float, *, graph: Any) -> Any:
        return graph.op("Add", x, float(amount))

    with torch.no_grad():
        reports = check(lambda x: target(x * 2, 0.5), torch.randn(3), fullgraph=True)
    assert reports[0].operators == {"aten.mul.Tensor": True, "torchair_test.shift.default": True}


def test_a_refusal_of_the_compiler_leaves_the_graph_to_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    import torchair.executable as executable

    def refuse(*args: Any) -> Any:
        raise GeError("E10501", "out of luck")

    monkeypatch.setattr(executable, "compile_graph", refuse)
    with observe() as reports, pytest.warns(UserWarning, match="runs on ATen"):
        found = torch.compile(lambda x: x * 2, backend="npu")(torch.ones(2))
    assert torch.equal(found, torch.full((2,), 2.0))
    assert reports[0].failure == "GeError: [E10501] out of luck"


def test_compiled_graphs_take_boxed_arguments() -> None:
    module = torch.fx.symbolic_trace(lambda x: torch.ops.aten.neg.default(x))
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        for node in module.graph.nodes:
            node.meta["val"] = torch.empty(2) if node.op != "output" else None
    graph = CompiledGraph(_tupled(module), "inference", [], torchair.CompilerConfig().options())
    args = [torch.ones(2)]
    assert torch.equal(graph(args)[0], -torch.ones(2))
    assert args == []


def _tupled(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    output = next(n for n in module.graph.nodes if n.op == "output")
    output.args = ((output.args[0],),)
    module.recompile()
    return module


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"mask": True}])
def test_scores_of_attention_keep_the_digits_of_float32(dtype: torch.dtype, options: dict[str, Any]) -> None:
    """Scores around 100 rounded to 16 bits are off by up to a half, which the exponential makes a factor."""
    q, k, v = (4 * torch.randn(2, 3, 33, 16) for _ in range(3))
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    mask = torch.randn(33, 33).to(dtype) if options.get("mask") else None
    causal = options.get("is_causal", False)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        bias = mask if mask is None else mask.to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal)

    exact = attend(q.double(), k.double(), v.double())
    allowed = 2 * float((attend(q, k, v) - exact).abs().max())
    with observe() as reports:
        found = torch.compile(attend, backend="npu")(q, k, v)
    assert float((found - exact).abs().max()) <= allowed
    assert [r.failure for r in reports if r.failure] == []
    assert sum(r.npu_calls for r in reports) > 0


def test_floats_without_a_place_among_the_integers_become_those_of_torch() -> None:
    x = torch.tensor([0.5, -1.5, 3e9, -3e9, 1e20, -1e20, torch.inf, -torch.inf])
    check(lambda x: [x.to(torch.int32), x.to(torch.int64), x.to(torch.uint8)], x)
