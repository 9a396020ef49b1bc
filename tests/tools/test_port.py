"""`tf-adapter port`: each rule, formatting, idempotence, and what is left to the user."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from npu_tools.main import main
from npu_tools.port.project import port_files
from npu_tools.port.pytorch import NPU_NAMES
from npu_tools.port.result import Ported
from tests.tools.command_line import ROOT, run_python

SCRIPTS = Path(__file__).parent / "ported"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.before"))


def ported(source: str, folder: Path, name: str = "script.py") -> Ported:
    """A file of this text, ported; and ported again to see that nothing more changes."""
    path = folder / name
    path.write_text(source)
    (result,) = port_files([path])
    ast.parse(result.after)
    if result.changed:
        path.write_text(result.after)
        (again,) = port_files([path])
        assert again.after == result.after, "a ported file is left as it is"
    return result


def compare(head: str, lines: list[tuple[str, str]], folder: Path) -> None:
    """Port a script of these lines and compare its last lines with those wanted."""
    source = head + "".join(f"{before}\n" for before, _ in lines)
    assert ported(source, folder).after.splitlines()[-len(lines) :] == [after for _, after in lines]


@pytest.mark.parametrize("name", NAMES)
def test_whole_scripts_become_what_is_expected(name: str, tmp_path: Path) -> None:
    result = ported((SCRIPTS / f"{name}.before").read_text(), tmp_path)
    assert result.after == (SCRIPTS / f"{name}.after").read_text()
    assert result.changes and not result.leftovers
    assert all(change.reason and change.line > 0 for change in result.changes)


PYTORCH = [
    ("x.cuda()", "x.npu()"),
    ("model.cuda(0).eval()", "model.npu(0).eval()"),
    ("torch.ones(2, device='cuda')", "torch.ones(2, device='npu')"),
    ('x.to("cuda:%d" % i)', 'x.to("npu:%d" % i)'),
    ("x.to(f'cuda:{i}')", "x.to(f'npu:{i}')"),
    ('x.to("cuda:" + str(i))', 'x.to("npu:" + str(i))'),
    ("torch.cuda.empty_cache()", "torch.npu.empty_cache()"),
    ("torch.cuda.amp.GradScaler()", "torch.npu.amp.GradScaler()"),
    ("with torch.autocast('cuda'): pass", "with torch.autocast('npu'): pass"),
    ("dist.init_process_group(backend='nccl')", "dist.init_process_group(backend='hccl')"),
    ("torch.set_default_tensor_type(torch.cuda.FloatTensor)", 'torch.set_default_device("npu")'),
    ("f(x.is_cuda)", "f(x.is_npu)"),
    ("torch.compile(m)", "torch.compile(m, backend=torchair.get_npu_backend())"),
    ("print('cuda graphs are fast', x.cuda())", "print('cuda graphs are fast', x.npu())"),
]


def test_pytorch(tmp_path: Path) -> None:
    compare("import torch\nimport torch.distributed as dist\n", PYTORCH, tmp_path)


TENSORFLOW = [
    ("with tf.device('/device:GPU:1'): pass", "with tf.device('/device:NPU:1'): pass"),
    ("with tf.device(f'/gpu:{i}'): pass", "with tf.device(f'/NPU:{i}'): pass"),
    ("tf.distribute.MirroredStrategy(['GPU:0'])", "tf.distribute.MirroredStrategy(['NPU:0'])"),
    ("n = len(tf.config.list_physical_devices('GPU'))", 'n = len(tf.config.list_logical_devices("NPU"))'),
    ("n = tf.config.list_physical_devices('CPU')", "n = tf.config.list_physical_devices('CPU')"),
    ("d = tf.test.gpu_device_name()", 'd = "/device:NPU:0"'),
    ("ok = tf.test.is_gpu_available()", 'ok = bool(tf.config.list_logical_devices("NPU"))'),
    (
        "os.environ['TF_ENABLE_AUTO_MIXED_PRECISION'] = '1'",
        'npu_device.global_options().precision_mode = "allow_mix_precision"',
    ),
]


def test_tensorflow(tmp_path: Path) -> None:
    compare("import os\nimport tensorflow as tf\n", TENSORFLOW, tmp_path)


VERSION_1 = [
    ("s = tf.Session()", "s = tf.Session(config=npu_config_proto())"),
    ("s = tf.Session('', g, c)", "s = tf.Session('', g, npu_config_proto(config_proto=c))"),
    ("s = tf.Session(config=None)", "s = tf.Session(config=npu_config_proto())"),
    ("s = tf.Session(**more)", "s = tf.Session(config=npu_config_proto(), **more)"),
    (
        "tf.train.MonitoredTrainingSession(hooks=h, config=c)",
        "tf.train.MonitoredTrainingSession(hooks=h, config=npu_config_proto(config_proto=c))",
    ),
    (
        "tf.estimator.Estimator(f, config=c)",
        "tf.estimator.Estimator(f, config=npu_run_config_init(run_config=c))",
    ),
    ("with tf.device('/device:GPU:0'): pass", "with tf.device('/device:cpu:0'): pass"),
    ("with sv.managed_session(config=c): pass",
     "with sv.managed_session(config=npu_config_proto(config_proto=c)): pass"),
    ("s = manager.prepare_session('')", "s = manager.prepare_session('', config=npu_config_proto())"),
    ("ok = tf.test.is_gpu_available()", "ok = True"),
    ("c.graph_options.rewrite_options.auto_mixed_precision = 1",
     'os.environ["NPU_PRECISION_MODE"] = "allow_mix_precision"'),
    ("os.environ['TF_ENABLE_AUTO_MIXED_PRECISION'] = '1'",
     'os.environ["NPU_PRECISION_MODE"] = "allow_mix_precision"'),
]  # fmt: skip


@pytest.mark.parametrize("how", ["import tensorflow as tf", "import tensorflow.compat.v1 as tf"])
def test_tensorflow_version_1(how: str, tmp_path: Path) -> None:
    compare(f"{how}\nx = tf.placeholder(tf.float32)\n", VERSION_1, tmp_path)


def test_an_alias_gets_the_names_of_version_1(tmp_path: Path) -> None:
    after = ported("import tensorflow as tf1\nprint(tf1.Session())\n", tmp_path).after
    assert "from npu_bridge.npu_init import npu_config_proto, tf as tf1\n" in after


@pytest.mark.parametrize(
    ("source", "line_number", "text"),
    [
        ("import torch\nx = torch.cuda.FloatTensor(3)\ny = x.cuda()\n", 2, "torch.cuda.FloatTensor"),
        ("import torch\ng = torch.cuda.CUDAGraph()\n", 2, "torch.cuda.CUDAGraph"),
        ("import torch\nm = torch.compile(m, mode='max-autotune')\n", 2, "mode and options"),
        ("import torch\nfrom apex import amp\n", 2, "apex"),
        ("import torch\nimport horovod.torch as hvd\n", 2, "horovod.torch"),
        ("import torch\nfrom torch.utils.data import DataLoader\n", 1, "names no device"),
        ("import os\nimport torch\nos.environ['CUDA_VISIBLE_DEVICES'] = '-1'\n", 3, "switches GPUs off"),
        (
            "import tensorflow as tf\nimport horovod.tensorflow as hvd\nhvd.DistributedOptimizer(o, op=hvd.Adasum)\n",
            3,
            "hvd.Adasum",
        ),
        ("import tensorflow as tf\ns = tf.distribute.TPUStrategy()\n", 2, "TPUs"),
        (
            "import tensorflow as tf\nx = tf.placeholder(2)\ne = tf.contrib.tpu.TPUEstimator(m)\n",
            3,
            "TPUEstimator",
        ),
    ],
)
def test_what_cannot_be_ported_is_said_with_line_and_remedy(
    source: str, line_number: int, text: str, tmp_path: Path
) -> None:
    leftovers = ported(source, tmp_path).leftovers
    found = [left for left in leftovers if text in left.text]
    assert [left.line for left in found] == [line_number] and all(left.remedy for left in found)


def test_horovod_is_ported_whole_or_not_at_all(tmp_path: Path) -> None:
    head = "import horovod.tensorflow as hvd\nimport tensorflow as tf\nhvd.init()\n"
    assert "horovod" not in ported(head + "n = hvd.size()\n", tmp_path).after
    after = ported(head + "n = hvd.size()\nhvd.elastic.run(f)\n", tmp_path).after
    assert "import horovod.tensorflow as hvd\n" in after and "hvd.size()" in after


HOROVOD = [
    ("opt = hvd.DistributedOptimizer(o, op=hvd.Average)",
     "opt = npu_device.distribute.npu_distributed_keras_optimizer_wrapper(o)"),
    ("hvd.broadcast_variables(v, root_rank=1)", "npu_device.distribute.broadcast(v, root_rank=1)"),
    ("hvd.broadcast_variables(v)", "npu_device.distribute.broadcast(v, root_rank=0)"),
    ("c = hvd.Compression.fp16 if half else hvd.Compression.none", "c = None if half else None"),
]  # fmt: skip


def test_horovod(tmp_path: Path) -> None:
    compare("import horovod.tensorflow as hvd\nimport tensorflow as tf\n", HOROVOD, tmp_path)


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        (
            "import horovod.keras as hvd\nc = hvd.callbacks.BroadcastGlobalVariablesCallback(0)\n",
            "callbacks.Broadcast",
        ),
        (
            "import horovod.keras as hvd\nc = hvd.callbacks.LearningRateWarmupCallback()\n",
            "callbacks.LearningRate",
        ),
        (
            "from horovod.tensorflow.data.compute_service import f\nimport horovod.tensorflow as hvd\nf()\n",
            "data.",
        ),
    ],
)
def test_calls_of_horovod_that_lack_what_a_port_needs_are_said(
    source: str, kept: str, tmp_path: Path
) -> None:
    """A broadcast needs to know the model, a warm-up its rate."""
    result = ported(f"import tensorflow as tf\n{source}", tmp_path)
    assert any(kept in left.text for left in result.leftovers) and "horovod" in result.after


def test_horovod_with_sessions(tmp_path: Path) -> None:
    source = "import horovod.tensorflow as hvd\nimport tensorflow as tf\nwith tf.Session() as s:\n"
    after = ported(f"{source}    s.run(hvd.broadcast_global_variables(0))\n", tmp_path).after
    assert "from npu_bridge.estimator.npu.npu_hook import broadcast_global_variables\n" in after
    assert after.endswith("    s.run(broadcast_global_variables(0))\n") and "horovod" not in after


def test_a_block_keeps_a_statement(tmp_path: Path) -> None:
    after = ported(
        "def f():\n    import horovod.tensorflow as hvd\n    return hvd.size()\nimport tensorflow\n", tmp_path
    ).after
    assert "def f():\n    return get_rank_size()\n" in after
    alone = ported("import tensorflow\nif True:\n    import horovod.tensorflow\n", tmp_path).after
    assert "if True:\n    pass\n" in alone


def test_formatting_is_kept(tmp_path: Path) -> None:
    """Tabs, quotes, comments, semicolons, continuation lines and line ends are those of the file."""
    source = "import torch  # first\r\nif True :\r\n\tx = torch.ones( 2 )\\\r\n\t\t.cuda( ) ; y = 'cuda'   # why\r\n"
    path = tmp_path / "script.py"
    path.write_bytes(source.encode())
    (result,) = port_files([path])
    wanted = source.replace(".cuda( )", ".npu( )").replace("'cuda'", "'npu'")
    assert result.after == wanted.replace("first\r\n", "first\r\nimport torch_npu\r\n")


def test_encodings_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_bytes(
        "# -*- coding: latin-1 -*-\nimport torch\nname = 'é'\nx = torch.ones(2).cuda()\n".encode("latin-1")
    )
    assert main(["port", "--write", str(path)]) == 0
    assert path.read_bytes().decode("latin-1").splitlines()[-2:] == ["name = 'é'", "x = torch.ones(2).npu()"]


def test_plain_modules_and_ported_scripts_need_no_change(tmp_path: Path) -> None:
    for source in (
        "import numpy as np\nprint(np.ones(2))\n",
        "import tensorflow as tf\nimport tf_adapter\n",
        "import npu_device\nimport tensorflow as tf\nnpu_device.open().as_default()\n",
        "from npu_bridge.npu_init import *\nimport tensorflow as tf\n",
        "import torch\nimport torch_npu\nx = torch.ones(2).npu()\n",
        "import torch\ndevice = 'npu'\n",
    ):
        assert not ported(source, tmp_path).changed, source


def test_imports_go_behind_those_of_the_framework(tmp_path: Path) -> None:
    attempt = "try:\n    import torch\nexcept ImportError:\n    raise\n"
    source = f'"""Text."""\nfrom __future__ import annotations\n{attempt}x = torch.ones(2).cuda()\n'
    assert "    raise\nimport torch_npu\nx =" in ported(source, tmp_path).after
    inner = '"""Text."""\ndef f():\n    import torch\n    return torch.ones(2).cuda()\n'
    assert ported(inner, tmp_path).after.startswith('"""Text."""\nimport torch_npu\ndef f')


def test_a_folder_is_one_program(tmp_path: Path) -> None:
    """Helpers get what they use; only what is started makes the NPU the default device."""
    (tmp_path / "train.py").write_text("import tensorflow as tf\nimport layers\nlayers.f(tf.ones(2))\n")
    (tmp_path / "layers.py").write_text("import tensorflow as tf\n\ndef f(x):\n    return tf.nn.relu(x)\n")
    (tmp_path / "settings.py").write_text("n = 1\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "other.py").write_text("import torch\nx = torch.ones(1).cuda()\n")
    results = {Path(result.path).name: result for result in port_files([tmp_path])}
    assert set(results) == {"train.py", "layers.py", "settings.py"}
    assert "npu_device.open().as_default()" in results["train.py"].after
    assert not results["layers.py"].changed and not results["settings.py"].changed


def test_strings_of_settings_beside_a_pytorch_script_are_ported(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nfrom settings import device\nx = torch.ones(2, device=device)\n"
    )
    (tmp_path / "settings.py").write_text('device = "cuda"\n')
    results = {Path(result.path).name: result for result in port_files([tmp_path])}
    assert results["settings.py"].after == 'device = "npu"\n'


def test_check_and_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "script.py"
    path.write_text("import torch\nx = torch.ones(2).cuda()\n")
    path.chmod(0o755)
    assert main(["port", "--check", str(path)]) == 1
    assert path.read_text().endswith(".cuda()\n"), "a check writes nothing"
    assert main(["port", str(path)]) == 0
    diff = capsys.readouterr().out
    assert main(["port", "--write", str(path)]) == 0
    assert path.read_text().endswith(".npu()\n") and path.stat().st_mode & 0o777 == 0o755
    assert main(["port", "--check", str(path)]) == 0
    assert "+x = torch.ones(2).npu()" in diff and f"# {path}:2: moves to the NPU" in diff
    assert main(["port", "--check", "--write", str(path)]) == 2
    assert main(["port", str(tmp_path / "missing.py")]) == 3


def test_the_diff_is_one_that_git_applies(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_bytes((SCRIPTS / "torch_gpu.before").read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "npu_tools", "port", "script.py"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    subprocess.run(["git", "apply", "-"], input=done.stdout, cwd=tmp_path, check=True)
    assert (tmp_path / "script.py").read_text() == (SCRIPTS / "torch_gpu.after").read_text()


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "script.py"
    path.write_text("import torch\nx = torch.ones(2).cuda()\n")
    assert main(["port", "--json", str(path)]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert file["changed"] and {change["line"] for change in file["changes"]} == {1, 2}


def test_files_that_are_not_python_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "script.py").write_text("def broken(:\n")
    assert main(["port", str(tmp_path)]) == 3
    assert "script.py:1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder", ["src/torch_npu", "examples", "tests/tensorflow_v1/scripts", "tests/tensorflow/scripts"]
)
def test_real_files_stay_valid_and_a_second_port_changes_nothing(folder: str, tmp_path: Path) -> None:
    for path in sorted((ROOT / folder).glob("*.py"))[:12]:
        ported(path.read_text(), tmp_path)


def test_the_names_of_the_npu_are_those_it_has() -> None:
    tree = ast.parse((ROOT / "src" / "torch_npu" / "npu" / "__init__.py").read_text())
    (names,) = (
        n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"
    )
    assert set(ast.literal_eval(names)) >= NPU_NAMES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("torch_gpu", "torch.Size([4, 3]) True npu:0 npu:0\nTrue\n"),
        ("torch_plain", "npu:0\n"),
        ("keras_gpu", "/device:NPU:0 1\n"),
        ("keras_plain", "/device:NPU:0\n"),
    ],
)
def test_ported_scripts_run_on_the_npu(name: str, wanted: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text((SCRIPTS / f"{name}.after").read_text())
    assert run_python(str(script)).endswith(wanted)


@pytest.mark.slow
def test_a_ported_loop_of_horovod_runs_on_the_npu(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text((SCRIPTS / "horovod_tape.after").read_text())
    assert re.search(r"rank 0 of 1: 0\.\d+\n$", run_python(str(script)))
