"""Random numbers of model files: every run draws new ones; seeds decide the sequence, not the numbers of each run."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import ge
from ge.options import CompileOptions

NODES = {
    "RandomUniform": ([], {"shape": [64]}),
    "RandomNormal": ([], {"shape": [64]}),
    "RandomUniformLike": (["x"], {}),
    "RandomNormalLike": (["x"], {}),
    "Bernoulli": (["x"], {}),
    "Multinomial": (["rows"], {"sample_size": 64}),
    "Dropout": (["x", "ratio", "training"], {}),
}
RUNS = 4


def noise(name: str, seed: float | None = None) -> onnx.ModelProto:
    inputs, attrs = NODES[name]
    made = helper.make_node(name, inputs, ["r"], **attrs, **({} if seed is None else {"seed": seed}))
    nodes = [made, helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT)]
    shape = [1, 64] if name == "Multinomial" else [64]
    constants = {
        "ratio": np.array(0.5, np.float32),
        "training": np.array(True),
        "rows": np.zeros((1, 9), np.float32),
    }
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(constants[n], n) for n in inputs if n in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def drawn(model: ge.Model) -> list[np.ndarray]:
    return [model(np.full(64, 0.5, np.float32)) for _ in range(RUNS)]


def all_differ(runs: list[np.ndarray]) -> bool:
    return not any(np.array_equal(a, b) for a, b in itertools.combinations(runs, 2))


@pytest.mark.parametrize("name", NODES)
def test_runs_differ_and_so_do_loaded_models_without_a_seed(name: str, tmp_path: Path) -> None:
    model = ge.compile(noise(name))
    model.save(tmp_path / "noise.om")
    assert all_differ(
        [*drawn(model), *drawn(ge.load(tmp_path / "noise.om")), *drawn(ge.compile(noise(name)))]
    )


@pytest.mark.parametrize("name", NODES)
def test_a_seed_decides_the_sequence_of_runs(name: str, tmp_path: Path) -> None:
    first = ge.compile(noise(name, 3.0))
    first.save(tmp_path / "noise.om")
    sequence = drawn(first)
    assert all_differ(sequence)
    for again in (ge.compile(noise(name, 3.0)), ge.load(tmp_path / "noise.om")):
        np.testing.assert_array_equal(drawn(again), sequence)
    assert not np.array_equal(drawn(ge.compile(noise(name, 4.0))), sequence)


def test_numbers_of_a_long_run_are_spread_evenly() -> None:
    model = ge.compile(noise("RandomUniform"))
    numbers = np.concatenate([model(np.zeros(64, np.float32)) for _ in range(200)])
    counts, _ = np.histogram(numbers, 8, (0, 1))
    assert abs(counts / numbers.size - 1 / 8).max() < 0.02


def test_every_turn_of_a_loop_draws() -> None:
    body = onnx.parser.parse_graph(
        "body (int64 n, bool c) => (bool d, float[4] s) { d = Identity (c) s = RandomUniform <shape = [4]> () }"
    )
    nodes = [helper.make_node("Loop", ["turns", "go"], ["y"], body=body)]
    graph = helper.make_graph(
        nodes,
        "loop",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 4])],
        [numpy_helper.from_array(np.array(3), "turns"), numpy_helper.from_array(np.array(True), "go")],
    )
    model = ge.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert all_differ([*model.run([])[0], *model.run([])[0]])


def test_random_numbers_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")
    assert all_differ(drawn(ge.compile(noise("RandomNormal"), CompileOptions(target="sm_90"))))
