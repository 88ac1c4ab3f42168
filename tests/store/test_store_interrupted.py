"""An exception of a signal handler at any moment of a flush: nothing is lost, nothing is written twice."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from store_cases import open_writer, record

from msprobe.store import StepWriter, iter_records, read_dump
from msprobe.store.pending import Pending


def stop() -> None:
    raise KeyboardInterrupt


def interrupted(work: Callable[[], object], moment: int, handler: Callable[[], object] = stop) -> bool:
    """Do the work and call ``handler`` at its ``moment``-th call or return from C; tell whether it came to that.

    These are the places where the interpreter looks for signals.
    """
    left = moment

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal left
        if event in {"call", "c_return"}:
            left -= 1
            if left < 0:
                sys.setprofile(None)
                handler()

    try:
        sys.setprofile(profile)
        work()
        sys.setprofile(None)
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return left < 0


NAMES = [f"Torch.relu.{number}.forward" for number in range(6)]


def fill(writer: StepWriter, numbers: range) -> None:
    for number in numbers:
        writer.add(NAMES[number], record())
        writer.add_parent(NAMES[number], "Module.0.ReLU.forward.0")
        writer.add_stack(NAMES[number], ("key", number // 2))


def members(path: Path) -> list[str]:
    """Names in a JSON object, those that are there twice as well."""
    return [name for name, _ in json.loads(path.read_bytes(), object_pairs_hook=list)]


def each_moment(
    folder: Path, work: Callable[[StepWriter], object], handler: Callable[[StepWriter], object] = lambda _: stop()
) -> Iterator[tuple[Path, StepWriter]]:
    """Writers whose ``work`` was interrupted, each a little later, until there is no later moment."""
    moment = 0
    while True:
        place = folder / str(moment)
        writer = open_writer(place, flush_every=None)
        fill(writer, range(2))
        writer.flush()
        fill(writer, range(2, 5))
        if not interrupted(partial(work, writer), moment, partial(handler, writer)):
            writer.finish({})
            break
        yield place, writer
        moment += 1
    assert moment > 30


@pytest.mark.parametrize("work", [StepWriter.flush, StepWriter.pause])
def test_what_is_written_once_more_after_an_interruption_is_there_once(
    tmp_path: Path, work: Callable[[StepWriter], object]
) -> None:
    for place, writer in each_moment(tmp_path, work):
        fill(writer, range(5, 6))
        writer.finish({})
        assert [name for name, _ in iter_records(place)] == NAMES, place
        assert members(place / "construct.json") == NAMES, place
        stacks = json.loads((place / "stack.json").read_bytes())
        assert [names for names, _ in stacks.values()] == [NAMES[0:2], NAMES[2:4], NAMES[4:6]], place
        coverage = read_dump(place).coverage
        assert coverage is not None
        found = {key: coverage[key] for key in ("records", "duplicates", "lost_records", "failures", "complete")}
        assert found == {"records": 6, "duplicates": 0, "lost_records": 0, "failures": [], "complete": True}, place


@pytest.mark.parametrize("handler", [lambda _: stop(), lambda writer: writer.finish({})], ids=["raises", "ends it"])
def test_an_end_of_a_step_that_a_signal_comes_into_is_complete_after_the_next(
    tmp_path: Path, handler: Callable[[StepWriter], object]
) -> None:
    for place, writer in each_moment(tmp_path, lambda writer: writer.finish({}), handler):
        writer.finish({})
        assert [name for name, _ in iter_records(place)] == NAMES[:5], place
        stacks = json.loads((place / "stack.json").read_bytes())
        assert [names for names, _ in stacks.values()] == [NAMES[0:2], NAMES[2:4], NAMES[4:5]], place
        dump = read_dump(place)
        assert dump.complete, place
        assert dump.coverage is not None
        assert (dump.coverage["records"], dump.coverage["failures"]) == (5, []), place
        assert writer.failures == [], place


def test_pairs_are_taken_and_counted_together_or_not_at_all() -> None:
    moment = 0
    while True:
        pending = Pending(keep_hashes=True)
        pending.pairs += ("a", 1, "b", 2, "c", 3)
        stopped = interrupted(lambda pending=pending: pending.take(1, 1), moment)
        state = (pending.pairs[::2], pending.taken, pending.lost, list(pending.first_hashes))
        hashes = [hash("a")]
        assert state in [(["a", "b", "c"], 0, 0, []), (["b", "c"], 1, 0, hashes), (["c"], 1, 1, hashes)]
        if not stopped:
            assert len(pending) == 1
            break
        moment += 1
    assert moment >= 4
