"""``msprobe compare``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from msprobe.compare.rows import GatherRule

EXIT_BAD_INPUT = 2

Gather = Annotated[
    GatherRule | None,
    typer.Option(
        help="Put the ranks of each side together, for runs that are parallel in different ways. What has no "
        "placements is `replicated` (tensor parallel), or may be the rank's part of the `batch` (DDP, FSDP2).",
    ),
]
Stages = Annotated[
    int,
    typer.Option(
        min=1, help="With --gather: the ranks of TARGET are so many pipeline stages, each of consecutive ranks."
    ),
]
GoldenStages = Annotated[
    int, typer.Option("--golden-stages", min=1, help="The same of GOLDEN; 1 is a run without a pipeline.")
]


def compare(  # noqa: PLR0913, PLR0917 - one parameter per option
    target: Annotated[Path, typer.Option("--target", "-tp", help="Dump to examine: run, step or rank folder.")],
    golden: Annotated[Path, typer.Option("--golden", "-gp", help="Dump to compare it with.")],
    out: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")],
    xlsx: Annotated[bool, typer.Option("--xlsx", help="Write an Excel workbook, too.")] = False,
    html: Annotated[bool, typer.Option("--html", help="Write one self-contained HTML page, too.")] = False,
    map_file: Annotated[
        Path | None,
        typer.Option(
            "--map", help="YAML: `modules:` and `apis:`, names in golden to names in the target.", dir_okay=False
        ),
    ] = None,
    fuzzy: Annotated[
        bool, typer.Option("--fuzzy", help="Pair what is left by operation alone, whatever its module and shapes.")
    ] = False,
    tolerance: Annotated[
        str,
        typer.Option(help="default: a table by dtype; exact: every difference counts; measured: needs --reference."),
    ] = "default",
    reference: Annotated[
        Path | None,
        typer.Option(help="Dump of a second golden run, or of one in float64: limits are measured from it."),
    ] = None,
    any_dtype: Annotated[
        bool, typer.Option("--any-dtype", help="Values of different dtypes may be equal (bfloat16 against float32).")
    ] = False,
    gather: Gather = None,
    stages: Stages = 1,
    golden_stages: GoldenStages = 1,
    jobs: Annotated[int, typer.Option(min=0, help="Local processes; 0 chooses.")] = 0,
    scheduler: Annotated[str | None, typer.Option(help="tcp://host:port of a Dask scheduler to work instead.")] = None,
) -> None:
    """Compare two dumps and find the first place where they part.

    Dumps are those of msprobe or mindstudio-probe, of PyTorch or MindSpore; all steps and ranks found are paired. Exit
    code 0: everything agrees; 1: differences or calls on one side only; 2: bad input.

    Example: msprobe compare -tp run_npu -gp run_gpu -o result --html
    """
    from msprobe.compare.comparison import Request, compare_dumps  # noqa: PLC0415
    from msprobe.compare.jobs import CompareError  # noqa: PLC0415
    from msprobe.compare.terminal import print_outcome, progress_bar  # noqa: PLC0415
    from msprobe.store.reader import DumpReadError  # noqa: PLC0415

    try:
        _check_tolerance(tolerance, reference)
        request = Request(
            target=target,
            golden=golden,
            out=out,
            reference=reference,
            exact=tolerance == "exact",
            any_dtype=any_dtype,
            renaming=_renaming(map_file),
            fuzzy=fuzzy,
            gather=gather,
            stages=stages,
            golden_stages=golden_stages,
            xlsx=xlsx,
            html=html,
            processes=jobs,
            scheduler=scheduler,
        )
        with progress_bar() as progress:
            outcome = compare_dumps(request, progress)
    except (DumpReadError, CompareError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    print_outcome(outcome)
    raise typer.Exit(outcome.summary.exit_code)


def _check_tolerance(tolerance: str, reference: Path | None) -> None:
    from msprobe.compare.jobs import CompareError  # noqa: PLC0415

    if tolerance not in {"default", "exact", "measured"}:
        raise CompareError(f"--tolerance {tolerance}: allowed are default, exact and measured")
    if (tolerance == "measured") != (reference is not None):
        raise CompareError("--tolerance measured and --reference DIR belong together: the limits come from that run")


def _renaming(file: Path | None) -> Any:
    from msprobe.compare.jobs import CompareError  # noqa: PLC0415
    from msprobe.compare.kinds import Renaming  # noqa: PLC0415

    if file is None:
        return Renaming()
    try:
        import yaml  # noqa: PLC0415 - optional
    except ImportError as error:
        raise CompareError("--map needs PyYAML: pip install pyyaml (or msprobe[map])") from error
    try:
        content = yaml.safe_load(file.read_text("utf-8")) or {}
    except yaml.YAMLError as error:
        raise CompareError(f"--map {file}: not YAML ({error})") from error
    if not isinstance(content, Mapping):
        raise CompareError(f"--map {file}: holds {type(content).__name__}; allowed are the keys modules and apis")
    unknown = sorted(set(content) - {"modules", "apis"})
    if unknown:
        raise CompareError(f"--map {file}: unknown keys {', '.join(map(str, unknown))}; allowed are modules and apis")
    sections = [content.get(key) or {} for key in ("modules", "apis")]
    for section in sections:
        if not isinstance(section, Mapping) or not all(
            isinstance(text, str) for pair in section.items() for text in pair
        ):
            raise CompareError(f"--map {file}: modules and apis map names of golden to names of the target")
    return Renaming(*sections)
