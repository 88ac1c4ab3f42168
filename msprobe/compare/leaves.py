"""Which value of one record is which value of its partner."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from msprobe.compare.entries import INPUT, OUTPUT, PARAMETERS, Leaf, entry_of
from msprobe.compare.judge import statistics_number

LeafPair = tuple[Leaf | None, Leaf | None]


def pair_leaves(target: Sequence[Leaf], golden: Sequence[Leaf], *, by_content: Collection[str] = ()) -> list[LeafPair]:
    """Pair by place; what has no partner of its name then in order, with one of equal shape.

    The latter is for arguments that are positional in one run and named in the other. A null without a partner is left
    out: an argument that is not given.

    Parameters
    ----------
    target, golden
        Values of the two records.
    by_content
        Sections whose tensors are paired by shape and statistics instead: the two tools list gradients in different
        orders, the frameworks arguments.
    """
    if not by_content and [leaf.name for leaf in target] == [leaf.name for leaf in golden]:
        return list(zip(target, golden, strict=True))
    pairs: list[LeafPair] = []
    for section in (INPUT, PARAMETERS, OUTPUT):
        ours = [leaf for leaf in target if leaf.section == section]
        theirs = [leaf for leaf in golden if leaf.section == section]
        if section in by_content:
            pairs += _by_content(ours, theirs)
            if section == INPUT:
                pairs += _by_name(_without_shape(ours), _without_shape(theirs))
        else:
            pairs += _by_name(ours, theirs)
    return pairs


def _by_name(target: Sequence[Leaf], golden: Sequence[Leaf]) -> Iterator[LeafPair]:
    names = {leaf.name: leaf for leaf in golden}
    common = {leaf.name for leaf in target if leaf.name in names}
    left = [leaf for leaf in golden if leaf.name not in common and leaf.raw is not None]
    for leaf in target:
        if leaf.name in common:
            yield leaf, names[leaf.name]
        elif leaf.raw is not None:
            partner = next((other for other in left if _alike(leaf, other)), None)
            if partner is not None:
                left.remove(partner)
            yield leaf, partner
    for leaf in left:
        yield None, leaf


def _without_shape(leaves: Sequence[Leaf]) -> list[Leaf]:
    return [leaf for leaf in leaves if _shape(leaf) is None]


def _alike(target: Leaf, golden: Leaf) -> bool:
    a, b = target.raw, golden.raw
    if _shape(target) is None and _shape(golden) is None:
        return bool(a == b)
    return _shape(target) == _shape(golden)


def _by_content(target: Sequence[Leaf], golden: Sequence[Leaf]) -> Iterator[LeafPair]:
    """Pair tensors of equal sizes whose statistics are closest; a weight's gradient may be transposed."""
    left = [leaf for leaf in golden if _shape(leaf) is not None]
    for leaf in target:
        shape = _shape(leaf)
        if shape is None:
            continue
        alike = [other for other in left if sorted(_shape(other) or ()) == sorted(shape)]
        if not alike:
            yield leaf, None
            continue
        best = min(alike, key=lambda other: _distance(leaf, other))
        left.remove(best)
        if _shape(best) != shape:
            best = Leaf(best.section, best.name, {**best.raw, "shape": list(shape), "md5": None, "data_name": None})
        yield leaf, best
    for leaf in left:
        yield None, leaf


def _distance(target: Leaf, golden: Leaf) -> float:
    return statistics_number(entry_of(target.raw), entry_of(golden.raw))[1]


def _shape(leaf: Leaf) -> tuple[int, ...] | None:
    raw = leaf.raw
    if isinstance(raw, dict) and isinstance(raw.get("shape"), list):
        return tuple(raw["shape"])
    return None
