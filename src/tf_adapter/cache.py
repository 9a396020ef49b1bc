"""The cache of compiled functions by content: some in memory, all on disk in the compile cache.

The key is made of everything a compile depends on: the graph and the functions it calls (names of functions do
not count), descriptions of the inputs, contents of the variables that become part of the model, options, and the
versions of this package and of the machine. Files are `.om` files sealed with the user's key; one that is
damaged, or sealed by someone else, is compiled anew. The directory is bounded as all cache folders are.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ge.compile_cache import counters
from ge.identity import compile_identity, sources
from ge.ir.types import numpy_dtype
from ge.model.model import Model
from ge.model.om import Package
from ge.model.store import LIMIT_BYTES, ModelStore
from ge.options import CompileOptions
from ge.plan import Plan
from npu_runtime import UnsupportedTask, environment
from npu_runtime.bounded import BoundedCache
from tf_adapter.graphs import ARGUMENT, FlatGraph, Functions, called_functions

if TYPE_CHECKING:
    from tf_adapter.lowering import Ports, Request

__all__ = ["clear", "directory", "find", "key", "size", "store"]

MOST = 32  # models kept in memory
HASHED_BYTES = 32 << 20  # contents of variables that are hashed even when there is no directory
_COLOCATION = "_class"  # names of other nodes
_MOST_CONSTANTS = 1 << 20  # bytes of results that are mere constants in a file

_models: BoundedCache[str, tuple[Model, Ports]] = BoundedCache(MOST)


def directory() -> Path | None:
    """Where compiled functions are kept between processes: `cache_dir`, else the user's cache folder; None: nowhere."""
    from tf_adapter.options import options

    given = options.cache_dir
    if given is None:
        return environment.compile_cache()
    return None if given == Path(environment.OFF) else given


def clear() -> None:
    """Forget the models in memory."""
    _models.clear()


def size() -> int:
    """How many models are in memory."""
    return len(_models)


# -- keys ------------------------------------------------------------------------------------------------------


def key(request: Request, functions: Functions, options: CompileOptions) -> str | None:
    """The key of a compile; None when finding it would cost more than it saves."""
    bound = [request.inputs[i] for i in sorted(request.bind)]
    size = sum(int(np.prod(d.shape, dtype=np.int64)) * 8 for d in bound)
    if directory() is None and size > HASHED_BYTES:
        return None
    hasher = hashlib.blake2b(digest_size=24)
    _Content(functions, hasher).graph(request.graph)
    described = [(d.kind, d.dtype, tuple(d.shape)) for d in request.inputs]
    counters = [(c.argument, c.key, c.high, c.moved) for c in request.counters]
    variables = (sorted(request.bind), sorted(request.kept))
    named = list(request.graph.nodes) if options.op_precision or options.op_implementation else []
    facts = (described, counters, variables, named, compile_identity(options), sources("tf_adapter"))
    hasher.update(repr(facts).encode())
    for given in bound:
        hasher.update(np.ascontiguousarray(given.numpy()).view(np.uint8).data)
    return hasher.hexdigest()


class _Content:
    """Feeds the content of graphs to a hash; functions and nodes count by their content, not by their name.

    So the replicas of a strategy, whose nodes have names of their own, share models.
    """

    def __init__(self, functions: Functions, hasher: Any) -> None:
        self.functions = functions
        self.hasher = hasher
        self.numbers: dict[str, int] = {}

    def graph(self, graph: FlatGraph) -> None:
        place = {name: number for number, name in enumerate(graph.nodes)}
        results = [(place[name], index) for name, index in graph.results]
        shape = ([place[a] for a in graph.args], results, [place[e] for e in graph.effects])
        self.hasher.update(repr(shape).encode())
        for node in graph.nodes.values():
            op = "_Arg" if node.op == ARGUMENT else node.op
            inputs = [(place[name], index) for name, index in node.inputs]
            self._node(place[node.name], op, inputs, [place[c] for c in node.controls], node.attr)
        self._rest()

    def _node(self, name: Any, op: str, inputs: Any, controls: Any, attr: Any) -> None:
        names = called_functions(op, attr) if op != ARGUMENT else []
        called = [self.numbers.setdefault(n, len(self.numbers)) for n in names]
        plain = {
            k: attr[k].SerializeToString()
            for k in sorted(attr)
            if k != _COLOCATION and not _names_function(attr[k])
        }
        self.hasher.update(repr((name, op, inputs, controls, called, plain)).encode())

    def _rest(self) -> None:
        """The functions named so far, and those that they name."""
        done = 0
        while done < len(self.numbers):
            name = list(self.numbers)[done]
            done += 1
            definition = self.functions.find(name)
            if definition is None:
                continue
            place = {a.name: f"#{k}" for k, a in enumerate(definition.signature.input_arg)}
            results = [_renamed(definition.ret[a.name], place) for a in definition.signature.output_arg]
            shape = (len(place), results, sorted(definition.control_ret.values()))
            self.hasher.update(repr(shape).encode())
            for node in definition.node_def:
                inputs = [_renamed(text, place) for text in node.input]
                self._node(node.name, node.op, inputs, [], node.attr)


def _renamed(text: str, place: Mapping[str, str]) -> str:
    """A reference with arguments by number: their names have numbers in them that differ from trace to trace."""
    name, mark, rest = text.partition(":")
    return f"{place.get(name, name)}{mark}{rest}"


def _names_function(value: Any) -> bool:
    return value.WhichOneof("value") == "func" or bool(value.list.func)


# -- models ----------------------------------------------------------------------------------------------------


def find(key: str | None) -> tuple[Model, Ports] | None:
    """The model of a key, from memory or from the directory."""
    found = _models.get(key)
    if found is not None or key is None:
        return found
    found = _read(key)
    return None if found is None else _models.put(key, found)


def store(key: str | None, plan: Plan, ports: Ports) -> Model:
    """Load a plan and keep it."""
    model = Model(plan)
    if key is None:
        return model
    _models.put(key, (model, ports))
    _write(key, plan, ports)
    return model


def _read(key: str) -> tuple[Model, Ports] | None:
    where = directory()
    package = None if where is None else ModelStore(where).read(key)
    if package is None:
        return None
    try:
        found = Model(package.plans[0]), _decode_ports(package.properties["ports"])
    except (UnsupportedTask, KeyError, TypeError, ValueError):
        return None  # of another machine or version: it is compiled anew and replaced
    counters.loaded += 1
    return found


def _write(key: str, plan: Plan, ports: Ports) -> None:
    where = directory()
    if where is None or sum(c.nbytes for c in ports.constants) > _MOST_CONSTANTS:
        return
    ModelStore(where, LIMIT_BYTES).write(key, Package([plan], None, {"ports": _encode_ports(ports)}))


def _encode_ports(ports: Ports) -> dict[str, Any]:
    return {
        "inputs": [list(p) for p in ports.inputs],
        "outputs": [list(p) for p in ports.outputs],
        "others": [[j, list(p)] for j, p in ports.others],
        "constants": [
            [c.dtype.name, list(c.shape), base64.b64encode(np.ascontiguousarray(c).tobytes()).decode()]
            for c in ports.constants
        ],
        "random": [
            [name, None if high is None else str(high), str(step)] for name, high, step in ports.random
        ],
        "specialised": list(ports.specialised),
        "bound": list(ports.bound),
    }


def _decode_ports(data: Any) -> Ports:
    from tf_adapter.lowering import Ports

    return Ports(
        tuple((str(k), int(i)) for k, i in data["inputs"]),
        tuple((str(k), int(i)) for k, i in data["outputs"]),
        tuple((int(j), (str(k), int(i))) for j, (k, i) in data["others"]),
        tuple(
            np.frombuffer(base64.b64decode(text), numpy_dtype(dtype)).reshape(shape)
            for dtype, shape, text in data["constants"]
        ),
        tuple((str(n), None if high is None else int(high), int(step)) for n, high, step in data["random"]),
        tuple(map(int, data["specialised"])),
        tuple(map(int, data["bound"])),
    )
