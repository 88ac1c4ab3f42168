"""Which task works at which level of which framework."""

from __future__ import annotations

from enum import Enum
from typing import Literal, get_args

from msprobe.core.config_record import Level, Task
from msprobe.core.errors import ConfigError, Problem

Framework = Literal[
    "any",
    "pytorch",
    "mindspore",
    "mindspore/dynamic",
    "mindspore/static",
    "mindspore/O0",
    "mindspore/O1",
    "mindspore/O2",
]
"""Whom a configuration is for. ``mindspore`` is any of its modes, ``mindspore/static`` any jit_level."""


class Mode(Enum):
    """One way of running a model; the value is how messages call it."""

    PYTORCH = "PyTorch"
    DYNAMIC = "MindSpore dynamic graph (and MSAdapter)"
    STATIC_O0 = "MindSpore graph mode, jit_level O0"
    STATIC_O1 = "MindSpore graph mode, jit_level O1"
    STATIC_O2 = "MindSpore graph mode, jit_level O2"

    @property
    def is_static(self) -> bool:
        """Whether the model runs as a compiled MindSpore graph."""
        return self in STATIC


STATIC = (Mode.STATIC_O0, Mode.STATIC_O1, Mode.STATIC_O2)
_MODES: dict[str, tuple[Mode, ...]] = {
    "any": tuple(Mode),
    "pytorch": (Mode.PYTORCH,),
    "mindspore": (Mode.DYNAMIC, *STATIC),
    "mindspore/dynamic": (Mode.DYNAMIC,),
    "mindspore/static": STATIC,
    "mindspore/O0": (Mode.STATIC_O0,),
    "mindspore/O1": (Mode.STATIC_O1,),
    "mindspore/O2": (Mode.STATIC_O2,),
}

_EVERY_LEVEL = tuple(Level)
_KERNEL_BY_KERNEL: dict[Task, tuple[Level, ...]] = {
    Task.STATISTICS: (Level.L0, Level.L2),
    Task.TENSOR: (Level.L0, Level.L2),
    Task.EXCEPTION_DUMP: (Level.L2,),
}

SUPPORTED: dict[Mode, dict[Task, tuple[Level, ...]]] = {
    Mode.PYTORCH: {
        Task.STATISTICS: _EVERY_LEVEL,
        Task.TENSOR: _EVERY_LEVEL,
        Task.STRUCTURE: _EVERY_LEVEL,  # L1, L2 and debug are turned into mix, with a warning
        Task.ACC_CHECK: (Level.L1,),
        Task.NAN_CHECK: (Level.L1,),
    },
    Mode.DYNAMIC: {
        Task.STATISTICS: _EVERY_LEVEL,
        Task.TENSOR: _EVERY_LEVEL,
        Task.STRUCTURE: _EVERY_LEVEL,
        Task.EXCEPTION_DUMP: (Level.L2,),
    },
    Mode.STATIC_O0: _KERNEL_BY_KERNEL,
    Mode.STATIC_O1: _KERNEL_BY_KERNEL,
    Mode.STATIC_O2: {
        Task.STATISTICS: (Level.L2,),
        Task.TENSOR: (Level.L2,),
        Task.OVERFLOW_CHECK: (Level.L2,),
    },
}
"""Levels that a task takes, by mode."""

# Where a task has no counterpart, what answers the same question on that framework.
_INSTEAD: dict[tuple[Mode, Task], str] = {
    (Mode.PYTORCH, Task.OVERFLOW_CHECK): 'on PyTorch use task "nan_check" at level "L1"',
    (Mode.PYTORCH, Task.EXCEPTION_DUMP): 'on PyTorch use task "tensor"; what was recorded before a crash is kept',
    (Mode.DYNAMIC, Task.OVERFLOW_CHECK): 'in dynamic graph use task "statistics" and `msprobe overflow_check`',
    (Mode.DYNAMIC, Task.NAN_CHECK): 'on MindSpore use task "statistics" and `msprobe overflow_check`',
}


def modes_of(framework: str) -> tuple[Mode, ...]:
    """Return the modes that a framework word stands for.

    Raises
    ------
    ConfigError
        If the word is not one of :data:`Framework`.
    """
    if framework not in _MODES:
        allowed = "one of " + ", ".join(f'"{word}"' for word in get_args(Framework))
        raise ConfigError([Problem("framework", framework, allowed, origin="argument")], "load_config()")
    return _MODES[framework]


def supporting_modes(task: Task, level: Level, framework: str = "any") -> tuple[Mode, ...]:
    """Return those modes of a framework in which a task runs at a level (possibly none)."""
    return tuple(mode for mode in modes_of(framework) if level in SUPPORTED[mode].get(task, ()))


def support_problem(task: Task, level: Level, framework: str) -> Problem | None:
    """Say what is wrong with a pair of task and level.

    Returns
    -------
    Problem or None
        None if at least one mode of the framework takes the pair. Otherwise the problem names the pair, what the
        framework takes, and where the task does work.
    """
    if supporting_modes(task, level, framework):
        return None
    modes = modes_of(framework)
    levels_by_mode = {mode: SUPPORTED[mode][task] for mode in modes if task in SUPPORTED[mode]}
    pair = f'not task "{task}" with level "{level}"'
    if levels_by_mode:
        needs_dynamic = all(mode.is_static for mode in modes) and level in SUPPORTED[Mode.DYNAMIC].get(task, ())
        hint = f'level "{level}" needs a dynamic graph: mindspore.set_context(mode=mindspore.PYNATIVE_MODE)'
        allowed = f'for task "{task}": {_levels_text(levels_by_mode)} ({pair})'
        return Problem("level", level.value, allowed, hint if needs_dynamic else "")
    here = "PyTorch" if framework == "pytorch" else _modes_text(modes)
    tasks = dict.fromkeys(task.value for mode in modes for task in SUPPORTED[mode])
    quoted = ", ".join(f'"{word}"' for word in tasks)
    elsewhere = {mode: SUPPORTED[mode][task] for mode in Mode if task in SUPPORTED[mode]}
    hint = f'task "{task}" works on {_levels_text(elsewhere)}'
    instead = _INSTEAD.get((modes[0], task))
    return Problem(
        "task", task.value, f"on {here}: one of {quoted} ({pair})", f"{hint}; {instead}" if instead else hint
    )


def check_supported(task: Task | str, level: Level | str, framework: Framework = "pytorch") -> None:
    """Refuse a pair of task and level that a framework does not have.

    Parameters
    ----------
    task : Task or str
    level : Level or str
        Words of the configuration file.
    framework : str
        See :data:`Framework`.

    Raises
    ------
    ConfigError
        Naming the pair and what would work. Also if ``framework`` is unknown.
    ValueError
        If ``task`` or ``level`` is not a word of the configuration file.
    """
    problem = support_problem(Task(task), Level(level), framework)
    if problem is not None:
        raise ConfigError([problem])


def _levels_text(levels_by_mode: dict[Mode, tuple[Level, ...]]) -> str:
    """Return ``PyTorch: level "L1"; ...``, modes that take the same levels together."""
    grouped: dict[tuple[Level, ...], list[Mode]] = {}
    for mode, levels in levels_by_mode.items():
        grouped.setdefault(levels, []).append(mode)
    parts = []
    for levels, modes in grouped.items():
        words = " or ".join(f'"{level}"' for level in levels)
        parts.append(f"{_modes_text(tuple(modes))} at level {words}")
    return "; ".join(parts)


def _modes_text(modes: tuple[Mode, ...]) -> str:
    """Return the names of modes, the jit_levels of graph mode gathered: ``... graph mode, jit_level O0/O1``."""
    texts = [mode.value for mode in modes if not mode.is_static]
    jit_levels = "/".join(mode.value[-2:] for mode in modes if mode.is_static)
    if jit_levels:
        texts.append(f"MindSpore graph mode, jit_level {jit_levels}")
    return ", ".join(texts)
