"""atc: options, gears, outputs, precision, reports; one line on success, code and remedy on failure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import ge
from ge import atc
from ge.target import host
from tests.atc import model_files


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return model_files.rows(tmp_path / "rows.onnx")


def run(*words: object) -> int:
    return atc.run([str(word) for word in words])


def answer(model: Path, x: np.ndarray) -> np.ndarray:
    return np.asarray(ge.compile(model)(x))


X = np.random.default_rng(5).standard_normal((2, 4), np.float32)


def test_a_model_compiles_to_a_file(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"--model={rows}", "--framework=5", f"--output={tmp_path}/out", "--soc_version=cpu") == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 1
    assert shown.out.startswith(f"ATC done: {tmp_path}/out.om written (")
    assert shown.err == ""
    np.testing.assert_array_equal(ge.load(tmp_path / "out.om")(X), answer(rows, X))


def test_values_may_be_written_apart(rows: Path, tmp_path: Path) -> None:
    assert run("--model", rows, "--output", tmp_path / "apart") == 0
    assert (tmp_path / "apart.om").exists()


def test_an_ascend_name_stands_for_this_machine(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"--model={rows}", f"--output={tmp_path}/out", "--soc_version=Ascend310P3") == 0
    assert "Ascend310P3 stands for this machine" in capsys.readouterr().err
    assert run(f"--model={rows}", f"--output={tmp_path}/out", "--soc_version=tpu") == 255
    assert "E12006" in capsys.readouterr().err


def test_options_without_effect_are_said_once(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(
        f"--model={rows}", f"--output={tmp_path}/out", "--weight=w", "--op_debug_level", "1", "--weight=w"
    )
    assert code == 0
    notes = capsys.readouterr().err
    assert notes.count("--weight") == notes.count("--op_debug_level") == 1


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--modle=x.onnx"], "E12001", "--model"),
        (["--output=x"], "E12002", "--model is missing"),
        (["--model=x.onnx"], "E12002", "--output is missing"),
        (["--model=x.onnx", "--output=o", "--framework=0"], "E12003", "Caffe"),
        (["--model=x.onnx", "--output=o", "--framework=2"], "E12003", "TensorFlow"),
        (["--model=x.onnx", "--output=o", "--framework=abc"], "E12004", "framework"),
        (["--model=x.onnx", "--output=o", "--input_shape=x:a,b"], "E12004", "x:a,b"),
        (["--model=x.onnx", "--output=o", "--input_shape=x:-1,2"], "E12005", "-1"),
        (["--model=x.onnx", "--output=o", "--precision_mode=fast"], "E10010", "force_fp16"),
        (["--model=x.onnx", "--output=o", "--output_type=FP8"], "E12004", "FP16"),
        (["--model=x.onnx", "--output=o", "--input_format=WXYZ"], "E12004", "NCHW"),
        (["--model=x.onnx", "--output=o", "--log=loud"], "E12004", "debug"),
        (["--model=x.onnx", "--output=o", "--dynamic_batch_size=1,2"], "E12005", "-1"),
        (["--model=x.onnx", "--output=o", "--input_shape_range=x:[1~2]"], "E12008", "gears"),
        (["--model=x.onnx", "--output=o", "stray"], "E12002", "stray"),
        (["--mode=4"], "E12004", "--mode cannot be"),
        (["--mode=6", "--om=none.om"], "E11001", "none.om"),
        (["--singleop=none.json", "--output=o"], "E12010", "none.json"),
    ],
)
def test_mistakes_have_a_code_and_a_remedy(
    words: list[str], code: str, text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(*words) == 255
    shown = capsys.readouterr()
    assert f"[{code}]" in shown.err
    assert text in " ".join(shown.err.split())
    assert shown.out == ""


def test_operators_without_support_are_reported_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, report = model_files.unsupported(tmp_path / "bad.onnx"), tmp_path / "report.json"
    assert run(f"--model={model}", f"--output={tmp_path}/out", f"--unsupported_report={report}") == 255
    shown = capsys.readouterr().err
    assert "E10501" in shown
    assert "Slope" in shown and "Nonsense" in shown
    found = {item["operator"]: item["count"] for item in json.loads(report.read_text())}
    assert len(found) == 2
    assert sorted(found.values()) == [1, 2]
    assert not (tmp_path / "out.om").exists()


def test_the_model_can_be_checked_without_writing(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"--model={rows}", "--mode=3") == 0
    assert "can be compiled" in capsys.readouterr().out
    assert run(f"--model={model_files.unsupported(tmp_path / 'bad.onnx')}", "--mode=3") == 255


# -- shapes and outputs ------------------------------------------------------------------------------


def test_input_shapes_fill_open_dimensions(tmp_path: Path) -> None:
    model = model_files.rows(tmp_path / "open.onnx", batch="n")
    assert run(f"--model={model}", f"--output={tmp_path}/out", "--input_shape=x:5,4") == 0
    assert ge.load(tmp_path / "out.om").inputs[0].desc.shape == (5, 4)


def test_batch_gears(tmp_path: Path) -> None:
    model = model_files.rows(tmp_path / "open.onnx", batch="n")
    code = run(
        f"--model={model}", f"--output={tmp_path}/out", "--input_shape=x:-1,4", "--dynamic_batch_size=1,2,4"
    )
    assert code == 0
    loaded = ge.load(tmp_path / "out.om")
    for batch in (1, 2, 4):
        x = np.full((batch, 4), batch, np.float32)
        assert loaded(x).shape == (batch, 3)


def test_image_gears(tmp_path: Path) -> None:
    model = model_files.images(tmp_path / "open.onnx", size="s")
    options = ["--input_shape=image:1,3,-1,-1", "--dynamic_image_size=8,8;16,12"]
    assert run(f"--model={model}", f"--output={tmp_path}/out", *options) == 0
    loaded = ge.load(tmp_path / "out.om")
    assert loaded(np.ones((1, 3, 16, 12), np.float32)).shape == (1, 4)
    assert loaded(np.ones((1, 3, 8, 8), np.float32)).shape == (1, 4)


def test_dims_gears_share_the_weights(tmp_path: Path) -> None:
    model = model_files.images(tmp_path / "open.onnx", batch="n", size="s")
    options = ["--input_shape=image:-1,3,-1,-1", "--dynamic_dims=1,8,8;2,8,8;4,16,16"]
    assert run(f"--model={model}", f"--output={tmp_path}/out", *options) == 0
    loaded = ge.load(tmp_path / "out.om")
    assert loaded(np.ones((4, 3, 16, 16), np.float32)).shape == (4, 4)
    with pytest.raises(ge.GeError, match="gear"):
        loaded(np.ones((3, 3, 16, 16), np.float32))


def test_outputs_can_be_chosen(rows: Path, tmp_path: Path) -> None:
    assert run(f"--model={rows}", f"--output={tmp_path}/out", "--out_nodes=relu:0;sum:0") == 0
    y, z = ge.load(tmp_path / "out.om")(X)
    assert (y >= 0).all()
    np.testing.assert_allclose(z, answer(rows, X))


def test_outputs_can_have_another_type(rows: Path, tmp_path: Path) -> None:
    assert run(f"--model={rows}", f"--output={tmp_path}/out", "--output_type=FP16") == 0
    assert ge.load(tmp_path / "out.om")(X).dtype == np.float16
    assert run(f"--model={rows}", f"--output={tmp_path}/out", "--output_type=z:INT32") == 0
    assert ge.load(tmp_path / "out.om")(X).dtype == np.int32
    assert run(f"--model={rows}", f"--output={tmp_path}/out", "--output_type=nothing:0:FP16") == 255


def test_inputs_can_take_halves(rows: Path, tmp_path: Path) -> None:
    assert run(f"--model={rows}", f"--output={tmp_path}/out", "--input_fp16_nodes=x") == 0
    result = ge.load(tmp_path / "out.om")(X.astype(np.float16))
    np.testing.assert_allclose(result, answer(rows, X), atol=1e-2)


# -- precision and fusion ----------------------------------------------------------------------------


def test_precision_is_lowered_when_asked(tmp_path: Path) -> None:
    model = model_files.images(tmp_path / "m.onnx")
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
    plain = answer(model, x)
    for option in ("--precision_mode=allow_mix_precision_bf16", "--precision_mode_v2=mixed_bfloat16"):
        assert run(f"--model={model}", f"--output={tmp_path}/out", option) == 0
        lowered = ge.load(tmp_path / "out.om")(x)
        error = np.abs(lowered - plain).max()
        assert error < 0.05
        assert (error > 0) == ("bfloat16" in host().narrow_floats)


def test_configuration_files_are_read(rows: Path, tmp_path: Path) -> None:
    files = {
        "switch.json": '{"Switch": {"GraphFusion": {"ALL": "off"}}}',
        "precision.ini": "[ByOpType]\nMatMul = must_keep_origin_dtype\n",
        "keep.txt": "# nodes\ndense\n",
        "mix.json": '{"black-list": {"to-add": ["MatMul"]}, "white-list": {"to-add": ["Relu"]}}',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    options = [
        f"--fusion_switch_file={tmp_path}/switch.json",
        f"--op_precision_mode={tmp_path}/precision.ini",
        f"--keep_dtype={tmp_path}/keep.txt",
        f"--modify_mixlist={tmp_path}/mix.json",
        "--precision_mode=allow_mix_precision_bf16",
    ]
    assert run(f"--model={rows}", f"--output={tmp_path}/out", *options) == 0
    np.testing.assert_allclose(ge.load(tmp_path / "out.om")(X), answer(rows, X), atol=0.05)
    (tmp_path / "precision.ini").write_text("MatMul = nonsense\n")
    assert run(f"--model={rows}", f"--output={tmp_path}/out", *options) == 255
    (tmp_path / "mix.json").write_text("{")
    assert run(f"--model={rows}", f"--output={tmp_path}/out", *options) == 255


def test_all_fusions_can_be_switched_off_but_some(tmp_path: Path) -> None:
    model, image = model_files.images(tmp_path / "images.onnx"), np.ones((1, 3, 8, 8), np.float32)
    path = tmp_path / "switch.json"
    tasks = []
    for switches in ({}, {"ALL": "off"}, {"ALL": "off", "vector_fusion": "on", "fuse_post_ops": "on"}):
        path.write_text(json.dumps({"Switch": {"GraphFusion": switches}}))
        assert run(f"--model={model}", f"--output={tmp_path}/out", f"--fusion_switch_file={path}") == 0
        loaded = ge.load(tmp_path / "out.om")
        np.testing.assert_allclose(loaded(image), answer(model, image), rtol=1e-5, atol=1e-6)
        tasks.append(len(loaded.plan.tasks))
    assert tasks[1] > tasks[0] == tasks[2]


def test_implementations_of_the_original_tool_are_precisions(rows: Path, tmp_path: Path) -> None:
    (tmp_path / "precision.ini").write_text(
        "[ByOpType]\nMatMul=high_precision\n[ByNodeName]\ndense=high_performance\n"
    )
    options = [f"--op_precision_mode={tmp_path}/precision.ini", "--precision_mode=allow_mix_precision_bf16"]
    assert run(f"--model={rows}", f"--output={tmp_path}/out", *options) == 0
    np.testing.assert_allclose(ge.load(tmp_path / "out.om")(X), answer(rows, X), rtol=1e-5, atol=1e-6)


def test_names_that_mean_nothing_are_told(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "precision.ini").write_text("NoSuchOperator = force_fp32\n")
    (tmp_path / "switch.cfg").write_text("NoSuchPass:off\n")
    options = [f"--op_precision_mode={tmp_path}/precision.ini", f"--fusion_switch_file={tmp_path}/switch.cfg"]
    assert run(f"--model={rows}", f"--output={tmp_path}/out", *options) == 0
    told = capsys.readouterr().err
    assert "'NoSuchOperator' has no effect" in told and "no pass 'NoSuchPass'" in told
    assert "NoSuchPass" in str(ge.explain(ge.load(tmp_path / "out.om")))


@pytest.mark.parametrize(
    "level, told",
    [
        ("debug", ("read as ONNX", "stage format", "pass ", "task ")),
        ("info", ("read as ONNX", "stage format", "tasks, ")),
        ("error", ()),
    ],
)
def test_the_log_tells_what_happens(tmp_path: Path, level: str, told: tuple[str, ...]) -> None:
    model = model_files.images(tmp_path / "images.onnx")
    command = [
        sys.executable,
        "-m",
        "ge.atc",
        f"--model={model}",
        f"--output={tmp_path}/out",
        f"--log={level}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(words in done.stderr for words in told)
    assert told or not done.stderr
    assert ("pass " in done.stderr) == (level == "debug")


# -- other modes -------------------------------------------------------------------------------------


def test_the_trace_of_a_compiled_model(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"--model={rows}", f"--output={tmp_path}/out", f"--profile={tmp_path}/trace.json") == 0
    assert "total" in capsys.readouterr().out
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(event["ph"] == "X" and event["dur"] > 0 for event in events)


def test_a_compiled_model_as_json_and_in_words(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"--model={rows}", f"--output={tmp_path}/out", "--display_model_info=1") == 0
    assert "GFLOP" in capsys.readouterr().out
    assert run("--mode=1", f"--om={tmp_path}/out.om", f"--json={tmp_path}/out.json") == 0
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["plans"][0]["inputs"][0]["name"] == "x"
    assert data["properties"]["properties"]["source"] == "rows.onnx"
    capsys.readouterr()
    assert run("--mode=6", f"--om={tmp_path}/out.om") == 0
    shown = capsys.readouterr().out
    assert "x: float32[2,4]" in shown
    assert "onednn" in shown
    assert "by this user" in shown


def test_a_model_file_as_json(rows: Path, tmp_path: Path) -> None:
    assert run("--mode=1", f"--om={rows}", "--framework=5", f"--json={tmp_path}/graph.json") == 0
    data = json.loads((tmp_path / "graph.json").read_text())
    assert [node["type"] for node in data["nodes"]] == ["MatMul", "Relu", "Add"]


def test_single_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensor = {"format": "ND", "shape": [8, 16], "type": "float32"}
    operators = [
        {"op": "Add", "input_desc": [tensor, tensor], "output_desc": [tensor]},
        {
            "op": "MatMulV2",
            "input_desc": [tensor, tensor],
            "output_desc": [{"format": "ND", "shape": [8, 8], "type": "float16"}],
            "attr": [
                {"name": "transpose_x1", "type": "bool", "value": False},
                {"name": "transpose_x2", "type": "bool", "value": True},
            ],
        },
    ]
    (tmp_path / "ops.json").write_text(json.dumps(operators))
    assert run(f"--singleop={tmp_path}/ops.json", f"--output={tmp_path}/ops", "--soc_version=cpu") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    files = sorted((tmp_path / "ops").glob("*.om"))
    a = np.random.default_rng(0).standard_normal((8, 16), np.float32)
    np.testing.assert_allclose(ge.load(files[0])(a, a), a + a)
    result = ge.load(files[1])(a, a)
    assert result.dtype == np.float16
    np.testing.assert_allclose(result, a @ a.T, atol=0.05)


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "[]",
        "[1]",
        '[{"op": 1}]',
        '[{"op": "Add", "input_desc": 5}]',
        '[{"op": "Add", "input_desc": [{}]}]',
    ]
    + ['[{"op": "Nonsense"}]', '[{"op": "Relu", "input_desc": [{"shape": [2], "type": "text"}]}]']
    + ['[{"op": "Relu", "input_desc": [{"shape": [-2], "type": "int8"}]}]'],
)
def test_descriptions_of_operators_that_make_no_sense(tmp_path: Path, text: str) -> None:
    (tmp_path / "ops.json").write_text(text)
    assert run(f"--singleop={tmp_path}/ops.json", f"--output={tmp_path}/ops") == 255


def test_stages_are_dumped_where_asked(rows: Path, tmp_path: Path) -> None:
    assert run(f"--model={rows}", f"--output={tmp_path}/out", f"--debug_dir={tmp_path}/debug") == 0
    assert any((tmp_path / "debug").rglob("*"))


def test_graphs_of_the_engine_compile_as_air(tmp_path: Path) -> None:
    from ge.parsers import air

    g = ge.Graph("net")
    g.output(ge.ops.relu(g.input("x", (2, 4))), "y")
    path = air.write(g.ir, tmp_path / "net")
    assert run(f"--model={path}", "--framework=1", f"--output={tmp_path}/out") == 0
    np.testing.assert_array_equal(ge.load(tmp_path / "out.om")(X), np.maximum(X, 0))


TWO_OUTPUTS = (
    '<ir_version: 8, opset_import: ["" : 17]> g (float[2,4] x) => (float[2,4] a, float[2,2] b, float[2,2] c)'
    " { [fc] a = Relu(x)  [cut] b, c = Split <axis = 1>(x) }"
)


@pytest.mark.parametrize(
    ("words", "names", "types"),
    [
        (["--output_type=fc:0:FP16"], "abc", "float16 float32 float32"),
        (["--output_type=cut:1:FP16;a:UINT8"], "abc", "uint8 float32 float16"),
        (["--output_type=fc:FP16;c:0:FP16"], "abc", "float16 float32 float16"),
        (["--out_nodes=cut:1;fc:0"], "ca", "float32 float32"),
        (["--out_nodes=b;fc"], "ba", "float32 float32"),
        (["--out_nodes=cut:1;fc:0", "--output_type=cut:1:FP16"], "ca", "float16 float32"),
    ],
)
def test_outputs_are_named_by_tensor_and_by_node(
    tmp_path: Path, words: list[str], names: str, types: str
) -> None:
    onnx.save(onnx.parser.parse_model(TWO_OUTPUTS), tmp_path / "m.onnx")
    assert run(f"--model={tmp_path}/m.onnx", f"--output={tmp_path}/out", *words) == 0
    loaded = ge.load(tmp_path / "out.om")
    assert "".join(p.name for p in loaded.outputs) == names
    assert " ".join(p.desc.dtype for p in loaded.outputs) == types


@pytest.mark.parametrize(
    "words", [["--output_type=fc:1:FP16"], ["--output_type=cut:2:FP16"], ["--out_nodes=fc:1"]]
)
def test_outputs_that_a_node_does_not_have_are_refused(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(onnx.parser.parse_model(TWO_OUTPUTS), tmp_path / "m.onnx")
    assert run(f"--model={tmp_path}/m.onnx", f"--output={tmp_path}/out", *words) == 255
    assert words[0].partition("=")[2].removesuffix(":FP16") in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(0, "E12003"), (1, "E10022"), (3, "E12003")])
def test_a_framework_that_is_not_the_files_is_refused(
    rows: Path, tmp_path: Path, number: int, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"--model={rows}", f"--output={tmp_path}/out", f"--framework={number}") == 255
    shown = capsys.readouterr().err
    assert f"[{code}]" in shown and "--framework=5" in shown


@pytest.mark.parametrize("number", [1, 5])
def test_a_tensorflow_graph_is_neither_onnx_nor_air(
    tmp_path: Path, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "frozen.pb").write_bytes(model_files.frozen_graph())
    assert run(f"--model={tmp_path}/frozen.pb", f"--output={tmp_path}/out", f"--framework={number}") == 255
    shown = capsys.readouterr().err
    assert "[E12003]" in shown and "--framework=3" in shown


@pytest.mark.parametrize("options", [[], ["--framework=3"], ["--framework=3", "--out_nodes=y:0;z"]])
def test_frozen_tensorflow_graphs(tmp_path: Path, options: list[str]) -> None:
    model = tmp_path / "frozen.pb"
    model.write_bytes(model_files.frozen_graph())
    assert run(f"--model={model}", f"--output={tmp_path}/out", *options) == 0
    loaded = ge.load(tmp_path / "out.om")
    assert [p.name.partition(":")[0] for p in loaded.outputs] == (["y", "z"] if len(options) == 2 else ["z"])
    results = loaded.run([X])
    w = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_allclose(results[-1], np.maximum(X @ w, 0) + X @ w, rtol=1e-5)


def test_the_command_starts_without_the_heavy_parts() -> None:
    code = (
        "import sys; from ge import atc; status = atc.run(['--help']);"
        "heavy = {'numpy', 'onnx', 'onnx_ir', 'llvmlite', 'npu_runtime'} & set(sys.modules);"
        "sys.exit(f'{status} {heavy}' if status or heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "--input_shape" in done.stdout


def test_the_command_line(rows: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ge.atc", f"--model={rows}", f"--output={tmp_path}/out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    failed = subprocess.run([*command, "--precision_mode=no"], capture_output=True, text=True, timeout=600)
    assert failed.returncode == 255
