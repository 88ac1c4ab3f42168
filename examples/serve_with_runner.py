"""Record single requests of a server whose model is run by a runner object, as vLLM and SGLang have it.

Usage::

    python examples/serve_with_runner.py --dump-path /tmp/serving

`RunnerHook` is the part to copy: it wraps the two methods of a runner that run the model, and knows nothing else of the
server. One executed batch is a step. Warm-up runs are discarded, and leave no folder.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from msprobe.pytorch import PrecisionDebugger


class RunnerHook:
    """Puts a debugger around a model runner.

    Parameters
    ----------
    debugger : PrecisionDebugger
    runner : object
        Has the model as ``model``.
    execute, warm_up : str
        Names of its methods that run a batch of requests, and that run a made-up one.
    """

    def __init__(self, debugger: PrecisionDebugger, runner: Any, execute: str, warm_up: str) -> None:
        self._debugger = debugger
        self._runner = runner
        self._wrapped = (execute, warm_up)
        setattr(runner, execute, self._around(getattr(runner, execute), discard=False))
        setattr(runner, warm_up, self._around(getattr(runner, warm_up), discard=True))

    def remove(self) -> None:
        """Give the runner its own methods back."""
        for name in self._wrapped:
            delattr(self._runner, name)

    def _around(self, method: Callable[..., Any], *, discard: bool) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self._debugger.start(self._runner.model)
            try:
                return method(*args, **kwargs)
            finally:  # a batch that fails, and an idle rank that returns early, end their step like any other
                self._debugger.stop()
                self._debugger.step(discard=discard)

        return run


class ModelRunner:
    """Stands for the runner of a server: batches come and go, their sizes change."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.Linear(16, 64)).eval()

    @torch.inference_mode()
    def execute_model(self, tokens: list[list[int]]) -> list[int]:
        """The next token of each sequence; nothing to do is a valid batch."""
        if not tokens:
            return []
        return self.model(torch.tensor(tokens))[:, -1].argmax(-1).tolist()

    @torch.inference_mode()
    def dummy_run(self, size: int) -> None:
        """Run a batch of zeros, as servers do to find out how much memory it takes."""
        self.model(torch.zeros(size, 4, dtype=torch.long))


def main() -> None:
    """Warm up, then serve three batches of which one is empty."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dump-path", type=Path, default=Path(tempfile.gettempdir()) / "serving")
    dump_path = parser.parse_args().dump_path
    dump_path.mkdir(parents=True, exist_ok=True)
    config = dump_path.with_name(f"{dump_path.name}.config.json")
    config.write_text(json.dumps({"task": "statistics", "level": "mix", "dump_path": str(dump_path)}), encoding="utf-8")
    runner = ModelRunner()
    hook = RunnerHook(PrecisionDebugger(config_path=config), runner, "execute_model", "dummy_run")
    runner.dummy_run(8)
    for batch in ([[1, 2, 3]], [], [[4, 5], [6, 7]]):
        print(len(batch), "sequences:", runner.execute_model(batch))
    hook.remove()
    print("steps:", sorted(folder.name for folder in dump_path.iterdir()))


if __name__ == "__main__":
    main()
