"""python -m acl.conformance: programs in the way of the classic samples; dumps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import acl
from acl.conformance import PROGRAMS, run
from tests.acl.test_acl_aipp import dataset

OK = acl.ACL_SUCCESS


@pytest.mark.parametrize(
    "program", [p for programs in PROGRAMS.values() for p in programs], ids=lambda p: p.__name__
)
def test_a_program_in_the_way_of_the_samples(program: Callable[[Path], None]) -> None:
    pytest.importorskip("PIL.Image")
    assert run(program) == ""


def settings(folder: Path, **dump: object) -> str:
    path = folder / "acl.json"
    path.write_text(json.dumps({"dump": dump}))
    return str(path)


@pytest.mark.parametrize(("models", "written"), [(["other"], 0), ([], 1), (["dense"], 1)])
def test_dumps_that_init_asks_for(tmp_path: Path, model_file: str, models: list[str], written: int) -> None:
    asked = [{"model_name": name} for name in models]
    assert acl.init(settings(tmp_path, dump_path=str(tmp_path / "out"), dump_list=asked)) == OK
    try:
        assert acl.rt.set_device(0) == OK
        model, ret = acl.mdl.load_from_file(model_file)
        desc = acl.mdl.create_desc()
        assert ret == OK and acl.mdl.get_desc(desc, model) == OK
        sizes = [acl.mdl.get_input_size_by_index(desc, i) for i in range(acl.mdl.get_num_inputs(desc))]
        inputs = dataset(*(np.zeros(size, np.uint8) for size in sizes))
        outputs = dataset(np.zeros(acl.mdl.get_output_size_by_index(desc, 0), np.uint8))
        assert acl.mdl.execute(model, inputs, outputs) == OK
    finally:
        acl.rt.reset_device(0)
        acl.finalize()
    assert len(list(tmp_path.glob("out/**/output.*.npy"))) == written
    assert not list(tmp_path.glob("out/**/input.*.npy"))


def test_a_dump_that_cannot_be_is_a_code(device: int, tmp_path: Path) -> None:
    assert acl.mdl.set_dump("nothing.json") == acl.ACL_ERROR_UNINITIALIZE
    assert acl.mdl.finalize_dump() == acl.ACL_ERROR_UNINITIALIZE
    assert acl.mdl.init_dump() == OK and acl.mdl.init_dump() == acl.ACL_ERROR_REPEAT_INITIALIZE
    assert acl.mdl.set_dump(str(tmp_path / "nothing.json")) == acl.ACL_ERROR_INVALID_FILE
    (tmp_path / "bad.json").write_text("{")
    assert acl.mdl.set_dump(str(tmp_path / "bad.json")) == acl.ACL_ERROR_PARSE_FILE
    assert acl.mdl.set_dump(settings(tmp_path, dump_path="x", dump_mode="odd")) == acl.ACL_ERROR_INVALID_PARAM
    assert acl.mdl.finalize_dump() == OK
