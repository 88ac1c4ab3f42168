"""A script for each failure that repeats it with nothing but torch: arguments, results and references lie beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from msprobe.replay.api_kinds import decisive_name
from msprobe.replay.arguments import Arguments, DeviceArgument, Leaf
from msprobe.replay.errors import relative_error
from msprobe.replay.execute import wide_dtype
from msprobe.replay.judge import Runs
from msprobe.replay.plan import Plan
from msprobe.replay.records import Detail
from msprobe.replay.references import REFERENCES, source_of
from msprobe.replay.script_template import TEMPLATE
from msprobe.replay.verdicts import ERROR
from msprobe.store.error_data import ErrorData

SCRIPT = "reproduce.py"


@dataclass(frozen=True, slots=True)
class Reproducer:
    """Writes reproducer folders.

    Attributes
    ----------
    folder : Path
        Folder that gets one folder per failed call.
    device : str
        The device that failed.
    imports : tuple of str
        Modules that the user's operators need.
    """

    folder: Path
    device: str
    imports: tuple[str, ...]

    def write(self, plan: Plan, runs: list[Runs], details: tuple[Detail, ...]) -> str:
        """Write script, arguments, results and references of a call; return the folder.

        Where nothing can be written (a full disk) the text is empty: that costs the script, not the check.
        """
        files: dict[str, Any] = {
            "inputs.pt": plan.arguments.tensors,
            "gradients.pt": plan.gradients or [],
            "device.pt": {name: value for run in runs for name, value in run.device},
            "reference.pt": {name: value for run in runs for name, value in run.reference or []},
        }
        writers = {name: partial(torch.save, content) for name, content in files.items()}
        script = self._script(plan, runs, details).encode()
        return ErrorData(self.folder).write(plan.call.name, {**writers, SCRIPT: lambda file: file.write(script)})

    def _script(self, plan: Plan, runs: list[Runs], details: tuple[Detail, ...]) -> str:
        name = decisive_name(plan.call.prefix, plan.call.path)
        source = plan.resolved.source
        own = REFERENCES.get(name)
        wanted = [i for i, wants in enumerate(plan.arguments.wants_gradient) if wants] if plan.gradients else []
        autocast = f', torch.autocast(device.split(":")[0], {plan.autocast}, enabled=not wide)' if plan.autocast else ""
        bad = [detail for detail in details if detail.verdict == ERROR]
        return TEMPLATE.format(
            title=f"{plan.call.name}: failed msprobe acc_check.",
            findings="\n".join(f"{detail.tensor}: {detail.rule}" for detail in bad) or "The call raised an exception.",
            device=self.device,
            imports="".join(f"import {module}\n" for module in dict.fromkeys([*self.imports, *plan.resolved.imports])),
            limits=repr(_limits(runs, details)),
            call=_call_text(source, plan.arguments, wide=False),
            own=f"\n\n{source_of(name)}" if own is not None else "",
            reference=_call_text(own.__name__ if own is not None else source, plan.arguments, wide=True),
            wanted=wanted,
            autocast=autocast,
        )


def _limits(runs: list[Runs], details: tuple[Detail, ...]) -> list[float | None]:
    """Return half of the relative error of each result that failed, None for the others."""
    verdicts = {(detail.direction, detail.tensor): detail.verdict for detail in details}
    limits: list[float | None] = []
    for run in runs:
        for index, (name, value) in enumerate(run.device):
            failed = verdicts.get((run.direction, name)) == ERROR and run.reference is not None
            wanted = run.reference[index][1] if failed and run.reference is not None else None
            limits.append(None if wanted is None else relative_error(value, wanted) / 2)
    return limits


def _call_text(source: str, arguments: Arguments, *, wide: bool) -> str:
    args = [_text(value, wide=wide) for value in arguments.args]
    kwargs = ", ".join(f"{key!r}: {_text(value, wide=wide)}" for key, value in arguments.kwargs.items())
    keywords = [f"**{{{kwargs}}}"] if kwargs else []
    return f"{source}({', '.join([*args, *keywords])})"


def _text(value: Any, *, wide: bool) -> str:  # noqa: PLR0911 - one return per kind of value
    """Return the Python expression of an argument."""
    if isinstance(value, Leaf):
        return f"t[{value.index}]"
    if isinstance(value, DeviceArgument):
        return "device"
    if isinstance(value, torch.dtype):
        return str(wide_dtype(value) if wide else value)
    if isinstance(value, torch.Size):
        return f"torch.Size({list(value)})"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if isinstance(value, list):
        return f"[{', '.join(_text(item, wide=wide) for item in value)}]"
    if isinstance(value, tuple):
        return f"({''.join(_text(item, wide=wide) + ', ' for item in value)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_text(item, wide=wide)}' for key, item in value.items())}}}"
    if value is ...:
        return "..."
    return str(value) if isinstance(value, torch.memory_format) else repr(value)
