"""Parts of dump entries that do not depend on the framework: what to measure, and how statistics are written."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from msprobe.measure.plain_scalars import json_number
from msprobe.measure.records import Statistics

Entry: TypeAlias = dict[str, Any]
Task: TypeAlias = Literal["statistics", "tensor", "structure"]
SummaryMode: TypeAlias = Literal["statistics", "md5", "xor", "hash"]
Precision: TypeAlias = Literal["low", "high"]
#: Names of the checksums in the configuration; ``md5`` is CRC-32 for historical reasons.
ChecksumMode: TypeAlias = Literal["md5", "xor", "hash"]

#: Why a complex tensor of an asynchronous dump has no statistics.
COMPLEX_LEFT_OUT = "complex tensor: no statistics with async_dump"


@dataclass(frozen=True, slots=True)
class MeasurePlan:
    """What to find out about each tensor.

    Attributes
    ----------
    statistics
        Max, Min, Mean and Norm.
    checksum
        Which checksum, if any.
    low
        Round statistics to the tensor's dtype.
    immediate
        Device types that are read at once; tensors of others are launched and filled in by `TensorEncoder.resolve`.
    complex_statistics
        Whether complex tensors have statistics; asynchronous dumps leave them out.
    """

    statistics: bool = True
    checksum: ChecksumMode | None = None
    low: bool = True
    immediate: Container[str] = ("cpu",)
    complex_statistics: bool = True


def set_statistics(entry: Entry, statistics: Statistics | None) -> None:
    """Set Max, Min, Mean and Norm; all None when there are none."""
    if statistics is None:
        entry["Max"] = entry["Min"] = entry["Mean"] = entry["Norm"] = None
        return
    entry["Max"] = json_number(statistics.max)
    entry["Min"] = json_number(statistics.min)
    entry["Mean"] = json_number(statistics.mean)
    entry["Norm"] = json_number(statistics.norm)


def add_counts(entry: Entry, statistics: Statistics) -> None:
    """Add the counts of NaN and Inf, when there are any, and why statistics are missing."""
    if statistics.nan:
        entry["NaN"] = statistics.nan
    if statistics.inf:
        entry["Inf"] = statistics.inf
    if statistics.reason is not None:
        entry["reason"] = statistics.reason


def fill(entry: Entry, statistics: Statistics) -> None:
    """Complete an entry whose statistics come later."""
    set_statistics(entry, statistics)
    add_counts(entry, statistics)


def forget_file(entry: Entry) -> None:
    """The file that an entry names was not written after all."""
    entry.pop("data_name", None)
    entry.pop("data_dtype", None)
