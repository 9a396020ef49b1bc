"""Compiled models agree with the framework: every family, as TensorFlow and ONNX files, in fp32 and bf16."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.subjects import FULL_SIZE_ONLY, LIMITS, Subject, compiled_error, names, open_subject
from tests.support.sampling import slow_except

# What differs in kind; all of the others are convolutional networks or at full size.
QUICK = ("bert", "gpt2", "lstm", "dlrm", "ResNet50")


@pytest.fixture(scope="module", params=slow_except(QUICK, names()))
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """Each family once, at a small size where that says something, for all the tests of this module."""
    with open_subject(request.param, small=request.param not in FULL_SIZE_ONLY) as opened:
        yield opened


def assert_agrees(subject: Subject, form: str, folder: Path) -> None:
    """The errors are below 1e-4 of the largest value in fp32 and below 1 % in bf16."""
    path, inputs, expected = subject.write(form, folder)
    for precision, limit in LIMITS.items():
        assert compiled_error(path, inputs, expected, precision) < limit


@pytest.mark.parametrize("form", ["frozen", "onnx"])
def test_agrees_with_the_framework(subject: Subject, form: str, tmp_path: Path) -> None:
    assert_agrees(subject, form, tmp_path)


@pytest.mark.parametrize(
    "name", slow_except(("MobileNetV2",), ["MobileNetV2", "EfficientNetB0", "DenseNet121"])
)
def test_saved_model_agrees_with_the_framework(name: str, tmp_path: Path) -> None:
    with open_subject(name, small=True) as opened:
        path, inputs, expected = opened.write("saved_model", tmp_path)
        assert compiled_error(path, inputs, expected, "fp32") < LIMITS["fp32"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["frozen", "onnx"])
@pytest.mark.parametrize("name", [name for name in names() if name not in FULL_SIZE_ONLY])
def test_agrees_at_full_size(name: str, form: str, tmp_path: Path) -> None:
    with open_subject(name, small=False) as opened:
        assert_agrees(opened, form, tmp_path)
