"""From config.json and keyword arguments to one valid :class:`Config`, or to one exception that names every problem."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from msprobe.core.config_model import SECTIONS, ConfigFile
from msprobe.core.config_record import Config, DataMode, Level, Task
from msprobe.core.config_rules import judge, missing_dump_path, overlap_problems
from msprobe.core.config_source import PACKAGED_CONFIG, ConfigSource, duplicate_key_warnings, unknown_key_warnings
from msprobe.core.config_view import View
from msprobe.core.errors import ConfigError, Problem
from msprobe.core.support import SUPPORTED, Framework, modes_of, support_problem, supporting_modes

__all__ = ["PACKAGED_CONFIG", "Config", "json_keywords", "load_config", "resolve"]


def load_config(  # noqa: PLR0913 - the keywords are those of PrecisionDebugger
    path: str | os.PathLike[str] | None = None,
    *,
    framework: Framework = "pytorch",
    task: str | None = None,
    dump_path: str | os.PathLike[str] | None = None,
    level: str | None = None,
    step: Iterable[int | str] | None = None,
) -> Config:
    """Read, check and complete a configuration.

    Parameters
    ----------
    path : str or path-like, optional
        The config.json. None reads the packaged default.
    framework : str
        For whom the configuration must be valid, see :data:`msprobe.core.support.Framework`. Where the word stands
        for several modes, it is enough that one of them takes the configuration.
    task, dump_path, level, step : optional
        Replace the value in the file. None keeps it.

    Returns
    -------
    Config
        Frozen. ``warnings`` says what was accepted but has no effect, among it unknown keys; show it once.

    Raises
    ------
    ConfigError
        The file cannot be read or parsed, or something in it is refused. Holds all problems together.
    """
    modes_of(framework)
    keywords = json_keywords(task=task, dump_path=dump_path, level=level, step=step)
    return resolve(ConfigSource.read(path), framework, keywords)


def resolve(source: ConfigSource, framework: Framework, keywords: Mapping[str, object]) -> Config:
    """Check and complete a file that was already read; the rest is as in :func:`load_config`.

    Parameters
    ----------
    source : ConfigSource
    framework : str
    keywords : mapping
        Values that replace those of the file, by top-level key.

    Raises
    ------
    ConfigError
        Holds all problems together.
    """
    raw, problems, broken = _validate({**source.data, **keywords})
    notes = [*unknown_key_warnings(raw, source), *duplicate_key_warnings(source)]
    if raw.dump_path is None and ("dump_path",) not in broken:
        problems.append(missing_dump_path(source.name, packaged=source.packaged))
    problems += overlap_problems(raw.acc_check.white_list, raw.acc_check.black_list)
    config = _build(raw)
    if not broken & {("task",), ("level",)}:
        found, warnings = _judge(raw, config, framework, broken)
        problems += found
        config = replace(config, level=_effective_level(config), warnings=(*notes, *warnings))
    if problems:
        raise ConfigError(source.locate(problems, keywords), source.name, notes)
    return config


def json_keywords(
    *, task: object = None, dump_path: object = None, level: object = None, step: object = None
) -> dict[str, object]:
    """Return the given keyword arguments in the types that JSON would have given them."""
    given: dict[str, object] = {"task": task, "dump_path": dump_path, "level": level, "step": step}
    if isinstance(dump_path, os.PathLike):
        given["dump_path"] = os.fspath(dump_path)
    if isinstance(step, (tuple, range, set, frozenset)):
        given["step"] = list(step)
    return {key: value for key, value in given.items() if value is not None}


_MOST_PROBLEMS = 50
"""Listed in one message."""

_Broken = frozenset[tuple[str, ...]]


def _validate(data: Mapping[str, object]) -> tuple[ConfigFile, list[Problem], _Broken]:
    """Check every value on its own; refused ones are reported and replaced by their defaults."""
    try:
        return ConfigFile.model_validate(data), [], frozenset()
    except ValidationError as error:
        details = error.errors(include_url=False)
    problems = []
    broken = set()
    for number, detail in enumerate(details):
        broken.add(tuple(str(part) for part in detail["loc"] if isinstance(part, str)))
        if number >= _MOST_PROBLEMS:
            continue
        context: dict[str, Any] = detail.get("ctx", {})
        allowed = context.get("allowed", "an object: { ... }")
        problems.append(Problem(_path_text(detail["loc"]), detail["input"], allowed, context.get("hint", "")))
    if len(details) > _MOST_PROBLEMS:
        rest = len(details) - _MOST_PROBLEMS
        problems.append(Problem("(more)", rest, f"no further problems; the first {_MOST_PROBLEMS} are listed"))
    return ConfigFile.model_validate(_without(data, broken)), problems, frozenset(broken)


def _without(data: Mapping[str, object], broken: Iterable[tuple[str, ...]]) -> dict[str, object]:
    """Return a copy without the broken keys."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    for section, *key in sorted(broken, reverse=True):
        holder = result.get(section)
        if key and isinstance(holder, dict):
            holder.pop(key[0], None)
        else:
            result.pop(section, None)
    return result


def _path_text(parts: Iterable[str | int]) -> str:
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _build(raw: ConfigFile) -> Config:
    """Gather the common keys and those of the active section; keys that the section lacks keep their defaults."""
    section = raw.section(raw.task)
    present = type(section).model_fields.keys()
    from_section: dict[str, Any] = {key: getattr(section, key) for key in present}
    for key in ("list", "tensor_list", "white_list", "black_list"):
        if key in from_section:
            from_section[key] = tuple(from_section[key])
    for key in ("bench_path", "error_data_path"):
        if from_section.get(key) is not None:
            from_section[key] = Path(from_section[key])
    if "scope" in from_section:
        from_section["scope"] = tuple(from_section["scope"]) or None
    if "data_mode" in from_section:
        from_section["data_mode"] = DataMode.from_words(from_section["data_mode"])
    return Config(
        task=raw.task,
        level=raw.level,
        dump_path=Path(raw.dump_path or ""),
        rank=frozenset(number for span in raw.rank for number in span),
        step=frozenset(number for span in raw.step for number in span),
        async_dump=raw.async_dump,
        dump_enable=raw.dump_enable,
        extra_info=raw.extra_info,
        precision=raw.precision,
        risk_level=raw.risk_level,
        exact=raw.exact,
        self_check=raw.self_check,
        **from_section,
    )


def _effective_level(config: Config) -> Level:
    """Task ``structure`` exists at L0 and mix only; every other level stands for mix."""
    if config.task is Task.STRUCTURE and config.level is not Level.L0:
        return Level.MIX
    return config.level


def _judge(raw: ConfigFile, config: Config, framework: Framework, broken: _Broken) -> tuple[list[Problem], list[str]]:
    """Check the keys against each other and the framework; of several modes the one that objects least answers."""
    problems = []
    warnings = []
    pair_problem = support_problem(config.task, config.level, framework)
    if pair_problem is not None:
        problems.append(pair_problem)
    level = _effective_level(config)
    if level is not config.level:
        warnings.append(f'level "{config.level}" becomes "{level}": task structure records modules with their APIs')
    modes = (
        supporting_modes(config.task, config.level, framework)
        or tuple(mode for mode in modes_of(framework) if config.task in SUPPORTED[mode])
        or modes_of(framework)
    )
    section = raw.section(config.task)
    given = frozenset(raw.model_fields_set | section.model_fields_set)
    data_words = tuple(getattr(section, "data_mode", ()))
    broken_names = _bare_names(broken, config.task)
    effective = replace(config, level=level)
    verdicts = [judge(View(effective, mode, given, data_words), broken_names) for mode in modes]
    found, remarks = min(verdicts, key=lambda verdict: (len(verdict[0]), len(verdict[1])))
    return problems + found, warnings + remarks


def _bare_names(broken: _Broken, task: Task) -> frozenset[str]:
    """Return the broken keys of the top level and of the active section, as rules name them."""
    names = {path[0] for path in broken if len(path) == 1 and path[0] not in SECTIONS}
    names |= {path[1] for path in broken if len(path) > 1 and path[0] == task.value}
    if (task.value,) in broken:
        names |= SECTIONS[task.value].model_fields.keys()
    return frozenset(names)
