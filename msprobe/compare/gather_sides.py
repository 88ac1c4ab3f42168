"""Two sides of which the ranks were put together: what they are called, and what a reader should know of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from msprobe.compare.dump_side import DumpSide
from msprobe.compare.entries import leaves_of
from msprobe.compare.gather_index import RANKS_KEY, GatheredIndex
from msprobe.compare.gather_layout import LayoutError, RankValues, Shape
from msprobe.compare.pairing import FolderPair, StepPair, first_of
from msprobe.compare.rows import Divergence, LeafRow, RankPart
from msprobe.store.members import MemberIndex

_MOST_RANKS = 8


def gathered_pair(step: StepPair) -> FolderPair:
    """Return a step with all ranks of both sides as one pair, called by the ranks: ``rank0+rank1``."""
    ranks = [file.resolve().parent.name for file in max(step.target, step.golden, key=len)]
    name = "+".join(ranks) if len(ranks) <= _MOST_RANKS else f"{ranks[0]}..{ranks[-1]}"
    return FolderPair(step.step, name, step.target[0] if step.target else None, step.golden[0] if step.golden else None)


def gather_notes(what: str, side: DumpSide) -> Iterator[str]:
    """Yield which ranks a side was put together from, and which of their records were not."""
    indices = [stage.index for stage in side.stages if isinstance(stage.index, GatheredIndex)]
    if not indices:
        return
    ranks = [first_of(index.ranks, _MOST_RANKS) for index in indices]
    if len(ranks) == 1:
        yield f"{what}: put together from {ranks[0]}"
    else:
        stages = "; ".join(f"{number}: {names}" for number, names in enumerate(ranks, start=1))
        yield f"{what}: put together from {len(ranks)} stages of a pipeline, {stages}"
        yield f"{what}: calls are numbered in the order of micro-batches and stages, not as each rank counts them"
    if any(index.unwrapped for index in indices):
        yield f"{what}: names are those without DistributedDataParallel, which puts `module.` before them"
    left_out, partly = (sum(numbers) for numbers in zip(*((i.left_out, i.partly) for i in indices), strict=True))
    if left_out:
        yield f"{what}: {left_out} records of communication were left out, they belong to the layout"
    if partly:
        yield f"{what}: {partly} records are not on every rank, and were put together from those that have them"


def with_shard(divergence: Divergence, leaf: LeafRow | None, target: DumpSide) -> Divergence:
    """Name the rank whose shard a wrong parameter was gathered from, where several ranks got the same wrong parameter.

    FSDP2 gathers a parameter before a module runs. The gradient of it is recorded as shards, which lie as the
    parameter's do; the element that differs most is in one of them.
    """
    suspects = {part.rank for part in divergence.decision.parts}
    if divergence.cause != "a parameter differs" or len(suspects) == 1 or leaf is None or leaf.target is None:
        return divergence
    worst, shape = None if leaf.metrics is None else leaf.metrics.worst, leaf.target.shape
    shards = _gradient_shards(target, divergence.module, shape)
    shards = [(part, box) for part, box in shards if not suspects or part.rank in suspects]
    if not shards:
        return divergence
    if worst is None:
        text = f" It was gathered from shards of {', '.join(part.rank for part, _ in shards)}; tensors tell which."
        return replace(divergence, explanation=divergence.explanation + text)
    found = [part for part, box in shards if _is_inside(worst, box)]
    if not found:
        return divergence
    where = " or ".join(f"{part.rank}, {part.shard}" for part in found)
    text = f" That element was gathered from the shard of {where}."
    decision = replace(divergence.decision, parts=tuple(found))
    return replace(divergence, explanation=divergence.explanation + text, decision=decision)


def _is_inside(place: tuple[int, ...], box: tuple[slice, ...]) -> bool:
    return all(span.start <= index < span.stop for span, index in zip(box, place, strict=True))


def _gradient_shards(side: DumpSide, module: str, shape: Shape | None) -> list[tuple[RankPart, tuple[slice, ...]]]:
    """Return which part of a parameter of some shape each rank holds, by the gradient's placements."""
    if isinstance(side.index, MemberIndex):
        return []
    for number in range(len(side)):
        name = side.index.name(number)
        if ".parameters_grad." not in name or side.surroundings(name)[1] != module:
            continue
        for leaf in leaves_of(side.index.record(number)[1]):
            if isinstance(leaf.raw, Mapping) and leaf.raw.get("shape") == list(shape or ()):
                return _shards(leaf.raw)
    return []


def _shards(raw: Mapping[str, Any]) -> list[tuple[RankPart, tuple[slice, ...]]]:
    ranks: RankValues | None = raw.get(RANKS_KEY)
    if ranks is None or "placements" not in ranks.values[0].raw:
        return []
    try:
        whole = ranks.whole("replicated", backward=False, wanted=None)
    except LayoutError:
        return []
    parts = (*whole.parts, *whole.twins, *whole.apart)
    return [(RankPart(part.rank, part.shard), part.box()) for part in parts if part.begin is not None]
