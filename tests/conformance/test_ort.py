"""Networks through ONNX Runtime's optimiser and quantisers, every form beside ONNX Runtime itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from ge.conformance.__main__ import app
from ge.conformance.ort import FORMS, run_file
from tests.conformance.ort_networks import ALL, exported

QUICK = {"resnet": ("all", "qoperator"), "bert": ("extended", "transformers", "dynamic, all", "4 bits")}


@pytest.mark.parametrize("name", QUICK)
def test_forms_of_a_network_agree_with_onnx_runtime(name: str, tmp_path: Path) -> None:
    outcomes = run_file(exported(name, tmp_path), {form: FORMS[form] for form in QUICK[name]})
    assert [(o.form, o.status, o.detail) for o in outcomes if o.status != "pass"] == []
    assert all(o.operators for o in outcomes), "the form has none of ONNX Runtime's operators"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALL))
def test_all_forms_of_all_networks_agree_with_onnx_runtime(name: str, tmp_path: Path) -> None:
    outcomes = run_file(exported(name, tmp_path))
    assert [(o.form, o.detail) for o in outcomes if o.status not in ("pass", "absent")] == []
    assert sum(o.status == "pass" for o in outcomes) >= len(FORMS) - 3


def saved_operator(
    folder: Path, name: str, inputs: dict[str, tuple[int, list[int]]], shape: list[int], **attributes: Any
) -> None:
    """Write a model with one of ONNX Runtime's operators."""
    given = [helper.make_tensor_value_info(port, *kind) for port, kind in inputs.items()]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, shape)
    node = helper.make_node(name, list(inputs), ["out"], domain="com.microsoft", **attributes)
    graph = helper.make_graph([node], "net", given, [out])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "block.onnx")


def test_the_command_fails_where_a_form_is_refused(tmp_path: Path) -> None:
    inputs = {"x": (TensorProto.FLOAT, [1, 1, 4, 4]), "mask": (TensorProto.INT32, [1, 1, 4, 4])}
    saved_operator(tmp_path, "MaxpoolWithMask", inputs, [1, 1, 3, 3], kernel_shape=[2, 2])
    result = CliRunner().invoke(app, ["ort", str(tmp_path), "--forms", "basic"])
    assert result.exit_code == 1 and "refused block, basic" in result.output


def test_infinities_in_the_same_places_agree(tmp_path: Path) -> None:
    inputs = {"ids": (TensorProto.INT64, [2, 6]), "scores": (TensorProto.FLOAT, [2, 9])}
    saved_operator(
        tmp_path, "NGramRepeatBlock", inputs, [2, 9], ngram_size=2
    )  # repeated tokens get minus infinity
    assert [(o.status, o.detail) for o in run_file(tmp_path / "block.onnx", {"basic": FORMS["basic"]})] == [
        ("pass", "")
    ]
