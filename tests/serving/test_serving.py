"""One model on several NPUs, and the example server asked by a client that others wrote."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import ge

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("replicas_script.py")


def test_calls_and_batches_on_two_npus(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env=os.environ | {"NPU_DEVICE_COUNT": "2"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-4000:]


def test_an_npu_that_is_not_there_is_named() -> None:
    with pytest.raises(ge.GeError, match="there is no NPU 7: there are 1"), ge.on_device(7):
        pass


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = importlib.util.spec_from_file_location("serving", ROOT / "examples" / "serving.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    path = tmp_path_factory.mktemp("model") / "classifier.onnx"
    example.write_classifier(path)
    return path


@pytest.fixture(scope="module")
def port(model: Path) -> Iterator[int]:
    command = [sys.executable, str(ROOT / "examples" / "serving.py"), str(model), "--delay", "20"]
    with subprocess.Popen(
        command, env=os.environ | {"NPU_DEVICE_COUNT": "2"}, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            found = re.search(r"port (\d+)", said)
            assert found, said
            yield int(found[1])
        finally:
            server.kill()


@pytest.mark.parametrize("binary", [True, False])
def test_a_client_of_the_protocol_gets_the_answers_of_the_model(model: Path, port: int, binary: bool) -> None:
    from tritonclient import http

    rows = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    want = ge.compile(model)(np.concatenate([rows, np.zeros((5, 64), np.float32)]))[:3]
    client = http.InferenceServerClient(f"127.0.0.1:{port}")
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("classifier")
    metadata = client.get_model_metadata("classifier")
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 64]}]
    given = http.InferInput("x", rows.shape, "FP32")
    given.set_data_from_numpy(rows, binary_data=binary)
    asked = http.InferRequestedOutput("y", binary_data=binary)
    got = client.infer("classifier", [given], outputs=[asked]).as_numpy("y")
    np.testing.assert_allclose(got, want, rtol=1e-5)
    client.close()


def test_requests_of_many_clients_are_joined_and_kept_apart(model: Path, port: int) -> None:
    from tritonclient import http

    rows = np.random.default_rng(2).standard_normal((24, 64)).astype(np.float32)
    compiled = ge.compile(model)
    want = np.concatenate([compiled(rows[i : i + 8]) for i in range(0, 24, 8)])

    def ask(number: int) -> np.ndarray:
        client = http.InferenceServerClient(f"127.0.0.1:{port}", network_timeout=300)
        given = http.InferInput("x", [1, 64], "FP32")
        given.set_data_from_numpy(rows[number : number + 1])
        found = client.infer("classifier", [given]).as_numpy("y")
        client.close()
        return found

    with ThreadPoolExecutor(12) as clients:
        np.testing.assert_allclose(np.concatenate([*clients.map(ask, range(24))]), want, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "message"),
    [
        ("z", [1, 64], "FP32", "input 'x' is missing"),
        ("x", [1, 63], "FP32", "has the shape"),
        ("x", [1, 64], "FP64", "is of float64, not float32"),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(
    port: int, name: str, shape: list, dtype: str, message: str
) -> None:
    from tritonclient import http
    from tritonclient.utils import InferenceServerException

    client = http.InferenceServerClient(f"127.0.0.1:{port}")
    given = http.InferInput(name, shape, dtype)
    given.set_data_from_numpy(np.zeros(shape, {"FP32": np.float32, "FP64": np.float64}[dtype]))
    with pytest.raises(InferenceServerException, match=message):
        client.infer("classifier", [given])
    client.close()
