"""acl.media: picture memory and the image processor: JPEG and PNG, resizing, cropping, colour conversion.

Pictures are descriptions over device memory (`dvpp_create_pic_desc`); work is queued on streams like any other.
Pillow decodes, encodes and scales (`pip install tf-adapter[images]`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from acl import _images, _memory
from acl import constants as c
from acl._conventions import AclError, Handles, plain, returns_code, returns_value
from acl._images import Picture
from acl._state import current_context, stream_of
from acl.util import ptr_to_bytes


@dataclass
class Channel:
    """A channel of the image processor."""

    open: bool = False


@dataclass
class Region:
    """A part of a picture: first and last column, first and last row."""

    left: int
    right: int
    top: int
    bottom: int


@dataclass
class Setting:
    """A configuration with one number."""

    value: int


channels: Handles[Channel] = Handles("channel description")
pictures: Handles[Picture] = Handles("picture description")
regions: Handles[Region] = Handles("region of interest")
resizes: Handles[Setting] = Handles("resize configuration")
encodings: Handles[Setting] = Handles("JPEG configuration")

DEFAULT_QUALITY = 100


def clear() -> None:
    """Release all descriptions."""
    tables: tuple[Handles[Any], ...] = (channels, pictures, regions, resizes, encodings)
    for table in tables:
        table.clear()


@returns_value(0)
def dvpp_malloc(size: int) -> int:
    """Allocate device memory for an image. Returns (address, ret)."""
    return _memory.memory.allocate(size, current_context().device, visible=True).address


@returns_code
def dvpp_free(dev_ptr: int) -> None:
    """Free an image's memory. Returns ret."""
    _memory.memory.release(dev_ptr, device=True)


# -- channels --------------------------------------------------------------------------------------------------


@plain(0)
def dvpp_create_channel_desc() -> int:
    """Create the description of a channel."""
    return channels.add(Channel())


@returns_code
def dvpp_destroy_channel_desc(channel_desc: int) -> None:
    """Destroy the description of a channel. Returns ret."""
    channels.remove(channel_desc)


@returns_code
def dvpp_create_channel(channel_desc: int) -> None:
    """Open a channel. Returns ret."""
    current_context()
    channels.get(channel_desc).open = True


@returns_code
def dvpp_destroy_channel(channel_desc: int) -> None:
    """Close a channel. Returns ret."""
    channels.get(channel_desc).open = False


def _queue(channel_desc: int, stream: int, work: Callable[[], None], result: Picture | None = None) -> None:
    if not channels.get(channel_desc).open:
        raise AclError(c.ACL_ERROR_INVALID_PARAM, "the channel is not open: call dvpp_create_channel first")

    def run() -> None:
        try:
            work()
        except AclError as error:
            if result is not None:
                result.ret_code = error.code
            raise
        if result is not None:
            result.ret_code = c.ACL_SUCCESS

    stream_of(stream).submit(run)


# -- descriptions of pictures ----------------------------------------------------------------------------------


@plain(0)
def dvpp_create_pic_desc() -> int:
    """Create an empty description of a picture."""
    return pictures.add(Picture())


@returns_code
def dvpp_destroy_pic_desc(pic_desc: int) -> None:
    """Destroy the description of a picture, not its memory. Returns ret."""
    pictures.remove(pic_desc)


def _setter(name: str) -> Callable[[int, int], int]:
    @returns_code
    def set_field(pic_desc: int, value: int) -> None:
        if not isinstance(value, int | np.integer) or value < 0:
            raise AclError(c.ACL_ERROR_INVALID_PARAM, f"{name} is {value!r}")
        setattr(pictures.get(pic_desc), name, int(value))

    set_field.__doc__ = f"Set the {name} of a picture. Returns ret."
    return set_field


def _getter(name: str) -> Callable[[int], int]:
    @plain(0)
    def get_field(pic_desc: int) -> int:
        return int(getattr(pictures.get(pic_desc), name))

    get_field.__doc__ = f"The {name} of a picture."
    return get_field


dvpp_set_pic_desc_data, dvpp_get_pic_desc_data = _setter("data"), _getter("data")
dvpp_set_pic_desc_size, dvpp_get_pic_desc_size = _setter("size"), _getter("size")
dvpp_set_pic_desc_format, dvpp_get_pic_desc_format = _setter("format"), _getter("format")
dvpp_set_pic_desc_width, dvpp_get_pic_desc_width = _setter("width"), _getter("width")
dvpp_set_pic_desc_height, dvpp_get_pic_desc_height = _setter("height"), _getter("height")
dvpp_set_pic_desc_width_stride, dvpp_get_pic_desc_width_stride = (
    _setter("width_stride"),
    _getter("width_stride"),
)
dvpp_set_pic_desc_height_stride, dvpp_get_pic_desc_height_stride = (
    _setter("height_stride"),
    _getter("height_stride"),
)
dvpp_get_pic_desc_ret_code = _getter("ret_code")


# -- configurations --------------------------------------------------------------------------------------------


@plain(0)
def dvpp_create_resize_config() -> int:
    """Create a resize configuration; interpolation is always bilinear."""
    return resizes.add(Setting(0))


@returns_code
def dvpp_set_resize_config_interpolation(resize_config: int, interpolation: int) -> None:
    """Set an interpolation (0 to 4, all bilinear here). Returns ret."""
    resizes.get(resize_config).value = interpolation


@plain(0)
def dvpp_get_resize_config_interpolation(resize_config: int) -> int:
    """The interpolation that was set."""
    return resizes.get(resize_config).value


@returns_code
def dvpp_destroy_resize_config(resize_config: int) -> None:
    """Destroy a configuration. Returns ret."""
    resizes.remove(resize_config)


@plain(0)
def dvpp_create_roi_config(left: int, right: int, top: int, bottom: int) -> int:
    """Create a region: columns and rows, both ends included."""
    return regions.add(Region(left, right, top, bottom))


@returns_code
def dvpp_set_roi_config(config: int, left: int, right: int, top: int, bottom: int) -> None:
    """Change a region. Returns ret."""
    region = regions.get(config)
    region.left, region.right, region.top, region.bottom = left, right, top, bottom


@returns_code
def dvpp_destroy_roi_config(roi_config: int) -> None:
    """Destroy a region. Returns ret."""
    regions.remove(roi_config)


@plain(0)
def dvpp_create_jpege_config() -> int:
    """Create a configuration of the JPEG encoder."""
    return encodings.add(Setting(DEFAULT_QUALITY))


@returns_code
def dvpp_set_jpege_config_level(jpege_config: int, level: int) -> None:
    """Set the quality, 1 to 100 (0 means 100). Returns ret."""
    if not 0 <= level <= 100:
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"a quality of {level}")
    encodings.get(jpege_config).value = level or DEFAULT_QUALITY


@plain(0)
def dvpp_get_jpege_config_level(jpege_config: int) -> int:
    """The quality."""
    return encodings.get(jpege_config).value


@returns_code
def dvpp_destroy_jpege_config(jpege_config: int) -> None:
    """Destroy a configuration. Returns ret."""
    encodings.remove(jpege_config)


# -- files -----------------------------------------------------------------------------------------------------


def _info(data: int, size: int, kind: str) -> tuple[int, int, int]:
    image = _images.open_file(ptr_to_bytes(data, size), kind)
    return image.width, image.height, len(image.getbands())


@returns_value(0, 0, 0)
def dvpp_jpeg_get_image_info(data: int, size: int) -> tuple[int, int, int]:
    """(width, height, components, ret) of a JPEG file in memory."""
    return _info(data, size, "JPEG")


@returns_value(0, 0, 0)
def dvpp_png_get_image_info(data: int, size: int) -> tuple[int, int, int]:
    """(width, height, components, ret) of a PNG file in memory."""
    return _info(data, size, "PNG")


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


@returns_value(0)
def dvpp_jpeg_predict_dec_size(data: int, size: int, format: int) -> int:
    """(bytes, ret) that the picture of a JPEG file needs, with strides of 128 and 16."""
    return _room(data, size, format, "JPEG")


@returns_value(0)
def dvpp_png_predict_dec_size(data: int, size: int, format: int) -> int:
    """(bytes, ret) that the picture of a PNG file needs, with strides of 128 and 16."""
    return _room(data, size, format, "PNG")


def _room(data: int, size: int, format: int, kind: str) -> int:
    width, height, _ = _info(data, size, kind)
    stride = _up(width * Picture(format=format).bytes_a_pixel, 128)
    return Picture(format=format, width_stride=stride, height_stride=_up(height, 16)).needed


@returns_value(0)
def dvpp_jpeg_predict_enc_size(input_desc: int, config: int) -> int:
    """(bytes, ret): upper bound of the size of a picture as JPEG."""
    picture = pictures.get(input_desc)
    encodings.get(config)
    return picture.width * picture.height * 4 + 4096


@returns_code
def dvpp_jpeg_decode_async(channel_desc: int, data: int, size: int, output_desc: int, stream: int) -> None:
    """Decode a JPEG file into a picture. Returns ret at once."""
    _decode(channel_desc, data, size, output_desc, stream, "JPEG")


@returns_code
def dvpp_png_decode_async(channel_desc: int, data: int, size: int, output_desc: int, stream: int) -> None:
    """Decode a PNG file into a picture. Returns ret at once."""
    _decode(channel_desc, data, size, output_desc, stream, "PNG")


def _decode(channel_desc: int, data: int, size: int, output_desc: int, stream: int, kind: str) -> None:
    target, file = pictures.get(output_desc), ptr_to_bytes(data, size)

    def work() -> None:
        planes = _images.decode(file, kind, target)
        height, width = planes[0].shape[:2]
        if not target.width:  # fill in the size if it was not set
            target.width, target.height = width, height
        target.write(planes)

    _queue(channel_desc, stream, work, target)


@returns_code
def dvpp_jpeg_encode_async(
    channel_desc: int, input_desc: int, data: int, size: int, config: int, stream: int
) -> None:
    """Encode a picture as JPEG to `data`; `size` points to the capacity and receives the length."""
    picture, quality = pictures.get(input_desc), encodings.get(config).value
    _memory.check_range(size, 4, write=True)
    length = ctypes.c_uint32.from_address(size)

    def work() -> None:
        file = _images.encode(picture, quality)
        if len(file) > length.value:
            raise AclError(
                c.ACL_ERROR_INVALID_PARAM, f"the file has {len(file)} bytes, there is room for {length.value}"
            )
        _memory.check_range(data, len(file), write=True)
        _memory.check_visible(data)
        ctypes.memmove(data, file, len(file))
        length.value = len(file)

    _queue(channel_desc, stream, work)


# -- sizes, parts, colours ---------------------------------------------------------------------------------------


def _process(
    channel_desc: int,
    input_desc: int,
    output_desc: int,
    stream: int,
    change: Callable[[list[Any], Picture], list[Any]],
) -> None:
    source, target = pictures.get(input_desc), pictures.get(output_desc)

    def work() -> None:
        planes = change(source.read(), target)
        target.write(_images.converted(planes, source, target))

    _queue(channel_desc, stream, work, target)


@returns_code
def dvpp_vpc_resize_async(
    channel_desc: int, input_desc: int, output_desc: int, resize_config: int, stream: int
) -> None:
    """Resize a picture to the size of the output. Returns ret at once."""
    resizes.get(resize_config)
    _process(
        channel_desc, input_desc, output_desc, stream, lambda p, t: _images.resized(p, t.width, t.height)
    )


@returns_code
def dvpp_vpc_crop_async(
    channel_desc: int, input_desc: int, output_desc: int, crop_area: int, stream: int
) -> None:
    """Crop a picture and resize to the size of the output. Returns ret at once."""
    _process(channel_desc, input_desc, output_desc, stream, _part(regions.get(crop_area)))


@returns_code
def dvpp_vpc_crop_resize_async(
    channel_desc: int, input_desc: int, output_desc: int, crop_area: int, resize_config: int, stream: int
) -> None:
    """Crop a picture and resize to the size of the output. Returns ret at once."""
    resizes.get(resize_config)
    _process(channel_desc, input_desc, output_desc, stream, _part(regions.get(crop_area)))


def _part(region: Region) -> Callable[[list[Any], Picture], list[Any]]:
    def change(planes: list[Any], target: Picture) -> list[Any]:
        part = _images.cropped(planes, region.left, region.right, region.top, region.bottom)
        if part[0].shape[:2] != (target.height, target.width):
            part = _images.resized(part, target.width, target.height)
        return part

    return change


@returns_code
def dvpp_vpc_crop_and_paste_async(
    channel_desc: int, input_desc: int, output_desc: int, crop_area: int, paste_area: int, stream: int
) -> None:
    """Crop a picture, resize and paste into a region of the output. Returns ret at once."""
    source, target = pictures.get(input_desc), pictures.get(output_desc)
    cut, place = regions.get(crop_area), regions.get(paste_area)

    def work() -> None:
        part = _images.cropped(source.read(), cut.left, cut.right, cut.top, cut.bottom)
        size = (place.right - place.left + 1, place.bottom - place.top + 1)
        part = _images.converted(_images.resized(part, *size), source, target)
        _images.pasted(target, part, place.left, place.right, place.top, place.bottom)

    _queue(channel_desc, stream, work, target)


@returns_code
def dvpp_vpc_convert_color_async(channel_desc: int, input_desc: int, output_desc: int, stream: int) -> None:
    """Convert a picture to the format of the output. Returns ret at once."""
    _process(channel_desc, input_desc, output_desc, stream, lambda planes, target: planes)


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"acl.media.{name}: only pictures are processed here (JPEG, PNG, sizes, parts, colours); decode videos on the "
        "host, and feed their frames"
    )
