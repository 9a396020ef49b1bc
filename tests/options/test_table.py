"""The table of options: every door is a view of it, errors are the same at all, keys are derived from it."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ge
import npu_runtime
from ge import atc_options
from ge.ops.custom import search
from ge.options import OptionError, UnknownOptionError, compile_options, document, table
from ge.options.table import DOORS, OPTIONS, from_environment, view
from ge.options.tree import Section
from ge.session import parse_options
from ge.target import NAMES, named
from npu_runtime import environment

ROOT = Path(__file__).parents[2]


def test_the_page_of_options_is_up_to_date() -> None:
    written = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert written == document.text(), "run python -m ge.options.document docs/options.md"


# -- keys --------------------------------------------------------------------------------------------------------

OTHER: dict[str, Any] = {
    "precision_mode": "force_fp32",
    "op_precision": {"MatMul": "force_fp32"},
    "implementation": "high_precision",
    "op_implementation": {"MatMul": "high_precision"},
    "quantise_activations": True,
    "disabled_passes": "dead_code",
    "input_shapes": {"x": (1, 2)},
    "output_nodes": ("y",),
    "signature": "other",
    "recompute": "off",
    "target": "portable",
    "opp_path": "operators",
}
NOT_DECIDING: dict[str, Any] = {"dump_stages": {"all"}, "dump_dir": "elsewhere", "progress": True}


def test_every_field_counts_in_the_fingerprint_unless_it_is_declared_not_to() -> None:
    plain = ge.CompileOptions()
    assert {f.name for f in dataclasses.fields(plain)} == OTHER.keys() | NOT_DECIDING.keys()
    seen = {plain.fingerprint()}
    for name, value in OTHER.items():
        key = replace(plain, **{name: value}).fingerprint()
        assert key not in seen, name
        seen.add(key)
    for name, value in NOT_DECIDING.items():
        assert replace(plain, **{name: value}).fingerprint() == plain.fingerprint(), name


def test_the_choices_of_a_target_are_all_that_exist() -> None:
    assert OPTIONS["target"].parser.choices.endswith(", ".join(NAMES))


def test_targets_that_differ_in_anything_have_different_keys() -> None:
    plain = named("portable")
    keys = {ge.CompileOptions(target=plain).fingerprint()}
    for field, value in {"isa": "avx2", "cores": 64, "cache_bytes": 1 << 20, "code": "avx2"}.items():
        keys.add(ge.CompileOptions(target=replace(plain, **{field: value})).fingerprint())
    assert len(keys) == 5


def test_the_order_of_names_is_not_part_of_the_key() -> None:
    one = ge.CompileOptions(op_precision={"A": "force_fp32", "B": "force_fp16"}, disabled_passes={"x", "y"})
    other = ge.CompileOptions(op_precision={"B": "force_fp16", "A": "force_fp32"}, disabled_passes={"y", "x"})
    assert one.fingerprint() == other.fingerprint()


def test_files_count_by_their_contents(tmp_path: Path) -> None:
    file = tmp_path / "modes.ini"
    keys = set()
    for mode in ("force_fp32", "force_fp16"):
        file.write_text(f"MatMul = {mode}\n")
        keys.add(compile_options({"op_precision_mode": file}).fingerprint())
    assert len(keys) == 2


# -- no side effects ---------------------------------------------------------------------------------------------


def test_constructing_options_changes_nothing(tmp_path: Path) -> None:
    roots, variables = search.roots(), dict(os.environ)
    options = ge.CompileOptions(opp_path=f"{tmp_path}{os.pathsep}{tmp_path / 'more'}")
    parse_options({"ge.opp_path": str(tmp_path)})
    assert options.opp_path == (tmp_path, tmp_path / "more")
    assert (search.roots(), dict(os.environ)) == (roots, variables)


# -- doors -------------------------------------------------------------------------------------------------------


def _set_in_npu_device(name: str, value: Any) -> None:
    pytest.importorskip("tensorflow")
    setattr(pytest.importorskip("npu_device").global_options(), name, value)


def _set_in_adapter(name: str, value: Any) -> None:
    pytest.importorskip("tensorflow")
    from tf_adapter.options import Options

    setattr(Options({}), name, value)


def _set_in_session(name: str, value: Any) -> None:
    pytest.importorskip("tensorflow")
    from npu_bridge.options import SessionOptions

    SessionOptions.read({name: value})


def _set_in_torchair(name: str, value: Any) -> None:
    places = [path for path, option in view("torchair").items() if option.name == name]
    section: Any = Section("torchair", "config")
    *groups, last = places[0].split(".")
    for group in groups:
        section = getattr(section, group)
    setattr(section, last, value)


SETTERS: dict[str, Callable[[str, Any], Any]] = {
    "ge": lambda name, value: parse_options({f"ge.{name}": value}),
    "atc": lambda name, value: atc_options.parse_arguments({name: value}, ()),
    "tf": _set_in_adapter,
    "npu_device": _set_in_npu_device,
    "v1": _set_in_session,
    "torchair": _set_in_torchair,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("precision_mode", "half"),
        ("op_select_implmode", "fast"),
        ("fusion_switch_file", "no/such/file"),
        ("recompute", "all"),
        ("enable_dump", "perhaps"),
        ("dump_mode", "both"),
        ("memory_limit", "much"),
    ],
)
def test_a_wrong_value_is_refused_with_the_same_words_at_every_door(door: str, name: str, value: str) -> None:
    places = [option for option in view(door).values() if option.name == name]
    if not places or (door == "npu_device" and name not in view(door)):
        pytest.skip("not an option of this door")
    with pytest.raises(OptionError) as refused:
        SETTERS[door](name, value)
    try:
        OPTIONS[name].parse(value)
    except OptionError as wanted:
        assert (refused.value.code, refused.value.remedy) == (wanted.code, wanted.remedy)
        assert refused.value.cause.endswith(wanted.cause.removeprefix(name))


@pytest.mark.parametrize("door", DOORS)
def test_an_unknown_name_is_refused_with_the_nearest(door: str) -> None:
    def set_unknown() -> None:
        if door == "torchair":
            Section("torchair", "config").ge_config.precison_mode = "x"
        else:
            SETTERS[door]("precison_mode", "x") if door != "atc" else atc_options.parse_arguments(
                {}, ["--precison_mode=x"]
            )

    with pytest.raises(
        UnknownOptionError, match=r"no option '(--)?precison_mode'.*did you mean (--)?precision_mode"
    ):
        set_unknown()


def test_a_wrong_variable_is_not_used_and_named_with_the_same_choices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "_told", set())
    with pytest.warns(
        environment.InvalidVariableWarning, match="NPU_PRECISION_MODE: 'half' is not used"
    ) as w:
        assert from_environment({"NPU_PRECISION_MODE": "half", "NPU_RECOMPUTE": "off"}) == {
            "recompute": "off"
        }
    assert OPTIONS["precision_mode"].parser.choices in str(w[0].message)


def test_the_environment_reaches_every_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_PRECISION_MODE", "force_fp32")
    assert ge.CompileOptions.from_environment().precision_mode is ge.PrecisionMode.FORCE_FP32
    assert parse_options({"ge.precision_mode": "force_fp16"}).precision_mode is ge.PrecisionMode.FORCE_FP16


def test_an_option_without_effect_says_why_once(caplog: pytest.LogCaptureFixture) -> None:
    table.tell_once.cache_clear()
    with caplog.at_level(logging.WARNING, "ge.options"):
        for _ in range(2):
            parse_options({"ge.exec.hcomParallel": "1"})
    assert [r.getMessage() for r in caplog.records] == [
        "option 'ge.exec.hcomParallel' has no effect: tasks run in one order, each on all cores; "
        "there are no queues to schedule"
    ]


def test_operators_named_for_an_implementation_leave_the_others_alone() -> None:
    given = {
        "op_select_implmode": ge.Implementation.PRECISE,
        "optypelist_for_implmode": frozenset({"MatMul"}),
    }
    options = compile_options(given)
    assert options.implementation is ge.Implementation.FAST
    assert options.op_implementation == {"MatMul": ge.Implementation.PRECISE}


def test_an_option_of_a_tree_is_reset_by_none() -> None:
    config: Any = Section("torchair", "config")
    config.ge_config.precision_mode = "force_fp16"
    config.ge_config.precision_mode = None
    assert config.ge_config.precision_mode == "must_keep_origin_dtype"
    assert list(config._given()) == []


def test_every_variable_of_an_option_is_known_to_the_runtime() -> None:
    of_options = {option.variable for option in OPTIONS.values() if option.variable}
    assert of_options - set(environment.VARIABLES) == set(environment.OF_OPTIONS)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("NPU_DISABLE_PASS", "NPU_DISABLE_PASSES"),
        ("NPU_THREADS", "NPU_NUM_THREADS"),
        ("NPU_PRECISON_MODE", "NPU_PRECISION_MODE"),
    ],
)
def test_a_misspelt_variable_is_named_as_the_runtime_starts(
    name: str, near: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.warns(
        environment.UnknownVariableWarning, match=f"^{name} has no effect; did you mean {near}.$"
    ):
        importlib.reload(npu_runtime)


@pytest.mark.parametrize("name", ["NPU_COLLECT_PATH", "NPU_HOST_IP", "NPU_OPP_LOG", "NPU_CONFORMANCE_SAMPLE"])
def test_variables_of_other_software_are_no_misspellings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        environment.check_spelling()
