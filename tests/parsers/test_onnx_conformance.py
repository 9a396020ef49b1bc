"""ONNX's own backend tests: a quick sample always, all of them when slow tests are asked for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from ge.conformance.cases import collect
from ge.conformance.pool import run_cases
from ge.conformance.worker import check

SAMPLE = (
    r"^test_(abs|add|argmax_.*random|averagepool_2d_.*|basic_conv.*|batchnorm.*|cast_FLOAT_to_.*|clip"
    r"|convtranspose.*|einsum.*|gru.*|if|layer_normalization_2d.*|loop11|lstm.*|nonmaxsuppression_.*"
    r"|resize_.*cubic.*|scan.*|sce_mean|softmax_axis_1|topk)$"
)


def conformance(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "ge.conformance", "onnx", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def bad(report: dict[str, Any]) -> list[str]:
    return [
        f"{c['name']}: {c['reason']}" for c in report["cases"] if c["status"] in ("wrong", "crash", "error")
    ]


def test_a_sample_of_the_standards_own_tests() -> None:
    cases = [c for c in collect(["node"]) if re.search(SAMPLE, c.name)]
    report = {"cases": [{"name": c.name, **check(c, interpreted=False)} for c in cases]}
    assert not bad(report)
    assert sum(c["status"] == "pass" for c in report["cases"]) > 100


@pytest.mark.exhaustive
@pytest.mark.parametrize("arguments", [(), ("--interpret",)], ids=["compiled", "interpreted"])
def test_the_whole_suite(arguments: tuple[str, ...]) -> None:
    report = conformance("--kinds", "all", "--jobs", "2", *arguments)
    assert not bad(report)
    numeric = [c for c in report["cases"] if c["kind"] == "node" and c["numeric"]]
    assert sum(c["status"] == "pass" for c in numeric) / len(numeric) > 0.98


def test_a_process_that_hangs_or_dies_is_one_failed_case() -> None:
    cases = [c for c in collect(["simple"]) if c.name in ("test_sign_model", "test_shrink")]
    results: dict[str, str] = {}
    settings = {"kinds": ["simple"], "interpret": True, "strict": False}
    run_cases(cases, settings, 1, 1e-6, lambda case, result: results.update({case.name: result["status"]}))
    assert results == {"test_sign_model": "crash", "test_shrink": "crash"}
