"""Commands of this room: ``overflow_check``, ``parse`` and ``report``. `msprobe.cli` registers them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

EXIT_BAD_INPUT = 2
_NARROW = 140


def overflow_check(
    source: Annotated[
        Path, typer.Option("--input", "-i", help="A run, step or rank folder, or a dump.json.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for overflow_check.json.", show_default=False)],
) -> None:
    """Find the first records that give NaN or infinity although their inputs are finite.

    Looks at every step and rank, at statistics and at dumps of the task nan_check.

    Example: msprobe overflow_check -i ./msprobe_dump -o ./out
    """
    from msprobe.report.overflow import as_json, check_overflow  # noqa: PLC0415
    from msprobe.report.overflow_table import show_overflow  # noqa: PLC0415

    with _bad_input(), _progress() as show:
        result = check_overflow(source, show)
        file = _write(output / "overflow_check.json", as_json(result))
    console = _console()
    show_overflow(console, result)
    console.print(f"Result: {file}", markup=False, soft_wrap=True)
    if result.first is not None:
        console.print(f"Next:   msprobe report {source} -o {output / 'report.html'}", markup=False, soft_wrap=True)
    raise typer.Exit(result.exit_code)


def replicas(
    source: Annotated[Path, typer.Option("--input", "-i", help="A run or a step folder.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for replicas.json.", show_default=False)],
) -> None:
    """Find the first record in which ranks part that should have the same: parameters, replicated DTensors, all_reduce.

    Example: msprobe replicas -i ./msprobe_dump -o ./out
    """
    from msprobe.compare.replicas import as_json, check_replicas  # noqa: PLC0415
    from msprobe.report.replica_table import show_replicas  # noqa: PLC0415

    with _bad_input(), _progress() as show:
        result = check_replicas(source, show)
        file = _write(output / "replicas.json", as_json(result))
    console = _console()
    show_replicas(console, result)
    console.print(f"Result: {file}", markup=False, soft_wrap=True)
    raise typer.Exit(int(bool(result.parted)))


def parse(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Tensor files (.pt, .npy), dumps, or a folder such as extra-info.", show_default=False),
    ],
    top: Annotated[int, typer.Option("--top", "-n", min=0, help="How many elements or values to show.")] = 10,
) -> None:
    """Show what is in tensor files and dumps: shape, statistics, histogram, the elements that stand out.

    Two tensor files are compared element by element; the exit code is then 1 if they differ.

    Example: msprobe parse dump_tensor_data/Torch.relu.0.forward.output.0.pt --top 5
    """
    from msprobe.report.parse import parse_paths  # noqa: PLC0415

    with _bad_input():
        code = parse_paths(paths, top, _console())
    raise typer.Exit(code)


def report(
    paths: Annotated[
        list[Path], typer.Argument(help="Runs, step or rank folders, or dump.json files.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write dumps as one HTML file that opens offline: module tree, statistics, search, way of NaN, trends, ranks.

    Example: msprobe report ./msprobe_dump -o report.html
    """
    from msprobe.report.coverage_table import show_coverage  # noqa: PLC0415
    from msprobe.report.dump_report import dump_page  # noqa: PLC0415
    from msprobe.report.rank_coverage import merge_coverage  # noqa: PLC0415

    with _bad_input(), _progress() as show:
        dump_page(paths, output, show)
        coverage = merge_coverage(paths)
    console = _console()
    show_coverage(console, coverage)
    console.print(f"Page: {output} ({output.stat().st_size / 1e6:.1f} MB)", markup=False, soft_wrap=True)


def _write(file: Path, content: Any) -> Path:
    """Write the result of a command as one line of JSON; makes its folder."""
    from msprobe.store.json_bytes import dumps_json  # noqa: PLC0415

    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(dumps_json(content) + b"\n")
    return file


@contextmanager
def _bad_input() -> Iterator[None]:
    """Turn what a bad path or file raises into one message and exit code 2."""
    try:
        yield
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error


@contextmanager
def _progress() -> Iterator[Callable[[str], object]]:
    """Show on a terminal what is being read."""
    from rich.console import Console  # noqa: PLC0415

    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("reading") as status:
        yield lambda text: status.update(f"reading {text}")


def _console() -> Console:
    from rich.console import Console  # noqa: PLC0415

    return Console(width=None if sys.stdout.isatty() else _NARROW)
