"""Dynamic AIPP through acl/acl.h gives what the module acl gives; the rest of the interface is tested in tests/cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import acl
import ge
from acl._aipp import FORMATS, Settings, prepared
from ge.model import om
from tests.native.c_interface import library

SHAPE = (2, 3, 6, 8)
RECORD = {"input": 0, "mode": "dynamic", "layout": "NCHW", "config": {"max_src_image_size": 4096}}


@pytest.fixture(autouse=True)
def own_key(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_KEY_FILE", str(tmp_path_factory.getbasetemp() / "c_interface.key"))


@pytest.fixture(scope="module")
def device() -> Iterator[ctypes.CDLL]:
    """The library, with a context in this thread."""
    found = library()
    for name in ("aclCreateDataBuffer", "aclmdlCreateDataset", "aclmdlCreateAIPP", "aclmdlCreateDesc"):
        getattr(found, name).restype = ctypes.c_void_p
    found.aclGetRecentErrMsg.restype = ctypes.c_char_p
    assert found.aclInit(None) == 0
    assert found.aclrtSetDevice(0) == 0
    yield found
    assert found.aclrtResetDevice(0) == 0
    assert found.aclFinalize() == 0


@pytest.fixture(scope="module")
def network() -> dict[str, Any]:
    """Compiled models that give the negative of their images, by layout and element type."""
    models = {}
    for layout, dtype in (("NCHW", "float32"), ("NHWC", "float32"), ("NCHW", "float16"), ("NCHW", "int32")):
        batch, channels, height, width = SHAPE
        shape = SHAPE if layout == "NCHW" else (batch, height, width, channels)
        g = ge.Graph("net")
        g.output(-g.input("x", shape, dtype), "y")
        model = ge.compile(g)
        model.plan.report["aipp"] = [{**RECORD, "layout": layout}]
        models[layout, dtype] = model
    return models


class Case:
    """A loaded model with datasets, and settings that both interfaces get."""

    def __init__(self, device: ctypes.CDLL, model: ge.Model, path: Path, images: np.ndarray) -> None:
        self.device, self.model, self.images = device, model, images
        self.id = ctypes.c_uint32()
        file = om.write(om.Package([model.plan]), path)
        assert device.aclmdlLoadFromFile(str(file).encode(), ctypes.byref(self.id)) == 0, (
            device.aclGetRecentErrMsg()
        )
        self.result = np.empty_like(
            model.run_plan([np.zeros(model.inputs[0].desc.shape, model_dtype(model))])[0]
        )
        self.input = self.dataset(images, np.zeros(4096, np.uint8))
        self.output = self.dataset(self.result)
        self.settings = ctypes.c_void_p(device.aclmdlCreateAIPP(ctypes.c_uint64(SHAPE[0])))
        self.same = Settings(SHAPE[0])

    def dataset(self, *arrays: np.ndarray) -> ctypes.c_void_p:
        made = ctypes.c_void_p(self.device.aclmdlCreateDataset())
        for array in arrays:
            data, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
            buffer = ctypes.c_void_p(self.device.aclCreateDataBuffer(data, size))
            assert self.device.aclmdlAddDatasetBuffer(made, buffer) == 0
        return made

    def run(self) -> int:
        """Execute with the settings; the return code."""
        assert (
            self.device.aclmdlSetAIPPByInputIndex(self.id, self.input, ctypes.c_size_t(0), self.settings) == 0
        )
        return int(self.device.aclmdlExecute(self.id, self.input, self.output))

    def compare(self) -> None:
        """Both interfaces give the same."""
        assert self.run() == 0, self.device.aclGetRecentErrMsg()
        record = self.model.plan.report["aipp"][0]
        image = prepared(self.same, record, self.model.inputs[0], self.images.reshape(-1))
        np.testing.assert_allclose(self.result, self.model(image), rtol=1e-5, atol=1e-5)
        assert self.device.aclmdlUnload(self.id) == 0


def model_dtype(model: ge.Model) -> str:
    return model.inputs[0].desc.dtype


def image_bytes(code: int, height: int, width: int) -> np.ndarray:
    shape = {acl.ACL_YUV420SP_U8: (height * 3 // 2, width), acl.ACL_YUV400_U8: (height, width)}
    channels = 3 if code == acl.ACL_RGB888_U8 else 4
    one = shape.get(code, (height, width, channels))
    return np.random.default_rng(code).integers(0, 256, (SHAPE[0], *one), np.uint8)


MATRIX = (298, 516, 0, 298, -100, -208, 298, 0, 409, 1, 2, 3, 16, 128, 128)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("code", [c for c in FORMATS if c != acl.ACL_YUV400_U8])
def test_formats_swaps_and_colours(
    device: ctypes.CDLL, network: dict[str, Any], tmp_path: Path, code: int, swap: bool
) -> None:
    case = Case(device, network["NCHW", "float32"], tmp_path / "m", image_bytes(code, 6, 8))
    assert device.aclmdlSetAIPPInputFormat(case.settings, code) == 0
    case.same.common.update(input_format=FORMATS[code], rbuv_swap_switch=swap, ax_swap_switch=swap)
    assert device.aclmdlSetAIPPRbuvSwapSwitch(case.settings, swap) == 0
    assert device.aclmdlSetAIPPAxSwapSwitch(case.settings, swap) == 0
    if not swap:
        assert device.aclmdlSetAIPPCscParams(case.settings, 1, *MATRIX) == 0
        case.same.common.update(
            csc_switch=True, matrix=MATRIX[:9], output_bias=MATRIX[9:12], input_bias=MATRIX[12:]
        )
    case.compare()


@pytest.mark.parametrize(
    "kind", [("NCHW", "float32"), ("NHWC", "float32"), ("NCHW", "float16"), ("NCHW", "int32")]
)
def test_sizes_layouts_and_types(
    device: ctypes.CDLL, network: dict[str, Any], tmp_path: Path, kind: tuple[str, str]
) -> None:
    """Images of 12 by 10: a part of 9 by 7 is scaled to 4 by 5 and surrounded up to 6 by 8; each in its own way."""
    case = Case(device, network[kind], tmp_path / "m", image_bytes(acl.ACL_RGB888_U8, 12, 10))
    assert device.aclmdlSetAIPPSrcImageSize(case.settings, 10, 12) == 0
    case.same.common.update(src_image_size_w=10, src_image_size_h=12)
    for image in range(SHAPE[0]):
        index, start = ctypes.c_uint64(image), 1 + image
        assert device.aclmdlSetAIPPCropParams(case.settings, 1, start, 2, 7, 9, index) == 0
        assert device.aclmdlSetAIPPScfParams(case.settings, 1, 7, 9, 5, 4, index) == 0
        assert device.aclmdlSetAIPPPaddingParams(case.settings, 1, 1, 1, 2, 1, index) == 0
        assert device.aclmdlSetAIPPDtcPixelMean(case.settings, 3, 4, 5, 0, index) == 0
        minimum, factor = [map(ctypes.c_float, v) for v in ((0.5, 0.25, 0, 0), (0.5, 0.25, 2, 1))]
        assert device.aclmdlSetAIPPDtcPixelMin(case.settings, *minimum, index) == 0
        assert device.aclmdlSetAIPPPixelVarReci(case.settings, *factor, index) == 0
        case.same.each[image] = {
            "crop": True, "load_start_pos_w": start, "load_start_pos_h": 2, "crop_size_w": 7, "crop_size_h": 9,
            "resize": True, "resize_output_w": 5, "resize_output_h": 4, "padding": True, "top_padding_size": 1,
            "bottom_padding_size": 1, "left_padding_size": 2, "right_padding_size": 1, "mean": (3.0, 4.0, 5.0, 0.0),
            "minimum": (0.5, 0.25, 0.0, 0.0), "reciprocal": (0.5, 0.25, 2.0, 1.0),
        }  # fmt: skip
    case.compare()


def test_a_model_tells_its_aipp(device: ctypes.CDLL, network: dict[str, Any], tmp_path: Path) -> None:
    case = Case(device, network["NCHW", "float32"], tmp_path / "m", image_bytes(acl.ACL_RGB888_U8, 6, 8))
    kind, place = ctypes.c_int(), ctypes.c_size_t()
    wanted = {0: (acl.ACL_DATA_WITH_DYNAMIC_AIPP, 1), 1: (acl.ACL_DYNAMIC_AIPP_NODE, 0xFFFFFFFF)}
    for index, told in wanted.items():
        size = ctypes.c_size_t(index)
        assert device.aclmdlGetAippType(case.id, size, ctypes.byref(kind), ctypes.byref(place)) == 0
        assert (kind.value, place.value) == told
    desc = ctypes.c_void_p(device.aclmdlCreateDesc())
    assert device.aclmdlGetDesc(desc, case.id) == 0
    assert device.aclmdlGetNumInputs(desc) == 2
    assert [device.aclmdlGetInputSizeByIndex(desc, ctypes.c_size_t(i)) for i in (0, 1)] == [4096, 4096]


def test_settings_that_do_not_fit_are_codes(
    device: ctypes.CDLL, network: dict[str, Any], tmp_path: Path
) -> None:
    case = Case(device, network["NCHW", "float32"], tmp_path / "m", image_bytes(acl.ACL_RGB888_U8, 6, 8))
    assert device.aclmdlExecute(case.id, case.input, case.output) == acl.ACL_ERROR_INVALID_PARAM
    assert b"aclmdlSetInputAIPP" in device.aclGetRecentErrMsg()
    zero, one = ctypes.c_size_t(0), ctypes.c_size_t(1)
    assert device.aclmdlSetInputAIPP(case.id, case.input, zero, case.settings) == acl.ACL_ERROR_INVALID_PARAM
    assert (
        device.aclmdlSetAIPPByInputIndex(case.id, case.input, one, case.settings)
        == acl.ACL_ERROR_INVALID_PARAM
    )
    assert device.aclmdlSetInputAIPP(case.id, case.input, one, case.settings) == 0
    assert device.aclmdlExecute(case.id, case.input, case.output) == 0
    assert device.aclmdlSetAIPPInputFormat(case.settings, 9) == acl.ACL_ERROR_INVALID_PARAM
    index = ctypes.c_uint64(5)
    assert device.aclmdlSetAIPPCropParams(case.settings, 1, 0, 0, 2, 2, index) == acl.ACL_ERROR_INVALID_PARAM
    for width, height in ((-4, 6), (1 << 30, 1 << 30), (100, 100), (4, 6)):
        assert device.aclmdlSetAIPPSrcImageSize(case.settings, width, height) == 0
        assert case.run() in (acl.ACL_ERROR_INVALID_PARAM, acl.ACL_ERROR_MODEL_INPUT_NOT_MATCH)
    assert device.aclmdlSetAIPPSrcImageSize(case.settings, 8, 6) == 0
    for crop in ((7, 0, 2, 2), (-1, 0, 2, 2), (0, 0, 1 << 30, 2), (0, 0, -1, 2)):
        assert device.aclmdlSetAIPPCropParams(case.settings, 1, *crop, ctypes.c_uint64(0)) == 0
        assert case.run() == acl.ACL_ERROR_INVALID_PARAM
    device.aclmdlCreateAIPP.restype = ctypes.c_void_p
    assert device.aclmdlCreateAIPP(ctypes.c_uint64(0)) is None
