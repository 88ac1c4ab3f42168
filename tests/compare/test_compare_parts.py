"""A MindSpore run with compiled Cells is in two parts, graph/ and pynative/: both are compared, and both recovered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from written_dumps import call, chain, tensor, write

from msprobe.compare.comparison import Request, compare_dumps
from msprobe.store import recover
from msprobe.store.reader import DumpReadError

INSIDE = ("Cell.block.first.Dense", "Cell.block.second.Dense")
OUTSIDE = ("Mint.add", "Mint.tanh")


def divided(run: Path, *, inside: float = 1.0, outside: float = 1.0, steps: int = 1) -> Path:
    """A run whose compiled Cells, or whose other calls, compute something else by a factor."""
    for step in range(steps):
        write(run / "graph", cells(inside, received=outside), step=step, framework="mindspore")
        calls = chain(*OUTSIDE, scales={0: outside, 1: inside})
        write(run / "pynative", calls, step=step, framework="mindspore")
    return run


def cells(scale: float, received: float) -> list[tuple[str, Any]]:
    """Two Cells one after the other, the second of which is at fault."""
    first = call(tensor(1.37 * received), out=tensor(1.5 * received))
    second = call(tensor(1.5 * received), out=tensor(1.7 * received * scale))
    return [(f"{INSIDE[0]}.forward.0", first), (f"{INSIDE[1]}.forward.0", second)]


def compared(target: Path, golden: Path, out: Path) -> Any:
    return compare_dumps(Request(target, golden, out)).summary


def test_both_parts_of_every_step_are_paired(tmp_path: Path) -> None:
    summary = compared(divided(tmp_path / "a", steps=2), divided(tmp_path / "b", steps=2), tmp_path / "out")
    assert [pair.step for pair in summary.pairs] == ["graph/step0", "pynative/step0", "graph/step1", "pynative/step1"]
    assert (summary.exit_code, summary.records["pass"]) == (0, 8)


@pytest.mark.parametrize(
    ("fault", "step", "record"),
    [
        ({"inside": 3.0}, "graph/step0", f"{INSIDE[1]}.forward.0"),
        ({"outside": 3.0}, "pynative/step0", f"{OUTSIDE[0]}.0.forward"),
    ],
)
def test_the_first_divergence_is_in_the_part_where_it_begins(
    tmp_path: Path, fault: dict[str, float], step: str, record: str
) -> None:
    first = compared(divided(tmp_path / "a", **fault), divided(tmp_path / "b"), tmp_path / "out").first_divergence
    assert (first.step, str(first.record)) == (step, record)


def test_a_run_in_two_parts_against_one_in_a_single_part_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", chain(*OUTSIDE))
    with pytest.raises(DumpReadError, match=r"is in two parts .* give one of the parts, e.g. .*a/pynative"):
        compared(divided(tmp_path / "a"), whole, tmp_path / "out")
    assert compared(tmp_path / "a" / "pynative", whole, tmp_path / "out").exit_code == 0


def test_recover_closes_the_files_of_both_parts(tmp_path: Path) -> None:
    run = divided(tmp_path / "killed")
    for part in ("graph", "pynative"):
        place = run / part / "step0" / "rank0"
        (place / "coverage.json").unlink()
        text = (place / "dump.json").read_bytes()
        (place / "dump.json").write_bytes(text[: text.rindex(b',\n"')] + b',\n"Cell.broken')
    assert recover(run).repaired == 2
    assert compared(run, run, tmp_path / "out").records["pass"] == 2
