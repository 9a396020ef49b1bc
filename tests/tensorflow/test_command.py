"""`python -m tf_adapter`: what it prints, and that it says how it is used."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tf_adapter.__main__ import main


def test_version_names_the_framework_and_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("tf-adapter") and tf.__version__ in output and "target" in output


@pytest.mark.parametrize("arguments", [[], ["--version", "more"], ["versions"]])
def test_anything_else_is_refused_with_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "usage: python -m tf_adapter --version" in capsys.readouterr().err
