"""Train the models of tests/mindspore/dynamic_models.py under one of the tools, and read what was written.

As a program, ``python mindspore_runs.py JOBS`` reads a JSON list of ``{"model", "folder"}``. Each job is a process of
its own, forked after MindSpore's import, which takes longer than the training. It takes ``config.json`` from its folder
if there is one, and leaves ``outcome.json``: where the tool was imported from, losses, gradients and parameters.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity_dump import Dump
from parity_jobs import run_jobs

MODELS_FOLDER = Path(__file__).resolve().parents[1] / "tests" / "mindspore"
MODELS = ("convolutions", "transformer", "optimiser")
LEVELS = ("L0", "L1", "mix")
STEPS = 2
JOB_LIMIT_S = 300
_LAST_OF_LOG = 3000


class RunError(RuntimeError):
    """A training run ended with an error."""


@dataclass(frozen=True, slots=True)
class Case:
    """One training to run under both tools.

    Attributes
    ----------
    model, level, task : str
    section : mapping
        Keys of the task's section that are not the default.
    word : str
        What is special about it, for its title.
    """

    model: str
    level: str
    word: str = ""
    task: str = "statistics"
    section: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def title(self) -> str:
        """What tables call it."""
        return " ".join(part for part in (self.model, self.level, self.word) if part)

    def config(self, dump_path: str) -> dict[str, Any]:
        """The config.json of the case."""
        config: dict[str, Any] = {
            "task": self.task,
            "dump_path": dump_path,
            "rank": [],
            "step": [],
            "level": self.level,
        }
        if self.task != "structure":
            section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
            config[self.task] = {**section, **self.section}
        return config


@dataclass(frozen=True, slots=True)
class Run:
    """A finished training.

    Attributes
    ----------
    folder : Path
    tool : str
        Where msprobe was imported from; empty without a tool.
    outcome : mapping
        Losses, gradients and parameters, bit by bit.
    """

    folder: Path
    tool: str = ""
    outcome: Mapping[str, Any] = field(default_factory=dict)

    def steps(self) -> dict[str, Dump]:
        """Name of each step's folder -> what it holds."""
        return {step.name: Dump.read(next(step.iterdir())) for step in (self.folder / "dump").glob("step*")}


def run_cases(python: str, cases: Sequence[Case], folder: Path) -> dict[Case, Run]:
    """Train under the tool of an interpreter, one case after the other.

    Raises
    ------
    RunError
        With the end of what the failing run has said.
    """
    configs = {case.title: case.config(str(folder / _folder_name(case.title) / "dump")) for case in cases}
    found = _run(python, [(case.title, case.model) for case in cases], configs, folder)
    return {case: found[case.title] for case in cases}


def run_plain(python: str, models: Sequence[str], folder: Path) -> dict[str, Run]:
    """Train without a tool."""
    return _run(python, [(model, model) for model in models], {}, folder)


def _run(
    python: str, wanted: Sequence[tuple[str, str]], configs: Mapping[str, dict[str, Any]], root: Path
) -> dict[str, Run]:
    folders = {title: root / _folder_name(title) for title, _ in wanted}
    for title, folder in folders.items():
        folder.mkdir(parents=True)
        if title in configs:
            (folder / "config.json").write_text(json.dumps(configs[title]), encoding="utf-8")
    jobs = [{"model": model, "folder": str(folders[title])} for title, model in wanted]
    (root / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    # A PYTHONPATH that leads to one of the tools would hide the other.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"GLOG_v": "3"}
    command = [python, __file__, str(root / "jobs.json")]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"{python}: exit code {done.returncode}\n{done.stderr[-_LAST_OF_LOG:]}")
    return {title: _finished(title, folder) for title, folder in folders.items()}


def _folder_name(title: str) -> str:
    return title.replace(" ", "_")  # the peer refuses blanks in paths


def _finished(title: str, folder: Path) -> Run:
    file = folder / "outcome.json"
    if not file.exists():
        raise RunError(f"{title}: {(folder / 'log.txt').read_text('utf-8', errors='replace')[-_LAST_OF_LOG:]}")
    found = json.loads(file.read_text("utf-8"))
    return Run(folder, found["tool"], found["outcome"])


# -- the child


def main(jobs: str) -> int:
    """Run every job; a job that failed has no outcome."""
    import mindspore  # noqa: F401, PLC0415 - what the forks share

    return run_jobs(jobs, lambda job: _train(job["model"]), JOB_LIMIT_S)


def _train(model: str) -> None:
    import mindspore as ms  # noqa: PLC0415 - only in the child

    ms.runtime.launch_blocking()
    debugger, tool = None, ""
    if Path("config.json").exists():
        _lend_norm()
        import msprobe.mindspore  # noqa: PLC0415

        tool = str(msprobe.__file__)
        debugger = msprobe.mindspore.PrecisionDebugger(config_path="config.json")
    sys.path.append(str(MODELS_FOLDER))
    import dynamic_models  # noqa: PLC0415

    found = {"tool": tool, "outcome": dynamic_models.train(model, debugger, steps=STEPS)}
    Path("outcome.json").write_text(json.dumps(found), encoding="utf-8")


def _lend_norm() -> None:
    """Give ``mint.norm`` a body on the CPU target, where it has no kernel: the peer computes its Norm with it."""
    import mindspore as ms  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415
    from mindspore import mint  # noqa: PLC0415

    mint.norm = lambda tensor: ms.Tensor(np.linalg.norm(tensor.asnumpy().astype(np.float32)).astype(np.float32))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
