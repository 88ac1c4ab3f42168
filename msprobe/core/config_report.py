"""What the commands ``config check`` and ``config new`` tell: the verdict on a file, and a starting file explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple, cast

from msprobe.core.config_load import resolve
from msprobe.core.config_model import COMMON_KEYS, SECTIONS, ConfigFile, Section
from msprobe.core.config_record import Level, Task
from msprobe.core.config_schema import SCHEMA_KEY
from msprobe.core.config_source import SCHEMA_FILE, ConfigSource
from msprobe.core.config_values import closest, quoted
from msprobe.core.errors import ConfigError, Problem
from msprobe.core.support import SUPPORTED, Framework, Mode, modes_of

_MODE_WORDS: dict[Mode, Framework] = {
    Mode.PYTORCH: "pytorch",
    Mode.DYNAMIC: "mindspore/dynamic",
    Mode.STATIC_O0: "mindspore/O0",
    Mode.STATIC_O1: "mindspore/O1",
    Mode.STATIC_O2: "mindspore/O2",
}

# Keys that a starting file leaves out: their presence alone changes what happens, or they serve one framework mode.
_LEFT_OUT = frozenset({"dump_enable", "device", "file_format", "bench_path", "diff_nums"})


class CheckReport(NamedTuple):
    """Verdict on a valid configuration file: warnings, and text that says what it does and for whom."""

    warnings: tuple[str, ...]
    text: str


def check_report(path: Path, framework: str = "any") -> CheckReport:
    """Check a configuration file and say where it can be used.

    Parameters
    ----------
    path : Path
    framework : str
        See :data:`msprobe.core.support.Framework`.

    Returns
    -------
    CheckReport

    Raises
    ------
    ConfigError
        If the framework is unknown or none of its modes takes the file.
    """
    modes = modes_of(framework)
    source = ConfigSource.read(path)
    config = resolve(source, cast("Framework", framework), {})
    lines = [f'{path} is valid: task "{config.task}" at level "{config.level}", written to {config.dump_path}']
    lines += [f"  {'yes' if _accepts(source, mode) else 'no '}  {mode.value}" for mode in modes]
    return CheckReport(config.warnings, "\n".join(lines))


def _accepts(source: ConfigSource, mode: Mode) -> bool:
    try:
        resolve(source, _MODE_WORDS[mode], {})
    except ConfigError:
        return False
    return True


def write_starting_config(path: Path, task: str, dump_path: str, *, force: bool = False, schema: bool = False) -> str:
    """Write a complete, valid configuration file for one task.

    Parameters
    ----------
    path : Path
        File to write.
    task : str
        Task whose section the file gets.
    dump_path : str
        Its ``dump_path``.
    force : bool
        Overwrite an existing file.
    schema : bool
        Name the installed JSON Schema in the file, so that editors complete and check it.

    Returns
    -------
    str
        Explanation of every key, since JSON has no room for comments.

    Raises
    ------
    ConfigError
        If the task or dump_path is refused, the file exists (without ``force``) or cannot be written.
    """
    words = [word.value for word in Task]
    if task not in words:
        raise ConfigError(
            [Problem("--task", task, f"one of {quoted(words)}", closest(task, words))], "msprobe config new"
        )
    content = starting_config(Task(task), dump_path)
    resolve(ConfigSource("msprobe config new", content, "{}", ()), "any", {})
    named = {SCHEMA_KEY: SCHEMA_FILE.as_uri()} if schema else {}
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            json.dump({**named, **content}, file, indent=4, ensure_ascii=False)
            file.write("\n")
    except FileExistsError:
        problem = Problem("file", str(path), "a file that does not exist yet", "add --force to overwrite it")
        raise ConfigError([problem], "msprobe config new") from None
    except OSError as error:
        problem = Problem("file", str(path), f"a file that can be written ({error.strerror})")
        raise ConfigError([problem], "msprobe config new") from error
    return "\n".join([f"wrote {path}. Its keys:", *_explain(content), "", "Every key: docs/config.md"])


def starting_config(task: Task, dump_path: str) -> dict[str, object]:
    """Return the content of a starting file: defaults spelt out, at a level that the task has."""
    defaults = _defaults(ConfigFile, COMMON_KEYS)
    section = _defaults(SECTIONS[task.value], tuple(SECTIONS[task.value].model_fields))
    content = {**defaults, "task": task.value, "dump_path": dump_path, "level": _usual_level(task).value}
    if section:
        content[task.value] = section
    return content


def _usual_level(task: Task) -> Level:
    if task is Task.STRUCTURE:
        return Level.MIX
    levels = next(levels[task] for levels in SUPPORTED.values() if task in levels)
    return Level.L1 if Level.L1 in levels else levels[0]


def _defaults(model: type[Section], keys: tuple[str, ...]) -> dict[str, object]:
    # Enumerations become their words: json writes a str subclass as its value.
    return {key: model.model_fields[key].get_default() for key in keys if key not in _LEFT_OUT}


def _explain(content: dict[str, object]) -> list[str]:
    lines = []
    for key, value in content.items():
        if isinstance(value, dict):
            lines.append(f"  {key}: keys of this task")
            fields = SECTIONS[key].model_fields
            lines += [f"    {name}: {fields[name].description}" for name in value]
        else:
            lines.append(f"  {key}: {ConfigFile.model_fields[key].description}")
    return lines
