"""The repository keeps its word: layering, documentation, examples and benchmarks run at a small size."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORKS = {"tensorflow", "keras", "torch", "mindspore"}

# What each package may import at all (within this project), and nothing above it.
LAYERS = {
    "npu_runtime": set(),
    "tbe": {"npu_runtime"},
    "te": {"tbe"},
    "topi": {"tbe"},
    "impl": {"tbe", "te"},
    "ge": {"tbe", "npu_runtime"},
    "acl": {"ge", "tbe", "npu_runtime"},
}


def tracked(*patterns: str) -> list[Path]:
    """Files under version control that match."""
    listing = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listing.stdout.splitlines() if (ROOT / name).is_file()]


def imports_of(path: Path) -> Iterator[str]:
    """Top-level names of the packages a file imports, type-checking imports left out."""
    tree = ast.parse(path.read_text())
    guarded = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in guarded:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", list(LAYERS))
def test_dependencies_point_downward(package: str) -> None:
    above = set(LAYERS) - LAYERS[package] - {package}
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in (ROOT / "src" / package).rglob("*.py")
        for name in imports_of(path)
        if name in above | FRAMEWORKS
    }
    assert found == set()


def packages_of_ge() -> dict[str, set[str]]:
    """What each package or module directly below `ge` imports of the others, inside functions too.

    Left out is `ge` itself, whose `__init__` names what is public and is imported by users alone.
    """
    root = ROOT / "src" / "ge"
    names = {path.stem for path in root.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    found: dict[str, set[str]] = {name: set() for name in names - {"__init__", "py"}}
    for path in root.rglob("*.py"):
        if path == root / "__init__.py":
            continue
        package = path.relative_to(root).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module == "ge":
                modules = [f"ge.{alias.name}" for alias in node.names]
            else:
                modules = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            targets = {module.split(".")[1] for module in modules if module.startswith("ge.")}
            found[package] |= targets & set(found) - {package}
    return found


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Everything that can be reached from a node, by one arrow or more."""
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph[name]
    return seen


def test_packages_of_ge_import_each_other_in_one_direction() -> None:
    graph = packages_of_ge()
    assert "ops" in graph["parsers"], "the imports were not found"
    assert [name for name in graph if name in reached(graph, name)] == []


def test_packages_of_ge_are_drawn_as_they_are() -> None:
    """Each package with the packages it imports, except those that one of these imports anyway."""
    graph = packages_of_ge()
    wanted = {
        name: needed - set().union(*(reached(graph, other) for other in needed))
        for name, needed in graph.items()
    }
    text = (ROOT / "docs" / "architecture.md").read_text()
    (drawing,) = re.findall(r"^## Packages of `ge`\n.*?^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    drawn = {}
    for line in drawing.splitlines():
        name, _, arrows = line.partition("→")
        drawn[name.strip()] = {arrow.strip() for arrow in arrows.split(",")} - {""}
    for name in sorted({*drawn, *wanted}):
        line = f"{name} → {', '.join(sorted(wanted.get(name, ())))}"
        assert drawn.get(name) == wanted.get(name), f"docs/architecture.md should say: {line}"
    order = list(drawn)
    for name, needed in drawn.items():
        assert all(order.index(other) < order.index(name) for other in needed), f"{name} stands too early"


def test_the_number_of_patches_is_the_documented_one() -> None:
    counts = [
        sum((ROOT / f"src/{package}/compatibility.py").read_text().count(" Patch(") for package in packages)
        for packages in (
            ["tf_adapter"],
            ["npu_bridge"],
            ["torch_npu", "torchair"],
            ["paddle_npu"],
            ["mindspore_npu"],
        )
    ]
    words = (
        "The tables declare {} patches for TensorFlow 2, {} for TensorFlow 1, {} for PyTorch, {} for PaddlePaddle and "
        "{} for MindSpore."
    )
    text = " ".join((ROOT / "docs/architecture.md").read_text().split())
    assert words.format(*counts) in text


# The modules that may change a framework, besides the tables of patches.
_CHANGE_FRAMEWORKS = {
    "src/torch_npu/contrib/transfer_to_npu.py": "`cuda` means `npu`: what its import is for",
    "src/npu_bridge/contrib.py": "a name that tf_slim looks for",
    "src/npu_tools/check/observe/tensorflow2.py": "observes a script in a process of its own",
    "src/npu_tools/check/observe/watch_torch.py": "the same",
}
_PATCHED = FRAMEWORKS | {"paddle", "builtins", "threading"}


def _framework_names(tree: ast.Module) -> set[str]:
    """The names by which a module knows frameworks, their modules and what is in them."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [a for a in node.names if a.name.split(".")[0] in _PATCHED]
            names |= {(a.asname or a.name).split(".")[0] for a in found}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _PATCHED:
            names |= {a.asname or a.name for a in node.names}
    return names


def _assigned(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return [t for t in node.targets if isinstance(t, ast.Attribute)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
        return node.args[:1]
    return []


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_frameworks_are_changed_in_their_tables_of_patches_only() -> None:
    changes = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        if path.name != "compatibility.py" and "conformance" not in path.parts
        for tree in [ast.parse(path.read_text())]
        for names in [_framework_names(tree)]
        for node in ast.walk(tree)
        if any(
            _root(target) in names and not ast.unparse(target).startswith("_config.")
            for target in _assigned(node)
        )
    ]
    assert {change.partition(":")[0] for change in changes} == set(_CHANGE_FRAMEWORKS), changes


@pytest.mark.parametrize("package", ["acl", "ge", "npu_runtime", "tbe"])
def test_environment_variables_are_read_in_one_place(package: str) -> None:
    from ge.options.table import OPTIONS
    from npu_runtime.environment import VARIABLES

    declared = {*VARIABLES, *(option.variable for option in OPTIONS.values())}
    for path in (ROOT / "src" / package).rglob("*.py"):
        if path.name == "environment.py":  # the one place; it knows also of variables that others read
            continue
        source = path.read_text()
        assert set(re.findall(r'"(NPU_[A-Z_]+)"', source)) <= declared, path
        assert not re.search(r'(environ\.get|getenv)\("NPU_(?!OPP_PATH)', source), path


def test_every_module_says_its_purpose() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in tracked("src/*.py", "benchmarks/*.py", "examples/*.py", "tests/*.py")
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_no_machine_paths_or_hosts_are_written_down() -> None:
    pattern = re.compile(r"/root/|/home/\w+/|/work/|index-url|pypi\.org|files\.pythonhosted")
    own = Path(__file__).resolve()
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked("*.py", "*.md", "*.toml", "*.cc", "*.h", "*.txt", "Makefile", ".ci/*")
        if path != own
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def code_blocks(path: Path) -> list[str]:
    """Python examples of a document."""
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


DOCUMENTED = [
    pytest.param(path, id=path.name)
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if code_blocks(path)
]


@pytest.mark.parametrize("path", DOCUMENTED)
def test_examples_in_documents_run(path: Path, tmp_path: Path) -> None:
    """The blocks of a document run in order, in one process, with the names and files that `_SETTING` makes."""
    blocks = code_blocks(path)
    files = [_MODEL_FILES] if "resnet50." in "".join(blocks) else []
    script = tmp_path / "document.py"
    script.write_text("\n".join([_SETTING, *files, *blocks]))
    run_python([str(script)], cwd=tmp_path)


_SETTING = """
import ge
import numpy as np
x_array = np.ones((8, 128), np.float32)
w, b = np.ones((128, 4), np.float32), 1.0
"""

_MODEL_FILES = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import shutil
from benchmarks.models import onnx_file, zoo
model = zoo(small=True)["resnet50"]
shutil.copy(onnx_file(model, 1), "resnet50.onnx")
ge.compile("resnet50.onnx").save("resnet50.om")
x = model.inputs(1)[0]
del model
"""


def run_python(arguments: list[str], cwd: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """Run Python; what it printed is shown when it fails."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


EXAMPLES = (
    "chat_server.py",
    "keras_training.py",
    "mirrored_training.py",
    "onnx_file.py",
    "pytorch_compile.py",
    "serving.py",
)
# The packages that users import; modules inside of them are not public.
PUBLIC = {"acl", "ge", "hccl", "npu_bridge", "npu_device", "tbe", "tf_adapter", "torch_npu", "torchair"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name: str) -> None:
    run_python([f"examples/{name}"])


@pytest.mark.parametrize("name", [*EXAMPLES, "ray_training.py"])
def test_examples_import_public_packages_only(name: str) -> None:
    ours = {path.name for path in (ROOT / "src").iterdir()} | {"benchmarks", "tests"}
    tree = ast.parse((ROOT / "examples" / name).read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module for module in modules if module.partition(".")[0] in ours} <= PUBLIC


# Those that `make test` runs; all others are slow.
QUICK = ("call overhead", "generated kernels", "the workbench of operators")
RUNS = {
    "the ResNet50 example": ["examples/resnet50.py", "--quick"],
    "inference speed": [
        *("benchmarks/inference.py", "--quick", "--models", "resnet50", "dlrm"),
        *("--precisions", "fp32", "--peers", "onnxruntime", "openvino"),
    ],
    "compile time": [
        *("benchmarks/compile_time.py", "--quick", "--models", "bert", "--peers", "onnxruntime", "openvino")
    ],
    "call overhead": ["benchmarks/overhead.py", "--quick"],
    "starts": ["benchmarks/start.py", "--quick", "--only", "ONNX file, ResNet50"],
    "shared cores": ["benchmarks/shared_cores.py", "--quick"],
    "two versions": [
        *("benchmarks/versions.py", ".", "--quick", "--kinds", "compile"),
        *("--models", "lstm", "--precisions", "fp32"),
    ],
    "implementations": ["benchmarks/implementations.py", "--quick", "--only", "narrow", "rows"],
    "work after products": ["benchmarks/post_ops.py", "--quick"],
    "products beside the peak": ["benchmarks/products.py", "--quick"],
    "ensembles of trees": ["benchmarks/trees.py", "--quick"],
    "int8 networks": ["benchmarks/int8.py", "--quick", "--networks", "resnet50", "efficientnetb0"],
    "detectors": ["benchmarks/detectors.py", "--quick"],
    "being watched": ["benchmarks/watching.py", "--quick"],
    "peak memory": ["benchmarks/memory.py", "--quick", "--batch", "4"],
    "PyTorch models": [
        *("benchmarks/pytorch.py", "--quick", "--models", "bert", "dlrm", "--modes", "infer", "train"),
        *("--peers", "eager"),
    ],
    "PyTorch decoding": [
        *("benchmarks/pytorch.py", "--quick", "--modes", "decode", "--precisions", "fp32", "bf16", "int8"),
        *("--peers", "eager"),
    ],
    "language models": [
        *("benchmarks/language_models.py", "--quick", "--peers", "eager", "--rounds", "1", "--burst", "0.01"),
    ],
    "packed language models": [
        *("benchmarks/language_peers.py", "--quick", "--rounds", "1", "--burst", "0.01", "--peers"),
    ],
    "PyTorch compile times": ["benchmarks/pytorch.py", "--quick", "--compile", "--models", "dlrm"],
    "PyTorch from disk": ["benchmarks/pytorch.py", "--quick", "--modes", "start", "--models", "dlrm"],
    "PyTorch operators": ["benchmarks/pytorch_eager.py", "--quick"],
    "training speed": [
        *("benchmarks/training.py", "--quick", "--models", "cnn", "--precisions", "fp32"),
        *("--contenders", "ours", "tensorflow"),
    ],
    "accuracy": ["benchmarks/accuracy.py", "--quick", "--subjects", "lstm"],
    "TensorFlow": ["benchmarks/tensorflow_inference.py", "--quick", "--models", "MobileNetV2", "BERT"],
    "recurrent layers": ["benchmarks/recurrence.py", "--quick", "--batches", "2", "--cases", "tf.scan"],
    "several NPUs": ["benchmarks/scaling.py", "--quick", "--models", "BERT", "--batch", "2"],
    "generated kernels": ["benchmarks/kernels.py", "--quick"],
    "the workbench of operators": [
        "-m",
        "tbe.bench",
        "tests/tbe/operators/gelu.py",
        "--input",
        "64x64:float16",
    ],
}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name, command in RUNS.items()
    ],
)
def test_benchmarks_run(command: list[str]) -> None:
    run_python(command)


def table_rows(path: Path, header: str) -> list[list[str]]:
    """The cells of the table that has this text in its header."""
    lines = iter(path.read_text().splitlines())
    head = next(line for line in lines if line.startswith("|") and header in line)
    rows = [head]
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append(line)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if "|---" not in row]


def test_the_readme_shows_the_ratios_of_the_performance_document() -> None:
    head, *rows = table_rows(ROOT / "docs" / "performance.md", "batch 1 fp32")
    measured = {
        (
            row[0].partition(",")[0],
            column.replace(" fp32", ", fp32").replace(" bf16", ", bf16"),
        ): cell.split()[-1]
        for row in rows
        for column, cell in zip(head[1:], row[1:], strict=True)
    }
    head, *rows = table_rows(ROOT / "README.md", "EfficientNetB0")
    shown = {(model, row[0]): cell for row in rows for model, cell in zip(head[1:], row[1:], strict=True)}
    assert len(shown) == 28 and shown == measured


@pytest.mark.parametrize("what", ["call of", "peak memory", "cold compile"])
def test_the_readme_shows_the_figures_of_the_performance_document(what: str) -> None:
    mine = next(row for row in table_rows(ROOT / "README.md", "printed by") if row[0].startswith(what))
    theirs = next(
        row
        for row in table_rows(ROOT / "docs" / "performance.md", "| ours | peers |")
        if row[0].startswith(what)
    )
    assert mine[1] == theirs[1]


def test_the_licence_is_the_one_declared() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert '\nlicense = "Apache-2.0"\n' in (ROOT / "pyproject.toml").read_text()


def test_every_package_ships_its_types() -> None:
    packages = [path for path in (ROOT / "src").iterdir() if (path / "__init__.py").is_file()]
    assert [path.name for path in packages if not (path / "py.typed").is_file()] == []


def test_versions_are_those_declared() -> None:
    """One place declares the version; a bug report shows it, the machine and the settings in force."""
    (declared,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    output = run_python(["-m", "ge.versions"], environment={"NPU_NUM_THREADS": "1"})
    facts = dict(line.split(maxsplit=1) for line in output.splitlines())
    assert facts["tf-adapter"] in (declared, "source")
    assert {"python", "platform", "processor", "target", "oneDNN", "numpy", "llvmlite"} <= set(facts)
    assert facts["NPU_NUM_THREADS"] == "1" and "1 threads" in facts["target"]


def distribution(kind: str, source: Path, folder: Path) -> set[str]:
    """The files of a distribution that is built without the native library, which takes minutes to build."""
    build = f"from scikit_build_core.build import build_{kind} as build; build({str(folder)!r}, SETTINGS)"
    code = build.replace("SETTINGS", "{'wheel.cmake': 'false', 'wheel.platlib': 'true'}")
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    (archive,) = folder.iterdir()
    if kind == "sdist":
        with tarfile.open(archive) as files:
            return {name.partition("/")[2].removeprefix("src/") for name in files.getnames()}
    with zipfile.ZipFile(archive) as wheel:
        return set(wheel.namelist())


@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_distributions_have_every_file_of_the_packages(kind: str, tmp_path: Path) -> None:
    """The source distribution has all; of the two wheels each file is in one."""
    (tmp_path / "engine").mkdir()
    inside = distribution(kind, ROOT, tmp_path / "engine")
    if kind == "wheel":
        (tmp_path / "names").mkdir()
        names = distribution(kind, ROOT / "ascend", tmp_path / "names")
        assert not {path for path in inside & names if path.endswith(".py")}
        inside |= names
    wanted = {str(path.relative_to(ROOT / "src")) for path in tracked("src")}
    assert "ge/build/lower.py" in wanted
    assert wanted - inside == set()
