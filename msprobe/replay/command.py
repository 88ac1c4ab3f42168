"""``msprobe acc_check``: the arguments, the progress bar and the summary on the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXIT_DIFFERENT, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130


def acc_check(  # noqa: PLR0913, PLR0917 - one parameter per option
    dump: Annotated[Path, typer.Option("--input", "-i", help="A dump.json, or the folder that holds it.")],
    out: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")],
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="A config.json: white_list, black_list, error_data_path of acc_check."),
    ] = None,
    device: Annotated[str, typer.Option(help="What is checked: cpu, cuda or npu.")] = "cpu",
    jobs: Annotated[int, typer.Option(min=0, help="Processes that replay; 0 chooses.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the results in the folder.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the results in the folder.")] = False,
    seed: Annotated[int, typer.Option(help="Of inputs that are made from statistics.")] = 0,
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", help="Module that defines custom operators; may be repeated.", show_default=False),
    ] = None,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds that one API may take.")] = 600.0,
) -> None:
    """Replay each API of a dump on a device and judge it against a float64 reference.

    Results are in OUT/acc_check_result.csv and OUT/acc_check_details.csv; each error has a script that repeats it.
    Exit code 1: an API has the verdict error.

    Example: msprobe acc_check -i msprobe_dump/step0/rank0/dump.json -o acc_check --device cuda
    """
    from msprobe.core.errors import MsprobeError  # noqa: PLC0415
    from msprobe.replay.check import Request, check  # noqa: PLC0415
    from msprobe.replay.terminal import Progress, show_summary  # noqa: PLC0415
    from msprobe.store import DumpReadError  # noqa: PLC0415

    request = Request(dump, out, config, device, jobs, resume, force, seed, tuple(imports or ()), timeout)
    try:
        with Progress() as progress:
            summary = check(request, progress.begun, progress.done)
    except (MsprobeError, DumpReadError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    except KeyboardInterrupt as error:
        typer.echo(f"stopped; what is finished is in {out}: go on with --resume", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from error
    show_summary(summary)
    if summary.counts()["error"]:
        raise typer.Exit(EXIT_DIFFERENT)
