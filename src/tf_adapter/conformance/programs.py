"""Programs whose gradients are checked: operators that need others around them, and ones of complex or odd results.

A program takes tensors and gives tensors, as an operator of the table does. Operators that are states (variables) or
lists (of tensors, ragged, sparse matrices) are made from the arguments and read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_adapter.conformance.rows import C, Each, F, I, Row, V

__all__ = ["PROGRAMS"]

raw = tf.raw_ops
FLOATS = ("float32", "float64")
SINGLE = ("float32",)
PROGRAMS: list[Row] = []


def _program(name: str, *, _dtypes: Sequence[str] = FLOATS, _ulps: float = 64.0, **given: Any) -> Any:
    """Add the function that is decorated, by a name that says what it is about."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        index = sum(r.operator == name for r in PROGRAMS)
        PROGRAMS.append(Row(name, given, tuple(_dtypes), "values", _ulps, function=function, index=index))
        return function

    return add


def _squares(*tensors: tf.Tensor) -> list[tf.Tensor]:
    """What does not depend on the sign or phase of the elements."""
    return [tf.math.real(t * tf.math.conj(t)) if t.dtype.is_complex else t * t for t in tensors]


# -- control flow --------------------------------------------------------------------------------------------


def _certain() -> None:
    """An operator with a state, so that what holds it is not one of the stateless kinds."""
    raw.Assert(condition=True, data=[0])


@_program("tf.while_loop", x=V(3, d="small"), w=V(3, 3, d="unit"), steps=I(4), stateful=Each(False, True))
def _while(x: tf.Tensor, w: tf.Tensor, steps: tf.Tensor, stateful: bool) -> tf.Tensor:
    def body(i: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if stateful:
            _certain()
        return i + 1, tf.tanh(tf.linalg.matvec(w, state))

    return tf.while_loop(lambda i, _: i < steps, body, [tf.constant(0), x])[1]


@_program("tf.while_loop/nested", x=V(3, d="small"), rows=I(3), steps=I(2))
def _nested_while(x: tf.Tensor, rows: tf.Tensor, steps: tf.Tensor) -> tf.Tensor:
    def inner(i: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = tf.while_loop(
            lambda j, _: j < steps, lambda j, s: (j + 1, tf.sin(s) * 1.3), [tf.constant(0), state]
        )
        return i + 1, found[1] + x

    return tf.while_loop(lambda i, _: i < rows, inner, [tf.constant(0), x])[1]


@_program(
    "tf.cond", x=V(3), y=V(3), which=Each(I(True, "bool"), I(False, "bool")), stateful=Each(False, True)
)
def _cond(x: tf.Tensor, y: tf.Tensor, which: tf.Tensor, stateful: bool) -> tf.Tensor:
    def first() -> tf.Tensor:
        if stateful:
            _certain()
        return tf.sin(x) * y

    return tf.cond(which, first, lambda: x + tf.square(y))


@_program("tf.switch_case", x=V(3), which=Each(I(0), I(1), I(7)), stateful=Each(False, True))
def _case(x: tf.Tensor, which: tf.Tensor, stateful: bool) -> tf.Tensor:
    def last() -> tf.Tensor:
        if stateful:
            _certain()
        return x * 3.0

    return tf.switch_case(which, [lambda: tf.sin(x), lambda: tf.square(x), last])


@_program("tf.scan", x=V(4, 3, d="unit"))
def _scan(x: tf.Tensor) -> tf.Tensor:
    return tf.scan(lambda a, b: tf.tanh(a * b + b), x)


@_program("tf.map_fn", x=V(4, 3))
def _map(x: tf.Tensor) -> tf.Tensor:
    return tf.map_fn(lambda row: tf.sin(row) * tf.reduce_sum(row), x)


@_program("tf.vectorized_map", x=V(4, 3), w=V(3, 2))
def _vectorized(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return tf.vectorized_map(lambda row: tf.sin(tf.linalg.matvec(w, row, transpose_a=True)), x)


@_program("tf.recompute_grad", x=V(3, 4), w=V(4, 4))
def _recomputed(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return tf.recompute_grad(lambda a, b: tf.sin(a @ b))(x, w)


@_program("tf.py_function", x=V(3, 4))
def _python(x: tf.Tensor) -> tf.Tensor:
    found = tf.py_function(lambda a: tf.sin(a) * a, [x], x.dtype)
    return tf.ensure_shape(found, x.shape)


@_program("Print", x=V(3))
def _print(x: tf.Tensor) -> tf.Tensor:
    return raw.Print(input=x, data=[x], message="", first_n=0) * x


@_program("tf.experimental.Optional", x=V(3))
def _optional(x: tf.Tensor) -> tf.Tensor:
    optional = raw.OptionalFromValue(components=[x * 2])
    return raw.OptionalGetValue(optional=optional, output_types=[x.dtype], output_shapes=[x.shape])[0]


# -- loops and arrays of version 1 ---------------------------------------------------------------------------


def _version_1(build: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function whose graph, and that of its gradient, is made with version 1's control flow and arrays."""

    from tensorflow.python.eager.record import stop_recording

    def made(shape: tf.TensorShape, dtype: tf.DType) -> tuple[Any, Any]:
        from tensorflow.python.ops import control_flow_util

        graph, modern = tf.Graph(), control_flow_util.ENABLE_CONTROL_FLOW_V2
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = False
        try:
            with graph.as_default(), tf.device(None):
                x = tf.compat.v1.placeholder(dtype, shape, "x")
                y = tf.identity(build(x), "y")
                upstream = tf.compat.v1.placeholder(dtype, y.shape, "upstream")
                tf.identity(tf.compat.v1.gradients(y, x, upstream)[0], "gradient")
        finally:
            control_flow_util.ENABLE_CONTROL_FLOW_V2 = modern
        proto = graph.as_graph_def()
        wrapped = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(proto, name=""), [])
        place = wrapped.graph.as_graph_element
        feeds = [place("x:0"), place("upstream:0")]
        return wrapped.prune(feeds[:1], place("y:0")), wrapped.prune(feeds, place("gradient:0"))

    @tf.custom_gradient
    def function(x: tf.Tensor) -> Any:
        with tf.init_scope():
            forward, backward = made(x.shape, x.dtype)
        with stop_recording():  # tapes would look for version 1's loops, which the functions no longer know
            return forward(x), lambda upstream: backward(x, upstream)

    return lambda x: function(x)


def _loop_of_arrays(x: tf.Tensor) -> tf.Tensor:
    """The running products of the rows, by arrays that a loop reads and writes."""
    rows = int(x.shape[0])
    source = tf.TensorArray(x.dtype, rows, clear_after_read=False).unstack(x)
    target = tf.TensorArray(x.dtype, rows)

    def body(
        i: tf.Tensor, state: tf.Tensor, to: tf.TensorArray
    ) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
        new = tf.cond(i > 1, lambda: tf.tanh(state * source.read(i)), lambda: state + source.read(i))
        return i + 1, new, to.write(i, new)

    found = tf.while_loop(lambda i, *_: i < rows, body, [tf.constant(0), tf.ones_like(x[0]), target])
    stacked = found[2].stack()
    stacked.set_shape(x.shape)
    return stacked


def _array_of_parts(x: tf.Tensor) -> tf.Tensor:
    """Parts of different lengths, joined again."""
    parts = tf.TensorArray(x.dtype, 2, infer_shape=False).split(x * x, [1, int(x.shape[0]) - 1])
    joined = parts.concat()
    joined.set_shape(x.shape)
    return joined


_OF_ARRAYS = {"tf.TensorArray/loop": _loop_of_arrays, "tf.TensorArray/split": _array_of_parts}
for _name, _build in _OF_ARRAYS.items():
    _program(_name, x=V(4, 3, d="unit"))(_build)
    _program(_name.replace("tf.", "tf.compat.v1."), x=V(4, 3, d="unit"))(_version_1(_build))


# -- lists of tensors ----------------------------------------------------------------------------------------


def _list_of(x: tf.Tensor) -> tf.Tensor:
    return raw.TensorListFromTensor(tensor=x, element_shape=x.shape[1:].as_list())


def _stacked(handle: tf.Tensor, x: tf.Tensor, count: int = -1) -> tf.Tensor:
    return raw.TensorListStack(
        input_handle=handle, element_shape=x.shape[1:].as_list(), element_dtype=x.dtype, num_elements=count
    )


@_program("TensorListStack", x=V(4, 3))
def _list_stack(x: tf.Tensor) -> tf.Tensor:
    return _stacked(_list_of(x * x), x, 4)


@_program("TensorListSetItem", x=V(4, 3), y=V(3))
def _list_set(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
    changed = raw.TensorListSetItem(input_handle=_list_of(x), index=2, item=y)
    item = raw.TensorListGetItem(input_handle=changed, index=1, element_shape=[3], element_dtype=x.dtype)
    return [_stacked(changed, x), item]


@_program("TensorListPushBack", x=V(4, 3), y=V(3))
def _list_push(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
    longer = raw.TensorListPushBack(input_handle=_list_of(x), tensor=y * 2)
    rest, last = raw.TensorListPopBack(input_handle=longer, element_shape=[3], element_dtype=x.dtype)
    return [last, _stacked(rest, x)]


@_program("TensorListResize", x=V(4, 3))
def _list_resize(x: tf.Tensor) -> tf.Tensor:
    return _stacked(raw.TensorListResize(input_handle=_list_of(x), size=2), x)


@_program("TensorListGather", x=V(4, 3), places=I([3, 0, 3]))
def _list_gather(x: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    return raw.TensorListGather(
        input_handle=_list_of(x), indices=places, element_shape=[3], element_dtype=x.dtype
    )


@_program("TensorListScatter", x=V(3, 3), places=I([2, 0, 1]), release=Each("", "V2"))
def _list_scatter(x: tf.Tensor, places: tf.Tensor, release: str) -> tf.Tensor:
    more = {"num_elements": 4} if release else {}
    scatter = getattr(raw, f"TensorListScatter{release}")
    handle = scatter(tensor=x, indices=places, element_shape=[3], **more)
    return raw.TensorListGather(
        input_handle=handle, indices=[0, 1, 2], element_shape=[3], element_dtype=x.dtype
    )


@_program("TensorListScatterIntoExistingList", x=V(4, 3), y=V(2, 3), places=I([2, 0]))
def _list_scatter_into(x: tf.Tensor, y: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    handle = raw.TensorListScatterIntoExistingList(input_handle=_list_of(x), tensor=y, indices=places)
    return _stacked(handle, x)


@_program("TensorListSplit", x=V(5, 3), release=Each("", "V2"))
def _list_split(x: tf.Tensor, release: str) -> tf.Tensor:
    handle = raw.TensorListSplit(tensor=x, element_shape=[-1, 3], lengths=C([2, 0, 3], "int64"))
    if release:
        return raw.TensorListConcatV2(
            input_handle=handle, element_shape=[-1, 3], leading_dims=C([2], "int64"), element_dtype=x.dtype
        )[0]
    return raw.TensorListConcat(input_handle=handle, element_dtype=x.dtype, element_shape=[None, 3])[0]


# -- variables -----------------------------------------------------------------------------------------------

_HELD: list[tf.Variable] = []  # functions hold their variables weakly


def _held(like: tf.Tensor) -> tf.Variable:
    """A new variable, also while a function is traced."""
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable

    def create(next_creator: Any, **given: Any) -> tf.Variable:
        return ResourceVariable(given["initial_value"], trainable=False)

    with tf.init_scope(), tf.variable_creator_scope(create):
        _HELD.append(tf.Variable(tf.zeros(like.shape, like.dtype)))
    return _HELD[-1]


def _of_variable(body: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """A function of a tensor that computes with a variable of that value; its gradient is the variable's."""

    def function(x: tf.Tensor, **rest: Any) -> tf.Tensor:
        @tf.custom_gradient
        def through(value: tf.Tensor) -> Any:
            variable = _held(value)
            variable.assign(value)
            with tf.GradientTape() as tape:
                tape.watch(variable.handle)
                found = body(variable, **rest)
            return found, lambda upstream: tf.convert_to_tensor(
                tape.gradient(found, variable.handle, upstream)
            )

        return through(x)

    return function


def _read(variable: tf.Variable) -> tf.Tensor:
    return tf.ensure_shape(raw.ReadVariableOp(resource=variable.handle, dtype=variable.dtype), variable.shape)


_LOOKUPS: dict[str, Callable[..., tf.Tensor]] = {
    "tf.nn.embedding_lookup/variable": lambda v, ids: tf.nn.embedding_lookup(v, ids),
    "tf.gather/variable": lambda v, ids: tf.gather(v, ids),
    "tf.gather_nd/variable": lambda v, ids: v.gather_nd(ids[:, None]),
    "tf.Variable": lambda v, ids: tf.gather(tf.sin(v.read_value()), ids),
    "ReadVariableOp": lambda v, ids: tf.gather(tf.sin(_read(v)), ids),
}
for _name, _body in _LOOKUPS.items():
    _program(_name, x=V(6, 4), ids=I([0, 5, 2, 5]))(_of_variable(_body))


# -- recurrent networks and sequences ------------------------------------------------------------------------

_CELL: dict[str, Any] = {
    "seq_len_max": I(3, "int64"),
    "x": F(4, 2, 3),
    "cs_prev": F(2, 5, d="small"),
    "h_prev": F(2, 5, d="small"),
    "w": F(8, 20, d="small"),
    "wci": F(5, d="small"),
    "wcf": F(5, d="small"),
    "wco": F(5, d="small"),
    "b": F(20, d="small"),
    "use_peephole": Each(False, True),
}
_program("BlockLSTM", **_CELL, _dtypes=SINGLE)(lambda **given: raw.BlockLSTM(**given)[6])
_program("BlockLSTMV2", **_CELL, _dtypes=SINGLE)(lambda **given: raw.BlockLSTMV2(**given)[6])

_LABELS: dict[str, Any] = {
    "labels_indices": I([[0, 0], [0, 1], [1, 0]], "int64"),
    "labels_values": I([1, 2, 0]),
    "sequence_length": I([5, 4]),
}
_program("CTCLoss", inputs=V(5, 2, 4), **_LABELS)(lambda **given: raw.CTCLoss(**given)[0])


@_program("tf.nn.ctc_loss", logits=V(5, 2, 4), _dtypes=SINGLE)
def _ctc(logits: tf.Tensor) -> tf.Tensor:
    return tf.nn.ctc_loss(C([[1, 2], [3, 0]]), logits, C([2, 1]), C([5, 4]))


# -- ragged --------------------------------------------------------------------------------------------------

_SPLITS = C([0, 2, 2, 5], "int64")


@_program("RaggedTensorToTensor", x=V(5, 2))
def _ragged_dense(x: tf.Tensor) -> tf.Tensor:
    return tf.RaggedTensor.from_row_splits(x, _SPLITS).to_tensor(tf.ones([2], x.dtype))


@_program("RaggedTensorToSparse", x=V(5))
def _ragged_sparse(x: tf.Tensor) -> tf.Tensor:
    return tf.RaggedTensor.from_row_splits(x, _SPLITS).to_sparse().values


@_program("RaggedGather", x=V(5, 2), rows=I([2, 0, 2]))
def _ragged_gather(x: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    return tf.gather(tf.RaggedTensor.from_row_splits(x, _SPLITS), rows).values


@_program("RaggedTensorToVariant", x=V(5, 2), batched=Each(True, False))
def _ragged_variant(x: tf.Tensor, batched: bool) -> tf.Tensor:
    variant = raw.RaggedTensorToVariant(rt_nested_splits=[_SPLITS], rt_dense_values=x, batched_input=batched)
    _, values = raw.RaggedTensorFromVariant(
        encoded_ragged=variant,
        input_ragged_rank=0 if batched else 1,
        output_ragged_rank=1,
        Tvalues=x.dtype,
        Tsplits=tf.int64,
    )
    return tf.ensure_shape(values, x.shape)


@_program("tf.map_fn/ragged", x=V(5))
def _ragged_map(x: tf.Tensor) -> tf.Tensor:
    rows = tf.RaggedTensor.from_row_splits(x, _SPLITS)
    return tf.map_fn(lambda row: tf.reduce_sum(tf.sin(row)), rows, fn_output_signature=x.dtype)


@_program("RaggedFillEmptyRows", x=V(3), default=V())
def _ragged_fill(x: tf.Tensor, default: tf.Tensor) -> tf.Tensor:
    return raw.RaggedFillEmptyRows(
        value_rowids=C([0, 2, 2], "int64"), values=x, nrows=np.int64(4), default_value=default
    )[1]


@_program("CompositeTensorVariantFromComponents", x=V(5))
def _composite(x: tf.Tensor) -> tf.Tensor:
    from tensorflow.python.ops import composite_tensor_ops

    ragged = tf.RaggedTensor.from_row_splits(x, _SPLITS)
    variant = composite_tensor_ops.composite_tensor_to_variants(ragged)
    back = composite_tensor_ops.composite_tensor_from_variant(variant, tf.type_spec_from_value(ragged))
    return tf.ensure_shape(back.values, x.shape)


# -- sparse --------------------------------------------------------------------------------------------------

_PLACES = C([[0, 1], [1, 0], [1, 3], [2, 2]], "int64")


def _sparse_matrix(x: tf.Tensor) -> tf.Tensor:
    """A sparse matrix of some elements of a dense one of 3 by 4 (or 4 by 3)."""
    places = _PLACES if x.shape[1] == 4 else _PLACES[:, ::-1][[1, 0, 3, 2]]
    return raw.DenseToCSRSparseMatrix(dense_input=x, indices=places)


def _in_one_function(body: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """With its gradient inside one function: eager matrices do not know the shape that the gradient asks for."""

    @tf.function(autograph=False)
    def slopes(upstream: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            found = body(*tensors)
        return tape.gradient(found, tensors, upstream)

    @tf.custom_gradient
    def function(*tensors: tf.Tensor) -> Any:
        return body(*tensors), lambda upstream: slopes(upstream, *tensors)

    return function


def _dense(matrix: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    return raw.CSRSparseMatrixToDense(sparse_input=matrix, type=like.dtype)


@_program("DenseToCSRSparseMatrix", x=V(3, 4))
def _csr_dense(x: tf.Tensor) -> tf.Tensor:
    return _dense(_sparse_matrix(x * 2), x)


@_program("SparseTensorToCSRSparseMatrix", x=V(4))
def _csr_sparse(x: tf.Tensor) -> tf.Tensor:
    matrix = raw.SparseTensorToCSRSparseMatrix(indices=_PLACES, values=x * 2, dense_shape=C([3, 4], "int64"))
    return raw.CSRSparseMatrixToSparseTensor(sparse_matrix=matrix, type=x.dtype)[1]


@_program("SparseMatrixMatMul", x=V(3, 4), y=V(4, 2))
def _csr_matmul(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return raw.SparseMatrixMatMul(a=_sparse_matrix(x), b=y)


@_program("SparseMatrixSparseMatMul", x=V(3, 4), y=V(4, 3))
def _csr_product(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    def product(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        found = raw.SparseMatrixSparseMatMul(a=_sparse_matrix(x), b=_sparse_matrix(y), type=x.dtype)
        return _dense(found, x)

    return _in_one_function(product)(x, y)


@_program("SparseMatrixTranspose", x=V(3, 4))
def _csr_transpose(x: tf.Tensor) -> tf.Tensor:
    return _dense(raw.SparseMatrixTranspose(input=_sparse_matrix(x), conjugate=False, type=x.dtype), x)


# -- linear algebra ------------------------------------------------------------------------------------------


@_program("tf.linalg.qr", x=Each(V(4, 3), V(3, 3), V(2, 4, 3)), _ulps=4096)
def _qr(x: tf.Tensor) -> list[tf.Tensor]:
    return _squares(*raw.Qr(input=x, full_matrices=False))


@_program("tf.linalg.eigh", x=V(3, 3, d="definite"), _ulps=4096)
def _self_adjoint(x: tf.Tensor) -> list[tf.Tensor]:
    values, vectors = raw.SelfAdjointEigV2(input=x + tf.linalg.matrix_transpose(x), compute_v=True)
    return [values, *_squares(vectors)]


@_program("tf.linalg.svd", x=V(4, 3), _ulps=4096)
def _svd(x: tf.Tensor) -> list[tf.Tensor]:
    values, left, right = raw.Svd(input=x, compute_uv=True, full_matrices=False)
    return [values, *_squares(left, right)]


@_program("tf.linalg.eig", x=V(3, 3), compute_v=Each(True, False), _ulps=4096)
def _eig(x: tf.Tensor, compute_v: bool) -> list[tf.Tensor]:
    kind = tf.complex64 if x.dtype == tf.float32 else tf.complex128
    values, vectors = raw.Eig(input=x, compute_v=compute_v, Tout=kind)
    sizes = _squares(values)[0]
    return (
        [tf.reduce_sum(sizes), tf.linalg.matvec(_squares(vectors)[0], sizes)]
        if compute_v
        else [tf.reduce_sum(sizes * sizes)]
    )


# -- gradients of gradients, random numbers ------------------------------------------------------------------


@_program(
    "FusedBatchNormGrad", x=F(2, 4, 5, 3), scale=F(3), release=Each("", "V2"), training=Each(True, False),
    _dtypes=SINGLE, _ulps=4096,
)  # fmt: skip
def _batch_norm_grad(x: tf.Tensor, scale: tf.Tensor, release: str, training: bool) -> list[tf.Tensor]:
    means, variances = (tf.math.reduce_mean(x, [0, 1, 2]), tf.math.reduce_variance(x, [0, 1, 2]))
    if not training:
        means, variances = tf.ones([3]) * 0.3, tf.ones([3]) * 2
    found = getattr(raw, f"FusedBatchNormGrad{release}")(
        y_backprop=x * x,
        x=x,
        scale=scale,
        reserve_space_1=tf.stop_gradient(means),
        reserve_space_2=tf.stop_gradient(variances),
        is_training=training,
        epsilon=1e-3,
    )
    return list(found[:3])


@_program("MaxPoolGradV2", x=V(2, 7, 8, 3, d="spread"), g=V(2, 4, 4, 3))
def _max_pool_grad(x: tf.Tensor, g: tf.Tensor) -> tf.Tensor:
    sizes: dict[str, Any] = {"ksize": [1, 3, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
    y = raw.MaxPoolV2(input=x, **sizes)
    return raw.MaxPoolGradV2(orig_input=tf.stop_gradient(x), orig_output=tf.stop_gradient(y), grad=g, **sizes)


@_program("MaxPool3DGradGrad", x=V(1, 4, 4, 4, 2, d="spread"), g=V(1, 4, 4, 4, 2))
def _max_pool_3d_grad_grad(x: tf.Tensor, g: tf.Tensor) -> tf.Tensor:
    sizes: dict[str, Any] = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "SAME"}
    y = raw.MaxPool3D(input=x, **sizes)
    return raw.MaxPool3DGradGrad(
        orig_input=tf.stop_gradient(x), orig_output=tf.stop_gradient(y), grad=g, **sizes
    )


@_program("tf.random.gamma", alpha=V(4, d="positive"))
def _gamma(alpha: tf.Tensor) -> tf.Tensor:
    tf.random.set_seed(5)  # the sequence begins again
    return raw.RandomGamma(shape=[3], alpha=alpha, seed=3, seed2=4)
