"""Pictures in memory: strided planes, format conversions, JPEG and PNG through Pillow."""

from __future__ import annotations

import ctypes
import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from acl import _memory
from acl import constants as c
from acl._conventions import AclError

__all__ = ["Picture", "converted", "decode", "encode", "pasted", "resized"]

SEMI_PLANAR = (c.PIXEL_FORMAT_YUV_SEMIPLANAR_420, c.PIXEL_FORMAT_YVU_SEMIPLANAR_420)
_PACKED = {  # positions of red, green, blue (and alpha) in a pixel
    c.PIXEL_FORMAT_RGB_888: (0, 1, 2),
    c.PIXEL_FORMAT_BGR_888: (2, 1, 0),
    c.PIXEL_FORMAT_ARGB_8888: (1, 2, 3, 0),
    c.PIXEL_FORMAT_ABGR_8888: (3, 2, 1, 0),
    c.PIXEL_FORMAT_RGBA_8888: (0, 1, 2, 3),
    c.PIXEL_FORMAT_BGRA_8888: (2, 1, 0, 3),
}


def _unsupported(code: int) -> AclError:
    return AclError(c.ACL_ERROR_UNSUPPORTED_DATA_TYPE, f"pictures of format {code} are not supported")


@dataclass
class Picture:
    """Address and memory layout of a picture."""

    data: int = 0
    size: int = 0
    format: int = c.PIXEL_FORMAT_YUV_SEMIPLANAR_420
    width: int = 0
    height: int = 0
    width_stride: int = 0
    height_stride: int = 0
    ret_code: int = 0

    @property
    def stride(self) -> int:
        """Bytes between rows."""
        return self.width_stride or self.width * self.bytes_a_pixel

    @property
    def rows(self) -> int:
        """Rows of the first plane, including alignment."""
        return self.height_stride or self.height

    @property
    def bytes_a_pixel(self) -> int:
        if self.format in SEMI_PLANAR or self.format == c.PIXEL_FORMAT_YUV_400:
            return 1
        if self.format not in _PACKED:
            raise _unsupported(self.format)
        return len(_PACKED[self.format])

    @property
    def needed(self) -> int:
        """Size of the picture in bytes."""
        return self.stride * self.rows * 3 // 2 if self.format in SEMI_PLANAR else self.stride * self.rows

    def memory(self, write: bool) -> np.ndarray:
        """The bytes of the picture, checked."""
        if (
            self.width <= 0
            or self.height <= 0
            or self.stride < self.width * self.bytes_a_pixel
            or self.rows < self.height
        ):
            raise AclError(
                c.ACL_ERROR_INVALID_PARAM,
                f"a picture of {self.width}x{self.height} with strides {self.width_stride}x{self.height_stride}",
            )
        if self.size < self.needed:
            raise AclError(
                c.ACL_ERROR_INVALID_PARAM,
                f"the picture needs {self.needed} bytes, its memory has {self.size}",
            )
        block = _memory.check_range(self.data, self.needed, write=write)
        _memory.check_visible(self.data)
        raw: Any = (ctypes.c_uint8 * self.needed).from_address(self.data)
        raw.owner = block  # keeps the memory alive after dvpp_free until the work is done
        return np.ctypeslib.as_array(raw)

    def planes(self, write: bool = False) -> list[np.ndarray]:
        """The picture's planes as arrays over its memory: pixels, or luma and chroma."""
        whole = self.memory(write)
        first = whole[: self.stride * self.rows].reshape(self.rows, self.stride)
        if self.format in SEMI_PLANAR:
            second = whole[self.stride * self.rows :].reshape(self.rows // 2, self.stride // 2, 2)
            return [first[: self.height, : self.width], second[: _half(self.height), : _half(self.width)]]
        depth = self.bytes_a_pixel
        pixels = first[:, : self.stride // depth * depth].reshape(self.rows, -1, depth)
        return [pixels[: self.height, : self.width]]

    def read(self) -> list[np.ndarray]:
        """Copy the planes; chroma as U and V, pixels as RGB."""
        planes = [p.copy() for p in self.planes()]
        if self.format == c.PIXEL_FORMAT_YVU_SEMIPLANAR_420:
            planes[1] = planes[1][..., ::-1]
        if self.format in _PACKED:
            planes = [planes[0][..., list(_PACKED[self.format])]]
        return planes

    def write(self, planes: list[np.ndarray]) -> None:
        """Write planes in the form that `read` returns."""
        targets = self.planes(write=True)
        if self.format == c.PIXEL_FORMAT_YVU_SEMIPLANAR_420:
            planes = [planes[0], planes[1][..., ::-1]]
        if self.format in _PACKED:
            order = _PACKED[self.format]
            pixels = np.full((*planes[0].shape[:2], len(order)), 255, np.uint8)
            for source, place in enumerate(order[: planes[0].shape[2]]):
                pixels[..., place] = planes[0][..., source]
            planes = [pixels]
        for target, plane in zip(targets, planes, strict=True):
            if target.ndim == 3 and plane.ndim == 2:
                plane = plane[..., None]
            if target.shape != plane.shape:
                raise AclError(
                    c.ACL_ERROR_INVALID_PARAM,
                    f"the output picture has planes of {target.shape}, the result {plane.shape}",
                )
            target[:] = plane

    @property
    def is_yuv(self) -> bool:
        return self.format in SEMI_PLANAR or self.format == c.PIXEL_FORMAT_YUV_400


# -- colours: the full range of JPEG files (BT.601) --------------------------------------------------------------


def _to_rgb(planes: list[np.ndarray]) -> np.ndarray:
    """Convert YUV to RGB."""
    height, width = planes[0].shape[:2]
    bright = planes[0].reshape(height, width).astype(np.float64)
    colours: Any = np.full((height, width, 2), 128.0)
    if len(planes) > 1:
        colours = planes[1].astype(np.float64).repeat(2, 0).repeat(2, 1)[:height, :width]
    u, v = colours[..., 0] - 128, colours[..., 1] - 128
    rgb = np.stack([bright + 1.402 * v, bright - 0.344136 * u - 0.714136 * v, bright + 1.772 * u], -1)
    return np.clip(np.rint(rgb), 0, 255).astype(np.uint8)


def _to_yuv(rgb: np.ndarray) -> list[np.ndarray]:
    """Convert RGB to luma and 2x2-subsampled chroma."""
    r, g, b = (rgb[..., i].astype(np.float64) for i in range(3))
    bright = 0.299 * r + 0.587 * g + 0.114 * b
    u, v = 128 + 0.564334 * (b - bright), 128 + 0.713267 * (r - bright)
    return [_byte(bright), _halved(np.stack([u, v], -1))]


def _byte(x: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(x), 0, 255).astype(np.uint8)


def _half(size: int) -> int:
    """Number of chroma samples along a side, rounded up."""
    return (size + 1) // 2


def _halved(x: np.ndarray) -> np.ndarray:
    """Average 2x2 blocks; the last row or column of an odd side counts twice."""
    h, w = _half(x.shape[0]), _half(x.shape[1])
    even = np.pad(x, ((0, h * 2 - x.shape[0]), (0, w * 2 - x.shape[1]), (0, 0)), mode="edge")
    return _byte(even.reshape(h, 2, w, 2, -1).mean((1, 3)))


def converted(planes: list[np.ndarray], source: Picture, target: Picture) -> list[np.ndarray]:
    """Convert planes between formats."""
    if source.is_yuv and target.is_yuv:
        if target.format == c.PIXEL_FORMAT_YUV_400:
            return planes[:1]
        if len(planes) == 1:
            h, w = planes[0].shape[:2]
            return [planes[0].reshape(h, w), np.full((_half(h), _half(w), 2), 128, np.uint8)]
        return planes
    if source.is_yuv:
        return [_to_rgb(planes)]
    if not target.is_yuv:
        return planes
    found = _to_yuv(planes[0])
    return found[:1] if target.format == c.PIXEL_FORMAT_YUV_400 else found


# -- sizes -------------------------------------------------------------------------------------------------------


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise AclError(
            c.ACL_ERROR_API_NOT_SUPPORT, "pictures need Pillow: pip install tf-adapter[images]"
        ) from error
    return Image


def resized(planes: list[np.ndarray], width: int, height: int) -> list[np.ndarray]:
    """Resize planes by bilinear interpolation."""
    image = _pillow()
    made = []
    for plane in planes:
        half = plane.ndim == 3 and plane.shape[2] == 2
        size = (_half(width), _half(height)) if half else (width, height)
        channels = [plane] if plane.ndim == 2 else [plane[..., i] for i in range(plane.shape[2])]
        scaled = [
            np.asarray(image.fromarray(np.ascontiguousarray(p)).resize(size, image.BILINEAR))
            for p in channels
        ]
        made.append(scaled[0] if plane.ndim == 2 else np.stack(scaled, -1))
    return made


def cropped(planes: list[np.ndarray], left: int, right: int, top: int, bottom: int) -> list[np.ndarray]:
    """Crop to columns and rows, both ends included."""
    height, width = planes[0].shape[:2]
    if not (0 <= left <= right < width and 0 <= top <= bottom < height):
        raise AclError(
            c.ACL_ERROR_INVALID_PARAM,
            f"columns {left} to {right}, rows {top} to {bottom} of a picture of {width}x{height}",
        )
    if len(planes) > 1 and (left % 2 or top % 2 or not right % 2 or not bottom % 2):
        raise AclError(
            c.ACL_ERROR_INVALID_PARAM, "parts of YUV420 pictures begin at even places and end at odd ones"
        )
    made = [planes[0][top : bottom + 1, left : right + 1]]
    return made + [p[top // 2 : bottom // 2 + 1, left // 2 : right // 2 + 1] for p in planes[1:]]


def pasted(into: Picture, planes: list[np.ndarray], left: int, right: int, top: int, bottom: int) -> None:
    """Paste planes into a part of a picture."""
    current = into.read()
    parts = cropped(current, left, right, top, bottom)
    for part, plane in zip(parts, planes, strict=True):
        part[:] = plane.reshape(part.shape)
    into.write(current)


# -- files -------------------------------------------------------------------------------------------------------


def open_file(data: bytes, kind: str) -> Any:
    """Open a picture file with Pillow."""
    try:
        return _pillow().open(io.BytesIO(data), formats=[kind])
    except AclError:
        raise
    except Exception as error:
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"this is not a {kind} file: {error}") from error


def decode(data: bytes, kind: str, target: Picture) -> list[np.ndarray]:
    """Decode a file to planes in the format of a picture."""
    image = open_file(data, kind)
    try:
        if target.format == c.PIXEL_FORMAT_YUV_400:
            return [np.asarray(image.convert("L"))]
        if not target.is_yuv:
            return [np.asarray(image.convert("RGB"))]
        full = np.asarray(image.convert("YCbCr"))
    except OSError as error:
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"the {kind} file is damaged: {error}") from error
    return [full[..., 0].copy(), _halved(full[..., 1:].astype(np.float64))]


def encode(picture: Picture, quality: int) -> bytes:
    """Encode a picture as JPEG."""
    image, planes = _pillow(), picture.read()
    stream = io.BytesIO()
    rgb = _to_rgb(planes) if picture.is_yuv else planes[0][..., :3]
    image.fromarray(np.ascontiguousarray(rgb), "RGB").save(stream, "JPEG", quality=quality)
    return stream.getvalue()
