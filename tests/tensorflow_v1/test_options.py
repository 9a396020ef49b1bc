"""Options that cannot be are refused, with what can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.tensorflow_v1.support import has_keras2


def test_wrong_options_are_named(run_v1: Callable[..., Any]) -> None:
    found = run_v1("options.py")
    assert "no option 'precison_mode'. Remedy: did you mean precision_mode" in found["unknown"]
    assert "Valid names: HCCL_algorithm, " in found["unknown"]
    assert "iterations_per_loop=4 cannot be used with mix_compile_mode" in found["mixed_repeats"]
    assert "profiling_options cannot be '{'" in found["profile"] and "use JSON" in found["profile"]
    assert 'parameter_map["precision_mode"] takes .s' in found["type"] and "it was given ." in found["type"]
    assert "no_such_mode" in found["value"]
    assert "iterations_per_loop=4 cannot be used with mix_compile_mode" in found["mixed_loop"]
    assert found["fine"] == "no error"
    assert "npu_cube_ops.deformable_conv2d is not provided" in found["lacking"]
    assert "at least 1" in found["scale"]
    assert "keep_prob must be above 0" in found["keep_prob"]
    wanted = "no option 'save_checkpoint_step'" if has_keras2() else "needs tf.estimator"
    assert wanted in found["run_config"]
    assert not has_keras2() or "iterations_per_loop, " in found["run_config"].split("Valid names")[1]


def test_names_that_ported_scripts_use_are_there_or_say_what_to_do(run_v1: Callable[..., Any]) -> None:
    lacking = run_v1("names.py")
    assert "is not provided: write it with" in lacking.pop("npu_cube_ops.deformable_conv2d")
    modules = [f"npu_bridge.estimator.npu.{name}" for name in ("keras_to_npu", "npu_config", "npu_estimator")]
    without = [] if has_keras2() else ["keras_to_npu.model_to_npu_estimator", *modules]
    assert sorted(lacking) == without
    assert all("use TensorFlow 2.15" in text for text in lacking.values())


def test_the_command_line_says_how_it_is_used() -> None:
    from npu_bridge.__main__ import main

    assert main([]) == 2
    assert main(["run", "no_such_script.py"]) == 2


def test_every_form_of_import_gives_version_1_names_to_the_program_only(run_v1: Callable[..., Any]) -> None:
    found = run_v1("imports.py")
    assert found.pop("line of an error") == 3
    assert found.pop("bytecode") == []
    assert found == dict.fromkeys(found, True)
