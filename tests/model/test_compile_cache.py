"""Compiled models on disk: found by a later process, never for another graph, bounded, and safe against damage."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest

import ge
from ge import front_door
from ge.compile_cache import counters
from ge.compiler import compile_graph, compile_plan
from ge.graph_key import graph_key
from ge.model import om
from ge.model.store import ModelStore
from ge.ops.builder import GraphBuilder
from ge.ops.custom import search
from npu_runtime import environment

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def network(
    weight: float = 2.0,
    name: str = "net",
    axis: int = 1,
    dtype: str = "float32",
    wide: int = 4,
    note: str = "",
) -> ir.Graph:
    b = GraphBuilder(name)
    x = b.input("x", (3, wide), dtype)
    scaled = b.op("Mul", x, np.full((wide,), weight, np.dtype(dtype)))
    result = b.op("Softmax", scaled, axes=(axis,))
    if note:
        result.producer().metadata_props["ge.keep_dtype"] = note
    b.output(result, "y")
    return b.graph


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of compiled models."""
    monkeypatch.setenv("NPU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NPU_KEY_FILE", str(tmp_path / "om.key"))
    return tmp_path / "cache"


def compiles(call: Callable[[], object]) -> int:
    """How many plans a call compiles."""
    before = counters.compiled
    call()
    return counters.compiled - before


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.om"))


def test_a_graph_is_compiled_once(folder: Path) -> None:
    first = compile_graph(network())
    assert len(files(folder)) == 1
    loaded = counters.loaded
    again: list[ge.Model] = []
    assert compiles(lambda: again.append(compile_graph(network()))) == 0 and counters.loaded == loaded + 1
    np.testing.assert_array_equal(again[0](X), first(X))
    assert str(ge.explain(again[0])) == str(ge.explain(first))
    assert [p.name for p in again[0].inputs] == ["x"] and again[0].plan.tasks == first.plan.tasks


def test_so_is_one_for_a_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")
    options = ge.CompileOptions(target="sm_90")
    first = compile_graph(network(), options)
    again: list[ge.Model] = []
    assert compiles(lambda: again.append(compile_graph(network(), options))) == 0
    assert compiles(lambda: compile_graph(network(), ge.CompileOptions(target="sm_80"))) == 1
    assert again[0].plan.tasks == first.plan.tasks
    assert [k.objects for k in again[0].plan.kernels] == [k.objects for k in first.plan.kernels]
    np.testing.assert_array_equal(again[0](X), first(X))
    np.testing.assert_allclose(again[0](X), compile_graph(network())(X), rtol=1e-6)


def test_a_found_model_has_the_names_of_its_own_graph(folder: Path) -> None:
    """The numbers of generated names do not count, but the caller sees the names it gave."""

    def two_inputs(names: tuple[str, str], output: str) -> ir.Graph:
        b = GraphBuilder("net")
        first, second = (b.input(name, (2,), "float32") for name in names)
        b.output(b.op("Sub", first, second), output)
        return b.graph

    one = compile_graph(two_inputs(("v1", "v2"), "y.1"))
    other = compile_graph(two_inputs(("v2", "v1"), "y.2"))
    for model, names in ((one, ["v1", "v2", "y.1"]), (other, ["v2", "v1", "y.2"])):
        assert [port.name for port in (*model.inputs, *model.outputs)] == names
        ones = np.ones(2, np.float32)
        np.testing.assert_array_equal(model(3 * ones, ones), 2 * ones)


@pytest.mark.slow
def test_a_second_training_script_of_pytorch_compiles_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = """
import torch, torchair
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
call = torch.compile(network, backend=torchair.get_npu_backend())
with torch.no_grad():
    print(call(torch.ones(2, 8)).tolist())
call(torch.ones(2, 8)).sum().backward()
print(network[0].weight.grad.tolist())
from ge.compile_cache import counters
print(counters.compiled, counters.loaded)
"""
    variables = {k: v for k, v in os.environ.items() if k != "NPU_CACHE_DIR"}
    variables |= {"XDG_CACHE_HOME": str(tmp_path), "NPU_KEY_FILE": str(tmp_path / "om.key")}
    runs = [
        subprocess.run(
            [sys.executable, "-c", script], env=variables, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for _ in range(2)
    ]
    assert runs[0][:2] == runs[1][:2]
    compiled = int(runs[0][2].split()[0])
    assert compiled >= 3 and runs[1][2] == f"0 {compiled}"


@pytest.mark.parametrize(
    "other",
    [
        {"weight": 3.0},
        {"name": "other"},
        {"axis": 0},
        {"dtype": "float64"},
        {"wide": 5},
        {"note": "1"},
    ],
    ids=str,
)
def test_another_graph_has_another_key(other: dict[str, object]) -> None:
    assert graph_key(network()) == graph_key(network())
    assert graph_key(network()) != graph_key(network(**other))  # type: ignore[arg-type]


def test_a_scalar_is_not_a_list_of_one() -> None:
    def scaled(number: np.ndarray) -> ir.Graph:
        graph = network()
        graph.node(0).meta["factor"] = number
        return graph

    assert graph_key(scaled(np.array(2.0))) != graph_key(scaled(np.array([2.0])))


def test_graphs_inside_nodes_count() -> None:
    def branching(number: float) -> ir.Graph:
        inner = GraphBuilder("then")
        inner.output(inner.op("Neg", inner.input("a", (2,), "float32")), "b")
        inner.graph.node(0).attributes["level"] = ir.AttrFloat32("level", number)
        outer = network()
        outer.node(1).attributes["body"] = ir.AttrGraph("body", inner.graph)
        return outer

    assert graph_key(branching(1.0)) == graph_key(branching(1.0)) != graph_key(branching(2.0))


def test_what_cannot_be_written_down_is_not_kept() -> None:
    graph = network()
    graph.node(0).meta["callback"] = lambda: None
    assert graph_key(graph) is None


def test_options_donated_memory_and_settings_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_graph(network())
    bf16 = ge.CompileOptions(precision_mode=ge.PrecisionMode.MIX_BF16)
    assert compiles(lambda: compile_graph(network(), bf16)) == 1
    assert compiles(lambda: compile_graph(network(), ge.CompileOptions(target="portable"))) == 1  # type: ignore[arg-type]
    assert compiles(lambda: compile_graph(network(), donated=[(0, 0)])) == 1
    monkeypatch.setenv("NPU_DISABLE_PASSES", "fold_pads")
    assert compiles(lambda: compile_graph(network())) == 1


def test_a_dump_compiles(folder: Path, tmp_path: Path) -> None:
    compile_graph(network())
    dumping = ge.CompileOptions(dump_stages=frozenset({"all"}), dump_dir=tmp_path / "dump")
    assert compiles(lambda: compile_graph(network(), dumping)) == 1
    assert list((tmp_path / "dump").iterdir())


def test_off_keeps_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CACHE_DIR", "off")
    assert compiles(lambda: (compile_graph(network()), compile_graph(network()))) == 2
    assert not folder.exists() and not Path("off").exists()


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_file_is_named_and_replaced(folder: Path, damage: str) -> None:
    compile_graph(network())
    (path,) = files(folder)
    good = path.read_bytes()
    place = good.rindex(b'"tasks"') + 1
    changed = good[:place] + b"T" + good[place + 1 :]
    path.write_bytes({"cut": good[: len(good) // 3], "changed": changed, "empty": b""}[damage])
    made: list[ge.Model] = []
    with pytest.warns(RuntimeWarning, match=rf"{path.name} is not used and compiled anew"):
        assert compiles(lambda: made.append(compile_graph(network()))) == 1
    np.testing.assert_allclose(made[0](X).sum(axis=1), 1, rtol=1e-6)
    assert compiles(lambda: compile_graph(network())) == 0


def test_a_file_of_another_user_is_not_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_graph(network())
    monkeypatch.setenv("NPU_KEY_FILE", str(tmp_path / "other.key"))
    with pytest.warns(RuntimeWarning, match="not sealed with the key of this user"):
        assert compiles(lambda: compile_graph(network())) == 1


def test_the_files_unused_for_longest_go_first(tmp_path: Path) -> None:
    plan = compile_plan(network())
    keys = [f"{number:02x}" * 24 for number in range(5)]
    probe = ModelStore(tmp_path / "probe")
    probe.write(keys[0], om.Package([plan]))
    size = probe.path(keys[0]).stat().st_size
    store = ModelStore(tmp_path / "store", limit_bytes=4 * size + size // 2)
    for age, key in enumerate(keys[:4]):
        store.write(key, om.Package([plan]))
        os.utime(store.path(key), (1000 + age, 1000 + age))
    assert store.read(keys[0]) is not None, "now it is the one used last"
    store.write(keys[4], om.Package([plan]))
    assert [key for key in keys if store.path(key).is_file()] == [keys[0], keys[4]]


def test_models_too_large_are_not_kept(tmp_path: Path) -> None:
    store = ModelStore(tmp_path, limit_bytes=64)
    store.write("ab" * 24, om.Package([compile_plan(network(wide=64))]))
    assert not list(tmp_path.rglob("*.om"))


SCRIPT = """
import sys
import numpy as np
import ge
from ge.compile_cache import counters

model = ge.compile(sys.argv[1])
print(counters.compiled, counters.loaded, model(np.ones((3, 4), np.float32)).sum())
compiler = [name for name in ("ge.compiler", "ge.ops", "tbe", "llvmlite", "onnx", "onnx_ir") if name in sys.modules]
print(*compiler if counters.loaded else ())
"""


def start(source: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    variables = {k: v for k, v in os.environ.items() if k != "NPU_CACHE_DIR"} | environment
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(source)], env=variables, stdout=subprocess.PIPE, text=True
    )


def onnx_file(path: Path, rows: int | str = 3, scale: float = 1.0, **saving: object) -> Path:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 4]) for name in "xy"]
    nodes = [helper.make_node("Mul", ["x", "w"], ["z"]), helper.make_node("Softmax", ["z"], ["y"])]
    weight = numpy_helper.from_array(np.full(4, scale, np.float32), "w")
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, path, **saving)  # type: ignore[arg-type]
    return path


def test_a_file_is_found_by_its_bytes(folder: Path, tmp_path: Path) -> None:
    source = onnx_file(tmp_path / "net.onnx")
    first = ge.compile(source)
    for path in (source, str(source)):
        assert compiles(lambda path=path: ge.compile(path)) == 0
    np.testing.assert_array_equal(ge.compile(source)(X), first(X))
    copy = tmp_path / "other" / "net.onnx"
    copy.parent.mkdir()
    assert compiles(lambda: ge.compile(onnx_file(copy))) == 0, "the folder does not count"
    assert ge.compile(source, name="called").name == "called"
    assert compiles(lambda: ge.compile(source, ge.CompileOptions(recompute="off"))) == 1
    assert compiles(lambda: ge.compile(onnx_file(source, scale=3.0))) == 1
    np.testing.assert_allclose(ge.compile(source)(X), first(3 * X), rtol=1e-5)


def test_every_piece_of_a_large_file_counts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_door, "_PIECE", 32)
    source = onnx_file(tmp_path / "net.onnx")
    content, keys = source.read_bytes(), set()
    places = range(0, len(content), 32)
    assert len(places) > 2
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 1
        for data in (bytes(changed), content):
            source.write_bytes(data)
            keys.add(front_door._file_key(source, ge.CompileOptions(), ""))
    assert None not in keys and len(keys) == len(places) + 1


def test_weights_in_other_files_count(folder: Path, tmp_path: Path) -> None:
    outside = {"save_as_external_data": True, "location": "weights", "size_threshold": 0}
    source = onnx_file(tmp_path / "net.onnx", scale=1.0, **outside)
    before, first = source.read_bytes(), ge.compile(source)
    (tmp_path / "weights").unlink()
    assert onnx_file(source, scale=3.0, **outside).read_bytes() == before
    np.testing.assert_allclose(ge.compile(source)(X), first(3 * X), rtol=1e-5)


def test_a_file_with_open_sizes_stays_open(folder: Path, tmp_path: Path) -> None:
    source = onnx_file(tmp_path / "net.onnx", rows="rows")
    for _ in range(2):
        model = ge.compile(source)
        for rows in (1, 3):
            assert model(X[:rows]).shape == (rows, 4)


def test_a_custom_operator_counts_for_files(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = onnx_file(tmp_path / "net.onnx")
    usual = ge.compile(source)(X)
    own = tmp_path / "opp"
    own.mkdir()
    (own / "softmax.py").write_text(OPERATOR)
    monkeypatch.setenv("NPU_OPP_PATH", str(own))
    np.testing.assert_array_equal(ge.compile(source)(X), -X)
    monkeypatch.delenv("NPU_OPP_PATH")
    search.refresh()
    np.testing.assert_array_equal(ge.compile(source)(X), usual)


OPERATOR = """
from ge import ops


@ops.plugin(onnx="Softmax")
def softmax(node):
    return node.op("Neg", node.inputs[0])
"""


def test_processes_share_the_users_folder(tmp_path: Path) -> None:
    """Two at once, then a third one, which compiles nothing."""
    source = onnx_file(tmp_path / "net.onnx")
    variables = {"XDG_CACHE_HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    both = [start(source, variables) for _ in range(2)]
    for process in both:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0 and output.splitlines()[0].endswith(" 3.0")
    third, _ = start(source, variables).communicate(timeout=300)
    assert third == "0 1 3.0\n\n", "a process that finds a file's model loads no part of the compiler"
    kept = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert all(path.is_relative_to(tmp_path / "home" / "tf-adapter") for path in kept)
    assert sum(path.suffix == ".om" for path in kept) == 1
    assert not any(path.name.startswith(".") for path in kept), "files written aside are gone"


# -- folders that cannot be written ------------------------------------------------------------------------------------


def _a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write_text("")


def _below_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write_text("")
    monkeypatch.setenv("NPU_CACHE_DIR", str(folder / "models"))


def _in_a_file_system_without_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CACHE_DIR", f"/proc/{folder.name}")


def _replaced_after_the_first_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_graph(network(weight=3.0))
    shutil.rmtree(folder)
    folder.write_text("")


def _full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))


def _full_while_a_file_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*names: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", no_space)


@pytest.mark.parametrize(
    "spoil",
    [
        _a_file,
        _below_a_file,
        _in_a_file_system_without_folders,
        _replaced_after_the_first_model,
        _full,
        _full_while_a_file_is_written,
    ],
)
def test_a_folder_that_cannot_be_written_is_one_warning(
    folder: Path, spoil: Callable[[Path, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.parent.mkdir(exist_ok=True)
    spoil(folder, monkeypatch)
    with pytest.warns(environment.UnwritableCacheWarning) as seen:
        results = [compile_graph(network(weight=w))(X) for w in (2.0, 5.0)]
    assert not np.array_equal(*results)
    (message,) = {str(w.message) for w in seen}
    assert (
        len(seen) == 1 and environment.text("NPU_CACHE_DIR") in message and "set NPU_CACHE_DIR to" in message
    )
