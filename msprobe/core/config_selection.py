"""Rules for the keys that select what is collected: scope, list, tensor_list and data_mode."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msprobe.core.config_record import Level, Task
from msprobe.core.config_values import quoted
from msprobe.core.config_view import PAIR, Finding, Rule, View
from msprobe.core.errors import Problem
from msprobe.core.names import parse_name
from msprobe.core.support import Mode

_REGEX_ENTRY = re.compile(r"name-regex\((.*)\)", re.DOTALL)


def _scope(view: View) -> Iterator[Finding]:
    config = view.config
    if config.scope is None:
        return
    if view.mode.is_static or config.level is Level.L2:
        hint = 'choose kernels with "list" instead' if config.level is Level.L2 else ""
        where = view.mode.value if view.mode.is_static else f'{view.mode.value} at level "L2"'
        yield Problem(view.key("scope"), list(config.scope), f"[] on {where}", hint)
        return
    wanted = {Level.L0: True, Level.L1: False}.get(config.level)
    for index, text in enumerate(config.scope):
        name = parse_name(text)
        if name is None:
            continue
        if wanted is not None and name.is_module is not wanted:
            kind, example = (
                ("a module", "Module.fc1.Linear.forward.0") if wanted else ("an API", "Tensor.add.0.forward")
            )
            allowed = f'the name of {kind} at level "{config.level}", e.g. "{example}"'
            yield Problem(view.key(f"scope[{index}]"), text, allowed, 'level "mix" takes modules and APIs')
        elif name.prefix == "Cell" and view.mode is Mode.PYTORCH:
            yield f'{view.key("scope")}: "{text}" is a MindSpore name; PyTorch modules are called "Module...."'


def _list(view: View) -> Iterator[Finding]:
    config = view.config
    if (
        view.mode is Mode.PYTORCH
        and config.level is Level.L2
        and config.task in (Task.STATISTICS, Task.TENSOR)
        and not config.list
    ):
        yield Problem(
            view.key("list"), [], 'at level "L2" on PyTorch: at least one API name', 'e.g. ["Torch.matmul.0.forward"]'
        )
    if view.mode.is_static and config.level is Level.L0 and config.list:
        yield Problem(view.key("list"), list(config.list), f'[] on {view.mode.value} at level "L0"')
    for index, entry in enumerate(config.list):
        finding = _list_entry(view, index, entry)
        if finding is not None:
            yield finding


def _list_entry(view: View, index: int, entry: str) -> Finding | None:
    path = view.key(f"list[{index}]")
    if view.kernel_dump:
        return _kernel_entry(view, path, entry)
    if entry.startswith("name-regex("):
        return f"{path}: name-regex(...) works at level L2 of MindSpore only; here it is taken literally"
    name = parse_name(entry)
    if name is not None and view.config.level is Level.L1 and name.is_module:
        return f'{path}: "{entry}" names a module, and level "L1" records APIs only; level "mix" takes it'
    if name is not None and view.config.level is Level.L0 and not name.is_module:
        return f'{path}: "{entry}" names an API, and level "L0" records modules only; level "mix" takes it'
    return None


def _kernel_entry(view: View, path: str, entry: str) -> Problem | None:
    if entry.startswith("name-regex"):
        match = _REGEX_ENTRY.fullmatch(entry)
        if match is None:
            return Problem(path, entry, "name-regex(PATTERN), closed by a bracket", 'e.g. "name-regex(Default/.+)"')
        try:
            re.compile(match[1])
        except re.error as error:
            return Problem(path, entry, f"a valid regular expression in name-regex(...) ({error})")
    elif view.mode is Mode.STATIC_O2 and "/" not in entry:
        allowed = f"a full kernel name or name-regex(...) on {view.mode.value}, not a kernel type"
        return Problem(path, entry, allowed, f'e.g. "name-regex(.*{re.escape(entry)}.*)"')
    return None


def _tensor_list(view: View) -> Iterator[Finding]:
    config = view.config
    if not config.tensor_list:
        return
    if view.mode.is_static:
        yield Problem(
            view.key("tensor_list"), list(config.tensor_list), f"[] on {view.mode.value}", 'use task "tensor"'
        )
    elif config.level is Level.L2:
        yield Problem(
            view.key("tensor_list"), list(config.tensor_list), '[] at level "L2"', 'use level "L0", "L1" or "mix"'
        )


def _data_mode(view: View) -> Iterator[Finding]:
    if view.kernel_dump:
        choices: tuple[str, ...] = ("all", "input", "output")
    elif view.mode.is_static:
        choices = ("all", "forward", "backward")
    else:
        return
    words = view.data_words
    if len(words) > 1 or not set(words) <= set(choices):
        allowed = f'one of {quoted(choices)} alone, on {view.mode.value} at level "{view.config.level}"'
        yield Problem(view.key("data_mode"), list(words), allowed)


def _debug_level(view: View) -> Iterator[Finding]:
    config = view.config
    keys = [name for name in ("scope", "list", "tensor_list") if getattr(config, name)]
    if config.level is Level.DEBUG and keys:
        yield f'{", ".join(map(view.key, keys))}: no effect at level "debug", which records only what save() is given'


SELECTION_RULES: tuple[Rule, ...] = (
    Rule((*PAIR, "scope"), _scope),
    Rule((*PAIR, "list"), _list),
    Rule((*PAIR, "tensor_list"), _tensor_list),
    Rule((*PAIR, "data_mode"), _data_mode),
    Rule((*PAIR, "scope", "list", "tensor_list"), _debug_level),
)
