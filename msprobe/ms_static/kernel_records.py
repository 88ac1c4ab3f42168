"""Kernels that MindSpore has dumped -> records.

A record is one launch of one kernel: ``Kernel.SCOPE.TYPE.N.forward``, for example
``Kernel.Default/fc-Dense/MatMul-op0.MatMul.0.forward``. N counts the launches of the kernel within the step; kernels
under ``Gradients/`` are ``backward``. Parameters that MindSpore dumps are ``Kernel.NAME.Parameter.0.forward``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msprobe.core.names import BACKWARD, FORWARD, Counters, RecordName
from msprobe.ms_static.categories import COLUMNS
from msprobe.store.kernel_files import KernelTensor, Side

PREFIX = "Kernel"
_GRADIENTS = ("Gradients/", "Gradients_")
_STATISTICS = {"Max": "max", "Min": "min", "Mean": "avg", "Norm": "l2norm"}
_OTHER_COUNTS = ("count", "negative zero count", "positive zero count", "zero count")

Entry = dict[str, Any]


@dataclass(slots=True)
class Launch:
    """One launch of one kernel.

    Attributes
    ----------
    op_type, op_name
        As in `KernelTensor`.
    first
        Its earliest timestamp.
    tensors
        Side and slot -> tensor.
    """

    op_type: str
    op_name: str
    first: int
    tensors: dict[tuple[Side, int], KernelTensor] = field(default_factory=dict)


def launches(tensors: Iterable[KernelTensor]) -> list[Launch]:
    """Gather tensors by launch, in the order of execution.

    Kernels may run side by side, so their tensors may alternate; a slot that comes again begins the next launch.

    Parameters
    ----------
    tensors
        Of one step, by time.
    """
    running: dict[tuple[str, str], Launch] = {}
    found: list[Launch] = []
    for tensor in tensors:
        kernel, place = (tensor.op_type, tensor.op_name), (tensor.side, tensor.slot)
        launch = running.get(kernel)
        if launch is None or place in launch.tensors:
            launch = running[kernel] = Launch(*kernel, tensor.timestamp)
            found.append(launch)
        launch.tensors[place] = tensor
    return sorted(found, key=lambda launch: launch.first)


class KernelNames:
    """Names of launches within one step.

    Parameters
    ----------
    scopes : mapping
        Kernel name as in file names -> full scope.
    """

    def __init__(self, scopes: Mapping[str, str]) -> None:
        self._scopes = scopes
        self._counters = Counters()

    def take(self, launch: Launch) -> str:
        """Return the name of the next launch."""
        scope = self._scopes.get(launch.op_name, launch.op_name).replace("#", "_")
        path = f"{scope}.{launch.op_type}"
        direction = BACKWARD if scope.startswith(_GRADIENTS) else FORWARD
        return str(RecordName(PREFIX, path, "", direction, self._counters.take(path)))


def kernel_record(launch: Launch, name: str, encode: Callable[[KernelTensor, str], Entry]) -> dict[str, Any]:
    """Return the record of a launch.

    Parameters
    ----------
    launch
    name
        Full name of the record.
    encode
        Makes the entry of one tensor, given its full name (``...forward.input.0``).

    Returns
    -------
    dict
        As of an API call: ``input_args``, ``input_kwargs`` and ``output``, or ``input`` and ``output`` of a backward
        one. A slot that was not dumped is null.
    """
    sides: dict[Side, list[Entry | None]] = {}
    for side in ("input", "output"):
        slots = [slot for where, slot in launch.tensors if where == side]
        entries: list[Entry | None] = [None] * (max(slots) + 1 if slots else 0)
        for slot in sorted(slots):
            entries[slot] = encode(launch.tensors[side, slot], f"{name}.{side}.{slot}")
        sides[side] = entries
    if name.endswith(f".{BACKWARD}"):
        return {"input": sides["input"], "output": sides["output"]}
    return {"input_args": sides["input"], "input_kwargs": {}, "output": sides["output"]}


def statistics_entry(tensor: KernelTensor) -> Entry:
    """Return the entry of a tensor of which only statistics were dumped; those that were not asked for are null."""
    values = {category: _number(tensor.statistics.get(column)) for category, column in COLUMNS.items()}
    entry: Entry = {"type": "mindspore.Tensor", "dtype": tensor.dtype, "shape": list(tensor.shape or ())}
    entry |= {key: values[category] for key, category in _STATISTICS.items()}
    infinite = (values["negative inf count"] or 0) + (values["positive inf count"] or 0)
    entry |= {key: count for key, count in (("NaN", values["nan count"]), ("Inf", infinite)) if count}
    entry |= {name: values[name] for name in _OTHER_COUNTS if values[name] is not None}
    for key, column in (("md5", "MD5"), ("sha1", "SHA1")):
        if column in tensor.statistics:
            entry[key] = tensor.statistics[column].strip().lower()
    if any(entry[key] is None for key in _STATISTICS):
        entry["reason"] = "not among the statistics of summary_mode, or none exist"
    return entry


def _number(text: str | None) -> float | int | bool | None:
    word = (text or "").strip()
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    try:
        return int(word)
    except ValueError:
        pass
    try:
        return float(word)
    except ValueError:
        return None
