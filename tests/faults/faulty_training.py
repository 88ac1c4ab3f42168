"""A small training run, with a debugger around it, in which something of the surroundings breaks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def open_debugger(folder: Path, **config: Any) -> Any:
    """Make the debugger of the process; ``dump_path`` is ``dump`` in the folder unless it is given."""
    from msprobe.pytorch import PrecisionDebugger

    file = folder / "config.json"
    file.write_text(json.dumps({"dump_path": str(folder / "dump"), **config}))
    return PrecisionDebugger(file)


def interrupted(folder: Path, *, level: str, task: str, seconds: float, seed: int = 0) -> None:
    """Train while a timer interrupts at random moments with an exception; print how many came and how many arrived."""
    import random
    import signal
    import time

    import torch

    class TimeIsUpError(Exception):
        pass

    raised = arrived = quiet = 0
    discarded: list[str] = []

    def handler(_number: int, _frame: Any) -> None:
        nonlocal raised
        raised += 1
        raise TimeIsUpError

    def told(unraisable: Any) -> None:  # what Python calls with an exception that it has nowhere to raise
        discarded.append(f"{unraisable.exc_type.__name__}: {unraisable.object!r}")

    sys.unraisablehook = told
    debugger = open_debugger(folder, level=level, task=task)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    batch = torch.ones(4, 8)
    chance = random.Random(seed)
    signal.signal(signal.SIGALRM, handler)
    debugger.start(model)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 1e-2))
            for _ in range(10):
                model(batch).sum().backward()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except RuntimeError as error:  # noqa: PERF203 - of backward(): an interruption has left gradient recording off
            signal.setitimer(signal.ITIMER_REAL, 0)
            if "does not require grad" not in str(error):
                raise
            quiet += 1
            torch.set_grad_enabled(True)
        except TimeIsUpError:
            arrived += 1
            quiet += not torch.is_grad_enabled()
            torch.set_grad_enabled(True)
    signal.setitimer(signal.ITIMER_REAL, 0)
    debugger.stop()
    debugger.step()
    with debugger.capture(model):
        model(batch).sum().backward()
    print(json.dumps({"raised": raised, "arrived": arrived, "grad mode off": quiet, "discarded": discarded}))
