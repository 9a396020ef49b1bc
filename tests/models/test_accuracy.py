"""Compiled models agree with the framework: every family, as TensorFlow and ONNX files, in fp32 and bf16."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.subjects import LIMITS, SMALL_LIMITS, Subject, compiled_error, names, open_subject


@pytest.fixture(scope="module", params=names())
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """Each family once, at a small size, for all the tests of this module."""
    with open_subject(request.param, small=True) as opened:
        yield opened


def assert_agrees(subject: Subject, form: str, folder: Path, limits: dict[str, float]) -> None:
    """Errors are below the limits; in bf16 the framework's own error is allowed too."""
    path, inputs, expected = subject.write(form, folder)
    assert compiled_error(path, inputs, expected, "fp32") < limits["fp32"]
    error = compiled_error(path, inputs, expected, "bf16")
    assert error < limits["bf16"] or error <= subject.framework_bf16_error()


@pytest.mark.parametrize("form", ["frozen", "onnx"])
def test_agrees_with_the_framework(subject: Subject, form: str, tmp_path: Path) -> None:
    assert_agrees(subject, form, tmp_path, SMALL_LIMITS)


@pytest.mark.parametrize("name", ["MobileNetV2", "EfficientNetB0", "DenseNet121"])
def test_saved_model_agrees_with_the_framework(name: str, tmp_path: Path) -> None:
    with open_subject(name, small=True) as opened:
        path, inputs, expected = opened.write("saved_model", tmp_path)
        assert compiled_error(path, inputs, expected, "fp32") < LIMITS["fp32"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["frozen", "onnx"])
@pytest.mark.parametrize("name", names())
def test_agrees_at_full_size(name: str, form: str, tmp_path: Path) -> None:
    with open_subject(name, small=False) as opened:
        assert_agrees(opened, form, tmp_path, LIMITS)
