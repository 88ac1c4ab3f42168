"""Recording text generation token by token (``token_range``), and the numbering of steps and ranks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from debugger_traces import assert_nothing_left, dump_of, leftovers
from lifecycle_models import small_model

import msprobe.pytorch
from msprobe.core.errors import LifecycleError
from msprobe.pytorch import PrecisionDebugger

Factory = Callable[..., Any]
PROMPT = torch.arange(5).reshape(1, 5)


@pytest.fixture(scope="module")
def llama() -> transformers.LlamaForCausalLM:
    """Tiny, with random weights and a key-value cache."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=32, **sizes))
    return model.eval()


def generate(model: Any, tokens: int = 6) -> torch.Tensor:
    """Greedy, so that every run gives the same tokens; the prompt is call 0, each further call one token."""
    mask = torch.ones_like(PROMPT)
    return model.generate(PROMPT, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0)


def embedded_lengths(dump: Any) -> list[int]:
    """Number of tokens that each recorded forward call embeds: 5 for the prompt, 1 with the cache."""
    records = [dump.data[name] for name in dump.data if name.startswith("Module.model.embed_tokens.Embedding.forward")]
    return [record["input_args"][0]["shape"][1] for record in records]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize(
    ("wanted", "calls"), [([0, 0], [0]), ([1, 3], [1, 2, 3]), ([0, 99], [0, 1, 2, 3, 4, 5]), ([5, 5], [5])]
)
def test_only_the_wanted_forward_calls_of_a_generation_are_recorded(
    debugger: Factory, llama: Any, level: str, wanted: list[int], calls: list[int]
) -> None:
    expected = generate(llama)
    tool = debugger(task="statistics", level=level)
    tool.start(llama, token_range=wanted)
    assert torch.equal(generate(llama), expected)
    tool.stop()
    tool.step()
    assert_nothing_left([llama])
    names = dump_of(tool).data
    if level != "L1":
        assert embedded_lengths(dump_of(tool)) == [5 if call == 0 else 1 for call in calls]
    if level != "L0":
        assert len([name for name in names if name.startswith("Functional.embedding.")]) == len(calls)


def test_a_recorded_token_includes_choosing_it_but_not_the_next_forward_call(debugger: Factory, llama: Any) -> None:
    tool = debugger(task="statistics", level="L1", risk_level="ALL")
    tool.start(llama, token_range=[1, 1])
    generate(llama)
    tool.stop()
    tool.step()
    names = list(dump_of(tool).data)
    assert "Torch.argmax.0.forward" in names
    assert names.index("Torch.argmax.0.forward") > names.index("Functional.linear.0.forward")
    assert "Torch.argmax.1.forward" not in names


def test_values_are_those_of_the_same_calls_in_a_complete_recording(debugger: Factory, llama: Any) -> None:
    tool = debugger(task="statistics", level="L0")
    for wanted in (None, [2, 3]):
        tool.start(llama, token_range=wanted)
        generate(llama)
        tool.stop()
        tool.step()
    everything, part = dump_of(tool, 0).data, dump_of(tool, 1).data
    head = "Module.lm_head.Linear.forward"
    assert [part[f"{head}.{number}"] for number in range(2)] == [everything[f"{head}.{number}"] for number in (2, 3)]


def test_the_count_goes_on_over_start_and_stop_and_begins_anew_in_each_step(debugger: Factory) -> None:
    tool = debugger(task="statistics", level="L0")
    model = small_model()
    for _ in range(2):
        for number in range(4):
            tool.start(model, token_range=[1, 2])
            model(torch.full((1, 4), float(number)))
            tool.stop()
            assert_nothing_left([model])
        tool.step()
    for step in range(2):
        records = dump_of(tool, step).data
        inputs = [records[f"Module.0.Linear.forward.{number}"]["input_args"][0]["Max"] for number in range(2)]
        assert inputs == [1.0, 2.0]
        assert "Module.0.Linear.forward.2" not in records


def test_outside_the_range_only_the_counting_hook_is_there(debugger: Factory) -> None:
    tool = debugger(task="statistics", level="mix")
    model = small_model()
    seen: list[int] = []
    model[0].register_forward_hook(lambda *_: seen.append(len(leftovers([model]))))
    tool.start(model, token_range=[1, 1])
    for _ in range(3):
        model(torch.ones(1, 4))
    tool.stop()
    assert seen[0] == seen[2] == 1
    assert seen[1] > 1
    tool.step()
    assert_nothing_left([model])


def test_of_several_models_the_first_counts(debugger: Factory) -> None:
    tool = debugger(task="statistics", level="L0")
    first, second = small_model(), small_model()
    tool.start([first, second], token_range=[1, 1])
    for _ in range(3):
        first(torch.ones(1, 4))
        second(torch.ones(1, 4))
    tool.stop()
    tool.step()
    assert {name.rsplit(".", 1)[1] for name in dump_of(tool).data} == {"0"}
    assert {name.split(".")[1] for name in dump_of(tool).data} == {"0", "1"}


def test_calls_of_a_model_that_is_compiled_in_place_are_not_counted(debugger: Factory) -> None:
    tool = debugger(task="statistics", level="L0")
    model = small_model()
    model.compile(backend="eager")
    tool.start(model, token_range=[0, 5])
    model(torch.ones(1, 4))
    tool.stop()
    tool.step()
    assert folders(tool) == []


def test_a_range_that_is_never_reached_is_named_at_the_end(debugger: Factory, caplog: pytest.LogCaptureFixture) -> None:
    tool = debugger(task="statistics", level="L0")
    model = small_model()
    tool.start(model, token_range=[5, 9])
    model(torch.ones(1, 4))
    tool.stop()
    tool.step()
    tool._session.close()
    assert "token_range [5, 9] was not reached, the model was called 1 times" in caplog.text


def test_a_range_without_a_model_is_refused(debugger: Factory) -> None:
    tool = debugger(task="statistics", level="L1")
    with pytest.raises(LifecycleError, match=r"counts forward calls of the model: give start\(model=...\), too"):
        tool.start(token_range=[0, 1])
    with pytest.raises(LifecycleError, match=r"not \[3, 1\]"):
        tool.start(small_model(), token_range=[3, 1])
    assert_nothing_left([])


# -- numbers of steps and ranks


def record_a_step(tool: Any, **where: Any) -> None:
    tool.start(**where)
    torch.exp(torch.ones(1))
    tool.stop()
    tool.step()


def folders(tool: Any) -> list[str]:
    root = Path(tool._session.config.dump_path)
    return sorted(str(path.relative_to(root)) for path in root.glob("step*/*"))


def test_set_init_step_numbers_the_steps_and_the_selection_of_steps_follows(debugger: Factory) -> None:
    tool = debugger(task="statistics", level="L1", step=[100, "102-103"])
    tool.set_init_step(100)
    for _ in range(5):
        record_a_step(tool, rank_id=0)
    assert folders(tool) == ["step100/rank0", "step102/rank0", "step103/rank0"]
    assert tool._session.finished


def test_set_init_step_inside_a_step_ends_it_and_says_so(debugger: Factory, caplog: pytest.LogCaptureFixture) -> None:
    tool = debugger(task="statistics", level="L1")
    tool.start(rank_id=0)
    torch.exp(torch.ones(1))
    tool.set_init_step(0)  # the number it has already
    tool.set_init_step(7)
    torch.sin(torch.ones(1))
    tool.stop()
    tool.step()
    record_a_step(tool, rank_id=0)
    assert folders(tool) == ["step0/rank0", "step7/rank0", "step8/rank0"]
    assert list(dump_of(tool, 0).data) == ["Torch.exp.0.forward"]
    assert list(dump_of(tool, 7).data) == ["Torch.sin.0.forward"]
    assert caplog.text.count("set_init_step() was called inside a step: that step ends here") == 1


@pytest.mark.parametrize("number", [-1, 1.0, "3", None, True])
def test_set_init_step_takes_whole_numbers_only(debugger: Factory, number: Any) -> None:
    tool = debugger(task="statistics", level="L1")
    with pytest.raises(LifecycleError, match=r"set_init_step: the first step must be an integer >= 0, not"):
        tool.set_init_step(number)


def test_steps_that_were_finished_before_the_rank_was_known_get_its_name(
    debugger: Factory, caplog: pytest.LogCaptureFixture
) -> None:
    tool = debugger(task="statistics", level="L1")
    record_a_step(tool)
    record_a_step(tool)
    assert all("/proc" in folder for folder in folders(tool))
    record_a_step(tool, rank_id=2)
    assert folders(tool) == [f"step{number}/rank2" for number in range(3)]
    assert caplog.text == ""
    assert dump_of(tool, 1).complete


def test_rank_id_names_the_folder_and_is_what_rank_selects(debugger: Factory) -> None:
    tool = debugger(task="statistics", level="L1", rank=[1, "3-4"])
    for rank in range(5):
        tool.start(rank_id=rank)
        torch.exp(torch.ones(1))
        tool.step()  # without stop(): the next step has the same rank
        torch.exp(torch.ones(1))
        tool.stop()
        tool.step()
    assert folders(tool) == [f"step{2 * rank + more}/rank{rank}" for rank in (1, 3, 4) for more in (0, 1)]


@pytest.mark.parametrize("rank", [-1, 1.0, "0", True])
def test_rank_id_takes_whole_numbers_only(debugger: Factory, rank: Any) -> None:
    tool = debugger(task="statistics", level="L1")
    with pytest.raises(LifecycleError, match=r"start\(rank_id=...\): the rank must be an integer >= 0, not"):
        tool.start(rank_id=rank)
    assert_nothing_left([])


# -- the interface as promised

CALLS = {
    "start": ["model", "token_range", "rank_id"],
    "stop": [],
    "step": [],
    "set_init_step": ["number"],
    "register_custom_api": ["module", "name", "prefix"],
    "restore_custom_api": ["module", "name"],
    "capture": ["model"],
    "steps": ["batches", "model"],
}


def test_every_promised_name_is_there_with_its_arguments() -> None:
    for name in ("PrecisionDebugger", "seed_all", "save", "module_dump", "module_dump_end"):
        assert callable(getattr(msprobe.pytorch, name))
        assert name in msprobe.pytorch.__all__
    construct = inspect.signature(PrecisionDebugger.__init__).parameters
    assert list(construct)[1:] == ["config_path", "task", "dump_path", "level", "step"]
    for name, arguments in {**CALLS, "save": ["variable", "name", "save_backward"]}.items():
        positional = [
            key
            for key, parameter in inspect.signature(getattr(PrecisionDebugger, name)).parameters.items()
            if parameter.kind is not parameter.KEYWORD_ONLY
        ]
        assert positional == arguments, name


@pytest.mark.parametrize("name", CALLS)
def test_every_call_before_construction_says_what_to_do(debugger: Factory, name: str) -> None:
    assert PrecisionDebugger._instance is None
    arguments = {"set_init_step": [0], "steps": [[1]]}.get(name, [torch, "exp"])
    call = getattr(PrecisionDebugger, name)
    with pytest.raises(LifecycleError, match="there is no PrecisionDebugger yet"):
        if name == "capture":
            call().__enter__()
        elif name == "steps":
            next(call(*arguments))
        else:
            call(*arguments if CALLS[name] and name != "start" else [])
