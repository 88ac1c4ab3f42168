"""Commands for MindSpore's kernel dump; none of them needs MindSpore.

``msprobe config kernel-dump``: what a run would be given. ``msprobe kernel-records``: a dump that MindSpore
wrote, in our format. They import what they need when they run, as every command does.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from msprobe.ms_static.kernel_dump import KernelDump


def config_kernel_dump(
    config: Annotated[Path, typer.Option("--config", "-c", help="The config.json, for graph mode.")],
    jit_level: Annotated[str, typer.Option(help="Compilation level of the graph: O0, O1 or O2.")],
    device_target: Annotated[str, typer.Option(help="Where the graph runs: Ascend, GPU or CPU.")] = "Ascend",
    mindspore_version: Annotated[
        str | None, typer.Option(help="MindSpore that reads the file, e.g. 2.7.0.", show_default="the installed one")
    ] = None,
) -> None:
    """Print the dump file and the environment that a MindSpore graph would get, as one JSON object.

    "file" is where the file belongs, "json" what is in it, "env" what to set before the script starts.

    Example: msprobe config kernel-dump -c config.json --jit-level O1
    """
    from msprobe.store import dumps_json  # noqa: PLC0415

    plan = plan_of_words(config, jit_level, device_target, mindspore_version)
    for name, value in plan.environment.items():
        if value is None and name in os.environ:
            typer.echo(f"warning: {name} is set here and must not be: unset it", err=True)
    environment = {name: value for name, value in plan.environment.items() if value is not None}
    answer = {"file": str(plan.file), "env": environment, "json": dict(plan.content)}
    typer.echo(dumps_json(answer).decode())


def plan_of_words(file: Path, jit_level: str, device_target: str, version: str | None) -> KernelDump:
    """Return the plan for the words of the command line; warnings go to stderr.

    Raises
    ------
    ConfigError
        If a word is unknown, or the mode refuses the configuration.
    """
    from msprobe.core.config_load import load_config  # noqa: PLC0415
    from msprobe.core.config_record import Level, Task  # noqa: PLC0415
    from msprobe.ms_static.acceptance import MODE_WORDS, mode_of_jit_level  # noqa: PLC0415
    from msprobe.ms_static.kernel_dump import Target, plan_kernel_dump  # noqa: PLC0415
    from msprobe.ms_static.tap_dump import plan_tap_statistics  # noqa: PLC0415
    from msprobe.ms_static.versions import parse_version  # noqa: PLC0415

    mode = mode_of_jit_level(jit_level)
    target = Target.from_word(device_target)
    release = None if version is None else parse_version(version)
    config = load_config(file, framework=MODE_WORDS[mode])
    if (config.level, config.task) == (Level.L0, Task.STATISTICS) and target is not Target.CPU:
        plan = plan_tap_statistics(config, mode, version=release)
    else:
        plan = plan_kernel_dump(config, mode, target=target, version=release)
    for text in dict.fromkeys((*config.warnings, *plan.remarks)):
        typer.echo(f"warning: {text}", err=True)
    return plan


def kernel_records(
    source: Annotated[Path, typer.Argument(help="The dump_path of a MindSpore run, or a rank_R folder of it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder that gets step{N}/rank{R}.")],
) -> None:
    """Write kernel dumps of MindSpore (statistic.csv, npy files) in our format, so that compare reads them.

    Example: msprobe kernel-records ./ascend_dump -o ./ascend_records
    """
    from msprobe.ms_static.kernel_folders import convert_kernel_dump  # noqa: PLC0415

    for step in convert_kernel_dump(source, output):
        typer.echo(f"{step.folder}: {step.records} kernels")
        for reason, count in step.null_reasons.items():
            typer.echo(f"          {count} without values: {reason}")
