"""The NPU as a device of TensorFlow: the native half.

The device asks Python, through the callbacks of `set_callbacks`, how to run what it has not run before, and keeps
the answers. A callback runs with Python's lock held, on whichever thread made the call; TensorFlow operators executed
inside a callback go to the host. What a callback raises becomes the status of the call: the code of a
`tf.errors.OpError`, ResourceExhausted for MemoryError, Unimplemented for NotImplementedError, InvalidArgument for
ValueError and TypeError, Cancelled for KeyboardInterrupt (see `take_interrupt`), Internal otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from npu_runtime import Program

class Described:
    """One input, as a compiler sees it.

    `kind`: "tensor" (contents the NPU can read), "variable" (a resource variable that has a value), "host" (a string,
    another resource, a variant, an element type the NPU has not, a variable without a value).
    """

    @property
    def kind(self) -> Literal["tensor", "variable", "host"]: ...
    @property
    def dtype(self) -> str:
        """The runtime's name of the element type ("float32"), of a variable's value too; "" when it has none."""
    @property
    def type_number(self) -> int:
        """TensorFlow's number of the element type."""
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def version(self) -> int:
        """Of a variable: changes with its value. 0: the value may change unseen, it must not be bound."""
    @property
    def variable(self) -> int:
        """Of a variable: its number, the same in every call. 0 for everything else."""
    @property
    def address(self) -> int:
        """Address of a tensor's contents."""
    def numpy(self) -> np.ndarray[Any, Any]:
        """The value on the same memory, read only; kept alive and unchanged by the array."""

class SessionState:
    """Generators of random numbers that the parts of a session share.

    Within it (`with state:`) operations that this thread makes belong to the session; elsewhere each part has its own
    generators.
    """

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...

class FunctionPlan:
    """How a function (or an operator, or a part of a graph) runs for inputs of given types and shapes.

    FunctionPlan(program, inputs, outputs, ...) runs a program on the NPU:

    inputs       what each program input is: ("input", i) or ("variable", i), i being the position among the function's
                 inputs
    outputs      what each program output is: ("output", j, dtype, shape) for the function's result j, or
                 ("variable", i, dtype, shape, aliased) for the new value of a variable. `aliased=True` says that the
                 program may write it over the memory it reads the same variable from. ("random", c, "uint64", (2,)):
                 where the program has moved a counter to; only the low half counts
    others       results that the program does not compute: {j: ("input", i)} passed through, {j: ("variable", i)} the
                 variable's value after the call, {j: ("output", k)} the same tensor as result k,
                 {j: ("constant", array)}
    bound        variables whose values are part of the program, as (i, version). When a version differs, another plan
                 is asked for. In a plan for a part: inputs that are part of the program, as (i, address); the program
                 must keep their arrays (`Described.numpy()`)
    specialised  inputs whose values are part of the program: the plan serves calls with equal values only
    watched      variables not bound although they could be; after `patience` calls in a row without a change to any of
                 them another plan is asked for, with no `changed` variables
    random       counters of generators that are program inputs ("random", c), two uint64 numbers, low and high half:
                 (name, high, step) each; a call moves a counter on by its step. They belong to the function or
                 session, whatever its plans; the first plan says at which high half they begin (None: a random one)
    name         for error messages; the program's own name when empty
    layout       in a plan for a part that leaves results to another one: a number that says where

    Other attributes may be set freely; the object given to the device is the one that callbacks get back as `previous`.
    """

    def __init__(
        self,
        program: Program | Any,
        inputs: Sequence[tuple[str, int]],
        outputs: Sequence[tuple[str, int, str, Sequence[int]] | tuple[str, int, str, Sequence[int], bool]],
        *,
        others: Mapping[int, tuple[str, Any]] = ...,
        bound: Sequence[tuple[int, int]] = ...,
        specialised: Sequence[int] = ...,
        watched: Sequence[int] = ...,
        patience: int = 0,
        random: Sequence[tuple[str, int | None, int]] = ...,
        name: str = "",
        layout: int = 0,
    ) -> None: ...
    @staticmethod
    def host(
        function: str = "",
        *,
        escapes: bool = False,
        specialised: Sequence[int] = ...,
        operator: tuple[str, Sequence[tuple[str, bytes]], Sequence[int], int, Sequence[int]] | None = None,
        other_npus: Sequence[str] = ...,
    ) -> FunctionPlan:
        """Run a function of this name (same inputs and results) on the host; without a name, the function itself.

        `escapes`: it keeps the variables it is given for later (datasets, iterators).
        `operator`: all that the function consists of: name, serialised attributes, inputs of the function that it is
        given, how many tensors it makes, which of them the function returns.
        `other_npus`: the functions that NPUs 1, 2, ... call in its place.
        """
    @staticmethod
    def steps(
        steps: Sequence[tuple[str, Sequence[tuple[str, int, int]], int, int, int, tuple[Any, ...] | None]],
        results: Sequence[tuple[str, int, int]],
        *,
        specialised: Sequence[int] = ...,
        name: str = "",
    ) -> FunctionPlan:
        """Call functions one after the other, each with its own plan.

        A step is (name, inputs, number of results, NPU, stage, share). NPU -1 is the one that is called. Steps of a
        stage other than -1 run at the same time, each on its NPU. A share is a function that runs in place of the
        step where variables of the NPUs have the same values: (name, inputs, those variables), each of them as
        (input of the function, the inputs that must have its value, whether the share writes it).

        Inputs of a step and results of the whole are ("input", i, 0), an input of the function, or ("step", s, j),
        result j of an earlier step s.
        """
    @staticmethod
    def loop(
        condition: str,
        body: str,
        inputs: Sequence[tuple[str, Any]],
        results: Sequence[int],
        *,
        name: str = "",
    ) -> FunctionPlan:
        """Call a body as long as a condition holds, each a function with a plan of its own.

        Both take the loop's state; the body returns the next one. It begins as ("input", i), an input of the
        function, or ("constant", array); `results` are the states that the function returns in the end.
        """
    @staticmethod
    def branch(
        functions: Sequence[str],
        inputs: Sequence[tuple[str, Any]],
        results: Sequence[int],
        made: int,
        *,
        name: str = "",
    ) -> FunctionPlan:
        """Call one of several functions: the first input (0 or false, 1 or true, ...) says which; it gets the rest.

        Other values mean the last one. Each makes `made` tensors; `results` are those that the function returns.
        """
    @property
    def kind(self) -> Literal["npu", "steps", "loop", "branch", "host"]: ...
    @property
    def name(self) -> str: ...
    @property
    def host_function(self) -> str: ...
    @property
    def specialised(self) -> list[int]: ...
    @property
    def watched(self) -> list[int]: ...
    @property
    def bound(self) -> list[tuple[int, int]]: ...

# classify(op) -> (worth a plan?, do its attributes follow from its inputs' types?)
Classify = Callable[[str], tuple[bool, bool]]
# eager_compile(op, attrs, inputs) -> plan with tensors only; None: the host kernel, for this signature for good.
# attrs is a serialised NameAttrList.
EagerCompile = Callable[[str, bytes, list[Described]], FunctionPlan | None]
# function_compile(name, attrs, inputs, previous, changed) -> plan; None: the host runs the function as it is.
# previous: the plan that served these inputs so far, None the first time. changed: positions of bound variables that
# have another value now; empty with a previous plan: its watched variables have settled.
FunctionCompile = Callable[[str, bytes, list[Described], FunctionPlan | None, list[int]], FunctionPlan | None]
# part_compile(part, inputs) -> plan with tensors only.
PartCompile = Callable[[int, list[Described]], FunctionPlan | None]
# part_run(part, inputs) -> arrays: runs a part for which part_compile returned None.
PartRun = Callable[[int, list[Described]], Sequence[np.ndarray[Any, Any]]]
# variable_types(function) -> for each input the type number of the variable it is, 0 for everything else. Variables
# that were made on the host are told from other resources by it.
VariableTypes = Callable[[str], Sequence[int]]
# assign_function(types) -> the name of a function that assigns values of these types to variables of the host; its
# inputs are all variables, then all values.
AssignFunction = Callable[[list[int]], str]
# part_of(definition, task) -> the number of a part that another process has sent, for the NPU of a task.
PartOf = Callable[[bytes, int], int]

def load(libraries: Sequence[str]) -> None:
    """Find TensorFlow's C API in these libraries, which are loaded already; register the NpuGraph operator.

    NpuGraph(inputs: Tin) -> (outputs: Tout), attributes Tin and Tout (lists of types, may be empty) and graph (int, a
    number from `new_part`), runs on the host device in any graph. In graphs for another process, definition (bytes for
    its `part_of`) and task (an int) take the place of graph.
    """

def create_device(index: int, name: str) -> tuple[Any, Any]:
    """The two capsules of a device, for TensorFlow's `register_custom_device`."""

def set_callbacks(
    classify: Classify,
    eager_compile: EagerCompile,
    function_compile: FunctionCompile,
    part_compile: PartCompile,
    part_run: PartRun | None = None,
    variable_types: VariableTypes | None = None,
    assign_function: AssignFunction | None = None,
    part_of: PartOf | None = None,
) -> None: ...
def new_part(device: int = 0, given: Sequence[int] = ..., left: Sequence[int] = ...) -> int:
    """A number for the `graph` attribute of an NpuGraph node; `part_compile` is called with it.

    Results `left` stay in the device's memory for one other part, whose inputs `given` they are: programs of both run
    in the same arena. In the graph, all of them are one number (int64) that stands for that memory.
    """

def arena_layout(number: int) -> int:
    """The layout of the memory that a number in the graph stands for, as the plan of the part that left it says."""

def arena_bytes(number: int, offset: int, nbytes: int) -> bytes:
    """A copy of some of that memory."""

def drop_part(part: int) -> None: ...
def forget(name: str) -> None:
    """Drop the plans of a function or operator."""

def forget_all() -> None: ...
def reset_random() -> None:
    """Counted random numbers begin again, as after tf.random.set_seed."""

def set_eager_threshold(calls: int) -> None:
    """Compile an operator once it was called more often than this with the same signature; the host runs it before."""

def set_host_device(name: str) -> None:
    """The name of the host's device, which a cluster that this process joins changes."""

def set_hard_placement(on: bool) -> None:
    """Whether `classify` is asked, and may raise, at every call of an operator that the host would run."""

def set_log_placement(on: bool) -> None: ...
def host_operators() -> int:
    """How many operators and functions the device has had TensorFlow run, since the process began."""

def shared_updates() -> int:
    """How often NPUs divided an update that all of them would have computed alike, since the process began."""

def take_counts() -> dict[str, tuple[int, int]]:
    """Calls on the NPU and on the host by name of operator or function, since this was last asked."""

def set_timeline(on: bool) -> None:
    """Whether the times of calls are written down."""

def take_timeline() -> list[tuple[str, bool, int, int, int]]:
    """Calls while the timeline was on, since this was last asked: name, whether on the NPU, thread, start and end in
    nanoseconds; the first million of them.
    """

def use_gpus(calls: Any) -> None:
    """Let plans have programs of GPUs; takes `npu_runtime.cuda.gpu_calls()`."""

def gpu_copies() -> dict[str, int]:
    """Copies between the host and GPUs, since the process began: uploads, downloads, and the bytes of both."""

def take_interrupt() -> bool:
    """Whether a callback on this thread was interrupted (KeyboardInterrupt) since this was last asked."""

def trim(device: int = 0) -> None:
    """Free the tensor memory that is kept for reuse."""
