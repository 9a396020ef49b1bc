"""The table's reductions and operators that move, make or look up elements."""

from __future__ import annotations

from tf_adapter.conformance.rows import B, C, Each, F, I, L, V, op

AXES: tuple[object, ...] = (0, -1, [0, 1], [])

for _name in ["Sum", "Mean", "Max", "Min", "Prod", "EuclideanNorm"]:
    op(_name, input=V(3, 4, 2, d="small"), axis=Each(*AXES), keep_dims=Each(False, True), _ulps=64)
    op(_name, input=Each(V(7), V(2, 33)), axis=0, _ulps=64)
for _name in ["All", "Any"]:
    op(_name, input=F(3, 4, dtype="bool"), axis=Each(*AXES), keep_dims=Each(False, True))
for _name in ["ArgMax", "ArgMin"]:
    op(
        _name,
        input=Each(V(3, 5, d="spread"), V(2, 3, 4, d="spread")),
        dimension=Each(0, -1),
        output_type=Each("int64", "int32"),
    )
for _name in ["Cumsum", "Cumprod"]:
    op(_name, x=V(3, 5, d="small"), axis=Each(0, -1), exclusive=Each(False, True), reverse=Each(False, True))
op("CumulativeLogsumexp", x=V(3, 5, d="small"), axis=Each(0, -1), exclusive=Each(False, True))
op("L2Loss", t=Each(V(3, 4), V(9)))

op("Reshape", tensor=V(3, 4), shape=Each([-1], [4, 3], [2, -1, 3], [3, 4, 1]))
op("Squeeze", input=V(3, 1, 4, 1), axis=Each([], [1], [-1]))
op("ExpandDims", input=V(3, 4), axis=Each(0, -1, 1))
op("Transpose", x=V(2, 3, 4), perm=Each([2, 1, 0], [0, 2, 1], [1, 0, 2]))
op("ConjugateTranspose", x=V(2, 3, 4), perm=[2, 0, 1])
op("InvertPermutation", x=Each(I([2, 0, 1, 3]), C([1, 0])))
op("Concat", concat_dim=Each(0, 1), values=L(V(2, 3), V(2, 3)))
op("ConcatV2", values=Each(L(V(2, 3), V(2, 3), V(2, 3)), L(V(2, 3))), axis=Each(0, -1))
op("ConcatOffset", concat_dim=1, shape=[C([2, 3]), C([2, 5])])
op("Pack", values=L(V(2, 3), V(2, 3)), axis=Each(0, -1))
op("ParallelConcat", values=L(V(1, 3), V(1, 3)), shape=[2, 3])
op("Unpack", value=V(3, 4), num=3, axis=0)
op("Unpack", value=V(3, 4), num=4, axis=-1)
op("Split", axis=Each(0, -1), value=V(4, 6), num_split=2)
op("SplitV", value=V(4, 6), size_splits=Each([1, 5], [2, 2, 2], [1, -1]), axis=1, num_split=Each(2))
op("Slice", input=V(4, 5), begin=[1, 0], size=Each([2, 5], [2, -1], [0, 3]))
op(
    "StridedSlice",
    input=V(4, 5),
    begin=[1, 0],
    end=[3, 5],
    strides=Each([1, 2], [1, 1]),
    shrink_axis_mask=Each(0, 1),
)
op(
    "StridedSlice",
    input=V(4, 5),
    begin=[3, 4],
    end=[0, 0],
    strides=[-1, -2],
    end_mask=Each(0, 3),
    new_axis_mask=0,
)
op(
    "StridedSlice",
    input=V(4, 5),
    begin=[0, 1],
    end=[0, 4],
    strides=[1, 1],
    ellipsis_mask=1,
    new_axis_mask=Each(0, 2),
)
op("StridedSliceGrad", shape=[4, 5], begin=[1, 0], end=[3, 5], strides=[1, 2], dy=V(2, 3))
op("TensorStridedSliceUpdate", input=V(4, 5), begin=[1, 0], end=[3, 4], strides=[1, 2], value=V(2, 2))
op("Pad", input=V(2, 3), paddings=Each([[1, 0], [2, 1]], [[0, 0], [0, 0]]))
op("PadV2", input=V(2, 3), paddings=[[1, 0], [2, 1]], constant_values=V())
op(
    "MirrorPad",
    input=V(3, 4),
    paddings=Each([[1, 0], [2, 1]], [[2, 2], [0, 0]]),
    mode=Each("REFLECT", "SYMMETRIC"),
)
op("MirrorPadGrad", input=V(6, 7), paddings=[[1, 1], [2, 1]], mode=Each("REFLECT", "SYMMETRIC"))
op("Tile", input=V(2, 3), multiples=Each([2, 1], [1, 4], [0, 1]))
op("BroadcastTo", input=Each(V(3), V(2, 1)), shape=[2, 3])
op("BroadcastArgs", s0=Each(C([2, 1]), I([2, 1])), s1=Each(C([3]), I([3])))
op("BroadcastGradientArgs", s0=C([2, 1]), s1=C([3]))
op("Shape", input=Each(V(2, 3), V()), out_type=Each("int32", "int64"))
op("ShapeN", input=L(V(2, 3), V(4)))
op("Size", input=V(2, 3))
op("Rank", input=V(2, 3))
op("Fill", dims=Each([2, 3], []), value=V())
op("Range", start=0, limit=Each(7, 0), delta=2, _dtypes=["int32"])
op("LinSpace", start=F(), stop=F(d="above_one"), num=Each(5, 1), _dtypes=["float32"])
op("Empty", shape=[2, 3], dtype="float32", init=True, _dtypes=["float32"])
op("OneHot", indices=I([0, 2, -1, 5]), depth=4, on_value=V(d="positive"), off_value=V(), axis=Each(-1, 0))
op("Gather", params=V(5, 3), indices=I([[0, 4], [2, 2]]))
op("GatherV2", params=V(5, 3, 4), indices=I([[0, 2], [2, 1]]), axis=Each(0, 1, -1))
op("GatherV2", params=V(2, 5), indices=I([[0, 2], [2, 1]]), axis=1, batch_dims=1)
op("GatherNd", params=V(4, 5), indices=Each(I([[0, 1], [3, 4]]), I([[2], [0]]), I([[[1, 1]]])))
op("ScatterNd", indices=I([[1], [3], [1]]), updates=V(3, 4), shape=[5, 4])
op("ScatterNdNonAliasingAdd", input=V(5, 4), indices=I([[1], [3], [1]]), updates=V(3, 4))
for _name in ["Update", "Add", "Sub", "Max", "Min"]:
    op(f"TensorScatter{_name}", tensor=V(5, 4), indices=Each(I([[1], [3], [0]])), updates=V(3, 4))
    op(f"TensorScatter{_name}", tensor=V(5, 4), indices=I([[1, 2], [3, 0]]), updates=V(2))
op("InplaceAdd", x=V(5, 4), i=I([1, 3]), v=V(2, 4))
op("InplaceSub", x=V(5, 4), i=I([1, 3]), v=V(2, 4))
op("InplaceUpdate", x=V(5, 4), i=I([1, 3]), v=V(2, 4))
op(
    "DynamicStitch",
    indices=Each([C([0, 2]), C([1, 3])], L(I([0, 2]), I([1, 3]))),
    data=L(V(2, 3), V(2, 3)),
)
op("ParallelDynamicStitch", indices=[C([0, 2]), C([1, 3])], data=L(V(2, 3), V(2, 3)))
op("DynamicPartition", data=V(5, 2), partitions=I([0, 1, 1, 0, 2]), num_partitions=3)
op("Reverse", tensor=V(3, 4), dims=Each([True, False], [True, True]))
op("ReverseV2", tensor=V(3, 4), axis=Each([0], [-1], [0, 1]))
op("ReverseSequence", input=V(3, 5, 2), seq_lengths=I([2, 5, 0]), seq_dim=1, batch_dim=0)
op("Roll", input=V(3, 4), shift=Each(1, -2), axis=Each(0, 1))
op("Where", condition=Each(B([[True, False], [True, True]]), F(3, 4), I([0, 3, 0])))
op("Unique", x=V(9, d="small"), out_idx=Each("int32", "int64"))
op("UniqueV2", x=V(9, d="small"), axis=C([0]))
op("UniqueWithCounts", x=V(9, d="small"), out_idx=Each("int32", "int64"))
op("UniqueWithCountsV2", x=V(9, d="small"), axis=C([0]), out_idx=Each("int32", "int64"))
op(
    "ListDiff",
    x=Each(C([1, 2, 3, 4], "float32"), V(9, d="small")),
    y=Each(C([2, 4, 9], "float32"), V(4, d="small")),
    _dtypes=["float32"],
)
op("UnravelIndex", indices=I([3, 7, 11]), dims=Each(C([3, 4]), I([3, 4])))
op("Diag", diagonal=Each(V(4), V(2, 3)))
op("DiagPart", input=Each(V(4, 4), V(2, 3, 2, 3)))
op("MatrixDiag", diagonal=Each(V(4), V(2, 3)))
op("MatrixDiagPart", input=Each(V(4, 5), V(2, 3, 3)))
op("MatrixSetDiag", input=V(2, 3, 4), diagonal=V(2, 3))
op("MatrixDiagV2", diagonal=V(2, 3), k=Each(0, 1, -1), num_rows=-1, num_cols=-1, padding_value=V())
op("MatrixDiagV3", diagonal=V(2, 3), k=Each(0, 1), num_rows=-1, num_cols=-1, padding_value=V())
op(
    "MatrixDiagV3",
    diagonal=V(3, 3),
    k=[-1, 1],
    num_rows=3,
    num_cols=3,
    padding_value=V(),
    align=Each("RIGHT_LEFT", "LEFT_RIGHT"),
)
op("MatrixDiagPartV2", input=V(4, 4), k=Each(0, 1, [-1, 1]), padding_value=V())
op(
    "MatrixDiagPartV3",
    input=V(4, 4),
    k=Each(0, 1, [-1, 1]),
    padding_value=V(),
    align=Each("RIGHT_LEFT", "LEFT_LEFT"),
)
op("MatrixSetDiagV2", input=V(2, 3, 4), diagonal=V(2, 3), k=0)
op("MatrixSetDiagV3", input=V(2, 3, 4), diagonal=V(2, 3), k=Each(0, 1))
op("MatrixBandPart", input=Each(V(4, 5), V(2, 3, 3)), num_lower=Each(1, -1), num_upper=Each(0, -1))
op("SpaceToBatch", input=V(2, 4, 6, 3), paddings=[[0, 0], [0, 0]], block_size=2)
op(
    "SpaceToBatchND",
    input=V(2, 4, 6, 3),
    block_shape=[2, 3],
    paddings=Each([[0, 0], [0, 0]], [[1, 1], [0, 3]]),
)
op("BatchToSpace", input=V(4, 2, 3, 3), crops=[[0, 0], [0, 1]], block_size=2)
op("BatchToSpaceND", input=V(6, 2, 3, 3), block_shape=[2, 3], crops=Each([[0, 0], [0, 0]], [[1, 0], [0, 2]]))
op("SpaceToDepth", input=V(2, 4, 6, 3), block_size=2)
op("DepthToSpace", input=V(2, 2, 3, 8), block_size=2)
op("TopKV2", input=Each(V(3, 6, d="spread"), V(9, d="spread")), k=Each(2, 4), sorted=True)
op("NthElement", input=V(3, 6, d="spread"), n=2, reverse=Each(False, True))
op("ApproxTopK", input=V(3, 16, d="spread"), k=4, is_max_k=Each(True, False))
op("InTopK", predictions=F(3, 6, d="spread"), targets=I([0, 3, 5]), k=3)
op("InTopKV2", predictions=F(3, 6, d="spread"), targets=I([0, 3, 5]), k=Each(3, I(3)))
op("LowerBound", sorted_inputs=I([[1, 3, 3, 8], [0, 2, 4, 6]]), values=I([[3, 9], [0, 5]]))
op("UpperBound", sorted_inputs=I([[1, 3, 3, 8], [0, 2, 4, 6]]), values=I([[3, 9], [0, 5]]))
op("Bincount", arr=I([1, 3, 1, 0]), size=5, weights=Each(V(4), V(0)))
op(
    "DenseBincount",
    input=I([[1, 3, 1, 0]]),
    size=5,
    weights=Each(V(1, 4), V(0)),
    binary_output=Each(False, True),
)
op("HistogramFixedWidth", values=V(20), value_range=[-2.0, 3.0], nbins=5)
for _name in ["Sum", "Mean", "Max", "Min", "Prod"]:
    op(
        f"Segment{_name}",
        data=V(5, 3, d="small"),
        segment_ids=Each(C([0, 0, 1, 3, 3]), I([0, 0, 1, 3, 3])),
    )
for _name in ["Sum", "Max", "Min", "Prod"]:
    op(f"UnsortedSegment{_name}", data=V(5, 3, d="small"), segment_ids=I([3, 0, 1, 3, -1]), num_segments=5)
for _name in ["Sum", "Mean", "SqrtN"]:
    op(
        f"SparseSegment{_name}",
        data=V(5, 3),
        indices=I([0, 2, 4]),
        segment_ids=Each(C([0, 0, 2]), I([0, 0, 2])),
    )
    op(
        f"SparseSegment{_name}WithNumSegments",
        data=V(5, 3),
        indices=I([0, 2, 4]),
        segment_ids=Each(C([0, 0, 2]), I([0, 0, 2])),
        num_segments=4,
    )
    op(
        f"SparseSegment{_name}Grad",
        grad=V(3, 4),
        indices=I([0, 2, 4]),
        segment_ids=I([0, 0, 2]),
        output_dim0=5,
    )
op(
    "SparseToDense",
    sparse_indices=I([[0, 1], [2, 3]]),
    output_shape=[3, 4],
    sparse_values=V(2),
    default_value=V(),
)
op(
    "SparseTensorDenseMatMul",
    a_indices=I([[0, 1], [2, 0]], "int64"),
    a_values=V(2),
    a_shape=C([3, 4], "int64"),
    b=V(4, 5),
)
op("SparseMatMul", a=F(3, 4), b=F(4, 5), _dtypes=["float32"])
op(
    "EditDistance",
    hypothesis_indices=I([[0, 0]], "int64"),
    hypothesis_values=V(1),
    hypothesis_shape=I([1, 1], "int64"),
    truth_indices=I([[0, 0]], "int64"),
    truth_values=V(1),
    truth_shape=I([1, 1], "int64"),
)
op("Fingerprint", data=V(3, 4), method="farmhash64")
op(
    "ExtractImagePatches",
    images=V(1, 6, 7, 2),
    ksizes=[1, 2, 3, 1],
    strides=[1, 2, 2, 1],
    rates=[1, 1, 1, 1],
    padding=Each("SAME", "VALID"),
)
op(
    "ExtractVolumePatches",
    input=V(1, 4, 4, 5, 2),
    ksizes=[1, 2, 2, 2, 1],
    strides=[1, 2, 2, 2, 1],
    padding=Each("SAME", "VALID"),
)
