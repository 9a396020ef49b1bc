"""Types of the extension module for GPUs."""

from collections.abc import Sequence
from typing import Any

class CudaUnavailable(RuntimeError): ...
class CudaError(RuntimeError): ...

def device_count() -> int: ...
def describe(device: int) -> dict[str, Any]: ...
def memory_info(device: int) -> dict[str, int]: ...
def set_memory_limit(device: int, bytes: int) -> None: ...
def trim(device: int) -> None: ...
def is_simulated() -> bool: ...

class Memory:
    def __init__(self, device: int, bytes: int, name: str = "") -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...
    def upload(self, stream: Stream, array: Any, offset: int = 0) -> None: ...
    def download(self, stream: Stream, array: Any, offset: int = 0) -> None: ...

class Stream:
    def __init__(self, device: int) -> None: ...
    def synchronize(self) -> None: ...
    def wait(self, event: Event) -> None: ...
    def launch(
        self,
        module: Module,
        symbol: str,
        blocks: int,
        threads: int,
        arguments: Sequence[int],
        shared: int = 0,
    ) -> None: ...
    def copy(self, to: int, source: int, bytes: int) -> None: ...
    def fill(self, to: int, byte: int, bytes: int) -> None: ...
    def begin_capture(self) -> None: ...

class Event:
    def __init__(self, device: int) -> None: ...
    def record(self, stream: Stream) -> None: ...
    def synchronize(self) -> None: ...
    def milliseconds_since(self, begin: Event) -> float: ...

class Module:
    def __init__(self, device: int, image: bytes) -> None: ...

class Graph:
    def __init__(self, stream: Stream) -> None: ...
    @property
    def nodes(self) -> int: ...
    def launch(self, stream: Stream) -> None: ...

class Product:
    def __init__(
        self,
        device: int,
        library: str,
        dtype: str,
        result: str,
        stack: int,
        a: Sequence[int],
        b: Sequence[int],
        y: Sequence[int],
        residual: Sequence[int],
        has_bias: bool,
        activation: str,
    ) -> None: ...
    @property
    def candidates(self) -> int: ...
    def describe(self, candidate: int) -> str: ...
    def prepare(self, candidate: int) -> int: ...
    def enqueue(
        self,
        stream: Stream,
        candidate: int,
        a: int,
        b: int,
        bias: int,
        residual: int,
        y: int,
        workspace: int,
    ) -> None: ...

class Convolution:
    def __init__(
        self,
        device: int,
        library: str,
        dtype: str,
        x: Sequence[int],
        x_strides: Sequence[int],
        w: Sequence[int],
        w_strides: Sequence[int],
        y: Sequence[int],
        y_strides: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        pads_begin: Sequence[int],
        pads_end: Sequence[int],
        has_bias: bool,
        has_residual: bool,
        activation: str,
    ) -> None: ...
    @property
    def candidates(self) -> int: ...
    def describe(self, candidate: int) -> str: ...
    def prepare(self, candidate: int) -> int: ...
    def enqueue(
        self,
        stream: Stream,
        candidate: int,
        a: int,
        b: int,
        bias: int,
        residual: int,
        y: int,
        workspace: int,
    ) -> None: ...

class Attention:
    def __init__(
        self,
        device: int,
        library: str,
        dtype: str,
        q: Sequence[int],
        q_strides: Sequence[int],
        k: Sequence[int],
        k_strides: Sequence[int],
        v: Sequence[int],
        v_strides: Sequence[int],
        y: Sequence[int],
        y_strides: Sequence[int],
        mask_dtype: str,
        mask: Sequence[int],
        mask_strides: Sequence[int],
        scale: float,
        causal: bool,
        has_sums: bool,
    ) -> None: ...
    @property
    def candidates(self) -> int: ...
    def describe(self, candidate: int) -> str: ...
    def prepare(self, candidate: int) -> int: ...
    def enqueue(
        self,
        stream: Stream,
        candidate: int,
        q: int,
        k: int,
        v: int,
        mask: int,
        y: int,
        sums: int,
        workspace: int,
    ) -> None: ...
