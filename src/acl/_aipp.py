"""Image pre-processing set for each run (dynamic AIPP), and queries of a model's pre-processing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from acl import constants as c
from acl._conventions import AclError, Handles, plain, returns_code

if TYPE_CHECKING:
    from ge.aipp import AippConfig

__all__ = [
    "create_aipp",
    "destroy_aipp",
    "set_aipp_ax_swap_switch",
    "set_aipp_crop_params",
    "set_aipp_csc_params",
    "set_aipp_dtc_pixel_mean",
    "set_aipp_dtc_pixel_min",
    "set_aipp_input_format",
    "set_aipp_padding_params",
    "set_aipp_pixel_var_reci",
    "set_aipp_rbuv_swap_switch",
    "set_aipp_scf_params",
    "set_aipp_src_image_size",
]

AIPP_BYTES = 4096  # of the settings input, which is never read: settings are kept separately
FORMATS = {
    c.ACL_YUV420SP_U8: "YUV420SP_U8",
    c.ACL_XRGB8888_U8: "XRGB8888_U8",
    c.ACL_RGB888_U8: "RGB888_U8",
    c.ACL_YUV400_U8: "YUV400_U8",
    c.ACL_ARGB8888_U8: "ARGB8888_U8",
    c.ACL_AYUV444_U8: "AYUV444_U8",
}


@dataclass
class Settings:
    """Settings of a batch of images: common ones, and those of single images."""

    batch: int
    common: dict[str, Any] = field(default_factory=dict)
    each: dict[int, dict[str, Any]] = field(default_factory=dict)

    def config(self, image: int) -> AippConfig:
        """The configuration of an image; values set only for the first image apply to all."""
        from ge.aipp import AippConfig

        return AippConfig(**self.common, **(self.each.get(image) or self.each.get(0, {})))


settings: Handles[Settings] = Handles("AIPP settings")


@plain(0)
def create_aipp(batch_size: int) -> int:
    """Create settings for the images of a batch."""
    if not isinstance(batch_size, int) or batch_size < 1:
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"a batch of {batch_size!r}")
    return settings.add(Settings(batch_size))


@returns_code
def destroy_aipp(aipp: int) -> None:
    """Destroy settings. Returns ret."""
    settings.remove(aipp)


def _set(aipp: int, image: int | None, **values: Any) -> None:
    found = settings.get(aipp)
    if image is None:
        found.common.update(values)
        return
    if not 0 <= image < found.batch:
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"the batch has {found.batch} images, there is no {image}")
    found.each.setdefault(image, dict(found.each.get(0, {}))).update(values)


@returns_code
def set_aipp_input_format(aipp: int, input_format: int) -> None:
    """Set the pixel format. Returns ret."""
    if input_format not in FORMATS:
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"the input format {input_format} is not supported")
    _set(aipp, None, input_format=FORMATS[input_format])


@returns_code
def set_aipp_csc_params(aipp: int, csc_switch: int, *numbers: int) -> None:
    """Set the colour conversion: a matrix of nine, three output biases, three input biases. Returns ret."""
    if len(numbers) != 15:
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"15 numbers are needed, got {len(numbers)}")
    whole = tuple(int(n) for n in numbers)
    _set(
        aipp,
        None,
        csc_switch=bool(csc_switch),
        matrix=whole[:9],
        output_bias=whole[9:12],
        input_bias=whole[12:],
    )


@returns_code
def set_aipp_rbuv_swap_switch(aipp: int, rbuv_swap_switch: int) -> None:
    """Exchange red and blue, or U and V. Returns ret."""
    _set(aipp, None, rbuv_swap_switch=bool(rbuv_swap_switch))


@returns_code
def set_aipp_ax_swap_switch(aipp: int, ax_swap_switch: int) -> None:
    """Move the fourth channel from the front to the end. Returns ret."""
    _set(aipp, None, ax_swap_switch=bool(ax_swap_switch))


@returns_code
def set_aipp_src_image_size(aipp: int, src_image_size_w: int, src_image_size_h: int) -> None:
    """Set the size of the input images. Returns ret."""
    _set(aipp, None, src_image_size_w=int(src_image_size_w), src_image_size_h=int(src_image_size_h))


@returns_code
def set_aipp_scf_params(
    aipp: int, scf_switch: int, input_w: int, input_h: int, output_w: int, output_h: int, batch_index: int
) -> None:
    """Scale an image of the batch. Returns ret."""
    _set(
        aipp,
        batch_index,
        resize=bool(scf_switch),
        resize_output_w=int(output_w),
        resize_output_h=int(output_h),
    )


@returns_code
def set_aipp_crop_params(
    aipp: int, crop_switch: int, start_w: int, start_h: int, size_w: int, size_h: int, batch_index: int
) -> None:
    """Crop an image of the batch. Returns ret."""
    _set(
        aipp, batch_index, crop=bool(crop_switch), load_start_pos_w=int(start_w), load_start_pos_h=int(start_h),
        crop_size_w=int(size_w), crop_size_h=int(size_h),
    )  # fmt: skip


@returns_code
def set_aipp_padding_params(
    aipp: int, padding_switch: int, top: int, bottom: int, left: int, right: int, batch_index: int
) -> None:
    """Pad an image of the batch with zeros. Returns ret."""
    _set(
        aipp, batch_index, padding=bool(padding_switch), top_padding_size=int(top), bottom_padding_size=int(bottom),
        left_padding_size=int(left), right_padding_size=int(right),
    )  # fmt: skip


def _channels(name: str, what: str) -> Callable[..., int]:
    @returns_code
    def set_numbers(aipp: int, chn0: float, chn1: float, chn2: float, chn3: float, batch_index: int) -> None:
        _set(aipp, batch_index, **{name: tuple(float(v) for v in (chn0, chn1, chn2, chn3))})

    set_numbers.__doc__ = f"The {what} of each channel of an image of the batch. Returns ret."
    return set_numbers


set_aipp_dtc_pixel_mean = _channels("mean", "mean")
set_aipp_dtc_pixel_min = _channels("minimum", "minimum")
set_aipp_pixel_var_reci = _channels("reciprocal", "factor")


# -- models ----------------------------------------------------------------------------------------------------


def records(plan: Any) -> list[Mapping[str, Any]]:
    """A plan's pre-processing records: input, mode, layout and configuration."""
    return list(plan.report.get("aipp", ()))


def dynamic_inputs(plan: Any) -> dict[int, Mapping[str, Any]]:
    """Inputs with dynamic pre-processing."""
    return {int(r["input"]): r for r in records(plan) if r["mode"] == "dynamic"}


def info(plan: Any, index: int) -> dict[str, Any]:
    """The static pre-processing of an input under the names of the configuration file."""
    record = next((r for r in records(plan) if r["input"] == index and r["mode"] == "static"), None)
    if record is None:
        raise AclError(c.ACL_ERROR_GE_AIPP_NOT_EXIST, f"input {index} has no static AIPP")
    config = dict(record["config"])
    found: dict[str, Any] = {k: v for k, v in config.items() if not isinstance(v, list)}
    names = {"mean": "mean_chn", "minimum": "min_chn", "reciprocal": "var_reci_chn"}
    for name, values in config.items():
        if name == "matrix":
            found |= {f"matrix_r{i // 3}c{i % 3}": v for i, v in enumerate(values)}
        elif isinstance(values, list):
            found |= {f"{names.get(name, name)}_{i}": v for i, v in enumerate(values)}
    port = plan.inputs[index]
    return {**found, "src_dim_num": len(port.desc.shape), "src_dims": list(port.desc.shape), "shape_count": 1}


@functools.lru_cache(maxsize=32)
def _preparation(config: AippConfig, shape: tuple[int, ...], dtype: str, layout: str) -> Any:
    """The model that pre-processes one image for the network."""
    from ge import aipp
    from ge.compiler import compile_graph
    from ge.ops.builder import GraphBuilder

    builder = GraphBuilder("aipp")
    builder.output(builder.op("Identity", builder.input("image", (1, *shape[1:]), dtype)))
    aipp.insert(builder.graph, [replace(config, related_input_rank=0, related_input_name="")], layout)
    return compile_graph(builder.graph)


def prepared(found: Settings, record: Mapping[str, Any], port: Any, data: np.ndarray) -> np.ndarray:
    """Pre-process a batch of images for the network."""
    batch, made, start = port.desc.shape[0], [], 0
    if found.batch != batch:
        raise AclError(
            c.ACL_ERROR_INVALID_PARAM, f"AIPP is set for a batch of {found.batch}, the model has {batch}"
        )
    for image in range(batch):
        model = _preparation(found.config(image), port.desc.shape, port.desc.dtype, str(record["layout"]))
        desc = model.inputs[0].desc
        if start + desc.nbytes > data.size:
            raise AclError(
                c.ACL_ERROR_MODEL_INPUT_NOT_MATCH,
                f"the images of input '{port.name}' need {desc.nbytes * batch} bytes, its buffer has {data.size}",
            )
        made.append(model(data[start : start + desc.nbytes].reshape(desc.shape)))
        start += desc.nbytes
    return np.ascontiguousarray(np.concatenate(made))
