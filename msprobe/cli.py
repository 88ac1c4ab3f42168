"""The ``msprobe`` command. Thin: each command reads its arguments, calls one library function and prints the result.

Exit codes of every command: 0 fine, 1 differences found, 2 bad input with one message on stderr, 130 stopped by
Ctrl-C. Commands import what they need when they run, so that ``msprobe --help`` stays quick.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from msprobe.compare.command import compare
from msprobe.core.errors import MsprobeError
from msprobe.ms_static.command import config_kernel_dump, kernel_records
from msprobe.replay.command import acc_check
from msprobe.report import command as report_command

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
"""As a shell reports SIGINT. The 1 that typer would make of it means that differences were found."""


class Commands(typer.core.TyperGroup):
    """The commands; Ctrl-C in any of them is one line and an exit code of its own."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read the command line."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # names in a dump may have what the terminal cannot show
                stream.reconfigure(errors="backslashreplace")
        with _stopped_in_one_line():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        with _stopped_in_one_line():
            return super().invoke(ctx)


@contextlib.contextmanager
def _stopped_in_one_line() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        typer.echo("stopped by Ctrl-C", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from error


app = typer.Typer(
    cls=Commands,
    help="Record what flows through a model and find the first place where two runs part.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
config_app = typer.Typer(help="Check or write a configuration file.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config_app, name="config")
app.command("acc_check")(acc_check)
config_app.command("kernel-dump")(config_kernel_dump)
app.command("kernel-records")(kernel_records)
app.command("overflow_check")(report_command.overflow_check)
app.command("parse")(report_command.parse)
app.command("report")(report_command.report)
app.command("replicas")(report_command.replicas)


@config_app.command("check")
def config_check(
    file: Annotated[Path, typer.Argument(help="The config.json to check.")],
    framework: Annotated[
        str,
        typer.Option(
            help="For whom: any, pytorch, mindspore, mindspore/dynamic, mindspore/static, mindspore/O0|O1|O2."
        ),
    ] = "any",
) -> None:
    """Check a configuration file and name everything that is wrong with it.

    Example: msprobe config check config.json --framework pytorch
    """
    from msprobe.core.config_report import check_report  # noqa: PLC0415

    report = check_report(file, framework)
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(report.text)


@config_app.command("new")
def config_new(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("config.json"),
    task: Annotated[str, typer.Option(help="The task whose keys the file gets.")] = "statistics",
    dump_path: Annotated[str, typer.Option(help="Folder that dumps are written to.")] = "./msprobe_dump",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Name the installed JSON Schema in the file: editors then complete it.")
    ] = False,
) -> None:
    """Write a starting configuration file, and explain its keys on stdout (JSON has no comments).

    Example: msprobe config new config.json --task tensor
    """
    from msprobe.core.config_report import write_starting_config  # noqa: PLC0415

    typer.echo(write_starting_config(file, task, dump_path, force=force, schema=schema))


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON Schema of config.json, with which editors complete keys and mark mistakes.

    Example: msprobe config schema > config.schema.json
    """
    from msprobe.core.config_schema import schema_text  # noqa: PLC0415

    typer.echo(schema_text(), nl=False)


@app.command(context_settings={"allow_interspersed_args": False})
def run(  # noqa: PLR0913, PLR0917 - one parameter per option
    context: typer.Context,
    config: Annotated[Path, typer.Option("--config", "-c", help="The config.json to record with.")],
    target: Annotated[str, typer.Argument(help="The script, or with -m the module. What follows are its arguments.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.", show_default=False)] = None,
    is_module: Annotated[bool, typer.Option("-m", help="The target is a module, as in `python -m`.")] = False,
    step_on: Annotated[
        str | None,
        typer.Option(
            help="CLASS.forward: a step ends before the next call of this module class, not after an optimiser step.",
        ),
    ] = None,
) -> None:
    """Run a PyTorch script, unchanged, with a debugger around it.

    A step begins with the first module call and ends with the optimiser step. Options of msprobe stand before the
    script. In several processes: torchrun --nproc-per-node 8 -m msprobe run -c config.json train.py

    Example: msprobe run -c config.json train.py --lr 1e-4
    """
    from msprobe.run.launch import Launch  # noqa: PLC0415
    from msprobe.run.program import Program  # noqa: PLC0415

    context.obj.append(Launch(config, Program(target, tuple(arguments or ()), is_module), step_on))


@app.command()
def env() -> None:
    """Show which kernels and devices are available here, and why others are not.

    Example: msprobe env
    """
    from msprobe.measure.environment import kernel_lines, versions  # noqa: PLC0415

    for name, version in versions().items():
        typer.echo(f"{name:20} {version}")
    typer.echo()
    for line in kernel_lines():
        typer.echo(f"{line.name:20} {line.state:10} {line.detail}")


@app.command()
def recover(
    path: Annotated[Path, typer.Argument(help="A dump_path, a step folder or a rank folder.")],
) -> None:
    """Make the dumps of a killed run loadable: close open files, cut off what was half written.

    Example: msprobe recover ./msprobe_dump
    """
    from msprobe.store import DumpReadError  # noqa: PLC0415
    from msprobe.store import recover as recover_dumps  # noqa: PLC0415

    try:
        report = recover_dumps(path)
    except (DumpReadError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    for folder in report.folders:
        cut = f", {folder.bytes_cut} unfinished bytes removed" if folder.bytes_cut else ""
        typer.echo(f"{folder.state:9} {folder.folder}: {folder.records} records{cut}")
        for action in folder.actions:
            typer.echo(f"          {action}")


app.command("compare")(compare)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: those of the process.
    """
    launches: list[Callable[[], None]] = []  # a program runs when the command line is done with: nothing of it shows
    try:
        app(args=None if arguments is None else list(arguments), prog_name="msprobe", obj=launches)
    except MsprobeError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(EXIT_BAD_INPUT)
    except SystemExit:
        if not launches:
            raise
    launches.pop()()
