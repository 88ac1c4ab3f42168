"""What comparing cannot do, as docs/limitations.md says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from written_dumps import call, chain, tensor, write

from msprobe.compare.comparison import Request, compare_dumps
from msprobe.compare.rows import Summary


def compare(target: Path, golden: Path, out: Path, **options: Any) -> Summary:
    return compare_dumps(Request(target, golden, out, **options)).summary


def test_equal_statistics_are_equal_whatever_the_elements(tmp_path: Path) -> None:
    golden = write(tmp_path / "g", [("Torch.flip.0.forward", call(tensor(), out=tensor(md5="00000001")))])
    target = write(tmp_path / "t", [("Torch.flip.0.forward", call(tensor(), out=tensor()))])
    assert compare(target, golden, tmp_path / "o", exact=True).exit_code == 0
    checked = write(tmp_path / "c", [("Torch.flip.0.forward", call(tensor(), out=tensor(md5="00000002")))])
    assert compare(checked, golden, tmp_path / "o").exit_code == 1


def test_chain_goes_to_the_nearer_maker_of_a_value_that_is_made_twice(tmp_path: Path) -> None:
    def made(scale: float) -> list[tuple[str, Any]]:
        zeros = {**tensor(0), "Max": 0.0, "Min": 0.0, "Mean": 0.0, "Norm": 0.0}
        first = [(f"Torch.zeros.{n}.forward", call({"type": "int", "value": n}, out=zeros)) for n in range(2)]
        return [*first, ("Torch.relu.0.forward", call(zeros, out=tensor(scale)))]

    golden, target = write(tmp_path / "g", made(1)), write(tmp_path / "t", made(2))
    first = compare(target, golden, tmp_path / "o").first_divergence
    assert first is not None
    assert [link.target for link in first.chain] == ["Torch.zeros.1.forward", "Torch.relu.0.forward"]


def test_gradients_that_the_other_tool_lists_differently_are_not_compared(tmp_path: Path) -> None:
    def backward(*outputs: Any) -> list[tuple[str, Any]]:
        return [("Functional.linear.0.backward", {"input": [tensor(1)], "output": list(outputs)})]

    golden = write(tmp_path / "g", backward(tensor(5, (3,)), tensor(2), tensor(3, (3, 2))), layout="peer")
    target = write(tmp_path / "t", backward(tensor(2), tensor(3, (2, 3)), tensor(5, (3,))))
    assert compare(target, golden, tmp_path / "o").records == {"pass": 1}
    other = write(tmp_path / "u", backward(tensor(9), tensor(8), tensor(7, (3,))))
    summary = compare(other, golden, tmp_path / "o")
    assert (summary.exit_code, summary.records, summary.values["uncompared"]) == (0, {"pass": 1}, 3)


def test_files_that_cannot_be_read_fall_back_to_statistics_and_are_named(tmp_path: Path) -> None:
    records = [("Torch.relu.0.forward", call(out=tensor(data_name="Torch.relu.0.forward.output.0.pt")))]
    golden = write(tmp_path / "g", records)
    folder = golden / "step0" / "rank0" / "dump_tensor_data"
    folder.mkdir()
    (folder / "Torch.relu.0.forward.output.0.pt").write_bytes(b"PK")
    summary = compare(golden, golden, tmp_path / "o")
    assert (summary.exit_code, summary.pairs[0].mode) == (0, "statistics")
    assert any("Torch.relu.0.forward.output.0.pt" in note for note in summary.pairs[0].notes)


def test_parameter_that_differs_is_named_by_its_module(tmp_path: Path) -> None:
    def layer(scale: float) -> list[tuple[str, Any]]:
        weight = tensor(scale, (3, 3), requires_grad=True)
        linear = call(tensor(1), weight, out=tensor(scale + 1))
        module = {**call(tensor(1), out=tensor(scale + 1)), "parameters": {"weight": weight}}
        return [("Functional.linear.0.forward", linear), ("Module.a.fc.Linear.forward.0", module)]

    parents = {"Functional.linear.0.forward": "Module.a.fc.Linear.forward.0"}
    golden, target = (write(tmp_path / name, layer(scale), parents=parents) for name, scale in (("g", 2), ("t", 5)))
    first = compare(target, golden, tmp_path / "o").first_divergence
    assert first is not None
    assert (first.cause, first.record, first.leaf) == ("a parameter differs", "Functional.linear.0.forward", "input.1")
    assert "The parameter a.fc.weight differs" in first.explanation
    assert first.module == "a.fc"


def test_error_after_a_warning_is_a_difference_that_has_grown(tmp_path: Path) -> None:
    golden = write(tmp_path / "g", chain("Torch.relu", "Torch.exp"))
    grown = chain("Torch.relu", "Torch.exp", scales={0: 1.0005})
    grown[1] = ("Torch.exp.0.forward", call(grown[0][1]["output"][0], out=tensor(9)))
    target = write(tmp_path / "t", grown)
    first = compare(target, golden, tmp_path / "o").first_divergence
    assert first is not None
    assert (first.record, first.cause) == ("Torch.exp.0.forward", "a difference that has grown")
    assert [link.verdict for link in first.chain] == ["warning", "error"]
