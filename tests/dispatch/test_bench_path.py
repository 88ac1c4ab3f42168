"""Task tensor with bench_path: a second run is compared with the md5 dump of the first while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
import torch.nn.functional as F

from msprobe.core.config_record import Config, Level, Task
from msprobe.core.coverage import Coverage
from msprobe.core.selection import Selection
from msprobe.dispatch.bench import BenchWatch
from msprobe.pytorch import ConfigError
from msprobe.store import RunLayout

Step = Callable[[bool], Any]


def small_layers() -> list[torch.nn.Module]:
    return [torch.nn.Linear(2, 2), torch.nn.Dropout(0.5), torch.nn.ReLU()]


class Runs:
    """An earlier run, and later ones that are compared with it."""

    def __init__(self, debugger: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        self._debugger = debugger
        self._tmp_path = tmp_path
        self._caplog = caplog

    def run(self, step: Step, *, changed: bool = False, name: str = "now", steps: int = 1, **section: Any) -> Path:
        """Record ``step(changed)``; its rank folder."""
        level = section.pop("level", "L1")
        made = self._debugger(
            task="tensor", level=level, dump_path=str(self._tmp_path / name), tensor={"summary_mode": "md5", **section}
        )
        torch.manual_seed(0)
        model = torch.nn.Sequential(*small_layers())
        for _ in range(steps):
            made.start(model)
            step(model if level != "L1" else changed)  # type: ignore[arg-type]
            made.stop()
            made.step()
        made._session.close()
        return next((self._tmp_path / name / "step0").iterdir())

    def compare(self, step: Step, **section: Any) -> Path:
        """The earlier run, then a changed one that is compared with it."""
        self.run(step, name="bench")
        self._caplog.clear()
        return self.run(step, changed=True, bench_path=str(self._tmp_path / "bench"), **section)

    @property
    def log(self) -> str:
        return self._caplog.text


@pytest.fixture
def runs(debugger: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Runs:
    return Runs(debugger, tmp_path, caplog)


def records(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "dump.json").read_text("utf-8"))["data"]
    return content


def summary(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "bench_differences.json").read_text("utf-8"))
    return content


def files(folder: Path) -> dict[str, Any]:
    return {
        file.name: torch.load(file, weights_only=True).tolist() for file in (folder / "dump_tensor_data").glob("*.pt")
    }


def noise(changed: bool) -> torch.Tensor:
    """An API whose result depends on more than its inputs."""
    torch.manual_seed(1 if changed else 0)
    return torch.bernoulli(torch.full((8,), 0.5))


def test_only_the_call_that_makes_the_difference_has_its_tensors_stored(runs: Runs) -> None:
    def step(changed: bool) -> None:
        x = torch.exp(torch.zeros(8))
        y = torch.add(x, noise(changed))
        torch.exp(y)

    folder = runs.compare(step, diff_nums=-1)
    assert set(files(folder)) == {"Torch.bernoulli.0.forward.input.0.pt", "Torch.bernoulli.0.forward.output.0.pt"}
    assert summary(folder)["counts"] == {"equal": 1, "outputs differ from equal inputs": 1, "inputs differ": 2}
    found = records(folder)
    assert list(found) == [
        "Torch.exp.0.forward",
        "Torch.bernoulli.0.forward",
        "Torch.add.0.forward",
        "Torch.exp.1.forward",
    ]
    assert "data_name" not in found["Torch.exp.0.forward"]["output"][0], "a name without a file helps nobody"
    assert found["Torch.bernoulli.0.forward"]["output"][0]["data_name"] == "Torch.bernoulli.0.forward.output.0.pt"
    assert "the first difference: Torch.bernoulli.0.forward in step0" in runs.log


def test_collection_ends_after_the_first_difference_unless_more_are_asked_for(runs: Runs) -> None:
    def step(changed: bool) -> None:
        for _ in range(3):
            noise(changed)
        torch.exp(torch.zeros(2))

    folder = runs.compare(step)
    assert list(records(folder)) == ["Torch.bernoulli.0.forward"]
    coverage = json.loads((folder / "coverage.json").read_text("utf-8"))
    assert coverage["not_recorded"]["came after the last difference (diff_nums)"] == 3
    assert "the collection ended there: 1 difference(s)" in runs.log
    folder = runs.run(step, changed=True, name="two", bench_path=str(folder.parents[2] / "bench"), diff_nums=2)
    assert list(records(folder)) == ["Torch.bernoulli.0.forward", "Torch.bernoulli.1.forward"]
    assert summary(folder)["only in the earlier dump"] == [], "a run that was cut short misses nothing"


def test_later_steps_are_not_recorded_once_collection_has_ended(runs: Runs) -> None:
    runs.run(noise, name="bench", steps=2)
    folder = runs.run(noise, changed=True, steps=2, name="now", bench_path=str(_sibling(runs, "bench")), diff_nums=1)
    assert not (folder.parents[1] / "step1").exists()


def _sibling(runs: Runs, name: str) -> Path:
    return runs._tmp_path / name


def test_gradients_are_compared_with_the_forward_inputs_in_mind(runs: Runs) -> None:
    def step(changed: bool) -> None:
        torch.manual_seed(changed)
        x = torch.zeros(16, requires_grad=True)  # zeros stay zeros whatever is dropped, their gradients do not
        F.dropout(x, 0.5).sum().backward()

    folder = runs.compare(step, diff_nums=-1)
    (difference,) = summary(folder)["differences"]
    assert difference["record"] == "Functional.dropout.0.backward"
    assert difference["differing"] == ["output.0"]
    found = files(folder)
    assert found["Functional.dropout.0.backward.input.0.pt"] == [1.0] * 16
    assert set(found["Functional.dropout.0.backward.output.0.pt"]) == {0.0, 2.0}

    def other_inputs(changed: bool) -> None:
        x = torch.full((2,), 3.0 if changed else 2.0, requires_grad=True)
        torch.square(x).sum().backward()  # equal gradients arrive, other ones leave: because the forward differs

    folder = runs.run(other_inputs, name="bench2")
    folder = runs.run(other_inputs, changed=True, name="now2", bench_path=str(_sibling(runs, "bench2")), diff_nums=-1)
    assert summary(folder)["differences"] == []


def test_inputs_are_stored_as_they_were_before_the_call_wrote_to_them(runs: Runs) -> None:
    def step(changed: bool) -> None:
        torch.manual_seed(changed)
        F.dropout(torch.ones(16), 0.5, training=True, inplace=True)

    folder = runs.compare(step)
    found = files(folder)
    assert found["Functional.dropout.0.forward.input.0.pt"] == [1.0] * 16
    assert set(found["Functional.dropout.0.forward.output.0.pt"]) == {0.0, 2.0}


def test_a_layout_is_no_difference(runs: Runs) -> None:
    matrix = torch.arange(12.0).view(3, 4)
    pairs = [(matrix, matrix.t().contiguous().t()), (torch.tensor([0.0, 2.0, 4.0]), torch.arange(6.0)[::2])]

    def step(changed: bool) -> None:
        for pair in pairs:
            torch.tanh(pair[changed])

    assert summary(runs.compare(step))["counts"] == {"equal": 2}


def test_modules_are_compared_with_their_parameters_as_inputs(runs: Runs) -> None:
    def step(model: Any) -> None:
        torch.manual_seed(step.seed)  # type: ignore[attr-defined]
        with torch.no_grad():
            model[0].weight.add_(step.shift)  # type: ignore[attr-defined]
        model(torch.ones(4, 2)).sum().backward()

    step.seed, step.shift = 0, 0.0  # type: ignore[attr-defined]
    runs.run(step, name="bench", level="mix")
    step.seed = 3  # type: ignore[attr-defined]
    folder = runs.run(step, name="noise", level="mix", bench_path=str(_sibling(runs, "bench")), diff_nums=-1)
    differing = [item["record"] for item in summary(folder)["differences"]]
    assert differing[:2] == ["Functional.dropout.0.forward", "Module.1.Dropout.forward.0"]
    assert "Module.0.Linear.parameters_grad.0" in records(folder)
    assert not [name for name in differing if "parameters_grad" in name]
    assert summary(folder)["only in the earlier dump"] == summary(folder)["not in the earlier dump"] == []
    step.shift = 1.0  # type: ignore[attr-defined]
    folder = runs.run(step, name="weight", level="L0", bench_path=str(_sibling(runs, "bench")), diff_nums=-1)
    assert "Module.0.Linear.forward.0" not in [item["record"] for item in summary(folder)["differences"]]


def test_records_of_one_side_only_are_listed(runs: Runs) -> None:
    def step(changed: bool) -> None:
        torch.exp(torch.ones(2))
        (torch.sin if changed else torch.cos)(torch.ones(2))

    found = summary(runs.compare(step))
    assert found["not in the earlier dump"] == ["Torch.sin.0.forward"]
    assert found["only in the earlier dump"] == ["Torch.cos.0.forward"]
    assert "1 only in the earlier dump" in runs.log


def test_a_step_that_the_earlier_run_does_not_have_is_recorded_and_said(runs: Runs) -> None:
    runs.run(noise, name="bench")
    now = runs.run(noise, steps=2, bench_path=str(_sibling(runs, "bench")))
    assert "nothing is compared in step1" in runs.log
    assert "no step1, only step0; record the same steps in both runs" in runs.log
    (coverage,) = (now.parents[1] / "step1").glob("*/coverage.json")
    assert "no step1" in json.loads(coverage.read_text("utf-8"))["notes"]["bench_path"]["not compared"]


def test_a_dump_without_md5_is_refused_by_what_it_has(runs: Runs) -> None:
    for mode, said in (("statistics", "summary_mode statistics"), ("xor", "summary_mode xor or hash")):
        runs.run(noise, name=mode, summary_mode=mode)
        runs.run(noise, name=f"after {mode}", bench_path=str(_sibling(runs, mode)))
        assert f'was recorded with {said}; "md5" is needed' in runs.log


def test_forward_records_of_another_tool_are_compared(runs: Runs) -> None:
    def step(changed: bool) -> None:
        torch.exp(torch.ones(2, requires_grad=True)).sum().backward()

    bench = runs.run(step, name="bench")
    (bench / "coverage.json").unlink()  # only msprobe writes it
    folder = runs.run(step, bench_path=str(_sibling(runs, "bench")))
    assert summary(folder)["counts"] == {"equal": 2}
    assert "was written by another tool" in runs.log


def test_a_compared_run_is_bit_by_bit_the_run_without_the_tool(runs: Runs) -> None:
    outcomes: list[list[torch.Tensor]] = []

    def train(model: Any) -> None:
        torch.manual_seed(len(outcomes) > 1)  # the last run differs, and has tensors stored on the way
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        x = torch.randn(4, 2, requires_grad=True)
        model(x).square().sum().backward()
        optimizer.step()
        outcomes.append([x.grad, torch.rand(1), *(parameter.detach().clone() for parameter in model.parameters())])  # type: ignore[list-item]

    for level in ("L0", "mix"):
        outcomes.clear()
        runs.run(train, name=f"bench {level}", level=level)
        options = {"bench_path": str(_sibling(runs, f"bench {level}")), "diff_nums": -1, "level": level}
        runs.run(train, name=f"same {level}", **options)
        runs.run(train, name=f"other {level}", **options)
        torch.manual_seed(0)
        train(torch.nn.Sequential(*small_layers()))
        alone = outcomes.pop()
        assert all(torch.equal(first, second) for first, second in zip(outcomes[0], outcomes[1], strict=True))
        assert all(torch.equal(first, second) for first, second in zip(outcomes[2], alone, strict=True))


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nowhere", "there is no such folder"),
        ("bench/step0", "no step folder in it, but .*name the folder above of the earlier run"),
        (".", "no step folder in it"),
    ],
)
def test_a_path_without_a_dump_is_refused_at_once(runs: Runs, place: str, said: str) -> None:
    runs.run(noise, name="bench")
    with pytest.raises(ConfigError, match=rf"(?s)tensor\.bench_path.*{said}"):
        runs.run(noise, bench_path=str(_sibling(runs, place)))


def test_the_dump_path_of_this_run_is_no_bench_path(runs: Runs) -> None:
    runs.run(noise, name="bench")
    with pytest.raises(ConfigError, match="this run would move the earlier dump aside"):
        runs.run(noise, name="bench", bench_path=str(_sibling(runs, "bench")))


@pytest.mark.parametrize("level", ["L2", "debug"])
def test_levels_without_call_records_are_refused(debugger: Callable[..., Any], tmp_path: Path, level: str) -> None:
    section = {"summary_mode": "md5", "bench_path": str(tmp_path), "list": ["Torch.exp.0.forward"]}
    with pytest.raises(ConfigError, match=r'tensor\.bench_path.*(?s:.*)level "L0", "L1", "mix"'):
        debugger(task="tensor", level=level, tensor=section)


def test_parts_that_are_json_text_already_are_compared_too(tmp_path: Path) -> None:
    """The encoder may hand over finished text: it must not be taken for something without values."""
    entry = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "requires_grad": False, "md5": "00112233"}
    name = "Torch.exp.0.forward"
    bench = tmp_path / "bench" / "step0" / "rank0"
    bench.mkdir(parents=True)
    earlier = {name: {"input_args": [entry], "input_kwargs": {}, "output": [entry]}}
    (bench / "dump.json").write_text(json.dumps({"data": earlier}), encoding="utf-8")
    config = Config(Task.TENSOR, Level.L1, tmp_path / "now", bench_path=tmp_path / "bench")
    watch = BenchWatch(config, Selection(), Coverage(), lambda: None)
    options = {"task": "tensor", "level": "L1", "framework": "pytorch", "extra_info": False, "tensors": True}
    writer = RunLayout(tmp_path / "now", rank=0).open_step(0, render_stack=lambda _: [], **options)
    watch.open_step(writer)
    watched = watch.begin(name)
    assert watched is not None
    changed = json.dumps({**entry, "md5": "ffffffff"}).encode()
    record = {
        "input_args": orjson.Fragment(json.dumps([entry]).encode()),
        "input_kwargs": {},
        "output": [orjson.Fragment(changed)],
    }
    watch.run(watched, record)
    watch.end(watched, record)
    assert watch.notes() == {"bench_path": {"outputs differ from equal inputs": 1}}
    watch.close_step()
    writer.finish({})
