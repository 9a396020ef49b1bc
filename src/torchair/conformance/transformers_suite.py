"""Hugging Face transformers' model tests, every model compiled by torch.compile(backend="npu")."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

from ge.conformance.suites.suite import MissingSuiteError, Side, Suite

__all__ = ["ARCHITECTURES", "VARIABLE", "find"]

VARIABLE = "TRANSFORMERS_SOURCE"
ARCHITECTURES = (
    *(
        "bert",
        "distilbert",
        "roberta",
        "albert",
        "electra",
        "deberta_v2",
        "mpnet",
        "modernbert",
        "roformer",
    ),
    *(
        "gpt2",
        "gpt_neox",
        "opt",
        "bloom",
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma",
        "gemma2",
        "phi",
        "mixtral",
    ),
    *("t5", "bart", "whisper", "wav2vec2", "clip", "vit", "swin", "convnext", "mamba"),
)


def find(source: Path | None) -> Suite:
    """The tests of a checkout of the installed version."""
    try:
        version = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingSuiteError(
            "pip install transformers datasets parameterized pytest-xdist pillow timeout-decorator"
        ) from error
    named = source or Path(os.environ.get(VARIABLE, ""))
    files = tuple(
        f"tests/models/{name}/test_modeling_{name}.py"
        for name in ARCHITECTURES
        if (named / "tests" / "models" / name / f"test_modeling_{name}.py").is_file()
    )
    if str(named) == "." or not files:
        raise MissingSuiteError(
            f"the tests of transformers are in its repository, not in its packages, and "
            f"{'no folder is named' if str(named) == '.' else f'{named} has none of them'}: "
            f"git clone --depth 1 --branch v{version} https://github.com/huggingface/transformers, then "
            f"--source transformers or {VARIABLE}=transformers"
        )
    # Tests that need weights from the hub, a GPU or several processes are skipped by the suite itself.
    path = os.pathsep.join(filter(None, (str(named.resolve()), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_TEST_DEVICE": "cpu"}
    return Suite(
        name="transformers",
        version=version,
        root=named.resolve(),
        files=files,
        cpu=Side(environment),
        npu=Side(environment, plugins=("torchair.conformance.compiled_models",)),
        files_per_process=6,
        groups=r"^tests/models/([^/]+)/",
    )
