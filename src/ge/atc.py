"""atc: the command that compiles model files to `.om` files."""

from __future__ import annotations

import inspect
import json
import logging
import sys
from collections import ChainMap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ge.atc_options import effective_options, parse_arguments
from ge.errors import GeError, UnsupportedOperatorsError
from ge.options.table import view
from ge.options.values import is_foreign

if TYPE_CHECKING:
    from ge.gears import Gears
    from ge.offline import Progress, Request, Result

__all__ = ["app", "main"]

Arguments = ChainMap[str, Any]  # option values by name: those given, then the defaults

SUCCESS, FAILURE = 0, 255
TO_JSON, CHECK_ONLY, SHOW = 1, 3, 6
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "null": 60}
_UsageError: Any = typer.BadParameter.__mro__[1]  # the base class of the parser's own errors
_FRAMEWORKS = {1: "AIR", 3: "TENSORFLOW", 5: "ONNX", 6: "PADDLE", 7: "TFLITE"}

app = typer.Typer(add_completion=False, rich_markup_mode="rich")
errors = Console(stderr=True, highlight=False)


def atc(ctx: typer.Context, **texts: str) -> None:
    """Compile a model file for the NPU.

    [dim]atc --model=resnet50.onnx --output=resnet50 --soc_version=cpu[/dim]
    """
    if texts.pop("input_shape_range"):
        raise GeError(
            "E12008", "--input_shape_range is not supported", remedy="use gears: --dynamic_dims and others"
        )
    arguments = parse_arguments(texts, ctx.args)
    for name in arguments.maps[0]:
        if why := view("atc")[name].idle_at("atc"):
            _note(f"--{name} has no effect: {why}")
    if arguments["log"]:
        logging.basicConfig(level=_LEVELS[arguments["log"]], format="[%(levelname)s] %(name)s: %(message)s")
    if arguments["singleop"]:
        _compile_singleops(arguments)
    elif arguments["mode"] == SHOW:
        _show(Path(_required(arguments["om"] or arguments["model"], "om")))
    elif arguments["mode"] == TO_JSON:
        _write_json(arguments)
    else:
        _compile(arguments)


def _declare(command: Any) -> Any:
    """Declare the options of the table as parameters of the command."""
    parameters = [inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    for name, option in effective_options().items():
        shown = typer.Option(
            f"--{name}", help=option.text, rich_help_panel=option.group, metavar="VALUE", show_default=False
        )
        parameters.append(_parameter(name, shown))
    parameters.append(_parameter("input_shape_range", typer.Option("--input_shape_range", hidden=True)))
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _parameter(name: str, option: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default="", annotation=Annotated[str, option]
    )


app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(_declare(atc))


# -- the command ------------------------------------------------------------------------------------


def _compile(arguments: Arguments) -> None:
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
    if arguments["display_model_info"]:
        _show(result.path)
    if arguments["profile"]:
        _profile(result.path, arguments["profile"])


def _profile(model: Path, target: Path) -> None:
    """Time the tasks of the compiled model; with gears, those of the first gear."""
    from ge.model import om
    from ge.model.model import Model
    from ge.profile import table, trace

    loaded = om.load(model)
    tasks = (loaded if isinstance(loaded, Model) else loaded.gear(0)).profile()
    print(table(tasks))
    print(f"ATC done: {trace(target, tasks, model.stem)} written, to be opened with https://ui.perfetto.dev")


def _compile_singleops(arguments: Arguments) -> None:
    output = Path(_required(arguments["output"], "output"))
    with _progress() as progress:
        from ge import offline
        from ge.options import compile_options

        options = compile_options(_given(arguments))
        results = offline.compile_operators(Path(arguments["singleop"]), output, options, progress)
    for result in results:
        _success(result)


def _write_json(arguments: Arguments) -> None:
    from ge import offline

    source = Path(_required(arguments["om"] or arguments["model"], "om"))
    target = Path(_required(arguments["json"], "json"))
    request = None if source.suffix == ".om" else _request(arguments.new_child({"model": str(source)}))
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


def _request(arguments: Arguments) -> Request:
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
            remedy=f"{hint}the numbers are 1 MINDIR and AIR, 3 TensorFlow, 5 ONNX, 6 PaddlePaddle and "
            "7 TensorFlow Lite; without one the file tells",
        )
    if is_foreign(arguments["soc_version"]):
        _note(
            f"soc_version {arguments['soc_version']} stands for this machine: the model is compiled for the CPU device"
        )
    shapes = arguments["input_shape"]
    return Request(
        model=Path(arguments["model"]),
        output=Path(arguments["output"] or "model"),
        framework=None if number is None else Framework[_FRAMEWORKS[number]],
        shapes=shapes,
        gears=_gears(arguments, shapes),
        input_format=arguments["input_format"],
        output_types=arguments["output_type"],
        half_inputs=arguments["input_fp16_nodes"],
        aipp_file=arguments["insert_op_conf"],
        soc_version=arguments["soc_version"],
        given=_given(arguments),
    )


def _given(arguments: Arguments) -> dict[str, Any]:
    """The given options that the compiler reads, except for shapes, which gears change."""
    known = view("atc")
    own = {name for name, option in known.items() if option.decides in ("door", "idle")} | {"input_shape"}
    return {known[name].name: arguments[name] for name in arguments.maps[-2] if name not in own}


def _gears(arguments: Arguments, shapes: dict[str, tuple[int, ...]]) -> Gears | None:
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
    if not given:
        return Gears.of_ranges(shapes)
    return Gears.parse(kinds[given[0]], arguments[given[0]].strip("\"' "), shapes)


def _required(value: str, name: str) -> str:
    if not value:
        raise GeError("E12002", f"--{name} is missing", remedy="atc --help shows an example")
    return value


# -- output -----------------------------------------------------------------------------------------


def _size(nbytes: int) -> str:
    """Format bytes for people.

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
    """A progress bar on a terminal, nothing otherwise."""
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
    """Print the code, the cause and the remedy; unsupported operators as a table, and as JSON on request."""
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
