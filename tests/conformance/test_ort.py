"""Networks through ONNX Runtime's optimiser and quantisers, every form beside ONNX Runtime itself."""

from __future__ import annotations

from pathlib import Path

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


def test_the_command_fails_where_a_form_is_refused(tmp_path: Path) -> None:
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [2, 6])
    scores, out = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 9]) for name in ("scores", "out")
    )
    node = helper.make_node(
        "NGramRepeatBlock", ["ids", "scores"], ["out"], domain="com.microsoft", ngram_size=2
    )
    graph = helper.make_graph([node], "net", [ids, scores], [out])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "block.onnx")
    result = CliRunner().invoke(app, ["ort", str(tmp_path), "--forms", "basic"])
    assert result.exit_code == 1 and "NGramRepeatBlock" in result.output
