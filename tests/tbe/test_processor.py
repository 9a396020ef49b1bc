"""The loops of a kernel follow the caches of the processor they are made for; its answers do not."""

from __future__ import annotations

import numpy as np
import pytest

import tbe
from tests.tbe.running import check

SMALL = tbe.Processor(l1_bytes=4096, last_bytes=1 << 15, wake_ns=1000.0, serial_elements=256)


def test_long_rows_are_cut_to_the_first_level_cache() -> None:
    x = tbe.placeholder((1 << 16,), "float32")
    chunks = {p: tbe.schedule([x], [x + 1.0], p).nests[0].chunk for p in (tbe.Processor(), SMALL)}
    assert chunks == {tbe.Processor(): 4096, SMALL: 512}
    assert tbe.schedule([x], [x + 1.0], SMALL).grain < tbe.schedule([x], [x + 1.0]).grain * 8


def test_large_outputs_are_those_that_no_cache_holds() -> None:
    x = tbe.placeholder((64, 1024), "float32")
    assert tbe.schedule([x], [x + 1.0], SMALL).streams and not tbe.schedule([x], [x + 1.0]).streams


def test_temporaries_take_room_in_proportion_to_the_first_level_cache() -> None:
    x = tbe.placeholder((4, 4096), "float32")
    shifted = tbe.unary("exp", x - tbe.reduce("max", x, 1, keepdims=True))
    outputs = [shifted / tbe.reduce("sum", shifted, 1, keepdims=True)]
    assert tbe.schedule([x], outputs).nests[0].temporaries
    assert not tbe.schedule([x], outputs, SMALL).nests[0].temporaries


def test_reductions_that_one_core_does_as_fast_as_all() -> None:
    x = tbe.placeholder((4096,), "float32")
    total = [tbe.reduce("sum", x, 0)]
    assert not tbe.in_two_steps(total, 2)[1] and tbe.in_two_steps(total, 2, processor=SMALL)[1]


@pytest.mark.parametrize("processor", [SMALL, tbe.Processor(l1_bytes=48 << 10, last_bytes=105 << 20)])
def test_answers_do_not_depend_on_the_caches(processor: tbe.Processor) -> None:
    x, y = tbe.placeholder((67, 1027), "float32"), tbe.placeholder((1027, 67), "float32")
    shifted = tbe.unary("exp", x - tbe.reduce("max", x, 1, keepdims=True))
    cases = [[x + tbe.transpose(y, (1, 0))], [shifted / tbe.reduce("sum", shifted, 1, keepdims=True)]]
    rng = np.random.default_rng(0)
    values = {t: rng.normal(size=t.shape).astype(np.float32) for t in (x, y)}
    for outputs in cases:
        inputs = [x, y] if outputs is cases[0] else [x]
        check(inputs, outputs, {t: values[t] for t in inputs}, processor=processor, rtol=1e-5)
