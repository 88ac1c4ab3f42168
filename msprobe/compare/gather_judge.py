"""Judging values that were put together from several ranks, and naming the ranks that a difference is on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msprobe.compare.gather_index import RANKS_KEY
from msprobe.compare.gather_layout import LayoutError, RankValues, Shape
from msprobe.compare.gather_pieces import ONLY_MEAN, Array, Part, Piece, ReadFile, piece_of
from msprobe.compare.judge import is_nan, judge_checksums, judge_metrics, judge_mismatch, judge_statistics
from msprobe.compare.metrics import compare_arrays
from msprobe.compare.pairing import first_of
from msprobe.compare.rows import GRAVITY, Decision, Entry, GatherRule, Metrics, Number, RankPart
from msprobe.compare.thresholds import Limits

_DIFFER = frozenset({"warning", "error"})
_MOST_RANKS = 8


@dataclass(frozen=True, slots=True)
class Judged:
    """What two values have come to.

    Attributes
    ----------
    target, golden
        The wholes.
    decision, metrics
        As for a value of one rank.
    by
        ``tensors``, ``checksums``, ``statistics`` or ``nothing``: what was compared.
    """

    target: Entry
    golden: Entry
    decision: Decision
    metrics: Metrics | None = None
    by: str = "nothing"


@dataclass(frozen=True, slots=True)
class _Limit:
    """Limits, and what differences are rounding whatever the limits say."""

    limits: Limits
    noise: float


def is_gathered(*raws: Any) -> bool:
    """Tell whether one of two values was put together."""
    return any(raw.__class__ is dict and RANKS_KEY in raw and "shape" in raw for raw in raws)


class GatherJudge:
    """Compares values of which one side at least was put together.

    Parameters
    ----------
    rule
        What tensors without placements are.
    any_dtype
        Whether values of different dtypes may be equal.
    read_file
        Reads the elements of a file by its whole path; None if it cannot.
    """

    def __init__(self, rule: GatherRule, read_file: ReadFile, *, any_dtype: bool) -> None:
        self._rule = rule
        self._read_file = read_file
        self._any_dtype = any_dtype

    def judge(
        self,
        target: Mapping[str, Any],
        golden: Mapping[str, Any],
        limits: Callable[[Entry, Entry], Limits],
        noise: float = 0.0,
    ) -> Judged:
        """Compare two tensors, given by their JSON with whole paths as ``data_name``.

        Parameters
        ----------
        limits
            Gives the limits for two entries.
        noise
            See `msprobe.compare.judge.judge_statistics`.
        """
        try:
            ours, theirs = self._pieces(target, golden)
        except LayoutError as error:
            a, b = piece_of("", target).entry, piece_of("", golden).entry
            return Judged(a, b, Decision("uncompared", message=f"the values of the ranks do not make one: {error}"))
        mismatch = judge_mismatch(ours.entry, theirs.entry, any_dtype=self._any_dtype)
        if mismatch is not None:
            return Judged(ours.entry, theirs.entry, _told(mismatch, _rank_parts(ours.parts), _how(ours, theirs)))
        limit = _Limit(limits(ours.entry, theirs.entry), noise)
        if ours.apart and theirs.apart:
            decision = self._rank_by_rank(target, golden, limit)
            return Judged(ours.entry, theirs.entry, decision, None, "statistics")
        arrays = self._elements(ours, theirs)
        decision, metrics, by = _decide(ours.entry, theirs.entry, arrays, limit)
        if ours.apart or theirs.apart:
            decision, metrics = self._replicas(decision, metrics, ours, theirs, limit)
        elif decision.verdict in _DIFFER:
            decision = _blamed(decision, ours, theirs.entry, arrays, limit)
        else:
            decision = _told(decision, (), _how(ours, theirs))
        return Judged(ours.entry, theirs.entry, decision, metrics, by)

    def _pieces(self, target: Mapping[str, Any], golden: Mapping[str, Any]) -> tuple[Piece, Piece]:
        """Put both sides together, each so that it fits the other where its layout leaves a choice."""
        theirs = self._piece(golden, None)
        ours = self._piece(target, theirs.entry.shape, certain=len(golden.get(RANKS_KEY, ())) < 2)
        if ours.entry.shape != theirs.entry.shape and RANKS_KEY in golden:
            theirs = self._piece(golden, ours.entry.shape)
            ours = self._piece(target, theirs.entry.shape)
        return ours, theirs

    def _piece(self, raw: Mapping[str, Any], wanted: Shape | None, *, certain: bool = False) -> Piece:
        if RANKS_KEY not in raw:
            return piece_of("", raw)
        ranks: RankValues = raw[RANKS_KEY]
        return ranks.whole(self._rule, backward=bool(raw.get("backward")), wanted=wanted, certain=certain)

    def _elements(self, ours: Piece, theirs: Piece) -> tuple[Array, Array] | None:
        if not ours.entry.data_name or not theirs.entry.data_name:
            return None
        a, b = ours.elements(self._read_file), theirs.elements(self._read_file)
        return (a, b) if a is not None and b is not None and a.shape == b.shape else None

    def _rank_by_rank(self, target: Mapping[str, Any], golden: Mapping[str, Any], limit: _Limit) -> Decision:
        """Compare values that differ among the ranks of both sides: shards of which nothing is recorded."""
        ours, theirs = ([piece_of(v.folder, v.raw, v.stage) for v in raw[RANKS_KEY].values] for raw in (target, golden))
        if len(ours) != len(theirs):
            text = "the ranks of both sides have values of their own, and no placements say how they make one"
            return Decision("uncompared", message=text)
        worst = Decision("pass")
        wrong: list[Part] = []
        for a, b in zip(ours, theirs, strict=True):
            found = judge_mismatch(a.entry, b.entry, any_dtype=self._any_dtype)
            found = found or _decide(a.entry, b.entry, self._elements(a, b), limit)[0]
            if found.verdict in _DIFFER:
                wrong += a.parts
            if GRAVITY[found.verdict] > GRAVITY[worst.verdict]:
                worst = found
        return _told(worst, _rank_parts(wrong), "every rank has a value of its own, compared rank by rank")

    def _replicas(
        self, decision: Decision, metrics: Metrics | None, ours: Piece, theirs: Piece, limit: _Limit
    ) -> tuple[Decision, Metrics | None]:
        """Judge every replica by itself: those that agree with the other side are not named."""
        if not ours.apart:
            names = ", ".join(part.rank for part in theirs.apart)
            return _told(decision, (), f"in golden, {names} differ from the other replicas"), metrics
        parts = {part.rank: part for part in (*ours.parts, *ours.twins, *ours.apart)}
        if any(part.begin is None for part in parts.values()):
            return _told(decision, _rank_parts(ours.apart), "the replicas part"), metrics
        elements = theirs.elements(self._read_file) if theirs.entry.data_name else None
        wrong: list[Part] = []
        for part in parts.values():
            found, own = self._judge_part(part, theirs.entry, elements, limit)
            if found.verdict in _DIFFER:
                wrong.append(part)
                if GRAVITY[found.verdict] > GRAVITY[decision.verdict]:
                    decision, metrics = found, own
        if not wrong:
            return _told(decision, (), "the replicas are not bitwise equal, but all within the limit"), metrics
        return _told(decision, _rank_parts(wrong), "the replicas part"), metrics

    def _judge_part(
        self, part: Part, golden: Entry, elements: Array | None, limit: _Limit
    ) -> tuple[Decision, Metrics | None]:
        """Judge what one rank has against its place in golden, of which ``elements`` are read if there are files."""
        own = self._read_file(part.entry.data_name) if elements is not None and part.entry.data_name else None
        if own is not None and elements is not None:
            own = own if part.factor == 1.0 else own * part.factor
            place = elements[part.box()]
            if own.shape == place.shape:
                decision, metrics, _ = _decide(part.entry, golden, (own, place), limit)
                if metrics is not None and metrics.worst is not None:
                    at = tuple(begin + index for begin, index in zip(part.begin or (), metrics.worst, strict=True))
                    metrics = replace(metrics, worst=at)
                return decision, metrics
        if part.entry.shape == golden.shape:
            found = judge_mismatch(part.entry, golden, any_dtype=True)
            return found or _decide(part.entry, golden, None, limit)[0], None
        if _cannot_be_part(part.entry, golden, limit.limits):
            return Decision("error", message="its statistics cannot be those of a part of golden's value"), None
        return Decision("pass"), None


def _decide(
    ours: Entry, theirs: Entry, arrays: tuple[Array, Array] | None, limit: _Limit
) -> tuple[Decision, Metrics | None, str]:
    if arrays is not None:
        metrics = compare_arrays(*arrays, (ours.dtype, theirs.dtype))
        return judge_metrics(metrics, theirs, limit.limits, limit.noise), metrics, "tensors"
    checked = judge_checksums(ours, theirs)
    if checked is not None:
        return checked, None, "checksums"
    return judge_statistics(ours, theirs, limit.limits, limit.noise), None, "statistics"


def _blamed(
    decision: Decision, ours: Piece, golden: Entry, arrays: tuple[Array, Array] | None, limit: _Limit
) -> Decision:
    """Name the ranks whose part differs: by the elements, or by what cannot be in a part of golden's value."""
    parts = ours.parts
    if len(ours.copies) > 1 and len(parts) == 1:
        return _told(decision, (), f"in the same way on {_names(ours.copies)}")
    if len(parts) == 1:
        return _told(decision, _rank_parts(parts), "")
    if any(part.begin is None for part in parts):
        return _told(decision, _rank_parts(parts), "one of the terms of the sum differs")
    if arrays is not None:
        wrong = [part for part in parts if _box_differs(part, golden, arrays, limit)]
        return _told(decision, _rank_parts(_with_twins(wrong or parts, ours.twins)), "")
    wrong = [part for part in (*parts, *ours.twins) if _cannot_be_part(part.entry, golden, limit.limits)]
    if wrong:
        return _told(decision, _rank_parts(wrong), "its statistics cannot be those of a part of golden's value")
    named = _rank_parts((*parts, *ours.twins))
    return _told(decision, named, "statistics do not tell in which part; record the task tensor")


def _with_twins(parts: Sequence[Part], twins: Sequence[Part]) -> list[Part]:
    """Add the replicas of some parts: they are where these are, and have the same value."""
    return [*parts, *(twin for twin in twins if any(twin.box() == part.box() for part in parts))]


def _box_differs(part: Part, golden: Entry, arrays: tuple[Array, Array], limit: _Limit) -> bool:
    box = part.box()
    metrics = compare_arrays(arrays[0][box], arrays[1][box])
    return judge_metrics(metrics, golden, limit.limits, limit.noise).verdict in _DIFFER


def _cannot_be_part(part: Entry, whole: Entry, limit: Limits) -> bool:
    """Tell whether a part exceeds the whole: its Max, its Min or its Norm by more than the limit."""
    scale = max((abs(float(v)) for v in (whole.largest, whole.smallest) if v is not None), default=0.0)
    room = limit.warning * scale
    if (part.nan and not whole.nan) or (part.inf and not whole.inf) or is_nan(part.norm) > is_nan(whole.norm):
        return True
    return (
        _exceeds(part.largest, whole.largest, room)
        or _exceeds(whole.smallest, part.smallest, room)
        or _exceeds(part.norm, whole.norm, limit.warning * float(whole.norm or 0.0))
    )


def _exceeds(a: Number | None, b: Number | None, room: float) -> bool:
    return a is not None and b is not None and a - b > room


def _rank_parts(parts: Sequence[Part]) -> tuple[RankPart, ...]:
    return tuple(RankPart(part.rank, part.shard) for part in parts if part.rank)


def _told(decision: Decision, parts: tuple[RankPart, ...], text: str) -> Decision:
    """Add to a decision where the difference is, and how the value was put together."""
    where = ", ".join(f"{part.rank} ({part.shard})" if part.shard else part.rank for part in parts[:_MOST_RANKS])
    where += f" and {len(parts) - _MOST_RANKS} more ranks" if len(parts) > _MOST_RANKS else ""
    place = f"in {where}" if where else ""
    message = "; ".join(one for one in (decision.message, place, text) if one)
    return replace(decision, message=message, parts=parts)


def _names(ranks: Sequence[str]) -> str:
    return first_of(ranks, _MOST_RANKS)


def _how(ours: Piece, theirs: Piece) -> str:
    texts = []
    for side, piece in (("", ours), ("golden ", theirs)):
        if len(piece.parts) > 1:
            ranks = _names([part.rank for part in piece.parts])
            what = piece.parts[0].shard.partition(" 1 of ")[0]
            texts.append(f"{side}{what} of {ranks}")
        elif len(piece.copies) > 1:
            texts.append(f"{side}the same on {_names(piece.copies)}")
        if piece.entry.reason == ONLY_MEAN and not (ours.entry.data_name and theirs.entry.data_name):
            texts.append(ONLY_MEAN)
    return "; ".join(texts)


def judge_scalar_of_ranks(target: Any, golden: Any, ranks: int) -> Decision | None:
    """Return a pass for sizes that count the rank's own part: times some of the ranks they are golden's; else None."""
    if isinstance(target, list) and isinstance(golden, list) and len(target) == len(golden):
        fine = all(_is_share(a, b, ranks) for a, b in zip(target, golden, strict=True))
    else:
        fine = _is_share(target, golden, ranks)
    return Decision("pass", message=f"the size of one of {ranks} parts") if fine else None


def _is_share(a: Any, b: Any, ranks: int) -> bool:
    if type(a) is not int or type(b) is not int:
        return False
    return a == b or (a != 0 and b % a == 0 and b // a > 0 and ranks % (b // a) == 0)
