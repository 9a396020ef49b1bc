"""`python -m tf_adapter` is the command `tf-adapter`."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tf_adapter.__main__ import main


def test_version_names_the_framework_and_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("tf-adapter") and tf.__version__ in output and "target" in output


def test_an_unknown_command_is_refused_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["versions"]) == 2
    said = capsys.readouterr().err
    assert "Usage: tf-adapter" in said and "versions" in said
