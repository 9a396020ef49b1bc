"""The table's linear algebra, spectra and random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tf_adapter.conformance.rows import C, Each, F, I, L, V, op

op("Cholesky", input=Each(V(3, 3, d="definite"), V(2, 4, 4, d="definite")), _ulps=256)
op("CholeskyGrad", l=V(3, 3, d="definite"), grad=V(3, 3), _ulps=4096)
op("MatrixDeterminant", input=Each(V(3, 3, d="regular"), V(2, 4, 4, d="regular")), _ulps=256)
op("LogMatrixDeterminant", input=Each(V(3, 3, d="regular"), V(2, 4, 4, d="regular")), _ulps=256)
op(
    "MatrixInverse",
    input=Each(V(3, 3, d="regular"), V(2, 4, 4, d="regular")),
    adjoint=Each(False, True),
    _ulps=256,
)
op("MatrixSolve", matrix=V(3, 3, d="regular"), rhs=V(3, 2), adjoint=Each(False, True), _ulps=256)
op(
    "MatrixTriangularSolve",
    matrix=V(3, 3, d="regular"),
    rhs=V(3, 2),
    lower=Each(True, False),
    adjoint=Each(False, True),
    _ulps=256,
)
op(
    "MatrixSolveLs",
    matrix=V(5, 3, d="regular"),
    rhs=V(5, 2),
    l2_regularizer=np.float64(0.0),
    fast=Each(True, False),
    _ulps=4096,
)
op("MatrixLogarithm", input=V(3, 3, d="definite"), _ulps=4096)
op("MatrixSquareRoot", input=V(3, 3, d="definite"), _ulps=4096)
op("BandedTriangularSolve", matrix=V(2, 4, d="positive"), rhs=V(4, 2), lower=Each(True, False), _ulps=256)
op("TridiagonalMatMul", superdiag=V(1, 4), maindiag=V(1, 4), subdiag=V(1, 4), rhs=V(4, 3))
op(
    "TridiagonalSolve",
    diagonals=V(3, 4, d="positive"),
    rhs=V(4, 2),
    partial_pivoting=Each(True, False),
    _ulps=4096,
)
op("Qr", input=V(4, 3), full_matrices=Each(False, True), _compare="shapes")
op("Svd", input=V(4, 3), compute_uv=Each(False), _outputs=[0], _ulps=256)
op("SelfAdjointEigV2", input=V(3, 3, d="definite"), compute_v=False, _outputs=[0], _ulps=256)
op("Eig", input=V(3, 3), Tout="complex64", _dtypes=["float32"], _compare="shapes")
op("Lu", input=V(3, 3, d="regular"), _ulps=256)

for _name in ["FFT", "FFT2D", "FFT3D", "IFFT", "IFFT2D", "IFFT3D"]:
    op(_name, input=V(4, 4, 8), _dtypes=["complex64"], _ulps=256)
for _rank, _suffix in ((1, ""), (2, "2D"), (3, "3D")):
    op(f"RFFT{_suffix}", input=F(4, 4, 8), fft_length=[4, 4, 8][-_rank:], _dtypes=["float32"], _ulps=256)
    op(
        f"IRFFT{_suffix}",
        input=F(4, 4, 5, dtype="complex64"),
        fft_length=[4, 4, 8][-_rank:],
        _dtypes=["complex64"],
        _ulps=256,
    )

_SHAPE: dict[str, Any] = {"shape": [3, 4]}
_SEEDS: dict[str, Any] = {"seed": Each(3), "seed2": 4}
for _name in ["RandomStandardNormal", "RandomUniform", "TruncatedNormal"]:
    op(_name, **_SHAPE, **_SEEDS, dtype="float32", _dtypes=["float32"], _compare="shapes")
op(
    "RandomUniformInt",
    **_SHAPE,
    minval=Each(0, I(0)),
    maxval=Each(9, I(9)),
    **_SEEDS,
    _dtypes=["int32"],
    _compare="shapes",
)
op("RandomShuffle", value=V(5, 2), **_SEEDS, _compare="shapes")
op("RandomGamma", **_SHAPE, alpha=V(2, d="positive"), **_SEEDS, _compare="shapes")
op("RandomGammaGrad", alpha=V(3, 4, d="positive"), sample=V(3, 4, d="positive"), _ulps=4096)
op("RandomPoissonV2", **_SHAPE, rate=V(2, d="positive"), **_SEEDS, _compare="shapes")
op(
    "ParameterizedTruncatedNormal",
    shape=[2, 4],
    means=V(2),
    stdevs=V(2, d="positive"),
    minvals=V(2, d="unit"),
    maxvals=V(2, d="above_one"),
    _compare="shapes",
)
op("Multinomial", logits=V(2, 4), num_samples=5, **_SEEDS, _compare="shapes")
_SEED: dict[str, Any] = {"seed": I([3, 5])}
_KEY: dict[str, Any] = {"key": I([123456789], "uint64"), "counter": I([7, 11], "uint64"), "alg": Each(1, 2)}
for _name in ["StatelessRandomNormal", "StatelessRandomUniform", "StatelessTruncatedNormal"]:
    op(
        _name,
        **_SHAPE,
        **_SEED,
        dtype=Each("float32", "float64", "float16", "bfloat16"),
        _dtypes=["float32"],
        _elementwise=True,
    )
    op(
        f"{_name}V2",
        **_SHAPE,
        **_KEY,
        dtype=Each("float32", "float64"),
        _dtypes=["float32"],
        _elementwise=True,
    )
op("StatelessRandomUniformInt", **_SHAPE, **_SEED, minval=I(-3), maxval=I(9), _dtypes=["int32"])
op("StatelessRandomUniformIntV2", **_SHAPE, **_KEY, minval=I(-3), maxval=I(9), _dtypes=["int32"])
op(
    "StatelessRandomUniformFullInt",
    **_SHAPE,
    **_SEED,
    dtype=Each("int32", "int64", "uint32", "uint64"),
    _dtypes=["int32"],
)
op(
    "StatelessRandomUniformFullIntV2",
    **_SHAPE,
    **_KEY,
    dtype=Each("int32", "int64", "uint32"),
    _dtypes=["int32"],
)
op("StatelessRandomGetKeyCounter", **_SEED)
op("StatelessRandomGetKeyCounterAlg", **_SEED)
op("StatelessRandomGetAlg", _dtypes=["int32"])
op("StatelessMultinomial", logits=V(2, 4), num_samples=5, **_SEED, _compare="shapes")
op("StatelessRandomGammaV2", **_SHAPE, **_SEED, alpha=V(4, d="positive"))
op(
    "StatelessRandomGammaV3",
    **_SHAPE,
    key=I([12345], "uint64"),
    counter=I([7, 11], "uint64"),
    alg=1,
    alpha=V(4, d="positive"),
)
op("StatelessRandomPoisson", **_SHAPE, **_SEED, lam=V(4, d="positive"), dtype="float32")
op(
    "StatelessRandomBinomial",
    **_SHAPE,
    **_SEED,
    counts=F(4, d="above_one"),
    probs=F(4, d="share"),
    dtype="float32",
    _dtypes=["float32"],
)
op("StatelessShuffle", value=V(5, 2), key=I([12345], "uint64"), counter=I([7, 11], "uint64"), alg=1)
op(
    "StatelessParameterizedTruncatedNormal",
    shape=[2, 4],
    **_SEED,
    means=V(),
    stddevs=V(d="positive"),
    minvals=V(d="unit"),
    maxvals=V(d="above_one"),
)
op("SobolSample", dim=3, num_results=5, skip=2, dtype=Each("float32", "float64"), _dtypes=["float32"])

op(
    "SparseAdd",
    a_indices=I([[0, 1], [2, 0]], "int64"),
    a_values=V(2),
    a_shape=I([3, 4], "int64"),
    b_indices=I([[0, 1], [1, 0]], "int64"),
    b_values=V(2),
    b_shape=I([3, 4], "int64"),
    thresh=V(d="zero"),
)
op(
    "SparseConcat",
    indices=L(I([[0, 1]], "int64"), I([[1, 0]], "int64")),
    values=L(V(1), V(1)),
    shapes=L(I([2, 3], "int64"), I([2, 3], "int64")),
    concat_dim=Each(0, 1),
)
for _name in ["SparseDenseCwiseAdd", "SparseDenseCwiseMul", "SparseDenseCwiseDiv"]:
    op(
        _name,
        sp_indices=I([[0, 1], [2, 0]], "int64"),
        sp_values=V(2),
        sp_shape=C([3, 4], "int64"),
        dense=Each(V(3, 4, d="nonzero"), V(4, d="nonzero")),
    )
for _name in ["SparseReduceSum", "SparseReduceMax"]:
    op(
        _name,
        input_indices=I([[0, 1], [2, 0]], "int64"),
        input_values=V(2),
        input_shape=C([3, 4], "int64"),
        reduction_axes=1,
    )
op(
    "SparseReorder",
    input_indices=I([[2, 1], [0, 0]], "int64"),
    input_values=V(2),
    input_shape=I([3, 4], "int64"),
)
op(
    "SparseReshape",
    input_indices=I([[2, 1], [0, 0]], "int64"),
    input_shape=I([3, 4], "int64"),
    new_shape=I([4, 3], "int64"),
)
op(
    "SparseSlice",
    indices=I([[0, 1], [2, 0]], "int64"),
    values=V(2),
    shape=I([3, 4], "int64"),
    start=I([0, 0], "int64"),
    size=I([2, 4], "int64"),
)
op(
    "SparseSoftmax",
    sp_indices=I([[0, 1], [0, 2], [2, 0]], "int64"),
    sp_values=V(3),
    sp_shape=I([3, 4], "int64"),
)
op(
    "SparseTensorDenseAdd",
    a_indices=I([[0, 1], [2, 0]], "int64"),
    a_values=V(2),
    a_shape=C([3, 4], "int64"),
    b=V(3, 4),
)
op(
    "SparseFillEmptyRows",
    indices=I([[0, 1], [2, 0]], "int64"),
    values=V(2),
    dense_shape=I([3, 4], "int64"),
    default_value=V(),
)
op(
    "SparseBincount",
    indices=I([[0, 1], [1, 0]], "int64"),
    values=I([2, 3]),
    dense_shape=I([2, 2], "int64"),
    size=5,
    weights=V(2),
)
op("RaggedBincount", splits=I([0, 2, 3], "int64"), values=I([2, 3, 1]), size=5, weights=V(3))
op(
    "DenseToDenseSetOperation",
    set1=I([[1, 2], [3, 4]]),
    set2=I([[2, 5], [3, 4]]),
    set_operation="intersection",
)
