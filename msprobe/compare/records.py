"""Comparing the two records of a pair, value by value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msprobe.compare.dump_side import DumpSide, call_site
from msprobe.compare.entries import INPUT, OUTPUT, PARAMETERS, Leaf, entry_of, fx_of, leaves_of
from msprobe.compare.gather_judge import GatherJudge, is_gathered, judge_scalar_of_ranks
from msprobe.compare.gather_layout import placement_text
from msprobe.compare.judge import (
    NO_DIFFERENCE,
    differences_of,
    judge_checksums,
    judge_metrics,
    judge_mismatch,
    judge_scalar,
    judge_statistics,
    noise_of,
    statistics_number,
)
from msprobe.compare.kinds import kind_of
from msprobe.compare.leaves import pair_leaves
from msprobe.compare.metrics import compare_arrays
from msprobe.compare.optional_values import pardon_optional
from msprobe.compare.rows import (
    GRAVITY,
    Decision,
    Entry,
    FxNode,
    GatherRule,
    LeafRow,
    Metrics,
    RankPart,
    RecordRow,
    Role,
    Verdict,
)
from msprobe.compare.thresholds import Limits, ToleranceMode, limits_for, measured_limits
from msprobe.store.tensor_reader import ReadTensor, TensorReadError, read_tensor

_EXTRA = Decision("unmatched", message="only the target has this record")
_MISSING = Decision("unmatched", message="only golden has this record")
_NOT_RECORDED = Decision("unmatched", message="only one side has this value")
_NOT_GIVEN = Decision("uncompared", message="only one side has this value")
_OTHER_OPERATION = Decision("uncompared", message="belongs to another operation")
_UNINITIALISED = Decision("uncompared", message="memory that nothing was written to")
_OVERWRITTEN = Decision("uncompared", message="what is here before the call, which overwrites it")
_OTHER_FRAMEWORK = Decision("uncompared", message="the two frameworks take, return or differentiate other things here")
_LAST_NODE = Decision(
    "uncompared",
    message="another gradient: mindstudio-probe lists those of an API's last autograd node, msprobe its arguments'",
)
_NOTHING = Decision("uncompared", message="the record holds no values")
_EQUAL = Decision("pass", "difference", 0.0, 0.0, "equal")
_SECTION_WEIGHT = {OUTPUT: 0.5, PARAMETERS: 0.25, INPUT: 0.0}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How values are judged.

    Attributes
    ----------
    mode
        ``default``, ``exact`` or ``measured``.
    any_dtype
        Whether values of different dtypes may be equal.
    reference
        What the measured limits come from; its name for messages.
    gather
        What values without placements are, if ranks were put together; None if they were not.
    """

    mode: ToleranceMode = "default"
    any_dtype: bool = False
    reference: str = ""
    gather: GatherRule | None = None


@dataclass(slots=True)
class Findings:
    """What comparing records has shown beside the rows."""

    statistics: int = 0
    tensors: int = 0
    checksums: int = 0
    unreadable: list[str] = field(default_factory=list)

    def count(self, by: str) -> None:
        """Count one comparison by its kind; other words than the names of the counts are ignored."""
        if by in {"tensors", "checksums", "statistics"}:
            setattr(self, by, getattr(self, by) + 1)

    @property
    def mode(self) -> str:
        """What was compared by: ``statistics``, ``tensor``, ``md5`` or several of them."""
        found = {"tensor": self.tensors, "md5": self.checksums, "statistics": self.statistics}
        return "+".join(name for name, count in found.items() if count) or "nothing"


@dataclass(frozen=True, slots=True)
class _Judged:
    """What a record has come to, and where in a compiled program it is from."""

    role: Role
    verdict: Verdict
    worst: Decision
    fx: FxNode | None


class RecordComparer:
    """Compares records of two dumps.

    Parameters
    ----------
    target, golden
        The dumps.
    tolerance
        How to judge.
    reference
        The run that measured limits come from, and the number of its record for each one of golden.
    """

    def __init__(
        self,
        target: DumpSide,
        golden: DumpSide,
        tolerance: Tolerance,
        reference: tuple[DumpSide, Mapping[int, int]] | None = None,
    ) -> None:
        self.findings = Findings()
        self._target = target
        self._golden = golden
        self._tolerance = tolerance
        self._reference = reference
        self._other_order = target.is_ours != golden.is_ours
        frameworks = {side.index.head.framework for side in (target, golden)} - {""}
        self._other_framework = len(frameworks) > 1
        self._by_table = _Limits(tolerance, None, {})
        self._gathered: GatherJudge | None = None
        self._ranks = max(side.rank_count for side in (target, golden))
        if tolerance.gather is not None:
            self._gathered = GatherJudge(tolerance.gather, self._read_file, any_dtype=tolerance.any_dtype)

    def compare(self, position: int, target: int, golden: int, *, replaced: bool, moved: bool) -> RecordRow:
        """Compare two records, given by their numbers; -1 where a side has none."""
        if target < 0 or golden < 0:
            return self._alone(position, target, golden)
        name, record = self._target.index.record(target)
        golden_name, golden_record = self._golden.index.record(golden)
        ours, theirs = leaves_of(record), leaves_of(golden_record)
        by_content = self._other_order and kind_of(name).direction == "backward"
        sections = {OUTPUT} if by_content else {INPUT} if self._takes_others(name) else ()
        pairs = pair_leaves(ours, theirs, by_content=sections)
        skipped = _not_comparable(kind_of(name).direction, ours, theirs) if replaced else ""
        limits = self._limits(golden)
        rows = tuple([self._leaf(a, b, limits, theirs, skipped=skipped) for a, b in pairs])
        if by_content and not kind_of(name).is_module:
            rows = tuple([_forgiven(row, _LAST_NODE) for row in rows])
        elif "empty" in name and kind_of(name).is_uninitialised:  # a name is taken apart only where that matters
            rows = tuple([_forgiven(row, _UNINITIALISED) for row in rows])
        elif "_." in name and kind_of(name).overwrites:
            rows = (_forgiven_destination(rows[0]), *rows[1:]) if rows else rows
        if self._other_framework:
            rows = tuple([_forgiven_across(row) for row in rows])
        role, worst = _summarise(rows, pairs)
        if worst.verdict in {"error", "unmatched"} and self._tolerance.mode != "exact" and kind_of(name).is_module:
            pardoned = pardon_optional(rows, kind_of(name).direction)
            if pardoned is not None:
                rows = pardoned
                role, worst = _summarise(rows, pairs)
        verdict = worst.verdict if worst.verdict != "unmatched" else "warning"
        if moved and verdict == "pass":
            worst = Decision("pass", message="at another place in the order")
        fx = fx_of(record) or fx_of(golden_record)
        return self._row(position, (name, golden_name), rows, _Judged(role, verdict, worst, fx))

    def _takes_others(self, name: str) -> bool:
        """Whether it is an API whose arguments the other framework has in another order."""
        return self._other_framework and not kind_of(name).is_module

    def _row(
        self, position: int, names: tuple[str | None, str | None], rows: tuple[LeafRow, ...], judged: _Judged
    ) -> RecordRow:
        side = self._golden if names[0] is None else self._target
        name = names[0] or names[1] or ""
        parent, module = side.surroundings(name)
        frames = side.stack(name)
        return RecordRow(
            position=position,
            target=names[0],
            golden=names[1],
            module=module,
            parent=parent,
            call_site=call_site(frames),
            stack=() if judged.role == "equal" else frames,
            verdict=judged.verdict,
            role=judged.role,
            worst=judged.worst,
            leaves=rows,
            fx=judged.fx,
        )

    def _alone(self, position: int, target: int, golden: int) -> RecordRow:
        side, number = (self._target, target) if golden < 0 else (self._golden, golden)
        name, record = side.index.record(number)
        worst = _EXTRA if golden < 0 else _MISSING
        rows = tuple(
            _one_sided(leaf, worst, golden=golden >= 0) if leaf.raw is not None else None for leaf in leaves_of(record)
        )
        names = (name, None) if golden < 0 else (None, name)
        judged = _Judged("unmatched", "unmatched", worst, fx_of(record))
        return self._row(position, names, tuple([row for row in rows if row is not None]), judged)

    def _leaf(
        self, target: Leaf | None, golden: Leaf | None, limits: _Limits, beside: Sequence[Leaf], *, skipped: str
    ) -> LeafRow:
        if target is None or golden is None:
            leaf = target or golden
            assert leaf is not None  # noqa: S101 - pairs have one side at least
            decision = _NOT_RECORDED if isinstance(leaf.raw, Mapping) and "shape" in leaf.raw else _NOT_GIVEN
            return _one_sided(leaf, _OTHER_OPERATION if leaf.section == skipped else decision, golden=target is None)
        if self._gathered is not None and target.section != skipped and is_gathered(target.raw, golden.raw):
            ours, theirs, decision, metrics = self._decide_gathered(self._gathered, target, golden, limits, beside)
        else:
            ours = entry_of(target.raw)
            theirs = ours if target.raw == golden.raw else entry_of(golden.raw)
            if target.section == skipped:
                return LeafRow(target.name, golden.name, ours, theirs, _OTHER_OPERATION)
            decision, metrics = self._decide(ours, theirs, golden, limits, beside)
        if decision.verdict in {"warning", "error"} and not decision.parts:
            decision = self._placed(decision, target.raw)
        if decision.verdict == "pass" and _gradients_differ(ours, theirs):
            decision = Decision(
                "warning", "requires_grad", message=f"{ours.requires_grad}, golden {theirs.requires_grad}"
            )
        differences = None
        if ours.kind == "tensor" == theirs.kind and ours.norm is not None:
            differences = NO_DIFFERENCE if theirs is ours else differences_of(ours, theirs)
        return LeafRow(target.name, golden.name, ours, theirs, decision, differences, metrics)

    def _decide(
        self, ours: Entry, theirs: Entry, leaf: Leaf, limits: _Limits, beside: Sequence[Leaf]
    ) -> tuple[Decision, Metrics | None]:
        mode = self._tolerance.mode
        mismatch = judge_mismatch(ours, theirs, any_dtype=self._tolerance.any_dtype)
        if mismatch is not None:
            return mismatch, None
        if ours.kind != "tensor":
            decision = judge_scalar(ours, theirs, mode)
            if decision.verdict == "error" and self._tolerance.gather is not None:
                decision = judge_scalar_of_ranks(ours.value, theirs.value, self._ranks) or decision
            return decision, None
        if ours.data_name and theirs.data_name:
            files = self._read(self._target, ours), self._read(self._golden, theirs)
            if files[0] is not None and files[1] is not None and files[0].array.shape == files[1].array.shape:
                self.findings.tensors += 1
                metrics = compare_arrays(files[0].array, files[1].array, (files[0].dtype, files[1].dtype))
                limit = limits.of(leaf, ours, theirs, files[1])
                decision = judge_metrics(metrics, theirs, limit)
                if decision.verdict != "pass" and mode == "default":
                    decision = judge_metrics(metrics, theirs, limit, _noise(leaf, beside))
                return decision, metrics
        checked = judge_checksums(ours, theirs)
        if checked is not None:
            self.findings.checksums += 1
            return checked, None
        self.findings.statistics += 1
        if theirs is ours and ours.norm is not None and ours.norm == ours.norm:  # not NaN
            return _EQUAL, None
        limit = limits.of(leaf, ours, theirs, None)
        decision = judge_statistics(ours, theirs, limit)
        if decision.verdict != "pass" and mode == "default":
            decision = judge_statistics(ours, theirs, limit, _noise(leaf, beside))
        return decision, None

    def _decide_gathered(
        self, judge: GatherJudge, target: Leaf, golden: Leaf, limits: _Limits, beside: Sequence[Leaf]
    ) -> tuple[Entry, Entry, Decision, Metrics | None]:
        if not (_is_tensor(target.raw) and _is_tensor(golden.raw)):
            ours, theirs = entry_of(target.raw), entry_of(golden.raw)
            return ours, theirs, *self._decide(ours, theirs, golden, limits, beside)
        judged = judge.judge(target.raw, golden.raw, lambda a, b: limits.of(golden, a, b, None))
        if judged.decision.verdict != "pass" and self._tolerance.mode == "default":
            noise = _noise(golden, beside)
            judged = judge.judge(target.raw, golden.raw, lambda a, b: limits.of(golden, a, b, None), noise)
        self.findings.count(judged.by)
        return judged.target, judged.golden, judged.decision, judged.metrics

    def _placed(self, decision: Decision, raw: Any) -> Decision:
        """Name the shard if the value is one."""
        rank = self._target.folder.name
        number = rank.removeprefix("rank")
        if not isinstance(raw, Mapping) or "placements" not in raw or not number.isdecimal():
            return decision
        shard = placement_text(raw, int(number))
        message = "; ".join(text for text in (decision.message, f"in {rank} ({shard})") if text)
        return replace(decision, message=message, parts=(RankPart(rank, shard),))

    def _read_file(self, path: str) -> Any:
        """Read a file by its whole path; None if it cannot be read."""
        found = self._read_path(Path(path))
        return None if found is None else found.array

    def _read(self, side: DumpSide, entry: Entry) -> ReadTensor | None:
        """Read a tensor file; one that cannot be read is noted, and its statistics are compared."""
        if side.tensor_folder is None or entry.data_name is None:
            return None
        return self._read_path(side.tensor_folder / entry.data_name)

    def _read_path(self, path: Path) -> ReadTensor | None:
        try:
            return read_tensor(path)
        except TensorReadError as error:
            if len(self.findings.unreadable) < 20:
                self.findings.unreadable.append(str(error))
            return None

    def _limits(self, golden: int) -> _Limits:
        if self._reference is None:
            return self._by_table
        side, numbers = self._reference
        number = numbers.get(golden, -1)
        if number < 0:
            return _Limits(self._tolerance, side, {})
        _, record = side.index.record(number)
        return _Limits(self._tolerance, side, {leaf.name: leaf for leaf in leaves_of(record)})


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits for the values of one record."""

    tolerance: Tolerance
    side: DumpSide | None
    reference: Mapping[str, Leaf]

    def of(self, leaf: Leaf, ours: Entry, theirs: Entry, file: ReadTensor | None) -> Limits:
        """Return the limits for one value of golden; those of the table if the reference run does not have it."""
        other = self.reference.get(leaf.name)
        if other is not None:
            entry = entry_of(other.raw)
            if entry.kind == "tensor" and entry.shape == theirs.shape:
                number = self._distance(theirs, entry, file)
                return measured_limits(number, theirs.dtype, self.tolerance.reference)
        return limits_for(ours.dtype, theirs.dtype, self.tolerance.mode)

    def _distance(self, golden: Entry, reference: Entry, file: ReadTensor | None) -> float:
        if file is not None and reference.data_name and self.side is not None and self.side.tensor_folder is not None:
            try:
                other = read_tensor(self.side.tensor_folder / reference.data_name)
            except TensorReadError:
                other = None
            if other is not None and other.array.shape == file.array.shape:
                metrics = compare_arrays(file.array, other.array, (file.dtype, other.dtype))
                return judge_metrics(metrics, golden, limits_for("", "", "exact")).number or 0.0
        return statistics_number(golden, reference)[1]


def _one_sided(leaf: Leaf, decision: Decision, *, golden: bool) -> LeafRow:
    entry = entry_of(leaf.raw)
    if golden:
        return LeafRow(leaf.name, leaf.name, None, entry, decision)
    return LeafRow(leaf.name, leaf.name, entry, None, decision)


def _forgiven(row: LeafRow, instead: Decision) -> LeafRow:
    """Replace the verdict of an output that need not agree."""
    is_output = not row.name.startswith((f"{INPUT}.", f"{PARAMETERS}."))
    return (
        row._replace(decision=instead)
        if is_output and row.decision.verdict in {"warning", "error", "unmatched"}
        else row
    )


def _forgiven_destination(row: LeafRow) -> LeafRow:
    """Replace the verdict of an argument that is overwritten, unless it is another tensor altogether."""
    wrong = row.decision.verdict in {"warning", "error"} and row.decision.measure not in {"shape", "dtype", ""}
    return row._replace(decision=_OVERWRITTEN) if wrong and row.name == f"{INPUT}.0" else row


def _forgiven_across(row: LeafRow) -> LeafRow:
    """Replace the verdict of what only one framework has as a tensor: a parameter must be on both sides."""
    both = row.target is not None and row.golden is not None and row.target.kind == "tensor" == row.golden.kind
    wrong = row.decision.verdict in {"warning", "error", "unmatched"} and not row.name.startswith(f"{PARAMETERS}.")
    return row._replace(decision=_OTHER_FRAMEWORK) if wrong and not both else row


def _is_tensor(raw: Any) -> bool:
    return isinstance(raw, Mapping) and "shape" in raw and "dtype" in raw


def _noise(leaf: Leaf, beside: Sequence[Leaf]) -> float:
    return noise_of([entry_of(other.raw) for other in beside if other.section == leaf.section])


def _not_comparable(direction: str, target: Sequence[Leaf], golden: Sequence[Leaf]) -> str:
    """Section that two operations standing for each other do not share: what goes in, or its gradients."""
    section = OUTPUT if direction == "backward" else INPUT
    return "" if _shapes(target, section) == _shapes(golden, section) else section


def _shapes(leaves: Sequence[Leaf], section: str) -> list[Any]:
    return [leaf.raw["shape"] for leaf in leaves if leaf.section == section and "shape" in (leaf.raw or ())]


def _gradients_differ(target: Entry, golden: Entry) -> bool:
    a, b = target.requires_grad, golden.requires_grad
    return a is not None and b is not None and a != b


def _summarise(rows: Sequence[LeafRow], pairs: Sequence[tuple[Leaf | None, Leaf | None]]) -> tuple[Role, Decision]:
    """Return the part a record plays, and its gravest decision; outputs are named before inputs of equal gravity."""
    if not rows:
        return "equal", _NOTHING
    worst, gravity, inputs = rows[0].decision, -9.0, 0
    for row, (target, golden) in zip(rows, pairs, strict=True):
        leaf = target or golden
        section = leaf.section if leaf is not None else OUTPUT
        verdict = row.decision.verdict
        # One value that cannot be compared does not hide that the others pass; a null says nothing at all.
        says_nothing = verdict == "uncompared" or (
            verdict == "pass" and row.golden is not None and row.golden.kind == "null"
        )
        weight = (-1 if says_nothing else GRAVITY[verdict]) + _SECTION_WEIGHT[section]
        if weight > gravity:
            worst, gravity = row.decision, weight
        if section == INPUT and verdict in {"warning", "error", "unmatched"}:
            inputs += 1
    if worst.verdict in {"pass", "uncompared"}:
        return "equal", worst
    return ("inherits" if inputs else "source"), worst
