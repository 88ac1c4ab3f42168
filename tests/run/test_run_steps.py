"""Where ``msprobe run`` divides a script into steps, and which models it finds."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from debugger_traces import assert_nothing_left, dump_of, leftovers
from lifecycle_models import small_model
from torch import nn

from msprobe.core.errors import LifecycleError
from msprobe.run.step_class import StepClass
from msprobe.run.steps import ScriptSteps
from msprobe.store import read_dump

Watch = Callable[..., Any]


@pytest.fixture
def watch(debugger: Callable[..., Any]) -> Iterator[Watch]:
    """Debugger of a script that is run by ``msprobe run``, and has just imported torch."""
    made: list[ScriptSteps] = []

    def begin(step_on: str | None = None, **config: Any) -> Any:
        """A ``msprobe run`` that has just seen torch imported."""
        tool = debugger(**{"level": "mix", **config})
        made.append(ScriptSteps(tool, StepClass(step_on) if step_on else None))
        made[-1].begin()
        tool.script = made[-1]
        return tool

    yield begin
    for steps in made:
        steps.end()


def finish(tool: Any) -> None:
    """The script ends."""
    tool.script.end()
    tool._session.close()


def names(tool: Any, step: int) -> list[str]:
    return list(dump_of(tool, step).data)


def count(tool: Any, text: str) -> dict[int, int]:
    """How many records of each step have ``text`` in their name."""
    root = Path(tool._session.config.dump_path)
    numbers = sorted(int(path.name[4:]) for path in root.glob("step*"))
    return {number: len([name for name in names(tool, number) if text in name]) for number in numbers}


def train(model: nn.Module, *optimizers: torch.optim.Optimizer, steps: int = 3, micro: int = 1) -> None:
    for _ in range(steps):
        for _ in range(micro):
            nn.MSELoss()(model(torch.ones(2, 4)), torch.zeros(2, 1)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


LINEAR = "Module.0.Linear.forward"


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_records_are_those_of_a_debugger_in_the_script(watch: Watch, debugger: Callable[..., Any], level: str) -> None:
    tool = watch(level=level)
    model = small_model()
    train(model, sgd(model))
    finish(tool)
    by_hand = debugger(level=level)
    for step in range(3):
        by_hand.start(model)
        train(model, sgd(model), steps=1)
        by_hand.stop()
        by_hand.step()
        expected = [name for name in names(by_hand, step) if "zero_grad" not in name]
        assert names(tool, step) == expected
    assert any("parameters_grad" in name for name in names(tool, 0)) == (level != "L1")
    assert not (Path(tool._session.config.dump_path) / "step3").exists()


def test_building_the_model_is_in_no_step(watch: Watch) -> None:
    tool = watch(level="L1", risk_level="ALL")
    model = small_model()
    torch.exp(torch.ones(1))
    train(model, sgd(model), steps=1)
    torch.exp(torch.ones(1))
    finish(tool)
    assert not [name for name in names(tool, 0) if "exp" in name or "init" in name]


def test_gradient_accumulation_is_one_step(watch: Watch) -> None:
    tool = watch()
    model = small_model()
    train(model, sgd(model), steps=2, micro=3)
    finish(tool)
    assert count(tool, LINEAR) == {0: 3, 1: 3}


def test_optimisers_that_step_one_after_the_other_end_one_step(watch: Watch) -> None:
    tool = watch(risk_level="ALL")
    model = small_model()
    train(model, sgd(model[0]), torch.optim.AdamW(model[2].parameters()), steps=3)
    finish(tool)
    assert count(tool, LINEAR) == {0: 1, 1: 1, 2: 1}
    for step in range(3):
        inside = {name for name, parent in dump_of(tool, step).parents.items() if parent == "optimizer"}
        assert {"Tensor.add_.0.forward", "Tensor.addcdiv_.0.forward"} <= inside  # of the first, of the second


def test_an_optimiser_made_later_that_follows_another_ends_no_step_of_its_own(watch: Watch) -> None:
    tool = watch(risk_level="ALL")
    model = small_model()
    first = sgd(model[0])
    train(model, first, steps=1)
    second = torch.optim.AdamW(model[2].parameters())
    train(model, first, second, steps=3)
    finish(tool)
    assert count(tool, LINEAR) == {0: 1, 1: 1, 2: 1, 3: 1}
    assert "Tensor.addcdiv_.0.forward" in names(tool, 3)


def test_adversarial_training_has_one_step_per_optimiser_step(watch: Watch) -> None:
    tool = watch()
    generator, critic = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 1))
    optimizers = sgd(critic), sgd(generator)
    for _ in range(2):
        for optimizer in optimizers:
            critic(generator(torch.ones(2, 4))).sum().backward()
            optimizer.step()
    finish(tool)
    assert count(tool, "Linear.forward") == {0: 2, 1: 2, 2: 2, 3: 2}
    assert "Module.1.0.Linear.forward.0" in names(tool, 3)  # generator first, critic second


def test_an_optimiser_that_wraps_another_ends_one_step(watch: Watch) -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure: Any = None) -> None:
            self.inner.step()

    tool = watch()
    model = small_model()
    train(model, Wrapper(sgd(model)))
    finish(tool)
    assert count(tool, LINEAR) == {0: 1, 1: 1, 2: 1}


def test_a_closure_that_runs_the_model_several_times_is_one_step(watch: Watch) -> None:
    tool = watch()
    model = small_model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    model(torch.ones(2, 4))
    for _ in range(2):
        optimizer.step(closure)
    finish(tool)
    assert list(count(tool, LINEAR)) == [0, 1]


def test_optimisers_that_step_inside_the_backward_pass_end_the_step_at_the_next_call(watch: Watch) -> None:
    tool = watch()
    model = small_model()
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    train(model)
    finish(tool)
    assert count(tool, LINEAR) == {0: 1, 1: 1, 2: 1}
    assert count(tool, "Module.2.Linear.parameters_grad") == {0: 1, 1: 1, 2: 1}


def test_a_step_that_the_gradient_scaler_leaves_out_counts(watch: Watch) -> None:
    tool = watch()
    model = small_model()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu")
    for factor in (1.0, float("inf"), 1.0):
        loss = model(torch.ones(2, 4)).sum() * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    finish(tool)
    assert count(tool, LINEAR) == {0: 1, 1: 1, 2: 1}
    assert "_maybe_opt_step" in vars(torch.amp.GradScaler)


def test_after_the_last_wanted_step_nothing_is_left(watch: Watch) -> None:
    original = torch.amp.GradScaler._maybe_opt_step
    tool = watch(step=[1])
    model = small_model()
    optimizer = sgd(model)
    assert torch.amp.GradScaler._maybe_opt_step is not original
    train(model, optimizer, steps=1)
    assert leftovers([model])
    train(model, optimizer, steps=2)
    assert_nothing_left([model])
    assert not optimizer._optimizer_step_post_hooks
    assert torch.amp.GradScaler._maybe_opt_step is original
    finish(tool)
    assert count(tool, LINEAR) == {1: 1}


class Complete(torch.optim.SGD):
    """Pickles everything it has, hooks included."""

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))


def test_recording_may_end_while_torch_goes_through_the_hooks_of_the_optimiser(watch: Watch) -> None:
    """The last wanted step ends in a hook of the optimiser, between hooks of the script."""
    tool = watch(level="L1", step=[1])
    model = small_model()
    optimizer = sgd(model)
    calls: list[str] = []
    optimizer.register_step_post_hook(lambda *_: calls.append("first"))
    train(model, optimizer, steps=1)
    optimizer.register_step_post_hook(lambda *_: calls.append("last"))
    train(model, optimizer, steps=3)
    finish(tool)
    assert calls == ["first"] + ["first", "last"] * 3
    assert [path.name for path in Path(tool._session.config.dump_path).glob("step*")] == ["step1"]


def test_an_optimiser_can_be_copied_and_pickled_meanwhile(watch: Watch) -> None:
    watch()
    model = small_model()
    optimizer = Complete(model.parameters(), lr=0.1)
    train(model, optimizer, steps=1)
    twin = copy.deepcopy(optimizer)
    twin.step()
    assert b"msprobe" not in pickle.dumps(optimizer._optimizer_step_post_hooks)


def test_without_an_optimiser_the_run_is_one_step(watch: Watch) -> None:
    tool = watch()
    model = small_model()
    with torch.inference_mode():
        for _ in range(3):
            model(torch.ones(2, 4))
    finish(tool)
    assert count(tool, LINEAR) == {0: 3}


def test_evaluation_between_two_steps_belongs_to_the_step_that_follows(watch: Watch) -> None:
    tool = watch()
    model = small_model()
    optimizer = sgd(model)
    for _ in range(2):
        train(model, optimizer, steps=1)
        with torch.no_grad():
            model(torch.ones(2, 4))
    finish(tool)
    assert count(tool, LINEAR) == {0: 1, 1: 2, 2: 1}


def test_a_traceback_that_the_script_prints_itself_shows_frames_of_ours(watch: Watch) -> None:
    watch(level="L1")

    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mm(x, x)

    with pytest.raises(RuntimeError) as caught:
        Failing()(torch.ones(2, 3))
    assert any("msprobe" in str(entry.path) for entry in caught.traceback[1:])


def test_a_script_without_modules_is_recorded_from_its_second_step_and_told_so(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    tool = watch(level="L1")
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        torch.exp(weight).sum().backward()
        optimizer.step()
    finish(tool)
    assert {step: number for step, number in count(tool, "Torch.exp").items() if number} == {1: 2, 2: 2}
    assert caplog.text.count("step 0 holds nothing") == 1


@pytest.mark.parametrize("name", ["Sequential.forward", "Sequential", "torch.nn.modules.container.Sequential.forward"])
def test_step_on_divides_at_the_calls_of_a_class(watch: Watch, name: str) -> None:
    tool = watch(step_on=name, risk_level="ALL")
    model = nn.Sequential(small_model())  # the inner one is of the class, too
    optimizer = sgd(model)
    for number in range(3):
        nn.ReLU()(torch.ones(1))
        model(torch.full((2, 4), float(number))).sum().backward()
        optimizer.step()
        torch.exp(torch.ones(1))
    finish(tool)
    assert count(tool, "Module.0.0.Linear.forward") == {0: 1, 1: 1, 2: 1}
    assert count(tool, "Module.0.0.Linear.backward") == {0: 1, 1: 1, 2: 1}
    assert count(tool, "Torch.exp") == {0: 1, 1: 1, 2: 1}
    assert dump_of(tool, 2).data["Module.0.0.Linear.forward.0"]["input_args"][0]["Max"] == 2.0


def test_step_on_ignores_calls_that_a_checkpoint_repeats(watch: Watch) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = small_model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)

    tool = watch(step_on="Block.forward")
    model = Model()
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    finish(tool)
    assert list(count(tool, "Linear.forward")) == [0, 1]


@pytest.mark.parametrize("text", ["", ".forward", "a b", "1x.forward", "a..b", "forward()"])
def test_step_on_takes_names_of_classes_only(text: str) -> None:
    with pytest.raises(LifecycleError, match="--step-on: expected the class of a module"):
        StepClass(text)


def test_a_class_that_is_never_called_is_told_with_those_that_were(watch: Watch) -> None:
    chosen = StepClass("Lama.forward")
    for kind in (nn.Linear, nn.ReLU):
        assert not chosen.begins(kind(1, 1) if kind is nn.Linear else kind(), sys._getframe())
    assert chosen.unused().endswith("no such module was called, so all is step 0; called were: Linear, ReLU")


def test_a_failure_of_the_tool_ends_the_recording_not_the_script(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    tool = watch()
    model = small_model()
    train(model, sgd(model), steps=1)
    tool._session.step_index = None  # breaks whatever comes next
    train(model, sgd(model), steps=2)
    assert_nothing_left([model])
    assert caplog.text.count("recording ends here: TypeError") == 1
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []
    tool._session.step_index = 1


def test_the_configuration_file_may_switch_a_script_that_is_running(watch: Watch, tmp_path: Path) -> None:
    tool = watch(dump_enable=False, level="L0")
    model = small_model()
    optimizer = sgd(model)
    for switch, level in ((False, "L1"), (True, "mix"), (True, "L1"), (False, "L1")):
        content = {"dump_path": str(tmp_path / "dump0"), "dump_enable": switch, "level": level}
        (tmp_path / "config0.json").write_text(json.dumps(content))
        train(model, optimizer, steps=1)
    train(model, optimizer, steps=2)
    finish(tool)
    assert list(count(tool, "")) == [1, 2]
    assert any(name.startswith("Module.") for name in names(tool, 1))
    assert not any(name.startswith("Module.") for name in names(tool, 2))


# -- real processes

TRAIN = """
    import os, sys
    import torch, torch.distributed as dist
    from torch import nn
    torch.manual_seed(0)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(sys.argv[1]))
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(torch.ones(2, 4)), torch.zeros(2, 1))
        loss.backward()
        optimizer.step()
        print(repr(loss.item()), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()
"""


def write_script(folder: Path, **config: Any) -> None:
    (folder / "train.py").write_text(textwrap.dedent(TRAIN))
    (folder / "config.json").write_text(json.dumps({"dump_path": "dump", "level": "mix", **config}))


def command(folder: Path, *words: str) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_unmodified_script_computes_the_same_and_is_recorded_step_by_step(tmp_path: Path) -> None:
    write_script(tmp_path, step=["1-2"])
    plain = command(tmp_path, sys.executable, "train.py", "0.1")
    ours = command(tmp_path, sys.executable, "-m", "msprobe", "run", "-c", "config.json", "train.py", "0.1")
    assert ours == plain
    folders = sorted((tmp_path / "dump").glob("step*/*"))
    assert [path.parent.name for path in folders] == ["step1", "step2"]
    for path in folders:
        dump = read_dump(path)
        assert dump.complete
        assert "Module.0.Linear.forward.0" in dump.data
        assert "Module.2.Linear.parameters_grad.0" in dump.data
        assert dump.parents["Functional.linear.0.forward"] == "Module.0.Linear.forward.0"


def test_torchrun_records_every_wanted_rank_under_its_number(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*torchrun, "-m", "msprobe", "run", "-c", "config.json", "train.py", "0.1"]
    for _ in range(4):
        shutil.rmtree(tmp_path / "dump", ignore_errors=True)
        write_script(tmp_path, rank=[1], step=[0, 1])
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=180)
        # torch's own threads end a process so in one run of eight, the script alone under torchrun as well.
        if "terminate called without an active exception" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    folders = sorted(str(path.relative_to(tmp_path / "dump")) for path in (tmp_path / "dump").glob("step*/*"))
    assert folders == ["step0/rank1", "step1/rank1"]
    assert "Module.module.0.Linear.forward.0" in read_dump(tmp_path / "dump" / "step1" / "rank1").data
