"""What a comparison says: one row per compared value, one per record, and the summary of it all.

Tables, `summary.json` and pages are renderers of these. Nothing here reads a file. What is made once for each value is
a named tuple: a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Number = int | float
Verdict = Literal["pass", "warning", "error", "unmatched", "uncompared"]
Role = Literal["equal", "source", "inherits", "unmatched"]
CauseKind = Literal[
    "outputs differ from equal inputs",
    "operation differs",
    "a parameter differs",
    "an argument differs",
    "arguments in another order",
    "an input comes from another record",
    "an input from outside the capture differs",
    "an extra call",
    "a missing call",
    "an extra call with a non-finite output",
    "a difference that has grown",
    "received from another rank",
]

#: How ranks are put together where records have no placements: what they have is the same on all of them, or may be the
#: rank's part of the batch.
GatherRule = Literal["replicated", "batch"]

#: From harmless to grave; a record or a run has the gravest verdict of its parts.
GRAVITY: Mapping[str, int] = {"pass": 0, "uncompared": 1, "warning": 2, "unmatched": 3, "error": 4}


@dataclass(frozen=True, slots=True)
class Entry:
    """One value of a record, as one dump has it.

    Attributes
    ----------
    kind
        ``tensor``, ``scalar`` (bool, int, float, str, dtype, device, slice, ...) or ``null``.
    dtype
        Without the framework's name: ``float32``; of a scalar its type, ``int``.
    shape
        None for scalars.
    largest, smallest, mean, norm
        The statistics ``Max``, ``Min``, ``Mean``, ``Norm``; None where the dump has null.
    requires_grad
        None where it is not recorded.
    checksum
        ``md5``, ``xor`` or ``hash`` as written; None without one.
    data_name
        File name in the tensor folder; None without one.
    value
        Of a scalar.
    nan, inf
        Counts of non-finite elements, where recorded; 0 else.
    reason
        Why statistics are null, where recorded.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...] | None = None
    largest: Number | None = None
    smallest: Number | None = None
    mean: Number | None = None
    norm: Number | None = None
    requires_grad: bool | None = None
    checksum: str | None = None
    data_name: str | None = None
    value: Any = None
    nan: int = 0
    inf: int = 0
    reason: str = ""


class Differences(NamedTuple):
    """Of the statistics of two tensors: target minus golden, and that relative to golden (1.0 is 100 %).

    None where one side has no number. ``relative`` is infinite if golden is zero and target is not.
    """

    largest: float | None
    smallest: float | None
    mean: float | None
    norm: float | None
    relative_largest: float | None
    relative_smallest: float | None
    relative_mean: float | None
    relative_norm: float | None


@dataclass(frozen=True, slots=True)
class Metrics:
    """Of the elements of two tensors t (target) and g (golden).

    Attributes
    ----------
    cosine
        t.g / (|t| |g|); 1.0 if both are zero, 0.0 if one is; None for 0-dim and empty tensors.
    euclidean
        |t - g|.
    relative_euclidean
        |t - g| / |g|; infinite if only g is zero.
    max_abs
        Largest |t - g|.
    max_relative
        Largest |t - g| / |g| over elements where g is not zero.
    thousandth, five_thousandths
        Share of elements with |t - g| / |g| below 0.001 and 0.005.
    max_ulp
        Largest distance in units in the last place of the coarser dtype; None for other than floats.
    worst
        Index of the element with the largest |t - g| (or of the first non-finite mismatch).
    worst_target, worst_golden
        Its values.
    nonfinite_mismatches
        Elements where one side is NaN, +inf or -inf and the other is not the same.
    """

    cosine: float | None
    euclidean: float | None
    relative_euclidean: float | None
    max_abs: float | None
    max_relative: float | None
    thousandth: float | None
    five_thousandths: float | None
    max_ulp: float | None
    worst: tuple[int, ...] | None
    worst_target: float | complex | None
    worst_golden: float | complex | None
    nonfinite_mismatches: int = 0


@dataclass(frozen=True, slots=True)
class RankPart:
    """A rank, by its folder name, and which part of a value it has: ``Shard(dim=0) 2 of 4``; empty for all of it."""

    rank: str
    shard: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict with what it rests on.

    Attributes
    ----------
    verdict
        ``pass``, ``warning``, ``error``, ``unmatched`` or ``uncompared`` (nothing to compare by).
    measure
        What was measured, e.g. ``relative Norm difference``; empty where nothing needed measuring.
    number, threshold
        The measured value and the one it must not exceed.
    source
        Where the threshold comes from: ``default for float32``, ``measured: ...``, ``exact``.
    message
        One sentence for a reader; empty for a plain pass.
    parts
        Ranks in whose part of a value the difference is, where ranks were put together or have shards.
    """

    verdict: Verdict
    measure: str = ""
    number: float | None = None
    threshold: float | None = None
    source: str = ""
    message: str = ""
    parts: tuple[RankPart, ...] = ()


class LeafRow(NamedTuple):
    """One value of a record on both sides.

    ``name`` is its place in the target's record (``input.0``, ``input.scale``, ``output.0.1``, ``parameters.weight``,
    ``parameters_grad.weight``); ``golden_name`` differs from it only if it is at another place there.
    ``target`` or ``golden`` is None if only one side has it.
    """

    name: str
    golden_name: str
    target: Entry | None
    golden: Entry | None
    decision: Decision
    differences: Differences | None = None
    metrics: Metrics | None = None


@dataclass(frozen=True, slots=True)
class FxNode:
    """Where in a compiled program a record comes from.

    Attributes
    ----------
    graph
        Number of Dynamo's graph in the run.
    node
        Name of its node.
    """

    graph: int
    node: str


@dataclass(frozen=True, slots=True)
class RecordRow:
    """One record on both sides, or on one.

    Attributes
    ----------
    position
        0-based place in the comparison of this step and rank: execution order, unmatched records of golden between
        their neighbours.
    target, golden
        Full record names; None on the side that has no such record.
    module
        Dotted path of the module that the record is, or runs in (``layers.0.mlp``); empty if unknown.
    parent
        Name of the enclosing record as written in construct.json; empty if unknown or none.
    call_site
        ``file, line N, in function`` of the innermost frame that is not torch's or MindSpore's; empty if unknown.
    stack
        Frames, innermost first. Kept only for records that are not equal, to bound memory.
    verdict
        The gravest one of ``leaves``.
    role
        ``equal``, ``source`` (differs although its inputs do not), ``inherits``, ``unmatched``.
    worst
        The decision that ``verdict`` comes from.
    leaves
        Its values.
    fx
        Of the target's record, or of golden's if only that one was compiled; None if neither was.
    """

    position: int
    target: str | None
    golden: str | None
    module: str
    parent: str
    call_site: str
    stack: tuple[str, ...]
    verdict: Verdict
    role: Role
    worst: Decision
    leaves: tuple[LeafRow, ...]
    fx: FxNode | None = None

    @property
    def name(self) -> str:
        """The target's name, or golden's if target has no such record."""
        return self.target or self.golden or ""


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One record on the way to a divergence: its name, how it was judged, what it hands on."""

    target: str | None
    golden: str | None
    module: str
    verdict: Verdict
    number: float | None = None
    hands_on: str = ""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two runs part first.

    Attributes
    ----------
    step, rank
        Folder names (``step0``, ``rank1``); empty where a rank folder was given.
    position
        Of the record, see `RecordRow`.
    record, golden_record
        Full names; None on the side without it.
    leaf
        The value in the record that differs, e.g. ``output.0``.
    cause
        One of `CauseKind`.
    explanation
        One or two sentences with numbers: what differs from what, and what to look at.
    module, parent, call_site, stack, fx
        As in `RecordRow`.
    decision
        Verdict with number, threshold and its source.
    chain
        Records that lead to it, the earliest first; the divergence itself is the last link.
    """

    step: str
    rank: str
    position: int
    record: str | None
    golden_record: str | None
    leaf: str
    cause: CauseKind
    explanation: str
    module: str
    parent: str
    call_site: str
    stack: tuple[str, ...]
    decision: Decision
    chain: tuple[ChainLink, ...] = ()
    fx: FxNode | None = None


@dataclass(frozen=True, slots=True)
class InheritedGroup:
    """Records of one module and direction that differ only because their inputs do."""

    module: str
    direction: str
    records: int
    first: str
    last: str
    worst_number: float | None = None


@dataclass(frozen=True, slots=True)
class PairSummary:
    """Result of one step and rank.

    Attributes
    ----------
    step, rank
        Folder names of the target; empty where a rank folder was given.
    target, golden
        Paths of the dump files; None on the side that lacks this step or rank.
    records
        Records per verdict (keys as in `Verdict`).
    values
        Compared values (leaves) per verdict.
    only_target, only_golden
        How many records only one side has, and the first names of them.
    mode
        ``statistics``, ``tensor``, ``md5`` or a mix such as ``statistics+tensor``: what was compared.
    divergence
        The first one; None if there is none.
    sources
        Names of the first records with role ``source``.
    inherited
        Groups of records that merely inherit.
    notes
        What a reader should know: truncated files, missing tensor files, ...
    trend
        Per verdict-relevant measure, for plots: the worst ratio of number to threshold per module path.
    """

    step: str
    rank: str
    target: str | None
    golden: str | None
    records: Mapping[str, int]
    values: Mapping[str, int]
    only_target: int = 0
    only_golden: int = 0
    only_target_names: tuple[str, ...] = ()
    only_golden_names: tuple[str, ...] = ()
    mode: str = ""
    divergence: Divergence | None = None
    sources: tuple[str, ...] = ()
    inherited: tuple[InheritedGroup, ...] = ()
    notes: tuple[str, ...] = ()
    trend: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of a whole comparison.

    ``first_divergence`` is the first of all steps and ranks in execution order; ``rank_only`` names the ranks that
    have it while others of the same step do not (empty if all have it, or there is only one rank).
    """

    target: str
    golden: str
    tolerance: str
    first_divergence: Divergence | None
    rank_only: tuple[str, ...]
    records: Mapping[str, int]
    values: Mapping[str, int]
    only_target: int
    only_golden: int
    pairs: tuple[PairSummary, ...]
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 if everything that was compared passes and nothing is unmatched, else 1."""
        grave = sum(self.records.get(verdict, 0) for verdict in ("warning", "error", "unmatched"))
        missing = any(pair.target is None or pair.golden is None for pair in self.pairs)
        return int(bool(grave or missing))
