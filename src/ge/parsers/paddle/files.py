"""Files of PaddlePaddle: a program (`model.json`, in version 2 `model.pdmodel`) and parameters (`model.pdiparams`)."""

from __future__ import annotations

import os
from pathlib import Path

from ge.errors import GeError
from ge.parsers.paddle import program_desc
from ge.parsers.paddle.program import Program, read, read_parameters

__all__ = ["load"]


def load(path: str | os.PathLike[str]) -> Program:
    """A program and its parameters, from the two files that `paddle.jit.save` writes."""
    source = Path(path)
    try:
        if source.suffix.lower() == ".pdmodel":
            program = program_desc.read(source.read_bytes(), source.name)
        else:
            program = read(source.read_text(), source.name)
    except (OSError, UnicodeDecodeError) as error:
        raise GeError("E10021", f"{source} cannot be read: {error}", remedy="check the path") from error
    parameters = [o.attrs for o in program.block.operations if o.type == "builtin.parameter"]
    names = [attrs["name"] for attrs in parameters if attrs["stored"]]
    if not names:
        return program
    stored = source.with_suffix(".pdiparams")
    try:
        content = stored.read_bytes()
    except OSError as error:
        raise GeError(
            "E10021",
            f"{source.name} has {len(names)} parameters, and {stored.name} cannot be read: {error.strerror}",
            remedy="keep both files that paddle.jit.save writes in one folder",
        ) from error
    return Program(program.name, program.block, read_parameters(content, names, stored.name))
