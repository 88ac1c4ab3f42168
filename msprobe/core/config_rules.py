"""What the keys of config.json demand of each other, and what each framework mode makes of them.

One rule is one generator over a :class:`~msprobe.core.config_view.View`; it lists the keys it looks at and is not run
while one of them is broken. Rules about names and data_mode are in :mod:`msprobe.core.config_selection`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from msprobe.core.config_record import Device, Level, Precision, RiskLevel, SummaryMode, Task
from msprobe.core.config_selection import SELECTION_RULES
from msprobe.core.config_values import STATISTIC_NAMES, quoted
from msprobe.core.config_view import PAIR, Finding, Rule, View
from msprobe.core.errors import NOT_SET, Problem
from msprobe.core.support import Mode

_DUMPING = (Task.STATISTICS, Task.TENSOR)
_HOOKED_LEVELS = (Level.L0, Level.L1, Level.MIX, Level.DEBUG)
_COMPARED_LEVELS = (Level.L0, Level.L1, Level.MIX)
_USUAL_STATISTICS = ("max", "min", "mean", "l2norm")
_KERNEL_PATH = re.compile(r"[A-Za-z0-9_-]*")


def _summary_mode(view: View) -> Iterator[Finding]:
    config, mode = view.config, view.config.summary_mode
    if config.task is Task.TENSOR and (view.mode.is_static or view.kernel_dump):
        if mode is not SummaryMode.STATISTICS:
            yield f"tensor.summary_mode has no effect on {view.mode.value}"
        return
    words, names = _summary_choices(view)
    fits = set(mode) <= set(names) if isinstance(mode, tuple) else mode in words
    if not fits:
        allowed = f'{quoted(words)} on {view.mode.value} at level "{config.level}"'
        if names:
            allowed += f", or a list of {quoted(names)}"
        yield Problem(view.key("summary_mode"), _shown(mode), allowed)


def _summary_choices(view: View) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words, and the statistics of a list, that ``summary_mode`` may hold here."""
    listable = view.config.task is Task.STATISTICS
    if view.kernel_dump:
        names = _USUAL_STATISTICS if view.mode is Mode.STATIC_O2 else STATISTIC_NAMES
        return ("statistics", "md5"), names if listable else ()
    if view.mode.is_static:
        return ("statistics",), _USUAL_STATISTICS if listable else ()
    if view.mode is Mode.PYTORCH:
        return ("statistics", "md5", "xor", "hash"), ()
    return ("statistics", "md5", "hash"), ()


def _device(view: View) -> Iterator[Finding]:
    config = view.config
    if config.device is not Device.DEVICE:
        return
    if view.mode not in (Mode.STATIC_O0, Mode.STATIC_O1):
        yield "statistics.device has an effect only on MindSpore graph mode with jit_level O0 or O1"
    elif config.summary_mode is not SummaryMode.STATISTICS and not (
        isinstance(config.summary_mode, tuple) and set(config.summary_mode) <= set(_USUAL_STATISTICS)
    ):
        yield Problem("statistics.device", "device", f'"host"; "device" computes only {quoted(_USUAL_STATISTICS)}')


def _file_format(view: View) -> Iterator[Finding]:
    if "file_format" in view.given and not (view.mode.is_static and view.config.level is Level.L2):
        yield "tensor.file_format has an effect only on MindSpore graph mode at level L2"


def _bench(view: View) -> Iterator[Finding]:
    config = view.config
    if config.bench_path is not None:
        if view.mode is not Mode.PYTORCH:
            yield "tensor.bench_path has an effect on PyTorch only"
        elif config.level not in _COMPARED_LEVELS:
            allowed = f'left out at level "{config.level}": there are no records of calls to compare'
            yield Problem("tensor.bench_path", str(config.bench_path), allowed, f"use level {quoted(_COMPARED_LEVELS)}")
        elif config.summary_mode is not SummaryMode.MD5:
            allowed = '"md5" while bench_path is set: it compares with an earlier md5 dump'
            yield Problem("tensor.summary_mode", _shown(config.summary_mode), allowed)
    elif "diff_nums" in view.given:
        yield "tensor.diff_nums has no effect without bench_path"


def _async(view: View) -> Iterator[Finding]:
    config = view.config
    if not config.async_dump:
        return
    if config.task not in _DUMPING:
        yield Problem("async_dump", True, f'false with task "{config.task}"', 'it works with "statistics" and "tensor"')
        return
    # At L2, MindSpore's own kernel dump (not the GE one of O2) has an asynchronous mode that the key switches.
    if config.level not in _HOOKED_LEVELS and (not view.kernel_dump or view.mode is Mode.STATIC_O2):
        allowed = f'false with level "{config.level}" on {view.mode.value}'
        yield Problem("async_dump", True, allowed, f"it works with level {quoted(_HOOKED_LEVELS)}")
    if config.task is Task.TENSOR and config.level is not Level.DEBUG and not config.list:
        allowed = "with async_dump and task tensor: at least one name, since all tensors are held until the step ends"
        yield Problem("tensor.list", [], allowed, 'name what you need, or set "async_dump": false')


def _async_summary(view: View) -> Iterator[Finding]:
    config = view.config
    asks_md5 = config.summary_mode is SummaryMode.MD5 or (
        isinstance(config.summary_mode, tuple) and "md5" in config.summary_mode
    )
    if config.async_dump and asks_md5:
        allowed = 'anything but md5 while async_dump is true, e.g. "statistics"'
        yield Problem(view.key("summary_mode"), _shown(config.summary_mode), allowed, 'or set "async_dump": false')


def _shown(mode: SummaryMode | tuple[str, ...]) -> object:
    return list(mode) if isinstance(mode, tuple) else mode.value


def _rank(view: View) -> Iterator[Finding]:
    config = view.config
    if view.mode.is_static and config.level is Level.L0 and config.rank:
        yield Problem("rank", sorted(config.rank), f'[] on {view.mode.value} at level "L0"')


def _dump_path(view: View) -> Iterator[Finding]:
    parts = PurePath(view.config.dump_path).parts
    bad = [part for part in parts if part not in ("/", "..") and not _KERNEL_PATH.fullmatch(part)]
    if view.kernel_dump and bad:
        allowed = "letters, digits, '-', '_' and '/' only: MindSpore's kernel dump takes no other path"
        yield Problem("dump_path", str(view.config.dump_path), allowed)


def _without_effect(view: View) -> Iterator[Finding]:
    config = view.config
    if config.task in (Task.EXCEPTION_DUMP, Task.OVERFLOW_CHECK) and config.step:
        yield f"step has no effect with task {config.task}: every step is watched"
    if config.precision is Precision.HIGH and (config.task not in _DUMPING or not _has_precision(view)):
        yield f"precision has no effect with task {config.task} at level {config.level} on {view.mode.value}"
    if config.dump_enable is not None and view.mode is not Mode.PYTORCH:
        yield "dump_enable has an effect on PyTorch only"
    if config.task is Task.STRUCTURE and not config.extra_info:
        yield "extra_info false leaves nothing to write: task structure writes stack.json and construct.json"


def _has_precision(view: View) -> bool:
    return view.config.level in _HOOKED_LEVELS or (view.kernel_dump and view.mode is not Mode.STATIC_O2)


def _risk_level(view: View) -> Iterator[Finding]:
    config = view.config
    if config.risk_level is RiskLevel.FOCUS:  # the default, which templates spell out
        return
    if view.mode is not Mode.PYTORCH or config.level not in (Level.L1, Level.L2, Level.MIX):
        yield 'risk_level has an effect only on PyTorch at level "L1", "mix" or "L2"'
    elif config.level is not Level.L2 and config.risk_level is not RiskLevel.ALL and (config.scope or config.list):
        yield "risk_level has no effect while scope or list is set: they decide alone"


def _compiled_graphs(view: View) -> Iterator[Finding]:
    for key in ("exact", "self_check"):
        if getattr(view.config, key) and not (view.mode is Mode.PYTORCH and view.config.level in _COMPARED_LEVELS):
            yield f'{key} has an effect only on PyTorch at level "L0", "L1" or "mix"'


RULES: tuple[Rule, ...] = (
    *SELECTION_RULES,
    Rule((*PAIR, "summary_mode"), _summary_mode),
    Rule((*PAIR, "summary_mode", "device"), _device),
    Rule((*PAIR, "file_format"), _file_format),
    Rule((*PAIR, "summary_mode", "bench_path"), _bench),
    Rule((*PAIR, "async_dump", "list"), _async),
    Rule((*PAIR, "async_dump", "summary_mode"), _async_summary),
    Rule((*PAIR, "rank"), _rank),
    Rule((*PAIR, "dump_path"), _dump_path),
    Rule(PAIR, _without_effect),
    Rule((*PAIR, "scope", "list", "risk_level"), _risk_level),
    Rule((*PAIR, "exact", "self_check"), _compiled_graphs),
)


def overlap_problems(white_list: list[str], black_list: list[str]) -> list[Problem]:
    """Refuse API names that stand in both lists of task ``acc_check``."""
    return [
        Problem(f"acc_check.black_list[{index}]", name, "a name that is not in white_list too", "delete one of the two")
        for index, name in enumerate(black_list)
        if name in white_list
    ]


def judge(view: View, broken: frozenset[str] = frozenset()) -> tuple[list[Problem], list[str]]:
    """Run every rule for one framework mode.

    Parameters
    ----------
    view : View
    broken : frozenset of str
        Keys (bare names) whose values were already refused; the view holds their defaults.

    Returns
    -------
    problems : list of Problem
    warnings : list of str
    """
    problems: list[Problem] = []
    warnings: list[str] = []
    for rule in RULES:
        if broken.intersection(rule.needs):
            continue
        for finding in rule.check(view):
            if isinstance(finding, Problem):
                problems.append(finding)
            else:
                warnings.append(finding)
    return problems, warnings


def missing_dump_path(source: str, *, packaged: bool) -> Problem:
    """Return the problem of a configuration without ``dump_path``."""
    hint = f'add "dump_path": "./msprobe_dump" to {source}'
    if packaged:
        hint = f"pass config_path or dump_path to PrecisionDebugger, or {hint}"
    return Problem("dump_path", NOT_SET, "a non-empty path in double quotes (required)", hint)
