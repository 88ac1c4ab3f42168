"""The configuration as the rest of the tool sees it: one frozen record, no JSON and no validation library."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Word(str, Enum):
    """A word of the configuration file. Compares, formats and serialises as its text."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(str(self.value), spec)


class Task(Word):
    """What is collected."""

    STATISTICS = "statistics"
    TENSOR = "tensor"
    ACC_CHECK = "acc_check"
    OVERFLOW_CHECK = "overflow_check"
    NAN_CHECK = "nan_check"
    STRUCTURE = "structure"
    EXCEPTION_DUMP = "exception_dump"


class Level(Word):
    """At which granularity it is collected."""

    L0 = "L0"
    L1 = "L1"
    L2 = "L2"
    MIX = "mix"
    DEBUG = "debug"


class Precision(Word):
    """Type in which statistics are returned."""

    LOW = "low"
    HIGH = "high"


class RiskLevel(Word):
    """Which APIs are recorded, by how likely they are to show a precision problem."""

    ALL = "ALL"
    CORE = "CORE"
    FOCUS = "FOCUS"


class SummaryMode(Word):
    """What stands in for the values of a tensor."""

    STATISTICS = "statistics"
    MD5 = "md5"
    XOR = "xor"
    HASH = "hash"


class FileFormat(Word):
    """Format of tensor files (MindSpore graph mode, level L2)."""

    NPY = "npy"
    BIN = "bin"


class Device(Word):
    """Where statistics are computed (MindSpore graph mode, jit_level O0 and O1)."""

    HOST = "host"
    DEVICE = "device"


class CheckMode(Word):
    """Which overflow is looked for (MindSpore graph mode, jit_level O2)."""

    ALL = "all"
    AICORE = "aicore"
    ATOMIC = "atomic"


@dataclass(frozen=True, slots=True)
class DataMode:
    """Which passes and which sides of a call are collected."""

    forward: bool = True
    backward: bool = True
    input: bool = True
    output: bool = True

    @classmethod
    def from_words(cls, words: Collection[str]) -> DataMode:
        """Build from the words of ``data_mode``.

        Parameters
        ----------
        words : collection of str
            Any of ``all``, ``forward``, ``backward``, ``input``, ``output``. Naming no direction means both
            directions, naming neither input nor output means both; empty means everything.
        """
        any_pass = not {"forward", "backward"} & set(words)
        any_side = not {"input", "output"} & set(words)
        return cls(
            forward=any_pass or "forward" in words,
            backward=any_pass or "backward" in words,
            input=any_side or "input" in words,
            output=any_side or "output" in words,
        )


@dataclass(frozen=True, slots=True)
class Config:
    """A valid configuration: the common keys, and the keys of the active task's section.

    A key that the active task does not have holds its default. docs/config.md says what each key means.

    Attributes
    ----------
    rank, step : frozenset of int
        Wanted ranks and steps; empty means all of them.
    dump_enable : bool or None
        None: the key is absent and dumping is static.
    scope : tuple of (str, str), or None
        First and last full name of the collected range.
    summary_mode : SummaryMode, or tuple of str
        The tuple holds statistic names (MindSpore graph mode only), in the order of the file.
    diff_nums : int
        Number of differences after which collection ends; -1 never.
    warnings : tuple of str
        What was accepted but probably not meant. Shown once by whoever loads the configuration.
    """

    task: Task
    level: Level
    dump_path: Path
    rank: frozenset[int] = frozenset()
    step: frozenset[int] = frozenset()
    async_dump: bool = False
    dump_enable: bool | None = None
    extra_info: bool = True
    precision: Precision = Precision.LOW
    risk_level: RiskLevel = RiskLevel.FOCUS
    exact: bool = False
    self_check: bool = False
    scope: tuple[str, str] | None = None
    list: tuple[str, ...] = ()
    tensor_list: tuple[str, ...] = ()
    data_mode: DataMode = DataMode()
    summary_mode: SummaryMode | tuple[str, ...] = SummaryMode.STATISTICS
    bench_path: Path | None = None
    diff_nums: int = 1
    white_list: tuple[str, ...] = ()
    black_list: tuple[str, ...] = ()
    error_data_path: Path = Path("./")
    check_mode: CheckMode = CheckMode.ALL
    file_format: FileFormat = FileFormat.NPY
    device: Device = Device.HOST
    warnings: tuple[str, ...] = ()
