"""What is recorded of dynamic graphs, and under which names."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dynamic_parts as parts
import dynamic_scenarios as scenarios
import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))

from mindspore_peer import LEVELS, shape_of

if TYPE_CHECKING:
    from forked_mindspore import ForkedMindSpore

PEER = json.loads(Path(__file__).with_name("peer_records.json").read_text())


@pytest.fixture(scope="module", params=sorted(PEER))
def both(
    request: pytest.FixtureRequest, fresh_mindspore: ForkedMindSpore, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same training: our dump and what mindstudio-probe 26.2.0 wrote, by level."""
    folder = str(tmp_path_factory.mktemp(request.param))
    return fresh_mindspore.value(scenarios.dumped, request.param, folder, list(LEVELS)), PEER[request.param]


@pytest.mark.parametrize("level", LEVELS)
def test_every_record_of_the_peer_is_written_under_its_name(both: Any, level: str) -> None:
    ours, theirs = both[0][level]["dump"]["data"], both[1][level]["records"]
    assert theirs.keys() - ours.keys() == set()
    more = {name for name in ours.keys() - theirs.keys() if not name.startswith(("Jit.", "Tensor.copy_."))}
    assert more == set()


@pytest.mark.parametrize("level", LEVELS)
def test_records_hold_what_the_peers_hold(both: Any, level: str) -> None:
    ours, theirs = both[0][level]["dump"]["data"], both[1][level]["records"]
    for name, record in theirs.items():
        found, expected = shape_of(ours[name]), record
        if ".backward" in name:  # ours are in argument order, with null where there is no gradient
            found, expected = ({key: present(values) for key, values in one.items()} for one in (found, record))
        assert found == expected, name


def present(values: list[Any]) -> list[str]:
    return sorted(json.dumps(value) for value in values if value is not None)


def test_calls_hang_where_the_peer_hangs_them(both: Any) -> None:
    ours, theirs = both[0]["mix"]["construct"], both[1]["mix"]["parents"]
    for name, parent in theirs.items():
        if parent is not None:  # it leaves out the parents of what runs after the last gradient of a Cell
            assert ours[name] == parent, name


def test_gradients_are_in_argument_order_with_null_where_there_is_none(both: Any) -> None:
    data = both[0]["mix"]["dump"]["data"]
    for name in (name for name in data if ".backward" in name and "parameters" not in name):
        forward = data[name.replace(".backward", ".forward")]
        arguments = [value for value in forward["input_args"] if isinstance(value, dict) and "shape" in value]
        gradients = data[name]["output"][: len(arguments)]
        for argument, gradient in zip(arguments, gradients, strict=False):
            assert gradient is None or gradient["shape"] == argument["shape"], name


def test_values_are_read_when_their_kernels_are_done(fresh_mindspore: ForkedMindSpore, tmp_path: Path) -> None:
    behind, blocking = fresh_mindspore.value(scenarios.unblocked, str(tmp_path))
    assert behind == blocking


def test_containers_are_taken_apart(fresh_mindspore: ForkedMindSpore, tmp_path: Path) -> None:
    data = fresh_mindspore.value(scenarios.containers, str(tmp_path))["dump"]["data"]
    forward, backward = data["Cell.inner.Containers.forward.0"], data["Cell.inner.Containers.backward.0"]
    assert forward["input_kwargs"]["pair"].keys() == {"first", "second"}
    named, halves = forward["output"]
    assert (named["tuple"][1], named["tuple"][2]) == (None, {"type": "str", "value": "text"})
    assert halves[0]["dtype"] == "BFloat16"
    # The same tensor stands at two places; its gradient is at the first.
    assert [entry and entry["shape"] for entry in backward["output"]] == [[2, 3], None, [2, 3]]


def test_compiled_parts_are_recorded_at_their_boundary(fresh_mindspore: ForkedMindSpore, tmp_path: Path) -> None:
    found = fresh_mindspore.value(parts.jit, str(tmp_path))
    assert found["equal"] == [True, True]
    names = found["dump"]["data"]
    for name in ("compiled", "compiled_bytecode", "CompiledCell"):
        assert {f"Jit.{name}.0.forward", f"Jit.{name}.0.backward"} <= names.keys()
    assert len(names["Jit.compiled.0.forward"]["input_args"]) == 2
    assert names["Jit.compiled_bytecode.0.forward"]["input_kwargs"] == {"factor": {"type": "int", "value": 3}}
    assert found["construct"]["Jit.CompiledCell.0.forward"] == "Cell.graph.CompiledCell.forward.0"
    assert "Jit.through_a_cell.0.forward" in names
    assert not any(name.startswith("Mint.") for name in names)
    graph = found["graph"]
    assert {f"Cell.graph.CompiledCell.{word}.0" for word in ("forward", "backward")} <= graph["dump"]["data"].keys()
    assert "compiled before the first start()" in " ".join(graph["coverage"]["not_recorded"])


def test_recompute_does_not_shift_names(fresh_mindspore: ForkedMindSpore, tmp_path: Path) -> None:
    found = fresh_mindspore.value(parts.recompute, str(tmp_path))
    plain = found["plain"]["data"]
    assert found["plain"]["repeated"] == 0
    for kind in ("cell", "saved tensors"):
        data = found[kind]["data"]
        repeated = [name for name in data if "#recompute" in name]
        assert len(repeated) == found[kind]["repeated"] > 0
        assert plain.keys() <= data.keys(), kind
        for name in repeated:
            first = data[name.partition("#")[0]]
            assert data[name].get("output", first["output"]) == first["output"], name  # it may stop early


def test_a_program_for_msadapter_is_recorded_under_names_of_pytorch(
    fresh_mindspore: ForkedMindSpore, tmp_path: Path
) -> None:
    found = fresh_mindspore.value(parts.msadapter, str(tmp_path))
    assert found["equal"]
    assert "torch.nn.Module" in found["no model"]
    assert found["dump"]["framework"] == "mindtorch"
    names = found["dump"]["data"]
    for name in ("Module.first.Linear.forward.0", "Functional.relu.0.forward", "Tensor.__mul__.0.backward"):
        assert name in names
    assert names["Module.first.Linear.parameters_grad.0"]["weight"][0]["shape"] == [4, 3]
    assert "Torch.matmul.0.forward" not in names  # what an API calls is not recorded
