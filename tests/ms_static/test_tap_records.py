"""Values of taps, whether Python was called or MindSpore wrote them, become records of the right calls."""

from __future__ import annotations

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest

from msprobe.core.config_load import load_config
from msprobe.core.errors import ConfigError
from msprobe.core.support import Mode
from msprobe.ms_static.tap_dump import place_in_name, plan_tap_statistics, tap_prefix
from msprobe.ms_static.tap_files import file_values, statistic_values
from msprobe.ms_static.tap_places import INNER, SLOTS, Kind, Place
from msprobe.ms_static.tap_records import TapRecorder
from msprobe.ms_static.tapped_cells import TappedCell
from msprobe.store import RunLayout, read_dump
from msprobe.store.kernel_files import HEAD_COLUMNS

OUTER = TappedCell(0, "Cell.a.Outer", None, (), (), None)
INSIDE = TappedCell(1, "Cell.a.b.Dense", 0, ("weight",), ("x",), None)
VALUE = np.float32([[1, 2]])


def place(kind, slot=0, cell=1, inner=None):
    return Place(cell, kind, slot, inner or 0, nested=inner is not None)


PLACES = [
    place(kind, slot, cell, inner)
    for kind in Kind
    for slot in (0, 1, 14)
    for cell in (0, 1, 70000)
    for inner in ((None, 0, INNER - 1) if kind.nests and kind is not Kind.PARAMETER else (None,))
]


def test_every_place_has_a_number_of_its_own():
    numbers = [entry.number for entry in PLACES]
    assert len(set(numbers)) == len(numbers)
    assert [Place.from_number(number) for number in numbers] == PLACES
    assert Place(0, Kind.RESULT_GRADIENT, SLOTS - 1).number < Place(0, Kind.PARAMETER_GRADIENT, 0).number


@pytest.fixture
def recorder(tmp_path):
    made = TapRecorder([OUTER, INSIDE], low=True, tensors=False)
    options = {"task": "statistics", "level": "L0", "framework": "mindspore", "extra_info": True, "tensors": True}
    made.writer = RunLayout(tmp_path / "dump", rank=0).open_step(0, render_stack=lambda _: [], **options)
    return made


def written(recorder):
    recorder.flush()
    recorder.writer.finish({})
    return read_dump(recorder.writer.folder)


def shape_of(value):
    return np.array([value.ndim, *value.shape])


def test_nothing_is_recorded_of_calls_that_began_before(recorder):
    number = place(Kind.ARGUMENT).number
    call = recorder.enter(1, number)
    recorder.running = True
    recorder.see(VALUE, number, call, shape_of(VALUE))
    recorder.flush()
    recorder.writer.finish({})
    assert recorder.writer.recorded == 0


def test_values_find_their_call_in_any_order(recorder):
    recorder.running = True
    outer = recorder.enter(1, place(Kind.ARGUMENT, cell=0).number)
    first = recorder.enter(2, place(Kind.ARGUMENT).number)
    second = recorder.enter(2, place(Kind.ARGUMENT).number)
    for call, factor in ((second, 2), (first, 1)):
        recorder.see(VALUE * factor, place(Kind.ARGUMENT).number, call, shape_of(VALUE))
        recorder.see(VALUE * factor, place(Kind.ARGUMENT_GRADIENT, 1).number, call, shape_of(VALUE))
    recorder.see(np.ones(1), place(Kind.RESULT, cell=0).number, outer, np.array([0]))
    dump = written(recorder)
    maxima = {name: record["input_args"][0]["Max"] for name, record in dump.data.items() if "b.Dense.forward" in name}
    assert maxima == {"Cell.a.b.Dense.forward.0": 2.0, "Cell.a.b.Dense.forward.1": 4.0}
    assert dump.data["Cell.a.b.Dense.backward.1"]["output"][0] is None
    assert dump.data["Cell.a.b.Dense.backward.1"]["output"][1]["Max"] == 4.0
    assert dump.parents["Cell.a.b.Dense.forward.1"] == "Cell.a.Outer.forward.0"
    assert dump.data["Cell.a.Outer.forward.0"]["output"][0]["shape"] == []


def test_what_goes_wrong_is_counted_and_not_raised_into_the_graph(recorder):
    recorder.running = True
    assert recorder.see(VALUE, "no number", 0, shape_of(VALUE)) == 0
    assert recorder.coverage.not_recorded == {"value of a compiled Cell: ValueError": 1}
    assert "ValueError" in recorder.writer.failures[0]


def test_files_of_tensordump_become_records(recorder, tmp_path):
    folder = tmp_path / "taps/step0/rank0"
    folder.mkdir(parents=True)
    order = [
        (Kind.ARGUMENT, 1.0),
        (Kind.RESULT, 2.0),
        (Kind.ARGUMENT, 3.0),
        (Kind.RESULT_GRADIENT, 30.0),  # of the second call: gradients come back in the opposite order
        (Kind.RESULT_GRADIENT, 10.0),
        (Kind.PARAMETER_GRADIENT, 5.0),
    ]
    for count, (kind, value) in enumerate(order):
        np.save(folder / f"tap-{place(kind).number}_bfloat16_{count + 8}.npy", np.float32([value]))
    (folder / "other_float32_1.npy").write_bytes(b"")
    recorder.replay(file_values(folder, recorder.writer.link_tensor, low=True))
    dump = written(recorder)
    assert dump.data["Cell.a.b.Dense.forward.1"]["input_args"][0]["Max"] == 3.0
    assert dump.data["Cell.a.b.Dense.backward.1"]["input"][0]["Max"] == 30.0
    assert dump.data["Cell.a.b.Dense.backward.0"]["input"][0]["dtype"] == "BFloat16"
    (entry,) = dump.data["Cell.a.b.Dense.parameters_grad.0"]["weight"]
    assert np.load(dump.tensor_folder / entry["data_name"]) == [5.0]
    assert [file.name for file in folder.iterdir()] == ["other_float32_1.npy"]


def test_rows_of_statistics_become_records(recorder, tmp_path):
    number = place(Kind.RESULT).number
    rows = [
        ["TensorDump", f"Default_taps_rank_tap-{number}", 0, 0, 7, "input", slot, 8, "Float32", "(2)", value]
        for slot, value in ((0, 9), (1, 4))
    ]
    with (tmp_path / "statistic.csv").open("w", newline="") as lines:
        csv.writer(lines).writerows([[*HEAD_COLUMNS, "Max Value"], *rows])
    recorder.replay(statistic_values([tmp_path]))
    assert written(recorder).data["Cell.a.b.Dense.forward.0"]["output"][0]["Max"] == 4


def config_of(tmp_path, **content):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"dump_path": "/abs/dump", "level": "L0", "task": "statistics", **content}))
    return load_config(file, framework="mindspore")


def test_statistics_of_cells_are_those_of_the_inputs_of_an_operator_that_is_not_run(tmp_path):
    config = config_of(tmp_path, step=[1, "3-4"], statistics={"summary_mode": ["mean", "max"]})
    plan = plan_tap_statistics(config, Mode.STATIC_O0, version=(2, 10, 0), environ={"MS_JIT_MODULES": "mine"})
    assert plan.content == {
        "common_dump_settings": {
            "dump_mode": 1,
            "path": "/abs/dump",
            "net_name": "Net",
            "iteration": "1|3|4",
            "saved_data": "statistic",
            "input_output": 0,
            "kernels": ["TensorDump"],
            "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
            "op_debug_mode": 0,
            "statistic_category": ["avg", "max"],
        },
        "e2e_dump_settings": {
            "enable": False,
            "trans_flag": True,
            "stat_calc_mode": "device",
            "device_stat_precision_mode": "low",
        },
    }
    assert plan.environment == {
        "MINDSPORE_DUMP_CONFIG": "/abs/dump/kernel_kbyk_dump.json",
        "MS_ACL_DUMP_CFG_PATH": None,
        "MS_KERNEL_LAUNCH_SKIP": "TensorDump",
        "MS_JIT_MODULES": "mine,msprobe",
    }


def test_cells_have_no_statistics_with_o2(tmp_path):
    with pytest.raises(ConfigError, match="jit_level O2"):
        plan_tap_statistics(config_of(tmp_path), Mode.STATIC_O2)


def test_the_name_of_a_file_tells_its_place(tmp_path):
    prefix = tap_prefix(config_of(tmp_path, task="tensor"))
    assert prefix == "/abs/dump/taps/{rank}/tap-"
    found = place(Kind.RESULT, 0, 1, 3)
    assert place_in_name(f"tap-{found.number}_float32_17.npy") == found
    assert place_in_name(SimpleNamespace(name="MatMul-op0").name) is None
