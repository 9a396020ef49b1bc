"""The choice between fast and precise implementations: what it does, and all the doors it comes through."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ge
from ge import Implementation
from ge.errors import GeError
from ge.explanation import explain
from ge.offline import Request
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from ge.session import parse_options
from tests.support.small_graphs import compiled, floats

PRECISE = Implementation.PRECISE


def _images(b: GraphBuilder):
    """Two convolutions that save arithmetic where they may."""
    v = b.input("x", (1, 32, 40, 40), "float32")
    for number in (1, 2):
        b.origin = (f"layer{number}",)
        v = b.op("Conv", v, floats(32, 32, 3, 3, seed=number), pads_begin=[1, 1], pads_end=[1, 1])
    return v


def _implementations(**options: object) -> list[str]:
    model = compiled(_images, CompileOptions(**options), tolerance=1e-4)  # type: ignore[arg-type]
    return [t.implementation for t in model.profile() if t.kind == "conv"]


def _winograd(**options: object) -> list[bool]:
    return ["winograd" in name for name in _implementations(**options)]


needs_winograd = pytest.mark.skipif(
    "not any(_winograd())", reason="this processor has no implementation that saves arithmetic"
)


@needs_winograd
def test_precise_products_save_no_arithmetic() -> None:
    assert _winograd() == [True, True]
    assert _winograd(implementation=PRECISE) == [False, False]


@needs_winograd
@pytest.mark.parametrize("name", ["Conv", "Conv2D"])
def test_operators_are_named_in_any_vocabulary(name: str) -> None:
    assert _winograd(op_implementation={name: PRECISE}) == [False, False]


@needs_winograd
def test_one_node_can_be_precise_or_fast() -> None:
    assert _winograd(op_implementation={"layer2": PRECISE}) == [True, False]
    fast = {"layer1": Implementation.FAST}
    assert _winograd(implementation=PRECISE, op_implementation=fast) == [True, False]


def test_precise_products_have_errors_of_plain_sums() -> None:
    """Compared with float64: no more than a direct convolution's rounding."""
    model = compiled(_images, CompileOptions(implementation=PRECISE), tolerance=1e-4)
    again = compiled(_images, CompileOptions(), tolerance=1e-4)
    x = np.random.default_rng(0).normal(size=(1, 32, 40, 40)).astype(np.float32)
    import torch

    wide = torch.from_numpy(x.astype(np.float64))
    for number in (1, 2):
        weight = torch.from_numpy(floats(32, 32, 3, 3, seed=number).astype(np.float64))
        wide = torch.nn.functional.conv2d(wide, weight, padding=1)
    scale = float(wide.abs().max())
    errors = [float(np.abs(m.run([x])[0] - wide.numpy()).max()) / scale for m in (model, again)]
    assert errors[0] < 1e-6 and errors[0] <= errors[1]


def test_names_without_a_product_are_told() -> None:
    model = compiled(_images, CompileOptions(op_implementation={"NoSuchLayer": PRECISE}), tolerance=1e-4)
    assert "the implementation of 'NoSuchLayer' has no effect" in str(explain(model))


def test_unknown_choices_are_errors() -> None:
    with pytest.raises(GeError, match="high_precision"):
        Implementation.parse("highest")


# -- doors ------------------------------------------------------------------------------------------------------


def test_sessions_take_the_names_of_ported_programs() -> None:
    assert parse_options({"ge.opSelectImplmode": "high_precision"}).implementation is PRECISE
    both = {"ge.opSelectImplmode": "high_precision", "ge.optypelistForImplmode": "Conv2D, MatMul"}
    some = parse_options(both)
    assert some.implementation is Implementation.FAST
    assert some.op_implementation == {"Conv2D": PRECISE, "MatMul": PRECISE}


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_OP_SELECT_IMPLMODE", "high_precision")
    assert CompileOptions.from_environment().implementation is PRECISE


def test_atc_compiles_what_was_chosen(tmp_path: Path) -> None:
    names = tmp_path / "names.ini"
    names.write_text("[ByNodeName]\nlayer1=high_precision\nlayer2=must_keep_origin_dtype\n")
    chosen = {"op_select_implmode": PRECISE, "optypelist_for_implmode": {"MatMul"}}
    request = Request(Path("m"), Path("m"), given=chosen)
    assert request.options({}).op_implementation == {"MatMul": PRECISE}
    from_file = Request(Path("m"), Path("m"), given={"op_precision_mode": names}).options({})
    assert from_file.op_implementation == {"layer1": PRECISE}
    assert ge.PrecisionMode(from_file.op_precision["layer2"]) is ge.PrecisionMode.KEEP
    whole = Request(Path("m"), Path("m"), given={"op_select_implmode": PRECISE}).options({})
    assert whole.implementation is PRECISE


def test_tensorflow_has_it_in_its_options() -> None:
    from tf_adapter.options import Options

    options = Options({"NPU_OP_SELECT_IMPLMODE": "high_precision"})
    assert options.compile_options().implementation is PRECISE
    before = options.fingerprint()
    options.optypelist_for_implmode = "MatMul"
    assert options.compile_options().op_implementation == {"MatMul": PRECISE}
    assert options.fingerprint() != before


def test_npu_device_and_npu_bridge_hand_it_on() -> None:
    npu_device = pytest.importorskip("npu_device")
    from npu_bridge.options import SessionOptions
    from tf_adapter.options import options

    try:
        npu_device.global_options().op_select_implmode = "high_precision"
        assert options.op_select_implmode is PRECISE
    finally:
        npu_device.global_options().op_select_implmode = "high_performance"
    given = {"op_select_implmode": "high_precision", "optypelist_for_implmode": "Conv2D"}
    assert SessionOptions.read(given).compile_options.op_implementation == {"Conv2D": PRECISE}


def test_torchair_has_it_in_its_configuration() -> None:
    import torchair

    config = torchair.CompilerConfig()
    config.ge_config.op_select_implmode = "high_precision"
    assert config.options().implementation is PRECISE
    config.ge_config.optypelist_for_implmode = "MatMul"
    assert config.options().op_implementation == {"MatMul": PRECISE}
