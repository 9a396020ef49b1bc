"""Random PyTorch programs: eager on the NPU, compiled with and without Dynamo; against PyTorch on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch

import torch_npu
import torchair
from ge.conformance.programs.door import Door, Refused, Rounding, Runs
from ge.conformance.programs.python_door import Mode, PythonDoor
from ge.conformance.programs.record import Program, Role
from torchair.conformance.random_operators import OPERATORS
from torchair.conformance.samples import _untraceable

__all__ = ["TorchDoor", "door"]


def tensor(array: Any) -> Any:
    """An array of NumPy's as a tensor."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(np.array(array, np.float32)).bfloat16()
    return torch.from_numpy(np.array(array))


def plain(x: Any) -> Any:
    """A tensor as an array of NumPy's."""
    x = x.detach().cpu().resolve_conj().resolve_neg()
    return x.float().numpy().astype(ml_dtypes.bfloat16) if x.dtype is torch.bfloat16 else x.numpy().copy()


def elsewhere(x: Any) -> Any:
    """A copy by way of the second device."""
    if x.device.type == "cpu" or torch_npu.npu.device_count() < 2:
        return x.clone()
    return x.to("npu:1").clone().to(x.device)


def repeated(body: Any, steps: Any, state: Any) -> Any:
    """A loop of Python's."""
    for step in range(steps):
        state = body(state, step)
    return state


def branch(flag: Any, then: Any, other: Any) -> Any:
    """torch.cond; an `if` on the host, where PyTorch would compile every call of it, but for gradients."""
    plain = not torch.compiler.is_compiling() and not torch.is_grad_enabled()
    if plain and type(flag) is torch.Tensor and flag.device.type == "cpu":
        return then() if flag else other()
    return torch.cond(flag, then, other)


def largest(x: Any, count: Any) -> Any:
    """The places of the largest elements of each row; of equal ones any."""
    return torch.topk(x, count).indices


def bits(x: Any) -> Any:
    """The bits of float32 numbers."""
    return x.view(torch.int32)


def given(arrays: Any, roles: Any, held: Any, options: Any, device: Any) -> Any:
    """The arguments of one run; states and constants are made once."""
    for index, (array, role) in enumerate(zip(arrays, roles, strict=True)):
        if role != "fed" and index not in held:
            held[index] = tensor(array).to(device)
    tensors = [held.get(i) if i in held else tensor(a).to(device) for i, a in enumerate(arrays)]
    if "gradient" in options:
        for t, role in zip(tensors, roles, strict=True):
            t.requires_grad_(role == "fed" and t.is_floating_point())
    return tensors


def answered(function: Any, tensors: Any, held: Any, options: Any) -> Any:
    """The results, the gradients of their sum if requested, and the inputs afterwards."""
    if "random" in options:
        torch.manual_seed(7)
    if "gradient" not in options:
        with torch.no_grad():
            return [plain(r) for r in [*function(*tensors), *tensors]]
    leaves = [
        t for t in tensors if t.requires_grad
    ]  # others may become part of the graph by being written to
    results = list(function(*tensors))
    targets = [r for r in results if r.requires_grad]
    slopes = []
    if leaves and targets:
        ones = [torch.ones_like(r) for r in targets]
        found = torch.autograd.grad(targets, leaves, ones, allow_unused=True)
        slopes = [torch.zeros_like(v) if s is None else s for s, v in zip(found, leaves, strict=True)]
    return [plain(r) for r in results + slopes]


def eager(program: Any, runs: Any, roles: Any, options: Any, device: Any) -> Any:
    """Call by call."""
    held: dict[int, Any] = {}
    return [answered(program, given(r, roles, held, options, device), held, options) for r in runs]


def compiled(program: Any, runs: Any, roles: Any, options: Any, device: Any, backend: Any = "npu") -> Any:
    """One torch.compile for all runs."""
    torch._dynamo.reset()
    held: dict[int, Any] = {}
    function = torch.compile(program, backend=backend)
    return [answered(function, given(r, roles, held, options, device), held, options) for r in runs]


def traced(program: Any, runs: Any, roles: Any, options: Any, device: Any, compiler: Any = None) -> Any:
    """AOT Autograd without Dynamo, a graph for each set of sizes; tensors of the host.

    compiler: for all graphs, the NPU's by default.
    """
    from torch._functorch.aot_autograd import aot_function

    from torchair import decompositions
    from torchair.backend import get_compiler

    held: dict[int, Any] = {}
    kept: dict[Any, Any] = {}
    found: list[Any] = []
    for arrays in runs:
        key = tuple(a.shape for a in arrays)
        if key not in kept:
            kept[key] = aot_function(
                lambda *tensors: program(*tensors),
                fw_compiler=compiler or get_compiler(None, "forward"),
                bw_compiler=compiler or get_compiler(None, "backward"),
                inference_compiler=compiler or get_compiler(None, "inference"),
                decompositions=decompositions.table(),
            )
        found.append(answered(kept[key], given(arrays, roles, held, options, "cpu"), held, options))
    return found


def saved(program: Any, runs: Any, roles: Any, options: Any, device: Any) -> Any:
    """Exported for each set of sizes, compiled to a model file, loaded and run without PyTorch."""
    import tempfile

    import ge

    class Model(torch.nn.Module):
        def forward(self, *tensors: Any) -> Any:
            copies = [t.clone() for t in tensors]  # a file has nowhere to keep what is written to its inputs
            return [*program(*copies), *(c.clone() for c in copies)]

    loaded: dict[Any, Any] = {}
    held: dict[int, Any] = {}
    found: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        for arrays in runs:
            inputs = [held.get(i, a) for i, a in enumerate(arrays)]
            key = tuple(a.shape for a in inputs)
            if key not in loaded:
                path = torchair.dynamo_export(
                    *map(tensor, inputs), model=Model(), export_path=folder, export_name=f"model{len(loaded)}"
                )
                ge.compile(path).save(path.with_suffix(".om"))
                loaded[key] = ge.load(path.with_suffix(".om"))
            found.append(loaded[key].run(inputs))
            after = found[-1][len(found[-1]) - len(inputs) :]
            held.update({i: a for i, (a, r) in enumerate(zip(after, roles, strict=True)) if r != "fed"})
    return found


class TorchDoor(PythonDoor):
    """PyTorch."""

    name = "torch"
    operators = OPERATORS
    dtypes = {  # noqa: RUF012
        "float32": 10,
        "float64": 2,
        "float16": 2,
        "bfloat16": 2.5,
        "int32": 2,
        "int64": 4,
        "bool": 1,
        "int8": 1,
        "int16": 0.5,
        "uint8": 1,
        "uint16": 0.1,
        "uint32": 0.1,
        "uint64": 0.1,
        "complex64": 0.4,
        "complex128": 0.2,
    }
    modes = {"traced": 0.75, "eager": 0.4, "compiled": 0.15, "saved": 0.12}  # noqa: RUF012
    options = {"gradient": 0.25}  # noqa: RUF012
    roles = {"fed": 0.8, "constant": 0.1, "state": 0.1}  # noqa: RUF012
    names = {  # noqa: RUF012
        "torch": torch,
        **{f.__name__: f for f in (elsewhere, repeated, branch, largest, bits)},
    }
    imports = (
        "from typing import Any\n\nimport ml_dtypes\nimport numpy as np\nimport torch\n"
        "from numpy import array, inf, nan\n\n"
        "import torch_npu\nimport torchair\n"
    )
    helpers = (tensor, plain, elsewhere, repeated, branch, largest, bits, given, answered)
    ways = {"eager": eager, "compiled": compiled, "traced": traced, "saved": saved}  # noqa: RUF012
    host = "cpu"
    device = "npu"

    def tensor(self, array: np.ndarray, role: str) -> Any:
        return tensor(array)

    def has_state(self, program: Program) -> bool:
        """Constants too are written in place."""
        return any(i.role is not Role.FED for i in program.inputs)

    def array(self, tensor: Any) -> np.ndarray | None:
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return None
        if tensor.dtype is torch.complex32:  # which NumPy lacks
            return None
        found: np.ndarray = plain(tensor)
        return found

    def scaled(self, x: Any, factors: Callable[[np.ndarray], np.ndarray], written: bool) -> Any:
        if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
            return x
        array = plain(x)
        factor = tensor(factors(array).astype(array.dtype))
        return x.mul_(factor) if written else x * factor

    def changed_back(self, x: Any, change: Callable[[Any], Any]) -> Any:
        if not isinstance(x, torch.Tensor) or not x.requires_grad:
            return x
        passed = x.clone()
        passed.register_hook(change)
        return passed

    def finite(self, x: Any, number: Callable[[float], float]) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        return torch.where(torch.isfinite(x), x, torch.full_like(x, number(torch.finfo(x.dtype).max)))

    def _hooks(self, rounding: Rounding, gradient: bool) -> dict[str, Callable[..., Any]]:
        """Of equal elements others are the largest, and NaN has other bits: any of 2^24 numbers is one."""

        def other_largest(x: Any, count: Any) -> Any:
            order = torch.from_numpy(np.random.default_rng(rounding.seed).permutation(x.shape[-1]))
            return order[largest(x[..., order], count)]

        def other_bits(x: Any) -> Any:
            return torch.where(x.isnan(), 0x7FC00000 - rounding.seed % 2 * (1 << 31), bits(x))

        return {**super()._hooks(rounding, gradient), "largest": other_largest, "bits": other_bits}

    def second_opinion(self, program: Program, runs: Runs) -> Any:
        """PyTorch's own compiler front, which runs the traced graphs eagerly, by its decompositions and without oneDNN.

        The kernels of oneDNN give NaN for the gelu of infinity; others round constants to float32.
        """
        with torch.backends.mkldnn.flags(enabled=False):
            return self._called(_by_decomposition, program, runs, "cpu", None)

    def run(self, program: Program, runs: Runs) -> Any:
        if program.mode == "saved" and {"gradient", "random"} & set(program.options):
            raise Refused("a file holds no gradients and no generator")
        try:
            return super().run(program, runs)
        except Exception as error:
            if any(t in str(error) for t in ("cannot leave PyTorch", "computes nothing", "does not hold")):
                raise Refused(str(error)) from error
            if (program.mode == "traced" and _untraceable(error)) or self._pytorch_refuses(program, runs):
                raise Refused(str(error)) from error
            raise

    def _pytorch_refuses(self, program: Program, runs: Runs) -> bool:
        """True if the front of the mode fails without the NPU too."""
        plain = TorchDoor()
        plain.names = {**self.names, "branch": torch.cond}  # which PyTorch compiles in eager mode too
        fronts: dict[str, tuple[Mode, ...]] = {
            "compiled": (_by_pytorch,),
            "eager": (_by_pytorch, eager),
            "traced": (_by_autograd,),
            "saved": (_by_pytorch,),
        }
        try:
            for front in fronts.get(program.mode, ()):
                plain._called(front, program, runs, "cpu", None)
        except Exception:
            return True
        return False


def _by_pytorch(program: Any, runs: Any, roles: Any, options: Any, device: Any) -> Any:
    return compiled(program, runs, roles, options, device, "aot_eager")


def _by_decomposition(program: Any, runs: Any, roles: Any, options: Any, device: Any) -> Any:
    return compiled(program, runs, roles, options, device, "aot_eager_decomp_partition")


def _by_autograd(program: Any, runs: Any, roles: Any, options: Any, device: Any) -> Any:
    return traced(program, runs, roles, options, device, lambda graph, inputs: graph)


def door() -> Door:
    """PyTorch."""
    torch._dynamo.config.recompile_limit = 64
    return TorchDoor()
