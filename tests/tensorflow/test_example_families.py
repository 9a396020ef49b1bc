"""Families of examples: what stays on the host does so for a reason that is told."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest

from tf_adapter.conformance.examples import FAMILIES, on_host

# Families with nodes on the host: operators that keep them there.
ON_HOST = {
    "text classification": {"Equal", "LookupTableFindV2", "RaggedTensorToTensor", "StaticRegexReplace"}
    | {"StringLower", "StringSplitV2"},
    "structured data": {"LookupTableFindV2"},
    "speech": {"ComplexAbs", "RFFT"},
}
QUICK = ("text classification", "text recognition", "speech", "masked language model", "graph network")


def _check(name: str) -> None:
    _, host = on_host(name)
    kept = {operator for operator, reason in host if "cost less than crossing" not in reason}
    assert kept == ON_HOST.get(name, set())
    assert all(reason for _, reason in host)


@pytest.mark.parametrize("name", QUICK)
def test_only_these_operators_stay_on_the_host(name: str) -> None:
    _check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - set(QUICK)))
def test_only_these_operators_stay_on_the_host_in_all_families(name: str) -> None:
    _check(name)
