"""Programs of `paddle.jit.to_static` in the form that the parser reads."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import paddle

from ge.errors import GeError
from ge.parsers.paddle.program import Block, Port, Program, read

__all__ = ["Written", "from_pir"]


@dataclass(frozen=True)
class Written:
    """A program and PaddlePaddle's text of it."""

    program: Program
    text: str

    @cached_property
    def operations(self) -> list[dict[str, Any]]:
        """The text of each operation of the outermost block."""
        (region,) = json.loads(self.text)["program"]["regions"]
        return list(region["blocks"][0]["ops"])


def from_pir(program: Any, name: str) -> Written:
    """Convert a program in memory from PaddlePaddle's text; named arguments are matched operand by operand."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.json"
        paddle.base.core.serialize_pir_program(program, str(path), 0, True, False, True)
        text = path.read_text()
    made = read(text, name)
    return Written(Program(name, made.block, {}, _arguments(program.global_block(), made.block)), text)


def _arguments(block: Any, read_block: Block) -> dict[str, Port]:
    """The named arguments of a block with their numbers in the text."""
    known = dict(block.kwargs())
    if not known:
        return {}
    found: dict[str, Port] = {}
    operations = list(block.ops)
    if len(operations) != len(read_block.operations):
        raise GeError("E10022", "PaddlePaddle wrote another number of operations than the program has")
    for operation, written in zip(operations, read_block.operations, strict=True):
        for operand, number in zip(operation.operands_source(), written.operands, strict=True):
            if number < 0:
                name = next(n for n, value in known.items() if value.is_same(operand))
                shape = tuple(int(d) for d in operand.shape)
                found[name] = Port(number, shape, str(operand.dtype).rpartition(".")[2])
    return found
