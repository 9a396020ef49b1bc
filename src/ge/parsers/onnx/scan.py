"""Finds all unsupported operators of an ONNX model, with reason and remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import onnx

from ge.errors import GeError, UnmappedOperator
from ge.ops.plugins import find, mapped
from ge.parsers.onnx.host_part import is_text_operator
from ge.parsers.onnx.model import ModelFile, opset_versions, subgraphs

__all__ = ["MAX_DEPTH", "MAX_NAMES", "check_size", "schema_of", "unmapped"]

MAX_NAMES = 8
MAX_DEPTH = 64
MAX_NODES = 50_000

_DOMAIN_REASONS = {
    "ai.onnx.ml": (
        "this operator of classical machine learning (domain ai.onnx.ml) is not mapped",
        "run this part on the host, or convert it to tensor operators",
    ),
    "com.microsoft": (
        "this extension of ONNX Runtime (domain com.microsoft) is not mapped",
        "export or optimise the model without it",
    ),
}
_NO_KERNEL = (
    "ONNX Runtime has no kernel of it for processors",
    "export or optimise the model for ONNX Runtime's CPU provider",
)
_EXTENSIONS = {  # reasons for single operators of com.microsoft
    **dict.fromkeys(
        (
            *(
                "DecoderAttention",
                "DecoderMaskedSelfAttention",
                "DynamicSparseAttention",
                "LongformerAttention",
            ),
            *("PackedAttention", "PackedMultiHeadAttention", "PagedAttention", "SparsePagedAttention"),
            *("PackedSparseAttentionIndexer", "SparseAttentionIndexer", "RemovePadding", "RestorePadding"),
            *("RelativePositionBias", "GatedRelativePositionBias", "GemmaRotaryEmbedding", "GatedDeltaNet"),
            *("VarlenCausalConvWithState", "GemmFloat8", "MatMulBlockQuantizedFp4Weight", "MatMulNBitsMlp"),
            *("MatMulBlockQuantizedFp8Weight", "MatMulNBitsQkv", "QuantizeBFP", "DequantizeBFP"),
            *(
                "QuantizeWithOrder",
                "DequantizeWithOrder",
                "QOrderedAttention",
                "QOrderedGelu",
                "QOrderedMatMul",
            ),
            *("QOrderedLayerNormalization", "QOrderedLongformerAttention", "Rfft", "Irfft"),
        ),
        _NO_KERNEL,
    ),
    **dict.fromkeys(
        ("EPContext", "Snpe"),
        ("it holds a network compiled for another device", "compile the model it was made from"),
    ),
    "MatMulFpQ4": (
        "its weights are packed for ONNX Runtime's own kernels",
        "quantise the model again, which writes MatMulNBits",
    ),
    "MaxpoolWithMask": ("ONNX Runtime documents it as internal, without a definition", "use MaxPool"),
}
_STRINGS = (
    "text is computed by the host, outside of branches, loops and functions",
    "prepare text on the host and feed numbers",
)
_REASONS = {
    **dict.fromkeys(("StringNormalizer", "StringConcat", "StringSplit", "RegexFullMatch"), _STRINGS),
    **dict.fromkeys(
        (
            "DisentangledAttention_TRT",
            "EfficientNMS_TRT",
            "MultilevelCropAndResize_TRT",
            "PyramidROIAlign_TRT",
        ),
        ("it stands for a plugin of TensorRT", "export the model without TensorRT's plugins"),
    ),
    **dict.fromkeys(
        ("MemcpyFromHost", "MemcpyToHost"),
        (
            "ONNX Runtime inserts it between its own devices when it loads a model",
            "compile the model as exported",
        ),
    ),
    **dict.fromkeys(
        ("GRUUnit", "GivenTensorFill"),
        ("this experiment of early ONNX has no kernel in ONNX Runtime", "export the model again"),
    ),
    "ImageDecoder": (
        "image files are decoded by the host, outside of branches, loops and functions",
        "decode images on the host and feed pixels",
    ),
}


def unmapped(file: ModelFile) -> list[UnmappedOperator]:
    """All operator types of a model, its functions and subgraphs without a plugin or function body.

    Those that the host runs are unmapped only inside of functions and subgraphs.
    """
    found: dict[tuple[str, str], list[str]] = {}
    nodes = [n for n in file.proto.graph.node if not is_text_operator(n)]
    _scan(nodes, file.opsets, file, found)
    for function in file.functions.values():
        versions = file.opsets | opset_versions(function.opset_import, function.name)
        _scan(function.node, versions, file, found)
    return [_described(domain, type_, nodes) for (domain, type_), nodes in sorted(found.items())]


def check_size(file: ModelFile) -> None:
    """Reject a model with too many nodes after expanding its functions, or with recursive functions."""
    counts: dict[tuple[str, str], int] = {}

    def size(nodes: Iterable[onnx.NodeProto], depth: int) -> int:
        total = 0
        for node in nodes:
            total += 1 + sum(size(graph.node, depth) for graph in subgraphs(node))
            key = ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
            if key not in file.functions:
                continue
            if depth >= MAX_DEPTH:
                raise GeError(
                    "E10017",
                    f"functions call each other more than {MAX_DEPTH} deep, or without end",
                    node=node.name,
                    operator=node.op_type,
                )
            if key not in counts:
                counts[key] = size(file.functions[key].node, depth + 1)
            total += counts[key]
        return total

    total = size(file.proto.graph.node, 0)
    if total > MAX_NODES:
        raise GeError(
            "E10025",
            f"{file.name} has {total} nodes once its functions are expanded, at most {MAX_NODES} are compiled",
            remedy="simplify it, or compile it in parts",
        )


def _scan(
    nodes: Iterable[onnx.NodeProto],
    versions: dict[str, int],
    file: ModelFile,
    found: dict[tuple[str, str], list[str]],
) -> None:
    for node in nodes:
        if not all(isinstance(text, str) for text in (node.op_type, node.domain, node.name)):
            raise GeError(
                "E10011", f"a node's name or operator is not text: {node.op_type!r}", remedy="export it again"
            )
        domain = "" if node.domain == "ai.onnx" else node.domain
        if not _covered(domain, node.op_type, versions, file):
            found.setdefault((domain, node.op_type), []).append(
                node.name or (node.output[0] if node.output else "")
            )
        for graph in subgraphs(node):
            _scan(graph.node, versions, file, found)


def _covered(domain: str, type_: str, versions: dict[str, int], file: ModelFile) -> bool:
    version = versions.get(domain, 1)
    if (domain, type_) in file.functions or find("onnx", type_, version, domain) is not None:
        return True
    schema: Any = schema_of(type_, version, domain)
    if schema is None:
        return False
    if schema.has_context_dependent_function:
        return True
    if not schema.has_function:
        return False
    body = schema.function_body
    inner = versions | opset_versions(body.opset_import, type_)
    return all(_covered("" if n.domain == "ai.onnx" else n.domain, n.op_type, inner, file) for n in body.node)


def schema_of(type_: str, version: int, domain: str) -> onnx.defs.OpSchema | None:
    """The schema of an operator at a version; None if ONNX does not know it."""
    try:
        return onnx.defs.get_schema(type_, version, domain)
    except (onnx.defs.SchemaError, TypeError):  # TypeError: a name that is not a string, from a damaged file
        return None


def _described(domain: str, type_: str, nodes: list[str]) -> UnmappedOperator:
    reason, remedy = _DOMAIN_REASONS.get(domain, ("", ""))
    if domain == "com.microsoft":
        reason, remedy = _EXTENSIONS.get(type_, (reason, remedy))
    if not reason:
        reason, remedy = _REASONS.get(type_, ("no plugin maps it", ""))
    if not remedy:
        near = difflib.get_close_matches(type_, mapped("onnx"), 1)
        hint = (
            f"did you mean {near[0]}? Otherwise " if near and schema_of(type_, 10_000, domain) is None else ""
        )
        remedy = f"{hint}write a plugin with ge.ops.plugins, or replace it in the model"
    label = f"{domain}.{type_}" if domain else type_
    return UnmappedOperator(label, len(nodes), tuple(nodes[:MAX_NAMES]), reason, remedy)
