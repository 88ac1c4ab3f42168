"""Two sides of which the ranks were put together: what they are called, and what a reader should know of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from msprobe.compare.dump_side import DumpSide
from msprobe.compare.entries import leaves_of
from msprobe.compare.gather_index import RANKS_KEY, GatheredIndex, rank_values
from msprobe.compare.gather_layout import LayoutError, Shape, gather_value
from msprobe.compare.pairing import FolderPair, StepPair
from msprobe.compare.rows import Divergence, LeafRow, RankPart

_MOST_RANKS = 8


def gathered_pair(step: StepPair) -> FolderPair:
    """Return a step with all ranks of both sides as one pair, called by the ranks: ``rank0+rank1``."""
    ranks = [file.resolve().parent.name for file in max(step.target, step.golden, key=len)]
    name = "+".join(ranks) if len(ranks) <= _MOST_RANKS else f"{ranks[0]}..{ranks[-1]}"
    return FolderPair(step.step, name, step.target[0] if step.target else None, step.golden[0] if step.golden else None)


def gather_notes(what: str, side: DumpSide) -> Iterator[str]:
    """Yield which ranks a side was put together from, and which of their records were not."""
    index = side.index
    if not isinstance(index, GatheredIndex):
        return
    yield f"{what}: put together from {', '.join(index.ranks)}"
    if index.unwrapped:
        yield f"{what}: names are those without DistributedDataParallel, which puts `module.` before them"
    if index.left_out:
        yield f"{what}: {index.left_out} records of communication were left out, they belong to the layout"
    if index.partly:
        yield f"{what}: {index.partly} records are not on every rank, and were put together from those that have them"


def with_shard(divergence: Divergence, leaf: LeafRow | None, target: DumpSide) -> Divergence:
    """Name the rank whose shard a wrong parameter was gathered from, where every rank got the same wrong parameter.

    FSDP2 gathers a parameter before a module runs. The gradient of it is recorded as shards, which lie as the
    parameter's do; the element that differs most is in one of them.
    """
    if divergence.cause != "a parameter differs" or divergence.decision.parts or leaf is None or leaf.target is None:
        return divergence
    worst, shape = None if leaf.metrics is None else leaf.metrics.worst, leaf.target.shape
    shards = _gradient_shards(target, divergence.module, shape)
    if not shards:
        return divergence
    if worst is None:
        text = f" It was gathered from shards of {', '.join(part.rank for part, _ in shards)}; tensors tell which."
        return replace(divergence, explanation=divergence.explanation + text)
    for part, box in shards:
        if all(span.start <= place < span.stop for span, place in zip(box, worst, strict=True)):
            text = f" That element was gathered from the shard of {part.rank}, {part.shard}."
            decision = replace(divergence.decision, parts=(part,))
            return replace(divergence, explanation=divergence.explanation + text, decision=decision)
    return divergence


def _gradient_shards(side: DumpSide, module: str, shape: Shape | None) -> list[tuple[RankPart, tuple[slice, ...]]]:
    """Return which part of a parameter of some shape each rank holds, by the gradient's placements."""
    if not isinstance(side.index, GatheredIndex):
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
    values = rank_values(raw.get(RANKS_KEY, ()))
    if not values or "placements" not in values[0].raw:
        return []
    try:
        whole = gather_value(values, "replicated", backward=False, wanted=None)
    except LayoutError:
        return []
    return [(RankPart(part.rank, part.shard), part.box()) for part in whole.parts if part.begin is not None]
