"""AIPP: turns image pre-processing described in a text file into operators in front of a model.

The model then takes raw bytes (NV12, RGB, …) instead of floats. Per image, in this order: crop, channel swap, colour
space conversion, resize, (pixel - mean - min) * var_reci, padding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.errors import GeError
from ge.ir.types import FLOATS
from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder
from ge.options.files import read_text

__all__ = ["AippConfig", "insert", "parse"]

_TOKEN = re.compile(r'\s*([A-Za-z_][\w]*|[{}:;,]|-?[\d.][\w.+-]*|"[^"]*"|\'[^\']*\')')


@dataclass(frozen=True)
class SourceFormat:
    """The byte layout of an image: interleaved channels, or planes."""

    channels: int
    semi_planar: bool = False  # Y plane, then interleaved U and V at half resolution
    leading: bool = False  # has a fourth channel, which ax_swap_switch moves behind the others


FORMATS = {
    "YUV420SP_U8": SourceFormat(3, semi_planar=True),
    "YUV400_U8": SourceFormat(1),
    "GRAY": SourceFormat(1),
    "RGB888_U8": SourceFormat(3),
    "BGR888_U8": SourceFormat(3),
    "XRGB8888_U8": SourceFormat(4, leading=True),
    "ARGB8888_U8": SourceFormat(4, leading=True),
    "AYUV444_U8": SourceFormat(4, leading=True),
    "YUV444_U8": SourceFormat(3),
}


@dataclass(frozen=True)
class AippConfig:
    """One `aipp_op` block; field names are those of the file."""

    aipp_mode: str = "static"
    related_input_rank: int = 0
    related_input_name: str = ""
    input_format: str = "RGB888_U8"
    src_image_size_w: int = 0
    src_image_size_h: int = 0
    crop: bool = False
    load_start_pos_w: int = 0
    load_start_pos_h: int = 0
    crop_size_w: int = 0
    crop_size_h: int = 0
    resize: bool = False
    resize_output_w: int = 0
    resize_output_h: int = 0
    padding: bool = False
    left_padding_size: int = 0
    right_padding_size: int = 0
    top_padding_size: int = 0
    bottom_padding_size: int = 0
    padding_value: float = 0.0
    csc_switch: bool = False
    rbuv_swap_switch: bool = False
    ax_swap_switch: bool = False
    single_line_mode: bool = False
    matrix: tuple[int, ...] = (256, 0, 0, 0, 256, 0, 0, 0, 256)
    input_bias: tuple[int, ...] = (0, 0, 0)
    output_bias: tuple[int, ...] = (0, 0, 0)
    mean: tuple[float, ...] = (0.0,) * 4
    minimum: tuple[float, ...] = (0.0,) * 4
    reciprocal: tuple[float, ...] = (1.0,) * 4
    max_src_image_size: int = 0  # bytes of the largest batch of images; dynamic AIPP

    @property
    def source(self) -> SourceFormat:
        return FORMATS[self.input_format]


# -- the text ---------------------------------------------------------------------------------------

_MATRIX = re.compile(r"matrix_r([012])c([012])$")
_INDEXED = {
    "input_bias": ("input_bias", 3),
    "output_bias": ("output_bias", 3),
    "mean_chn": ("mean", 4),
    "min_chn": ("minimum", 4),
    "var_reci_chn": ("reciprocal", 4),
}


def parse(path: Path) -> list[AippConfig]:
    """The blocks of a configuration file."""
    return parse_text(read_text(path, "AIPP configuration"), str(path))


def parse_text(text: str, where: str = "the AIPP configuration") -> list[AippConfig]:
    """The blocks of a configuration text.

    >>> parse_text("aipp_op { input_format: RGB888_U8 mean_chn_0: 104 }")[0].mean
    (104.0, 0.0, 0.0, 0.0)
    """
    tokens = _tokens(text, where)
    configs = []
    for token in tokens:
        if token in (";", ","):
            continue
        if token != "aipp_op":
            raise _invalid(where, f"'aipp_op' is expected where '{token}' stands")
        opening = next(tokens, "")
        if opening == ":":
            opening = next(tokens, "")
        if opening != "{":
            raise _invalid(where, "'{' is missing after aipp_op")
        configs.append(_config(_block(tokens, where), where))
    if not configs:
        raise _invalid(where, "it has no aipp_op block")
    return configs


def _tokens(text: str, where: str) -> Iterator[str]:
    text = re.sub(r"#[^\n]*", "", text).rstrip()
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise _invalid(where, f"cannot read '{text[place : place + 20].strip()}'")
        yield found.group(1)
        place = found.end()


def _block(tokens: Iterator[str], where: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for name in tokens:
        if name == "}":
            return values
        if name in (";", ","):
            continue
        if next(tokens, "") != ":":
            raise _invalid(where, f"':' is missing after '{name}'")
        values[name] = next(tokens, "").strip("\"'")
    raise _invalid(where, "'}' is missing")


def _config(values: Mapping[str, str], where: str) -> AippConfig:
    known = {f.name: f.type for f in fields(AippConfig)}
    found: dict[str, Any] = {}
    for name, value in values.items():
        cell, indexed = _MATRIX.match(name), re.match(r"(\w+?)_(\d)$", name)
        if cell is not None:
            _place(found, "matrix", 3 * int(cell[1]) + int(cell[2]), int(_number(name, value, where)))
        elif indexed is not None and indexed[1] in _INDEXED and int(indexed[2]) < _INDEXED[indexed[1]][1]:
            target = _INDEXED[indexed[1]][0]
            number = _number(name, value, where)
            _place(found, target, int(indexed[2]), int(number) if "bias" in target else number)
        elif name in known and known[name] in _CONVERSIONS:
            found[name] = _CONVERSIONS[known[name]](name, value, where)
        else:
            raise _invalid(where, f"'{name}' is unknown")
    config = AippConfig(**found)
    if config.aipp_mode not in ("static", "dynamic"):
        raise _invalid(where, f"aipp_mode '{config.aipp_mode}' is unknown", "use static or dynamic")
    if config.aipp_mode == "dynamic" and config.max_src_image_size <= 0:
        raise _invalid(
            where, "dynamic AIPP without max_src_image_size", "give the bytes of the largest images"
        )
    if config.input_format not in FORMATS:
        raise _invalid(
            where, f"input_format '{config.input_format}' is not supported", f"use {', '.join(FORMATS)}"
        )
    return config


def _place(found: dict[str, Any], name: str, index: int, value: float) -> None:
    values = list(found.get(name, getattr(AippConfig, name)))
    values[index] = value
    found[name] = tuple(values)


def _number(name: str, value: str, where: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise _invalid(where, f"{name} is '{value}', a number is expected") from None


def _truth(name: str, value: str, where: str) -> bool:
    if value.lower() not in ("true", "false", "0", "1"):
        raise _invalid(where, f"{name} is '{value}', true or false is expected")
    return value.lower() in ("true", "1")


_CONVERSIONS: dict[Any, Any] = {
    "int": lambda n, v, w: int(_number(n, v, w)),
    "float": _number,
    "bool": _truth,
    "str": lambda n, v, w: v,
}


def _invalid(where: str, cause: str, remedy: str = "see the AIPP section of the documentation") -> GeError:
    return GeError("E13001", f"{where}: {cause}", remedy=remedy)


# -- the operators ----------------------------------------------------------------------------------


def insert(graph: ir.Graph, configs: list[AippConfig], input_format: str = "NCHW") -> list[dict[str, Any]]:
    """Insert static pre-processing before the model's inputs, which become raw bytes.

    Returns a record of each: its input, mode, layout and configuration. Dynamic pre-processing, which is set for each
    run (`acl.mdl.set_input_aipp`), only gets a record.
    """
    for config in configs:
        if config.aipp_mode == "static":
            _insert_one(graph, config, input_format)
        elif desc_of(graph.inputs[_input_index(graph, config)]).rank != 4:
            raise _mismatch("dynamic AIPP takes images of rank 4")
    return [
        {"input": _input_index(graph, k), "mode": k.aipp_mode, "layout": input_format, "config": _plain(k)}
        for k in configs
    ]


def _plain(config: AippConfig) -> dict[str, Any]:
    """A configuration as JSON data."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(config).items()}


def _insert_one(graph: ir.Graph, config: AippConfig, input_format: str) -> None:
    index = _input_index(graph, config)
    old = graph.inputs[index]
    desc = desc_of(old)
    if desc.rank != 4:
        raise _mismatch(f"input '{old.name}' is {desc}, an image of rank 4 is expected")
    batch, channels, height, width = desc.shape
    if input_format == "NHWC":
        batch, height, width, channels = desc.shape
    stage = _Stages(graph, config, batch, channels, height, width)
    new, value = stage.build(str(old.name))
    if input_format != "NHWC":
        value = stage.op("Transpose", value, perm=[0, 3, 1, 2])
    if desc.dtype not in FLOATS:
        value = stage.op("Clip", stage.op("Round", value), min=0.0, max=255.0)
    if desc.dtype != "float32":
        value = stage.op("Cast", value, to=desc.dtype)
    ir.convenience.replace_all_uses_with(old, value)
    graph.inputs[index] = new


def _input_index(graph: ir.Graph, config: AippConfig) -> int:
    names = [value.name for value in graph.inputs]
    if config.related_input_name:
        if config.related_input_name not in names:
            raise _mismatch(
                f"the model has no input '{config.related_input_name}' but {', '.join(map(str, names))}",
            )
        return names.index(config.related_input_name)
    if config.related_input_rank >= len(names):
        raise _mismatch(f"the model has {len(names)} inputs, there is no {config.related_input_rank}")
    return config.related_input_rank


def _mismatch(cause: str) -> GeError:
    return GeError("E13002", f"AIPP does not fit the model: {cause}", remedy="change the AIPP configuration")


class _Stages:
    """The chain of one input, as (batch, height, width, channels) in float32."""

    def __init__(
        self, graph: ir.Graph, config: AippConfig, batch: int, channels: int, height: int, width: int
    ) -> None:
        self.config = config
        self.batch, self.channels, self.height, self.width = batch, channels, height, width
        first = next(iter(graph), None)
        self.builder = GraphBuilder(graph=graph, before=first)
        self.builder.set_origin("aipp")
        self.op = self.builder.op

    def build(self, name: str) -> tuple[ir.Value, ir.Value]:
        """The new input and the pre-processed image."""
        source, value = self._pixels(name)
        value = self._crop(value)
        value = self._swap(value)
        value = self._colours(value)
        value = self._take_channels(value)
        value = self._resize(value)
        value = self._normalise(value)
        value = self._pad(value)
        if desc_of(value).shape != (self.batch, self.height, self.width, self.channels):
            got = ",".join(map(str, desc_of(value).shape[1:3]))
            wanted = f"{self.height},{self.width}"
            raise _mismatch(f"it makes images of {got} (height, width) where the model takes {wanted}")
        return source, value

    def _source_size(self) -> tuple[int, int]:
        config = self.config
        height = config.src_image_size_h or self.height - config.top_padding_size - config.bottom_padding_size
        width = config.src_image_size_w or self.width - config.left_padding_size - config.right_padding_size
        if config.source.semi_planar and (height % 2 or width % 2):
            raise _mismatch(f"a {config.input_format} image needs even sides, not {height},{width}")
        return height, width

    def _pixels(self, name: str) -> tuple[ir.Value, ir.Value]:
        """The raw input, and its pixels as int32, channels-last."""
        height, width = self._source_size()
        n, source = self.batch, self.config.source
        if not source.semi_planar:
            raw = self._free_input(name, (n, height, width, source.channels))
            return raw, self.op("Cast", raw, to="int32")
        raw = self._free_input(name, (n, height * 3 // 2, width))
        value = self.op("Cast", raw, to="int32")
        luma = self._slice(value, 1, 0, height)
        chroma = self._slice(value, 1, height, height * 3 // 2)
        cells = self.op("Reshape", chroma, shape=[n, height // 2, 1, width // 2, 1, 2])
        spread = self.op("BroadcastTo", cells, shape=[n, height // 2, 2, width // 2, 2, 2])
        planes = [
            self.op("Reshape", luma, shape=[n, height, width, 1]),
            self.op("Reshape", spread, shape=[n, height, width, 2]),
        ]
        return raw, self.op("Concat", *planes, axis=3)

    def _free_input(self, name: str, shape: tuple[int, ...]) -> ir.Value:
        """A new value for the graph's inputs, which the caller adds."""
        value = self.builder.input(name, shape, "uint8")
        self.builder.graph.inputs.remove(value)
        return value

    def _slice(self, value: ir.Value, axis: int, start: int, end: int) -> ir.Value:
        shape = desc_of(value).shape
        starts, ends = [0] * len(shape), list(shape)
        starts[axis], ends[axis] = start, end
        result: ir.Value = self.op("Slice", value, starts=starts, ends=ends, steps=[1] * len(shape))
        return result

    def _crop(self, value: ir.Value) -> ir.Value:
        config = self.config
        if not config.crop:
            return value
        _, height, width, _ = desc_of(value).shape
        for axis, start, size, limit in (
            (1, config.load_start_pos_h, config.crop_size_h or self.height, height),
            (2, config.load_start_pos_w, config.crop_size_w or self.width, width),
        ):
            if start < 0 or start + size > limit:
                raise _mismatch(f"the crop from {start} of {size} leaves the image of {limit}")
            value = self._slice(value, axis, start, start + size)
        return value

    def _order(self, value: ir.Value, order: list[int]) -> ir.Value:
        result: ir.Value = self.op("Concat", *[self._slice(value, 3, i, i + 1) for i in order], axis=3)
        return result

    def _swap(self, value: ir.Value) -> ir.Value:
        """ax_swap: move the fourth channel from the front to the back; rbuv_swap: swap R with B, or U with V."""
        config = self.config
        order = list(range(config.source.channels))
        if config.ax_swap_switch and config.source.leading:
            order = order[1:] + order[:1]
        if config.rbuv_swap_switch and config.source.channels >= 3:
            first, second = (1, 2) if "YUV" in config.input_format else (0, 2)
            shift = 1 if config.source.leading and not config.ax_swap_switch else 0
            first, second = first + shift, second + shift
            order[first], order[second] = order[second], order[first]
        return value if order == sorted(order) else self._order(value, order)

    def _colours(self, value: ir.Value) -> ir.Value:
        """out = (matrix · (in - input_bias) >> 8) + output_bias, clipped to a byte."""
        config = self.config
        if not config.csc_switch:
            return value
        if config.source.channels < 3:
            raise _mismatch(f"csc_switch needs three channels, {config.input_format} has one")
        parts = [self._slice(value, 3, i, i + 1) for i in range(3)]
        parts = [self.op("Sub", p, b) if b else p for p, b in zip(parts, config.input_bias, strict=True)]
        rows = []
        for row in range(3):
            terms = [self.op("Mul", p, config.matrix[3 * row + i]) for i, p in enumerate(parts)]
            total = self.op("Add", self.op("Add", terms[0], terms[1]), terms[2])
            scaled = self.op("Add", self.op("FloorDiv", total, 256), config.output_bias[row])
            rows.append(self.op("Minimum", self.op("Maximum", scaled, 0), 255))
        result: ir.Value = self.op("Concat", *rows, axis=3)
        return result

    def _take_channels(self, value: ir.Value) -> ir.Value:
        has = desc_of(value).shape[3]
        if has < self.channels:
            raise _mismatch(f"the image has {has} channels where the model takes {self.channels}")
        return value if has == self.channels else self._slice(value, 3, 0, self.channels)

    def _resize(self, value: ir.Value) -> ir.Value:
        config = self.config
        value = self.op("Cast", value, to="float32")
        if not config.resize:
            return value
        size = (config.resize_output_h or self.height, config.resize_output_w or self.width)
        return self._linear(self._linear(value, 1, size[0]), 2, size[1])

    def _linear(self, value: ir.Value, axis: int, size: int) -> ir.Value:
        """Linear interpolation along an axis, with half-pixel centres."""
        has = desc_of(value).shape[axis]
        if has == size:
            return value
        place = np.clip((np.arange(size) + 0.5) * has / size - 0.5, 0, has - 1)
        low = np.floor(place).astype(np.int64)
        weight = (place - low).astype(np.float32).reshape([size if i == axis else 1 for i in range(4)])
        below = self.op("Gather", value, low, axis=axis)
        above = self.op("Gather", value, np.minimum(low + 1, has - 1), axis=axis)
        result: ir.Value = self.op("Add", below, self.op("Mul", self.op("Sub", above, below), weight))
        return result

    def _normalise(self, value: ir.Value) -> ir.Value:
        config, count = self.config, self.channels
        offset = np.array(config.mean, np.float32) + np.array(config.minimum, np.float32)
        scale = np.array(config.reciprocal, np.float32)
        if count > len(offset):
            raise _mismatch(f"the model takes {count} channels, at most 4 are possible")
        if offset[:count].any():
            value = self.op("Sub", value, offset[:count])
        return value if (scale[:count] == 1).all() else self.op("Mul", value, scale[:count])

    def _pad(self, value: ir.Value) -> ir.Value:
        config = self.config
        if not config.padding:
            return value
        low = [0, config.top_padding_size, config.left_padding_size, 0]
        high = [0, config.bottom_padding_size, config.right_padding_size, 0]
        result: ir.Value = self.op("Pad", value, low=low, high=high, value=config.padding_value)
        return result
