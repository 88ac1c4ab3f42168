"""Records are paired by what they are, not by their numbers: runs whose calls are not the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from planted_model import Fault, Model, record
from torch import nn
from written_dumps import call, chain, tensor, write

from msprobe.compare.comparison import Request, compare_dumps
from msprobe.compare.kinds import Renaming, kind_of
from msprobe.compare.rows import Summary
from msprobe.compare.sequences import align_levels, longest_increasing


def compare(target: Path, golden: Path, out: Path, **options: Any) -> Summary:
    return compare_dumps(Request(target, golden, out, **options)).summary


def subsequence(a: list[int], b: list[int]) -> int:
    """Length of a longest common subsequence, the slow way."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@given(st.lists(st.integers(0, 4), max_size=14), st.lists(st.integers(0, 4), max_size=14))
@settings(max_examples=200, deadline=None)
def test_alignment_is_monotone_and_complete(a: list[int], b: list[int]) -> None:
    pairs, gaps = align_levels([a], [b])
    assert all(a[t] == b[g] for t, g in pairs)
    assert all(first[0] < then[0] and first[1] < then[1] for first, then in pairwise(pairs))
    assert len(pairs) + sum(gap.target_end - gap.target for gap in gaps) == len(a)
    assert len(pairs) + sum(gap.golden_end - gap.golden for gap in gaps) == len(b)


@given(st.lists(st.sampled_from([1, 1, 2]), max_size=12), st.lists(st.sampled_from([1, 2, 2]), max_size=12))
@settings(max_examples=200, deadline=None)
def test_without_anchors_the_longest_common_subsequence_is_found(a: list[int], b: list[int]) -> None:
    a, b = [9, 9, *a], [*b, 8, 8]  # no key is unique on both sides
    pairs, _ = align_levels([a * 2], [b * 2])
    assert len(pairs) >= subsequence(a * 2, b * 2) - 1


@given(st.permutations(range(9)))
def test_longest_increasing_run(order: list[int]) -> None:
    chosen = longest_increasing(list(enumerate(order)))
    assert all(x[1] < y[1] for x, y in pairwise(chosen))
    assert len(chosen) == subsequence(list(order), sorted(order))


def test_repeated_layers_with_many_edits_are_aligned_quickly() -> None:
    golden = list(range(30)) * 300
    target = list(golden)
    chance = random.Random(0)
    for _ in range(60):
        target.insert(chance.randrange(len(target)), 99)
    for _ in range(60):
        target.pop(chance.randrange(len(target)))
    pairs, _ = align_levels([target], [golden])
    assert len(pairs) >= len(golden) - 61


def test_other_attention_implementation_is_no_divergence(debugger: Callable[..., Any], tmp_path: Path) -> None:
    for level in ("mix", "L1"):
        golden = record(debugger, tmp_path / f"g{level}", level=level, risk_level="ALL")
        target = record(debugger, tmp_path / f"t{level}", Fault("sdpa"), level=level, risk_level="ALL")
        summary = compare(target, golden, tmp_path / "out")
        assert summary.first_divergence is None
        assert summary.only_target == 0
        assert all(
            "softmax" in n or "matmul" in n or "__" in n or "transpose" in n for n in summary.pairs[0].only_golden_names
        )
        assert any("another operation" in note for note in summary.pairs[0].notes)


def test_checkpointed_run_equals_the_plain_one(debugger: Callable[..., Any], tmp_path: Path) -> None:
    golden = record(debugger, tmp_path / "g")
    target = record(debugger, tmp_path / "t", Fault("checkpointed"))
    summary = compare(target, golden, tmp_path / "out", exact=True)
    assert (summary.exit_code, summary.first_divergence) == (0, None)
    assert "#recompute" in summary.pairs[0].notes[0]


def test_levels_that_differ_compare_what_both_have(debugger: Callable[..., Any], tmp_path: Path) -> None:
    golden = record(debugger, tmp_path / "g", level="mix")
    target = record(debugger, tmp_path / "t", level="L1")
    summary = compare(target, golden, tmp_path / "out", exact=True)
    assert summary.first_divergence is None
    assert summary.only_target == 0
    assert all(name.startswith("Module.") for name in summary.pairs[0].only_golden_names)


def test_renamed_modules_are_found_by_map(debugger: Callable[..., Any], tmp_path: Path) -> None:
    def rename(model: Model) -> None:
        holder = nn.Module()
        holder.stack = model._modules.pop("blocks")
        model.encoder = holder
        Model.blocks = property(lambda self: self.encoder.stack)  # type: ignore[attr-defined]

    golden = record(debugger, tmp_path / "g", level="L0")
    try:
        target = record(debugger, tmp_path / "t", level="L0", change=rename)
    finally:
        del Model.blocks  # type: ignore[attr-defined]
    assert compare(target, golden, tmp_path / "out").only_target > 0
    mapped = compare(target, golden, tmp_path / "out", renaming=Renaming({"blocks.*": "encoder.stack.*"}))
    assert (mapped.exit_code, mapped.records["pass"]) == (0, mapped.pairs[0].records["pass"])


def test_moved_call_is_paired_and_said_so(tmp_path: Path) -> None:
    alone = ("Torch.rand.0.forward", call({"type": "int", "value": 3}, out=tensor(9, (5,))))
    steps = chain("Torch.relu", "Functional.linear", "Functional.gelu")
    golden = write(tmp_path / "g", [alone, *steps])
    target = write(tmp_path / "t", [*steps, alone])
    summary = compare(target, golden, tmp_path / "out")
    assert summary.exit_code == 0
    assert any("another place in the order" in note for note in summary.pairs[0].notes)


def test_indices_that_shift_do_not_matter(tmp_path: Path) -> None:
    golden = write(tmp_path / "g", chain("Functional.linear", "Torch.relu", "Functional.linear", "Torch.relu"))
    records = chain("Torch.relu", "Functional.linear", "Torch.relu", "Functional.linear", "Torch.relu")
    early = ("Torch.relu.0.forward", call(tensor(77), out=tensor(77)))
    shifted = [early, *zip([name for name, _ in records[1:]], [r for _, r in chain("a", "b", "c", "d")], strict=True)]
    summary = compare(write(tmp_path / "t", shifted), golden, tmp_path / "out")
    assert summary.pairs[0].only_target_names == ("Torch.relu.0.forward",)
    assert (summary.records["pass"], summary.first_divergence) == (4, None)


def test_mindspore_records_find_their_pytorch_partners(tmp_path: Path) -> None:
    weight = {"weight": tensor(2, (3, 3)), "bias": tensor(3, (3,))}
    cell = {"gamma": tensor(2, (3, 3)), "beta": tensor(3, (3,))}
    theirs = {"dtype": "Float32"}
    golden = write(
        tmp_path / "g",
        [
            ("Functional.linear.0.forward", call(tensor(1), out=tensor(1.4))),
            ("Module.norm.LayerNorm.forward.0", {**call(tensor(1), out=tensor(1.4)), "parameters": weight}),
            ("Tensor.__add__.0.forward", call(tensor(1.4), out=tensor(2))),
        ],
    )
    target = write(
        tmp_path / "t",
        [
            ("Mint.nn.functional.dense.0.forward", call({**tensor(1), **theirs}, out={**tensor(1.4), **theirs})),
            ("Cell.norm.LayerNorm.forward.0", {**call(tensor(1), out=tensor(1.4)), "parameters": cell}),
            ("Mint.add.0.forward", call(tensor(1.4), out=tensor(2))),
        ],
        framework="mindspore",
    )
    summary = compare(target, golden, tmp_path / "out")
    assert (summary.exit_code, summary.records) == (0, {"pass": 3})


def test_fuzzy_pairs_by_operation_alone(tmp_path: Path) -> None:
    name, other = "Torch.exp.0.forward", "Torch.exp.4.forward"
    golden = write(tmp_path / "g", [(name, call(tensor(), out=tensor(2)))], parents={name: "Module.a.A.forward.0"})
    content = call(tensor(), out=tensor(2, (6,)))
    target = write(tmp_path / "t", [(other, content)], parents={other: "Module.b.B.forward.0"})
    assert compare(target, golden, tmp_path / "out").only_target == 1
    fuzzy = compare(target, golden, tmp_path / "out", fuzzy=True)
    assert (fuzzy.only_target, fuzzy.records) == (0, {"error": 1})


def test_kinds_of_the_same_operation_are_equal() -> None:
    names = ("Tensor.__iadd__.3.forward", "Torch.add.0.forward", "Tensor.add_.1.forward", "Mint.add.9.forward")
    assert {kind_of(name).operation for name in names} == {"add"}
    assert kind_of("Torch.linalg.norm.0.forward").operation == kind_of("Torch.norm.2.forward").operation == "norm"


def test_harmless_mask_with_infinities_is_no_divergence(debugger: Callable[..., Any], tmp_path: Path) -> None:
    steps = chain("Torch.relu", "Functional.linear")
    mask = {**tensor(1), "Min": float("-inf"), "Mean": float("-inf"), "Norm": float("inf")}
    golden = write(tmp_path / "g", steps)
    target = write(tmp_path / "t", [steps[0], ("Tensor.masked_fill.0.forward", call(tensor(4), out=mask)), steps[1]])
    assert compare(target, golden, tmp_path / "out").first_divergence is None
    bad = write(tmp_path / "b", [steps[0], ("Torch.log.0.forward", call(tensor(4), out=mask)), steps[1]])
    found = compare(bad, golden, tmp_path / "out").first_divergence
    assert found is not None
    assert (found.record, found.cause) == ("Torch.log.0.forward", "an extra call with a non-finite output")
