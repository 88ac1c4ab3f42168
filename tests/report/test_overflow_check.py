"""Where NaN and infinity begin: in outputs, inputs, parameters and gradients, over ranks, steps and kinds of dumps."""

from __future__ import annotations

import json
import math

import pytest
from report_cases import INF, MASK, NAN, STACK, api, back, msprobe, nan_network, tensor, write_dump

from msprobe.report.overflow import check_overflow
from msprobe.store import DumpReadError


def first_of(folder):
    found = check_overflow(folder).first
    return None if found is None else (found.record, found.kind)


def test_the_innermost_record_with_finite_inputs_is_named_with_its_modules_and_stack(tmp_path):
    result = check_overflow(nan_network(tmp_path / "step0" / "rank0"))
    (anomaly,) = result.ranks[0].anomalies
    assert (anomaly.record, anomaly.kind, anomaly.position) == ("Torch.log.0.forward", "source", 4)
    assert anomaly.modules == ("Module.layers.1.Block.forward.0",)
    assert anomaly.stack == STACK
    assert anomaly.call_site == "/work/model.py, line 12, in forward"
    assert [place.name for place in anomaly.outputs] == ["output.0"]
    assert result.nonfinite == 5


def test_a_finite_dump_has_no_finding(tmp_path):
    result = check_overflow(nan_network(tmp_path / "step0" / "rank0", healthy=True))
    assert (result.first, result.exit_code, result.nonfinite) == (None, 0, 0)


def test_a_module_written_before_what_runs_in_it_is_no_source(tmp_path):
    data = {
        "Module.fc.Linear.forward.0": api([tensor()], [NAN]),
        "Functional.linear.0.forward": api([tensor()], [NAN]),
    }
    parents = {"Functional.linear.0.forward": "Module.fc.Linear.forward.0"}
    assert first_of(write_dump(tmp_path / "rank0", data, parents)) == ("Functional.linear.0.forward", "source")


def test_an_input_that_nothing_has_made_came_in(tmp_path):
    data = {"Torch.exp.0.forward": api([INF], [INF]), "Torch.add.0.forward": api([INF], [INF])}
    result = check_overflow(write_dump(tmp_path / "rank0", data))
    (anomaly,) = result.ranks[0].anomalies
    assert (anomaly.record, anomaly.kind) == ("Torch.exp.0.forward", "entered")


def test_a_parameter_that_is_not_finite_is_blamed_once(tmp_path):
    record = {**api([tensor()], [NAN]), "parameters": {"weight": NAN}}
    data = {"Module.fc.Linear.forward.0": record, "Module.fc.Linear.forward.1": record}
    result = check_overflow(write_dump(tmp_path / "rank0", data))
    (anomaly,) = result.ranks[0].anomalies
    assert (anomaly.kind, [place.name for place in anomaly.inputs]) == ("entered", ["parameters.weight"])


def test_an_attention_mask_of_minus_infinity_is_no_fault(tmp_path):
    data = {
        "Torch.full.0.forward": api([{"type": "float", "value": -math.inf}], [MASK]),
        "Functional.scaled_dot_product_attention.0.forward": api([tensor(), MASK], [tensor()]),
    }
    assert first_of(write_dump(tmp_path / "rank0", data)) is None


def test_memory_that_is_not_written_yet_is_no_fault(tmp_path):
    data = {"Torch.empty.0.forward": api([{"type": "int", "value": 3}], [NAN])}
    assert first_of(write_dump(tmp_path / "rank0", data)) is None


def test_backward_of_a_call_that_was_not_finite_inherits(tmp_path):
    data = {
        "Torch.log.0.forward": api([tensor()], [NAN]),
        "Torch.log.0.backward": back([tensor()], [NAN]),
    }
    (anomaly,) = check_overflow(write_dump(tmp_path / "rank0", data)).ranks[0].anomalies
    assert anomaly.record == "Torch.log.0.forward"


def test_a_gradient_that_overflows_is_a_source(tmp_path):
    data = {
        "Torch.sqrt.0.forward": api([tensor(1.0, 0.0)], [tensor(1.0, 0.0)]),
        "Torch.sqrt.0.backward": back([tensor()], [INF]),
    }
    assert first_of(write_dump(tmp_path / "rank0", data)) == ("Torch.sqrt.0.backward", "source")


def test_only_the_gradient_of_a_weight_overflows(tmp_path):
    data = {
        "Module.fc.Linear.parameters_grad.0": {"weight": [INF]},
        "Module.fc.Linear.backward.0": back([tensor()], [tensor()]),
    }
    assert first_of(write_dump(tmp_path / "rank0", data)) == ("Module.fc.Linear.parameters_grad.0", "source")


def test_a_weight_gradient_written_before_the_pass_that_spoils_it_inherits(tmp_path):
    data = {
        "Module.fc.Linear.parameters_grad.0": {"weight": [NAN]},
        "Module.fc.Linear.backward.0": back([NAN], [NAN]),
    }
    anomalies = check_overflow(write_dump(tmp_path / "rank0", data)).ranks[0].anomalies
    assert [anomaly.record for anomaly in anomalies] == ["Module.fc.Linear.backward.0"]


def test_recomputed_records_do_not_count_twice(tmp_path):
    data = {
        "Torch.log.0.forward": api([tensor()], [NAN]),
        "Torch.log.0.forward#recompute": api([tensor()], [NAN]),
    }
    assert len(check_overflow(write_dump(tmp_path / "rank0", data)).ranks[0].anomalies) == 1


def test_a_rank_that_receives_nan_is_told_from_the_one_that_makes_it(tmp_path):
    reduce = "Distributed.all_reduce.0.forward"
    for rank in range(3):
        made = NAN if rank == 1 else tensor()
        data = {"Torch.log.0.forward": api([tensor()], [made]), reduce: api([made], [NAN])}
        write_dump(tmp_path / "step0" / f"rank{rank}", data)
    result = check_overflow(tmp_path)
    found = {(a.rank, a.record): (a.kind, a.from_rank) for rank in result.ranks for a in rank.anomalies}
    assert found == {
        ("rank0", reduce): ("received", "rank1"),
        ("rank1", "Torch.log.0.forward"): ("source", ""),
        ("rank2", reduce): ("received", "rank1"),
    }
    assert (result.first.rank, result.first.record) == ("rank1", "Torch.log.0.forward")


def test_the_first_of_several_steps_is_the_earliest_by_number(tmp_path):
    for step in (10, 2, 9):
        nan_network(tmp_path / f"step{step}" / "rank0", healthy=step == 2)
    assert check_overflow(tmp_path).first.step == "step9"


def test_records_of_nan_check_name_the_first_flagged_one(tmp_path):
    plain = {key: value for key, value in tensor().items() if key in {"type", "dtype", "shape"}}
    data = {
        f"Torch.{name}.0.forward": api([plain], [plain], is_nan=flag, is_nan_by="value scan")
        for name, flag in (("exp", 0), ("log", 1), ("add", 1))
    }
    result = check_overflow(write_dump(tmp_path / "rank0", data, task="nan_check"))
    assert [anomaly.record for anomaly in result.ranks[0].anomalies] == ["Torch.log.0.forward"]
    assert (result.ranks[0].by_flag, result.ranks[0].nonfinite) == (2, 2)


def test_the_dump_of_a_real_nan_check_names_the_call(tmp_path, debugger):
    import torch

    tool = debugger(task="nan_check", level="L1", dump_path=str(tmp_path / "dump"))
    tool.start()
    torch.log(torch.sub(torch.ones(3), 2)).sum()
    tool.stop()
    tool.step()
    assert first_of(tmp_path / "dump") == ("Torch.log.0.forward", "source")


def test_the_command_writes_json_without_nan_and_tells_by_its_exit_code(tmp_path):
    nan_network(tmp_path / "bad" / "step0" / "rank0")
    nan_network(tmp_path / "good" / "step0" / "rank0", healthy=True)
    done = msprobe("overflow_check", "-i", tmp_path / "bad", "-o", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    assert "Torch.log.0.forward" in done.stdout
    assert "in Module.layers.1.Block.forward.0" in done.stdout
    assert "msprobe report" in done.stdout
    text = (tmp_path / "out" / "overflow_check.json").read_text()
    content = json.loads(text, parse_constant=lambda token: pytest.fail(f"{token} is no JSON"))
    assert content["first"]["record"] == "Torch.log.0.forward"
    assert content["first"]["outputs"][0]["Max"] == "NaN"
    assert msprobe("overflow_check", "-i", tmp_path / "good", "-o", tmp_path / "out").returncode == 0


def test_a_folder_without_a_dump_is_bad_input(tmp_path):
    with pytest.raises(DumpReadError, match=r"no dump\.json"):
        check_overflow(tmp_path)
    done = msprobe("overflow_check", "-i", tmp_path, "-o", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
