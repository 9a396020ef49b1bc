"""One check from beginning to end: the runs, the report, the files."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ge.tensor_dump import NAMES
from npu_tools.check import compare
from npu_tools.check.assemble import assemble, losses_of, speed
from npu_tools.check.judge import LOSS_ERROR, judge, loss_error
from npu_tools.check.largest import Trial, search
from npu_tools.check.page import render
from npu_tools.check.processes import Finished, run_child
from npu_tools.check.request import Request
from npu_tools.check.rules import Rule, broken
from npu_tools.check.scratch import Scratch
from npu_tools.check.subject import Subject

__all__ = ["Check", "Settings"]

_TRIAL_STEPS = 2  # of a script whose step is then tried with another batch
_SPREAD = "tf.distribute.MirroredStrategy or DistributedDataParallel spreads a step over several"


@dataclass(frozen=True)
class Settings:
    """Options and limits of a check."""

    steps: int = 20
    seconds: float = 120.0
    seed: int = 0
    layers: bool = False
    modes: tuple[str, ...] = ("must_keep_origin_dtype", "allow_mix_precision_bf16", "force_fp16")
    mixlist: Path | None = None
    keep: int = 0
    dump: Path | None = None
    npus: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    in_place: bool = False
    older: Path | None = None
    rules: tuple[Rule, ...] = ()


Progress = Callable[[str, str, int, int], None]  # run, stage, steps done, total steps


class Check:
    """A check of one subject. `run` returns the report, even if interrupted."""

    def __init__(self, subject: Subject, settings: Settings, progress: Progress = lambda *_: None) -> None:
        self.subject, self.settings, self.progress = subject, settings, progress
        self.finished: dict[str, Finished] = {}
        self.scaling: list[dict[str, Any]] = []
        self.again: list[float] = []
        self.trial: Trial | None = None
        self.dumped: dict[str, Any] = {}
        self.complete = True

    def run(self) -> dict[str, Any]:
        """Run all parts and evaluate them."""
        older = None if self.settings.older is None else compare.load(self.settings.older)
        began = time.time()
        base = Path(tempfile.mkdtemp(prefix="tf-adapter-check-"))
        try:
            self._runs(base)
            self._dump(base)
            self._largest(base)
            self._scale(base)
            self._unstable(base)
        except KeyboardInterrupt as interruption:
            self.complete = False
            if interruption.args:
                partial: Finished = interruption.args[0]
                self.finished.setdefault(partial.record.get("side", "plain"), partial)
        finally:
            self._bring(base)
            shutil.rmtree(base, ignore_errors=True)
        report = self._report(began)
        if older is not None:
            report["changes"] = compare.changes(older, report)
        report["broken_rules"] = broken(report, list(self.settings.rules))
        return report

    def _runs(self, base: Path) -> None:
        for side in ("plain", "npu"):
            self.finished[side] = self._run(base, side, {})

    def _run(
        self,
        base: Path,
        side: str,
        variables: dict[str, str],
        name: str = "",
        other: bool = False,
        trial: int = 0,
        dumps: bool = False,
    ) -> Finished:
        settings, label = self.settings, name or side
        place = self._place(base / label)
        request = Request(
            side=side,
            kind=self.subject.kind,
            framework=self.subject.framework,
            path=str(place.script),
            arguments=self.subject.arguments,
            roots=place.roots,
            result=str(base / label / "result"),
            steps=min(_TRIAL_STEPS, settings.steps) if trial else settings.steps,
            seconds=settings.seconds,
            seed=settings.seed,
            brief=bool(name),
            other_kernels=other,
            layers=settings.layers and not name,
            modes=settings.modes,
            mixlist="" if settings.mixlist is None or name else str(base / "mixlist.json"),
            keep=settings.keep,
            dump="" if settings.dump is None or name else str(base / "dump"),
            tolerance=settings.limits.get("error", 0.01),
            batches=settings.batches,
            shapes=dict(settings.shapes),
            dumps=dumps,
            trial=trial,
        )
        self.progress(label, "steps", 0, settings.steps)
        return run_child(
            request,
            base / label / "result",
            place.folder,
            _environment() | variables,
            lambda phase, done, total: self.progress(label, phase, done, total),
        )

    def _place(self, base: Path) -> Scratch:
        path = self.subject.path.resolve()
        if not self.subject.is_script:
            base.mkdir(parents=True, exist_ok=True)
            return Scratch(base, path, ())
        if self.settings.in_place:
            return Scratch.in_place(Path.cwd(), path)
        return Scratch.mirror(base, Path.cwd(), path)

    def _dump(self, base: Path) -> None:
        """Repeat the NPU run if the script requests dumps or overflow detection, and let it write them."""
        asked = self.finished["npu"].record.get("asked", [])
        if any(name in NAMES for name in asked):
            done = self._run(base, "npu", {}, "dump", dumps=True)
            self.dumped = {"asked": asked, "overflows": [], "tensors": [], **done.record.get("dump", {})}

    def _largest(self, base: Path) -> None:
        """Try the extrapolated largest batch, each trial in a separate process."""

        def run(batch: int) -> dict[str, Any]:
            done = self._run(base, "npu", {}, f"batch of {batch}", trial=batch)
            return done.record.get("trial") or {"refused": done.record["error"]["message"][:300]}

        self.trial = search(self.finished["npu"].record, run)

    def _scale(self, base: Path) -> None:
        """Repeat the NPU run for each number of NPUs; one NPU is the baseline."""
        first: float | None = None
        several = int(os.environ.get("NPU_DEVICE_COUNT") or 1)
        asked = self.settings.npus or ((1, several) if several > 1 else ())
        for count in asked if self.subject.is_script else ():
            done = self._run(base, "npu", {"NPU_DEVICE_COUNT": str(count)}, f"{count} NPUs")
            step = speed(done.record).get("step_seconds")
            first = step if first is None else first
            row = {"npus": count, "step_seconds": step, "speedup": first / step if first and step else None}
            used = done.record.get("npus_used", 0)
            if done.record.get("error"):
                row["note"] = done.record["error"]["message"][:200]
            elif 0 < used < count:
                row |= {"speedup": None, "note": f"the script uses {used} of {count} NPUs: {_SPREAD}"}
            self.scaling.append(row)

    def _unstable(self, base: Path) -> None:
        """If the loss curves differ, repeat the plain run with other kernels to measure the training's stability."""
        losses = {side: losses_of(done.record) for side, done in self.finished.items()}
        apart = loss_error(losses["plain"], losses["npu"])
        if apart is not None and not apart <= LOSS_ERROR and self.subject.is_script:
            self.again = losses_of(self._run(base, "plain", {}, "other kernels", other=True).record)

    def _bring(self, base: Path) -> None:
        """Copy the requested files to their destinations."""
        made = base / "mixlist.json"
        if self.settings.mixlist is not None and made.is_file():
            shutil.copy2(made, self.settings.mixlist)
        if self.settings.dump is not None and (base / "dump").is_dir():
            shutil.copytree(base / "dump", self.settings.dump, dirs_exist_ok=True)

    def _report(self, began: float) -> dict[str, Any]:
        from npu_tools.check.facts import facts, faults

        subject = self.subject
        described = {
            "name": subject.path.name,
            "kind": subject.kind,
            "framework": subject.framework,
            "arguments": list(subject.arguments),
        }
        report = assemble(
            described,
            facts(),
            {side: done.record for side, done in self.finished.items()},
            {side: done.outputs for side, done in self.finished.items()},
            {
                "started": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began)),
                "seconds": time.time() - began,
                "complete": self.complete,
                "scaling": self.scaling,
                "dump": self.dumped,
                "other_losses": self.again,
                "environment_findings": faults(),
                "printed": {side: done.printed for side, done in self.finished.items()},
            },
        )
        report["largest_batch"] = None if self.trial is None else self.trial.largest
        report["batch_trial"] = {} if self.trial is None else self.trial.data()
        judge(report, self.settings.limits, subject.path if subject.is_script else None)
        return report


def _environment() -> dict[str, str]:
    """The environment of the runs: quiet, and without files beside the script's sources."""
    return (
        {"TF_CPP_MIN_LOG_LEVEL": "2", "ABSL_MIN_LOG_LEVEL": "2"}
        | dict(os.environ)
        | {"PYTHONDONTWRITEBYTECODE": "1"}
    )


def write(report: dict[str, Any], page: Path) -> tuple[Path, Path]:
    """Write a report as HTML, and as JSON beside it."""
    data = page.with_suffix(".json")
    page.parent.mkdir(parents=True, exist_ok=True)
    report["json"] = data.name
    data.write_text(json.dumps(_plain(report), indent=1, allow_nan=False))
    page.write_text(render(report))
    return page, data


def _plain(value: Any) -> Any:
    """JSON data: non-finite numbers become strings."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
