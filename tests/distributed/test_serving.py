"""Inference: generation with caches, batches that change, servers that start and stop while requests arrive."""

from __future__ import annotations

import importlib.util
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from debugger_traces import assert_nothing_left, dump_of

Factory = Callable[..., Any]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "serve_with_runner.py"


@pytest.fixture(scope="module")
def llama() -> transformers.LlamaForCausalLM:
    """Tiny, with random weights."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=32, **sizes)).eval()


def generate(model: Any, batch: int = 1, cache: str | None = None, tokens: int = 4) -> torch.Tensor:
    """Greedy tokens for ``batch`` prompts of 5 tokens."""
    prompt = torch.arange(5 * batch).reshape(batch, 5) % 32
    mask = torch.ones_like(prompt)
    return model.generate(
        prompt, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0, cache_implementation=cache
    )


def embedded(dump: Any) -> list[list[int]]:
    """Shape of what each recorded forward call embeds."""
    name = "Module.model.embed_tokens.Embedding.forward"
    return [dump.data[key]["input_args"][0]["shape"] for key in dump.data if key.startswith(name)]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_generation_with_either_cache_gives_the_same_tokens(
    debugger: Factory, llama: Any, cache: str, level: str
) -> None:
    expected = generate(llama, cache=cache)
    tool = debugger(task="statistics", level=level)
    tool.start(llama, token_range=[1, 2])
    assert torch.equal(generate(llama, cache=cache), expected)
    tool.stop()
    tool.step()
    assert embedded(dump_of(tool)) == [[1, 1], [1, 1]]


def test_batches_of_one_step_may_have_any_size(debugger: Factory, llama: Any) -> None:
    tool = debugger(task="statistics", level="L0")
    tool.start(llama)
    for batch in (1, 3, 2):
        generate(llama, batch, tokens=2)
    tool.stop()
    tool.step()
    assert embedded(dump_of(tool)) == [[1, 5], [1, 1], [3, 5], [3, 1], [2, 5], [2, 1]]


class Server:
    """Answers requests in a thread of its own."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._requests: queue.Queue[tuple[int, queue.Queue[Any]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def ask(self, batch: int) -> queue.Queue[Any]:
        answer: queue.Queue[Any] = queue.Queue()
        self._requests.put((batch, answer))
        return answer

    def close(self) -> None:
        self._requests.put(None)
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        while (request := self._requests.get()) is not None:
            batch, answer = request
            try:
                answer.put(generate(self._model, batch, tokens=3))
            except BaseException as error:  # noqa: BLE001 - the test compares it with the tokens
                answer.put(error)


@pytest.fixture
def server(llama: Any) -> Iterator[Server]:
    made = Server(llama)
    yield made
    made.close()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_recording_starts_and_stops_while_a_thread_answers_requests(
    debugger: Factory, llama: Any, server: Server, level: str
) -> None:
    expected = {batch: generate(llama, batch, tokens=3) for batch in (1, 2, 3)}
    tool = debugger(task="statistics", level=level)
    for _ in range(6):
        answers = [(batch, server.ask(batch)) for batch in (1, 2, 3)]
        tool.start(llama)
        first = answers.pop(0)
        assert torch.equal(first[1].get(timeout=60), expected[first[0]])
        tool.stop()
        tool.step()
        for batch, answer in answers:
            assert torch.equal(answer.get(timeout=60), expected[batch])
    assert_nothing_left([llama])


def test_a_request_is_recorded_whole_when_the_thread_that_answers_it_starts(
    debugger: Factory, llama: Any, server: Server
) -> None:
    tool = debugger(task="statistics", level="mix")
    tool.start(llama)
    server.ask(2).get(timeout=60)
    tool.stop()
    tool.step()
    assert embedded(dump_of(tool)) == [[2, 5], [2, 1], [2, 1]]


def test_dump_enable_switches_a_server_by_its_file(debugger: Factory, llama: Any, tmp_path: Path) -> None:
    tool = debugger(task="statistics", level="L0", dump_enable=False)
    file = tmp_path / "config0.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    for enabled in (False, True, False, True):
        file.write_text(json.dumps({**content, "dump_enable": enabled}), encoding="utf-8")
        tool.start(llama)
        generate(llama, tokens=1)
        tool.stop()
        tool.step()
    assert sorted(entry.name for entry in (tmp_path / "dump0").glob("step*")) == ["step1", "step3"]


def test_discarded_steps_leave_nothing_and_their_number_is_used_again(debugger: Factory, llama: Any) -> None:
    tool = debugger(task="tensor", level="L0")
    for batch, discard in ((1, True), (2, False), (3, True), (1, False)):
        tool.start(llama)
        generate(llama, batch, tokens=1)
        tool.stop()
        tool.step(discard=discard)
    place = Path(tool._session.config.dump_path)
    assert sorted(entry.name for entry in place.iterdir() if entry.is_dir()) == ["step0", "step1"]
    assert embedded(dump_of(tool, 0)) == [[2, 5]]
    assert embedded(dump_of(tool, 1)) == [[1, 5]]


def test_a_run_whose_steps_were_all_discarded_says_so(
    debugger: Factory, llama: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tool = debugger(task="statistics", level="L0")
    tool.start(llama)
    generate(llama, tokens=1)
    tool.stop()
    tool.step(discard=True)
    tool._session.close()
    assert "every step was discarded" in caplog.text
    assert not list(Path(tool._session.config.dump_path).glob("step*"))


def test_the_runner_hook_of_the_documentation_records_batches_and_discards_warm_ups(tmp_path: Path) -> None:
    dump = tmp_path / "serving"
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--dump-path", str(dump)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    # The empty batch was a step as well, in which nothing was seen.
    assert "steps: " in done.stdout
    assert sorted(entry.name for entry in dump.glob("step*")) == ["step0", "step2"]
    data = json.loads(next((dump / "step2").glob("*/dump.json")).read_text(encoding="utf-8"))["data"]
    assert data["Module.0.Embedding.forward.0"]["input_args"][0]["shape"] == [2, 2]


def test_the_runner_hook_ends_its_step_when_a_batch_fails(debugger: Factory) -> None:
    specification = importlib.util.spec_from_file_location("serve_with_runner", EXAMPLE)
    assert specification is not None
    assert specification.loader is not None
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    tool, runner = debugger(task="statistics", level="L0"), example.ModelRunner()
    hook = example.RunnerHook(tool, runner, "execute_model", "dummy_run")
    with pytest.raises(IndexError):
        runner.execute_model([[1000]])
    runner.execute_model([[1]])
    hook.remove()
    assert "execute_model" not in vars(runner)
    assert "Module.0.Embedding.forward.0" in dump_of(tool, 1).data
