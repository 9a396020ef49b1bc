"""atc: the command that compiles model files to `.om` files."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ge.atc_options import (
    parse_extras,
    parse_names,
    parse_output_type,
    parse_shapes,
    parse_soc_version,
)
from ge.errors import GeError, UnsupportedOperatorsError

if TYPE_CHECKING:
    from ge.gears import Gears
    from ge.offline import Progress, Request, Result

__all__ = ["app", "main"]

SUCCESS, FAILURE = 0, 255
COMPILE, TO_JSON, CHECK_ONLY, SHOW = 0, 1, 3, 6
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "null": 60}
_UsageError: Any = typer.BadParameter.__mro__[1]  # the parser's own errors, wherever typer keeps them
_FRAMEWORKS = {1: "AIR", 3: "TENSORFLOW", 5: "ONNX"}

app = typer.Typer(add_completion=False, rich_markup_mode="rich")
errors = Console(stderr=True, highlight=False)


def _option(name: str, help: str, panel: str, metavar: str = "TEXT") -> Any:
    return typer.Option(f"--{name}", help=help, rich_help_panel=panel, metavar=metavar, show_default=False)


_BASIC, _SHAPES, _NUMBERS, _OTHER = "Model", "Inputs and outputs", "Precision and fusion", "Other"


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def atc(
    ctx: typer.Context,
    model: Annotated[
        str, _option("model", "Model file (.onnx, .pb, .air) or SavedModel folder", _BASIC, "PATH")
    ] = "",
    output: Annotated[
        str, _option("output", "File to write, .om is added; a folder with --singleop", _BASIC, "PATH")
    ] = "",
    framework: Annotated[
        int | None,
        _option(
            "framework", "1 AIR, 3 TensorFlow, 5 ONNX; found from the file when left out", _BASIC, "NUMBER"
        ),
    ] = None,
    soc_version: Annotated[
        str,
        _option(
            "soc_version",
            "cpu, portable, avx2, avx512, avx512_bf16, amx, or an Ascend name (means cpu)",
            _BASIC,
            "NAME",
        ),
    ] = "cpu",
    mode: Annotated[
        int,
        _option(
            "mode", "0 compile, 1 write --json, 3 check only, 6 show what an .om file is", _BASIC, "NUMBER"
        ),
    ] = COMPILE,
    om: Annotated[str, _option("om", "Model file for --mode=1 and 6", _BASIC, "PATH")] = "",
    json_file: Annotated[str, _option("json", "File to write with --mode=1", _BASIC, "PATH")] = "",
    singleop: Annotated[
        str, _option("singleop", "Description of single operators to compile (JSON)", _BASIC, "PATH")
    ] = "",
    input_shape: Annotated[
        str, _option("input_shape", 'Shapes: "x:1,3,224,224;y:1,10"; -1 where gears vary', _SHAPES)
    ] = "",
    input_format: Annotated[
        str, _option("input_format", "NCHW, NHWC or ND: how images lie", _SHAPES, "NAME")
    ] = "",
    dynamic_batch_size: Annotated[
        str, _option("dynamic_batch_size", 'Batches to compile for: "1,4,8"', _SHAPES)
    ] = "",
    dynamic_image_size: Annotated[
        str, _option("dynamic_image_size", 'Image sizes to compile for: "224,224;448,448"', _SHAPES)
    ] = "",
    dynamic_dims: Annotated[
        str, _option("dynamic_dims", 'All dimensions of -1, a set a gear: "1,128;8,128"', _SHAPES)
    ] = "",
    out_nodes: Annotated[str, _option("out_nodes", 'What to compute: "node:0;other:1"', _SHAPES)] = "",
    output_type: Annotated[
        str, _option("output_type", "FP32, FP16, UINT8 or INT8 of all outputs, or 'name:0:FP16'", _SHAPES)
    ] = "",
    input_fp16_nodes: Annotated[
        str, _option("input_fp16_nodes", 'Inputs that take float16: "x;y"', _SHAPES)
    ] = "",
    insert_op_conf: Annotated[
        str, _option("insert_op_conf", "AIPP configuration: images as bytes", _SHAPES, "PATH")
    ] = "",
    precision_mode: Annotated[
        str,
        _option(
            "precision_mode",
            "must_keep_origin_dtype, allow_mix_precision_bf16, force_fp16, …",
            _NUMBERS,
            "NAME",
        ),
    ] = "",
    precision_mode_v2: Annotated[
        str, _option("precision_mode_v2", "origin, fp16, mixed_float16, mixed_bfloat16, …", _NUMBERS, "NAME")
    ] = "",
    op_precision_mode: Annotated[
        str, _option("op_precision_mode", "Precision by operator (ini file)", _NUMBERS, "PATH")
    ] = "",
    op_select_implmode: Annotated[
        str,
        _option(
            "op_select_implmode",
            "high_performance, or high_precision: no arithmetic saved at the cost of rounding errors",
            _NUMBERS,
            "NAME",
        ),
    ] = "",
    optypelist_for_implmode: Annotated[
        str,
        _option("optypelist_for_implmode", 'Operators that it is for: "Conv2D,MatMul"', _NUMBERS, "NAMES"),
    ] = "",
    keep_dtype: Annotated[
        str, _option("keep_dtype", "Nodes that keep their precision, one a line", _NUMBERS, "PATH")
    ] = "",
    modify_mixlist: Annotated[
        str, _option("modify_mixlist", "Changed lists of mixed precision (JSON)", _NUMBERS, "PATH")
    ] = "",
    fusion_switch_file: Annotated[
        str, _option("fusion_switch_file", "Passes to switch off (JSON)", _NUMBERS, "PATH")
    ] = "",
    opp_path: Annotated[
        str, _option("opp_path", "Directories with custom operators, separated by ':'", _OTHER, "PATH")
    ] = "",
    log: Annotated[str, _option("log", "debug, info, warning, error or null", _OTHER, "LEVEL")] = "",
    display_model_info: Annotated[
        str, _option("display_model_info", "1: show what was compiled", _OTHER, "0|1")
    ] = "0",
    debug_dir: Annotated[
        str, _option("debug_dir", "Write the graph after every stage there", _OTHER, "PATH")
    ] = "",
    profile: Annotated[
        str,
        _option("profile", "Run the model on zeros and write the trace of its tasks there", _OTHER, "PATH"),
    ] = "",
    unsupported_report: Annotated[
        str, _option("unsupported_report", "Write operators without support there (JSON)", _OTHER, "PATH")
    ] = "",
    input_shape_range: Annotated[str, typer.Option("--input_shape_range", hidden=True)] = "",
) -> None:
    """Compile a model file for the NPU.

    [dim]atc --model=resnet50.onnx --output=resnet50 --soc_version=cpu[/dim]
    """
    extras = parse_extras(ctx.args, [p.opts[0].lstrip("-") for p in ctx.command.params])
    if extras.without_effect:
        names = ", ".join("--" + name for name in extras.without_effect)
        _note(f"no effect on this device: {names}")
    if input_shape_range:
        raise GeError(
            "E12008", "--input_shape_range is not supported", remedy="use gears: --dynamic_dims and others"
        )
    _set_log(log)
    arguments = dict(ctx.params)
    if singleop:
        _compile_singleops(arguments)
    elif mode == SHOW:
        _show(Path(_required(om or model, "om")))
    elif mode == TO_JSON:
        _write_json(arguments)
    elif mode in (COMPILE, CHECK_ONLY):
        _compile(arguments)
    else:
        raise GeError("E12004", f"mode {mode} is unknown", remedy="use 0, 1, 3 or 6")


# -- what the command does --------------------------------------------------------------------------


def _compile(arguments: dict[str, Any]) -> None:
    check_only = arguments["mode"] == CHECK_ONLY
    _required(arguments["model"], "model")
    if not check_only:
        _required(arguments["output"], "output")
    with _progress() as progress:
        progress("starting", 0, 1)
        from ge import offline

        request = _request(arguments)
        if check_only:
            offline.parse(request, request.options(request.shapes))
            result = None
        else:
            result = offline.compile_model(request, progress)
    if result is None:
        print(f"ATC done: {request.model.name} can be compiled, nothing is written")
        return
    for note in result.notes:
        _note(note)
    _success(result)
    if arguments["display_model_info"] == "1":
        _show(result.path)
    if arguments["profile"]:
        _profile(result.path, Path(arguments["profile"]))


def _profile(model: Path, target: Path) -> None:
    """Time the tasks of what was compiled; a model with gears at its first one."""
    from ge.model import om
    from ge.model.model import Model
    from ge.profile import table, trace

    loaded = om.load(model)
    tasks = (loaded if isinstance(loaded, Model) else loaded.gear(0)).profile()
    print(table(tasks))
    print(f"ATC done: {trace(target, tasks, model.stem)} written, to be opened with https://ui.perfetto.dev")


def _compile_singleops(arguments: dict[str, Any]) -> None:
    output = Path(_required(arguments["output"], "output"))
    with _progress() as progress:
        from ge import offline

        target, _ = parse_soc_version(arguments["soc_version"])
        results = offline.compile_operators(
            Path(arguments["singleop"]), output, _precision(arguments), target, progress
        )
    for result in results:
        _success(result)


def _write_json(arguments: dict[str, Any]) -> None:
    from ge import offline

    source = Path(_required(arguments["om"] or arguments["model"], "om"))
    target = Path(_required(arguments["json_file"], "json"))
    request = None if source.suffix == ".om" else _request({**arguments, "model": str(source)})
    path = offline.to_json(source, target, request)
    print(f"ATC done: {path} written ({_size(path.stat().st_size)})")


def _show(path: Path) -> None:
    from ge import offline

    info = offline.describe(path)
    console = Console(highlight=False)
    table = Table(title=path.name, show_header=False)
    for side in ("inputs", "outputs"):
        for port in info[side]:
            shape = ",".join(map(str, port["shape"]))
            table.add_row(side[:-1], f"{port['name']}: {port['dtype']}[{shape}] {port['format']}")
    if info["gears"]:
        choices = "; ".join(",".join(map(str, c)) for c in info["gears"]["choices"])
        table.add_row("gears", f"{info['gears']['kind']}: {choices}")
    table.add_row("tasks", f"{info['tasks']} ({', '.join(f'{n} {k}' for k, n in info['engines'].items())})")
    table.add_row("kernels", str(info["kernels"]))
    table.add_row("work", f"{info['gflop']:.3f} GFLOP")
    table.add_row("memory", f"{_size(info['arena_bytes'])} arena, {_size(info['weight_bytes'])} weights")
    properties = info["properties"]
    for name in ("source", "framework", "soc_version", "target"):
        if properties.get(name):
            table.add_row(name, str(properties[name]))
    table.add_row(
        "versions", ", ".join(f"{k} {v}" for k, v in dict(properties.get("versions") or {}).items())
    )
    table.add_row("sealed", "by this user" if info["sealed_by_this_user"] else "not by this user")
    console.print(table)


def _request(arguments: dict[str, Any]) -> Request:
    """The command line as a request."""
    from ge.offline import Request
    from ge.parsers.files import NAMES as _NAMES
    from ge.parsers.files import Framework, content_of

    number = arguments["framework"]
    if number is not None and number not in _FRAMEWORKS:
        name = " (Caffe)" if number == 0 else ""
        found = content_of(Path(arguments["model"]))
        hint = (
            f"{arguments['model']} looks like {_NAMES[found]}: use --framework={found.value}; "
            if found
            else ""
        )
        raise GeError(
            "E12003",
            f"framework {number}{name} is not supported",
            remedy=f"{hint}the numbers are 1 AIR, 3 TensorFlow and 5 ONNX; without one it is found from the file",
        )
    if arguments["input_format"].upper() not in ("", "NCHW", "NHWC", "ND", "NCDHW", "NDHWC"):
        raise GeError(
            "E12004", f"input_format '{arguments['input_format']}' is unknown", remedy="use NCHW or NHWC"
        )
    target, note = parse_soc_version(arguments["soc_version"])
    if note:
        _note(note)
    shapes = parse_shapes(arguments["input_shape"])
    return Request(
        model=Path(arguments["model"]),
        output=Path(arguments["output"] or "model"),
        framework=None if number is None else Framework[_FRAMEWORKS[number]],
        shapes=shapes,
        gears=_gears(arguments, shapes),
        input_format=arguments["input_format"].upper(),
        out_nodes=parse_names(arguments["out_nodes"]),
        output_types=parse_output_type(arguments["output_type"]),
        half_inputs=parse_names(arguments["input_fp16_nodes"]),
        precision_mode=_precision(arguments),
        aipp_file=_path(arguments["insert_op_conf"]),
        fusion_switch_file=_path(arguments["fusion_switch_file"]),
        op_precision_file=_path(arguments["op_precision_mode"]),
        op_select_implmode=arguments["op_select_implmode"],
        optypelist_for_implmode=arguments["optypelist_for_implmode"],
        keep_dtype_file=_path(arguments["keep_dtype"]),
        mixlist_file=_path(arguments["modify_mixlist"]),
        target=target,
        soc_version=arguments["soc_version"],
        debug_dir=_path(arguments["debug_dir"]),
        opp_path=tuple(Path(p) for p in arguments["opp_path"].split(os.pathsep) if p),
    )


def _gears(arguments: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> Gears | None:
    from ge.gears import GearKind, Gears

    kinds = {
        "dynamic_batch_size": GearKind.BATCH,
        "dynamic_image_size": GearKind.IMAGE,
        "dynamic_dims": GearKind.DIMS,
    }
    given = [name for name in kinds if arguments[name]]
    if len(given) > 1:
        raise GeError(
            "E12005", f"--{given[0]} and --{given[1]} exclude each other", remedy="use --dynamic_dims"
        )
    return Gears.parse(kinds[given[0]], arguments[given[0]].strip("\"' "), shapes) if given else None


def _precision(arguments: dict[str, Any]) -> Any:
    from ge.options import PrecisionMode

    text = arguments["precision_mode_v2"] or arguments["precision_mode"]
    return PrecisionMode.parse(text) if text else PrecisionMode.KEEP


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _required(value: str, name: str) -> str:
    if not value:
        raise GeError("E12002", f"--{name} is missing", remedy="atc --help shows an example")
    return value


def _set_log(level: str) -> None:
    if level and level not in _LEVELS:
        raise GeError("E12004", f"log level '{level}' is unknown", remedy=f"use {', '.join(_LEVELS)}")
    if level:
        logging.basicConfig(level=_LEVELS[level], format="[%(levelname)s] %(name)s: %(message)s")


# -- what the user sees -----------------------------------------------------------------------------


def _size(nbytes: int) -> str:
    """Bytes in words.

    >>> _size(1536), _size(25 * 1024 * 1024)
    ('1.5 KB', '25.0 MB')
    """
    value, unit = float(nbytes), "B"
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 1024 or unit == "TB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _success(result: Result) -> None:
    print(f"ATC done: {result.path} written ({_size(result.nbytes)}, {result.seconds:.1f} s)")


def _note(text: str) -> None:
    errors.print(f"note: {text}", style="dim", soft_wrap=True)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A progress bar on a terminal, nothing elsewhere."""
    if not errors.is_terminal:
        yield lambda what, done, total: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=errors, transient=True
    ) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _report(error: GeError, report: str) -> None:
    """The code, the cause and the remedy; operators without support as a table, and as JSON where asked."""
    errors.print(f"ATC failed [{error.code}]", style="bold red")
    if not isinstance(error, UnsupportedOperatorsError):
        errors.print(str(error).removeprefix(f"[{error.code}] "), soft_wrap=True, markup=False)
        return
    table = Table(title="Operators without support", title_justify="left")
    table.add_column("operator", no_wrap=True)
    for column in ("count", "first nodes", "reason", "remedy"):
        table.add_column(column, overflow="fold")
    for item in error.items:
        table.add_row(item.operator, str(item.count), ", ".join(item.nodes[:3]), item.reason, item.remedy)
    errors.print(table)
    if report:
        Path(report).write_text(json.dumps(error.as_json(), indent=1, ensure_ascii=False) + "\n")
        _note(f"written to {report}")


def _report_path(arguments: list[str]) -> str:
    """The value of --unsupported_report on a command line."""
    for index, word in enumerate(arguments):
        name, _, value = word.partition("=")
        if name == "--unsupported_report":
            return value or (arguments[index + 1] if index + 1 < len(arguments) else "")
    return ""


def run(arguments: list[str]) -> int:
    """Run the command; returns the exit status, 0 or 255.

    >>> run(["--mode=9"])
    255
    """
    try:
        app(arguments, prog_name="atc", standalone_mode=False)
    except GeError as error:
        _report(error, _report_path(arguments))
    except typer.Exit as stop:
        return stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        errors.print("ATC stopped", style="bold red")
    except _UsageError as error:
        _report(GeError("E12004", error.format_message(), remedy="atc --help lists the options"), "")
    except MemoryError:
        _report(GeError("E10030", "memory is exhausted", remedy="a smaller batch or model"), "")
    else:
        return SUCCESS
    return FAILURE


def main() -> None:
    """The `atc` command."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
