"""The command `hub`: which cases run, what is printed, and the report that a later run continues."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from torchair.conformance.hub import diffusion, images, recipes, text
from torchair.conformance.hub.cases import Case, Found, run, summary

__all__ = ["FAMILIES", "hub"]

FAMILIES: dict[str, Callable[[], Iterator[Case]]] = {
    "decoders": text.decoders,
    "encoders": text.encoders,
    "translators": text.translators,
    "senses": text.senses,
    "generation": text.generation,
    "images": images.cases,
    "diffusion": diffusion.cases,
    "recipes": recipes.cases,
}


def hub(
    names: Annotated[
        list[str] | None, typer.Argument(help="networks; all of the families when none is named")
    ] = None,
    families: Annotated[str, typer.Option(help=f"of {', '.join(FAMILIES)}")] = ",".join(FAMILIES),
    recipes: Annotated[str, typer.Option(help="only these, separated by semicolons")] = "",
    backend: Annotated[str, typer.Option(help="of torch.compile, to hold others against")] = "npu",
    report: Annotated[
        Path | None,
        typer.Option(help="outcomes, one in JSON a line; a later run continues where it ends"),
    ] = None,
) -> None:
    """Compile networks and recipes of transformers, timm, diffusers, PEFT, accelerate and Lightning; compare answers.

    Networks are built from their configurations, tiny ones where there is a choice, with random weights.
    """
    warnings.simplefilter("ignore")
    torch._dynamo.config.recompile_limit = 32
    unknown = set(families.split(",")) - set(FAMILIES)
    if unknown:
        raise typer.BadParameter(f"no family {', '.join(sorted(unknown))}; there are {', '.join(FAMILIES)}")
    wanted = {r.strip() for r in recipes.split(";") if r.strip()}
    found = _kept(report)
    known = {(f.family, f.network, f.recipe) for f in found}
    for case in (c for family in families.split(",") for c in FAMILIES[family]()):
        if (names and case.network not in names) or (wanted and case.recipe not in wanted):
            continue
        if (case.family, case.network, case.recipe) in known:
            continue
        last = run(case, backend)
        found.append(last)
        _keep(report, last)
        if last.outcome != "right":
            said = last.why.replace("\n", " ")[:300]
            print(f"{last.family}, {last.network}, {last.recipe}: {last.outcome}: {said}", flush=True)
    print(summary(found))
    if any(f.outcome in ("wrong", "crash", "fallback") for f in found):
        raise typer.Exit(1)


def _kept(report: Path | None) -> list[Found]:
    if report is None or not report.exists():
        return []
    return [Found(**json.loads(line)) for line in report.read_text().splitlines()]


def _keep(report: Path | None, found: Found) -> None:
    if report is not None:
        with report.open("a") as file:
            print(json.dumps(asdict(found)), file=file)
