"""Whether a MindSpore mode takes a configuration.

The configuration may have been loaded for MindSpore at large, because the mode of a script is known only when it runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from msprobe.core.config_record import Config, Level
from msprobe.core.config_rules import judge
from msprobe.core.config_view import View
from msprobe.core.errors import ConfigError, Problem
from msprobe.core.support import Framework, Mode, support_problem

MODE_WORDS: dict[Mode, Framework] = {
    Mode.DYNAMIC: "mindspore/dynamic",
    Mode.STATIC_O0: "mindspore/O0",
    Mode.STATIC_O1: "mindspore/O1",
    Mode.STATIC_O2: "mindspore/O2",
}

_JIT_LEVELS = {"O0": Mode.STATIC_O0, "O1": Mode.STATIC_O1, "O2": Mode.STATIC_O2}
_DUMPABLE_PATH = re.compile(r"[A-Za-z0-9_/-]+")
# What Python's regular expressions have and those of MindSpore (std::regex, ECMAScript grammar) have not: other groups
# than (?:...), (?=...) and (?!...), and \A and \Z.
_FOREIGN_SYNTAX = re.compile(r"\(\?(?![:=!]).?|(?<!\\)\\[AZ]")


def mode_of_jit_level(word: str) -> Mode:
    """Return the graph mode with this jit_level.

    Raises
    ------
    ConfigError
        If it is none of O0, O1 and O2.
    """
    mode = _JIT_LEVELS.get(word.upper())
    if mode is None:
        raise ConfigError([Problem("jit_level", word, 'one of "O0", "O1", "O2"', origin="argument")])
    return mode


def check_for_mode(config: Config, mode: Mode, environ: Mapping[str, str]) -> None:
    """Refuse what a mode refuses.

    Parameters
    ----------
    config : Config
        Valid for some mode of MindSpore.
    mode : Mode
        The mode that the script runs in, one of MindSpore's.
    environ : mapping
        Environment of the process that runs the script.

    Raises
    ------
    ConfigError
        With every reason why not.
    """
    pair = support_problem(config.task, config.level, MODE_WORDS[mode])
    problems = [pair] if pair is not None else []
    problems += judge(View(config, mode, frozenset(), _data_words(config)))[0]
    if config.level is Level.L2:
        known = {problem.path for problem in problems}
        problems += [found for found in _kernel_dump_problems(config, mode, environ) if found.path not in known]
    if problems:
        raise ConfigError(problems, f"configuration for {mode.value}")


def _data_words(config: Config) -> tuple[str, ...]:
    """Return ``data_mode`` as it could have been written."""
    mode = config.data_mode
    passes = [word for word in ("forward", "backward") if getattr(mode, word)]
    sides = [word for word in ("input", "output") if getattr(mode, word)]
    words = [*(passes if len(passes) == 1 else ()), *(sides if len(sides) == 1 else ())]
    return tuple(words) or ("all",)


def _kernel_dump_problems(config: Config, mode: Mode, environ: Mapping[str, str]) -> Iterator[Problem]:
    path = str(absolute_path(config.dump_path))
    if not _DUMPABLE_PATH.fullmatch(path):
        allowed = "a path whose absolute form has letters, digits, '-', '_' and '/' only: MindSpore takes no other"
        yield Problem("dump_path", path, allowed, 'e.g. "/tmp/kernel_dump"')
    for index, entry in enumerate(config.list):
        found = _FOREIGN_SYNTAX.search(entry) if entry.startswith("name-regex(") else None
        if found is not None:
            allowed = f"a regular expression of ECMAScript, which has no {found[0]}: MindSpore's dump uses std::regex"
            yield Problem(f"{config.task}.list[{index}]", entry, allowed)
    if mode is Mode.STATIC_O2 and environ.get("GRAPH_OP_RUN") == "1":
        allowed = "not set, or 0, with jit_level O2: with 1 the graph runs kernel by kernel and nothing is dumped"
        yield Problem("GRAPH_OP_RUN", "1", allowed, "unset it, or use jit_level O0 or O1", origin="environment")


def absolute_path(path: Path) -> Path:
    """Return where a dump_path leads; links are not followed."""
    return Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - Path.resolve would follow links
