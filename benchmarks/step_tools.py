"""The tools that are measured: what each does around a training step, and with which interpreter.

Everything a tool does is inside the timed step: recording, closing the step, and putting what it found into a file.
Nothing here imports msprobe before it is asked for: mindstudio-probe has a package of the same name in its own
environment, and is driven through the same life cycle by the same code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from step_models import Workload


@dataclass(frozen=True, slots=True)
class Tool:
    """A row of the tables.

    ``kind`` says how the step is wrapped, ``environment`` whose interpreter runs it, ``baseline`` the row it is
    compared with. ``rounds`` limits the number of steps where a step fills the disk. ``goal`` is the slow-down aimed
    at for the GPT of width 256; for width 768 half of its overhead.
    """

    name: str
    kind: str
    config: dict[str, Any] = field(default_factory=dict)
    environment: str = "own"
    baseline: str = "no tool"
    rounds: int | None = None
    goal: float | None = None


def _msprobe(name: str, goal: float | None = None, rounds: int | None = None, **config: Any) -> Tool:
    return Tool(name, "msprobe", config, goal=goal, rounds=rounds)


def _summary(mode: str, goal: float) -> Tool:
    return _msprobe(f"L1 {mode}", goal, level="L1", statistics={"summary_mode": mode})


def _peer(name: str, **config: Any) -> Tool:
    section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    whole = {"rank": [], "step": [], "statistics": section, "tensor": section | {"file_format": "npy"}, **config}
    return Tool(f"mindstudio-probe {name}", "msprobe", whole, environment="peer")


_ALL_TOOLS = (
    Tool("no tool", "none"),
    _msprobe("L0", 1.05, level="L0"),
    _msprobe("L1", 1.15, level="L1"),
    _msprobe("mix", 1.20, level="mix"),
    _summary("md5", 1.25),
    _summary("xor", 1.15),
    _summary("hash", 1.15),
    _msprobe("structure", 1.10, level="mix", task="structure"),
    _msprobe("async", 1.15, level="L1", async_dump=True),
    _msprobe("nan_check", None, level="L1", task="nan_check"),
    _msprobe("after the last step", 1.00, level="mix", step=[0]),
    _msprobe("tensor", 2.0, 4, level="L1", task="tensor"),
    Tool("DebugMode", "debug_mode"),
    Tool("DebugMode with hashes", "debug_mode_hashes"),
    _peer("L0", level="L0"),
    _peer("L1", level="L1"),
    _peer("mix", level="mix"),
    Tool("forward alone", "forward"),
    Tool("TorchLens (forward)", "torchlens", environment="torchlens", baseline="forward alone"),
)
TOOLS: dict[str, Tool] = {tool.name: tool for tool in _ALL_TOOLS}


def step_with(kind: str, config: dict[str, Any], workload: Workload, folder: Path) -> Callable[[], object]:
    """What is timed: one step of the workload with a tool of this kind, which writes below `folder`."""
    if kind == "none":
        return workload.step
    if kind == "forward":
        return workload.forward
    if kind == "msprobe":
        return _debugger_step(config, workload, folder)
    if kind == "torchlens":
        import torchlens

        return lambda: torchlens.trace(workload.model, *workload.inputs)
    return _debug_mode_step(workload, folder, hashes=kind == "debug_mode_hashes")


def _debugger_step(config: dict[str, Any], workload: Workload, folder: Path) -> Callable[[], object]:
    from msprobe.pytorch import PrecisionDebugger

    path = folder / "config.json"
    path.write_text(json.dumps({"task": "statistics", "dump_path": str(folder / "dump"), **config}))
    debugger = PrecisionDebugger(config_path=str(path))

    def step() -> None:
        debugger.start(workload.model) if workload.model is not None else debugger.start()
        workload.step()
        debugger.stop()
        debugger.step()

    return step


def _debug_mode_step(workload: Workload, folder: Path, *, hashes: bool) -> Callable[[], object]:
    """DebugMode keeps its log in memory; its text is what a user compares, so it is made and written here."""
    from torch.utils._debug_mode import DebugMode

    (folder / "dump").mkdir()
    number = iter(range(1 << 30))

    def step() -> None:
        hashing: AbstractContextManager[Any] = (
            DebugMode.log_tensor_hashes(hash_inputs=True) if hashes else nullcontext()
        )
        with DebugMode(record_nn_module=True) as mode, hashing:
            workload.step()
        (folder / "dump" / f"step{next(number)}.txt").write_text(mode.debug_string())

    return step
