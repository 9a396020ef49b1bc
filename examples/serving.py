"""A server of one model over the Open Inference Protocol (KServe version 2), on all NPUs, with batching.

    NPU_DEVICE_COUNT=2 python examples/serving.py model.onnx --port 8000
    curl localhost:8000/v2/models/model

Clients of the protocol (tritonclient, KServe's, curl) send JSON or binary tensors. Requests that come within `--delay`
milliseconds of each other are joined up to the batch of the model and run as one; batches run side by side, one an NPU.
Without a file, a small classifier is served and asked once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx

import ge

DTYPES = {
    **{f"FP{8 * size}": np.dtype(f"f{size}") for size in (2, 4, 8)},
    **{f"INT{8 * size}": np.dtype(f"i{size}") for size in (1, 2, 4, 8)},
    **{f"UINT{8 * size}": np.dtype(f"u{size}") for size in (1, 2, 4, 8)},
    "BOOL": np.dtype(bool),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LENGTH = "Inference-Header-Content-Length"  # where JSON ends and binary tensors begin


class RequestError(Exception):
    """What is wrong with a request; the client is told."""


class Service:
    """A model on all NPUs; requests are joined to batches."""

    def __init__(self, path: Path, delay: float) -> None:
        self.name = path.stem
        self.model = ge.compile(path)
        self.batch = min(port.desc.shape[0] for port in self.model.inputs)
        self._npus = ge.Replicas(self.model)
        self._delay = delay
        self._waiting: queue.SimpleQueue[tuple[list[np.ndarray], Future[list[Any]]]] = queue.SimpleQueue()
        threading.Thread(target=self._join, daemon=True).start()

    def metadata(self) -> dict[str, Any]:
        """Names, types and shapes; -1 stands for the rows of a request."""
        sides = {
            side: [
                {"name": p.name, "datatype": NAMES[np.dtype(p.desc.dtype)], "shape": [-1, *p.desc.shape[1:]]}
                for p in ports
            ]
            for side, ports in (("inputs", self.model.inputs), ("outputs", self.model.outputs))
        }
        return {"name": self.name, "versions": ["1"], "platform": "npu", **sides}

    def infer(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The results of one request, whatever others it was joined with."""
        feeds = [self._input(port, arrays) for port in self.model.inputs]
        if len({len(a) for a in feeds}) != 1:
            raise RequestError("the inputs have different numbers of rows")
        answer: Future[list[Any]] = Future()
        self._waiting.put((feeds, answer))
        return dict(zip((p.name for p in self.model.outputs), answer.result(), strict=True))

    @staticmethod
    def _input(port: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        array = arrays.get(port.name)
        if array is None:
            raise RequestError(f"input '{port.name}' is missing")
        if array.ndim == 0 or not len(array) or array.shape[1:] != port.desc.shape[1:]:
            raise RequestError(
                f"input '{port.name}' has the shape {list(array.shape)}, not {[-1, *port.desc.shape[1:]]}"
            )
        if array.dtype != np.dtype(port.desc.dtype):
            raise RequestError(f"input '{port.name}' is of {array.dtype}, not {port.desc.dtype}")
        return array

    def _join(self) -> None:
        """Take requests as they come, those of a short time together."""
        while True:
            requests = [self._waiting.get()]
            end = time.monotonic() + self._delay
            while sum(len(feeds[0]) for feeds, _ in requests) < self.batch:
                try:
                    requests.append(self._waiting.get(timeout=max(end - time.monotonic(), 0)))
                except queue.Empty:
                    break
            threading.Thread(target=self._answer, args=(requests,)).start()

    def _answer(self, requests: Sequence[tuple[list[np.ndarray], Future[list[Any]]]]) -> None:
        try:
            results = self._npus.run(
                [np.concatenate(same) for same in zip(*(feeds for feeds, _ in requests), strict=True)]
            )
        except Exception as error:
            for _, answer in requests:
                answer.set_exception(error)
            return
        start = 0
        for feeds, answer in requests:
            end = start + len(feeds[0])
            answer.set_result([array[start:end] for array in results])
            start = end


def read_tensors(request: Mapping[str, Any], binary: bytes) -> dict[str, np.ndarray]:
    """The inputs of a request; binary ones follow each other behind the JSON."""
    arrays: dict[str, np.ndarray] = {}
    for tensor in request["inputs"]:
        if tensor["datatype"] not in DTYPES:
            raise RequestError(f"input '{tensor['name']}' is of {tensor['datatype']}, which is not served")
        dtype, size = DTYPES[tensor["datatype"]], tensor.get("parameters", {}).get("binary_data_size")
        if size is None:
            array = np.array(tensor["data"], dtype)
        else:
            array, binary = np.frombuffer(binary[:size], dtype), binary[size:]
        arrays[tensor["name"]] = array.reshape(tensor["shape"])
    return arrays


def write_tensors(
    request: Mapping[str, Any], results: Mapping[str, np.ndarray]
) -> tuple[list[dict[str, Any]], bytes]:
    """The outputs that a request asks for, all unless it says so, and those that it wants as binary."""
    wanted = {o["name"]: o.get("parameters", {}) for o in request.get("outputs", [])}
    otherwise = request.get("parameters", {}).get("binary_data_output", False)
    outputs, binary = [], b""
    for name in wanted or results:
        if name not in results:
            raise RequestError(f"there is no output '{name}'")
        array = results[name]
        tensor: dict[str, Any] = {"name": name, "datatype": NAMES[array.dtype], "shape": list(array.shape)}
        if wanted.get(name, {}).get("binary_data", otherwise):
            data = np.ascontiguousarray(array).tobytes()
            tensor["parameters"] = {"binary_data_size": len(data)}
            binary += data
        else:
            tensor["data"] = (
                array.astype(float if array.dtype.kind not in "iub" else array.dtype).ravel().tolist()
            )
        outputs.append(tensor)
    return outputs, binary


def handler(service: Service) -> type[BaseHTTPRequestHandler]:
    """The server's answers to requests."""
    model = f"/v2/models/{service.name}"

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.replace("/versions/1", "")
            if path in ("/v2/health/live", "/v2/health/ready", f"{model}/ready"):
                self._send(200, {})
            elif path == "/v2":
                self._send(200, {"name": "tf-adapter", "version": "2", "extensions": ["binary_tensor_data"]})
            elif path == model:
                self._send(200, service.metadata())
            else:
                self._send(404, {"error": f"there is nothing at {self.path}"})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path.replace("/versions/1", "") != f"{model}/infer":
                self._send(404, {"error": f"there is nothing at {self.path}"})
                return
            try:
                length = int(self.headers.get(LENGTH, len(body)))
                request = json.loads(body[:length])
                results = service.infer(read_tensors(request, body[length:]))
                outputs, binary = write_tensors(request, results)
            except (RequestError, KeyError, TypeError, ValueError, ge.GeError) as error:
                self._send(400, {"error": f"{type(error).__name__}: {error}"})
                return
            self._send(
                200,
                {"model_name": service.name, "id": request.get("id", ""), "outputs": outputs},
                binary,
            )

        def _send(self, status: int, answer: Mapping[str, Any], binary: bytes = b"") -> None:
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/octet-stream" if binary else "application/json")
            if binary:
                self.send_header(LENGTH, str(len(text)))
            self.send_header("Content-Length", str(len(text) + len(binary)))
            self.end_headers()
            self.wfile.write(text + binary)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def write_classifier(path: Path, batch: int = 8) -> None:
    """Write a small classifier, random weights."""
    weights = np.random.default_rng(0).standard_normal((64, 10)).astype(np.float32) / 8
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["z"]),
        onnx.helper.make_node("Softmax", ["z"], ["y"]),
    ]
    ports = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [batch, size])
        for name, size in (("x", 64), ("y", 10))
    ]
    graph = onnx.helper.make_graph(
        nodes, "classifier", ports[:1], ports[1:], [onnx.numpy_helper.from_array(weights, "w")]
    )
    opsets = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def ask_once(port: int) -> None:
    """One request, as a client without any library sends it."""
    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 64], "data": [0.5] * 64}]}
    url = f"http://127.0.0.1:{port}/v2/models/classifier/infer"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(request).encode())) as answer:
        (result,) = json.load(answer)["outputs"]
    print(f"{result['name']} {result['shape']}: the most probable class is {int(np.argmax(result['data']))}")


def main() -> None:
    """Serve until interrupted; the classifier only until it has answered."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", type=Path, help="a model file that ge.compile takes")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument(
        "--delay", type=float, default=2.0, help="milliseconds that a request waits for others"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.model
        if path is None:
            path = Path(folder) / "classifier.onnx"
            write_classifier(path)
        service = Service(path, arguments.delay / 1e3)
    server = ThreadingHTTPServer(("127.0.0.1", arguments.port), handler(service))
    print(f"{service.name} is served on port {server.server_port}", flush=True)
    if arguments.model is None:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ask_once(server.server_port)
        server.shutdown()
        return
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main()
