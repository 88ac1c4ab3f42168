"""Programs that record without end, and keep a log of what they had recorded when, until something ends them."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LOG = "recorded.log"


class UserError(Exception):
    """What the user's own code raises."""


def die(folder: Path, *, program: str, ending: str, seed: int, after: float, pause: float) -> None:
    """Record with a program until it ends in the way asked for.

    Parameters
    ----------
    folder
        Of the process; the dump goes to ``dump`` in it.
    program
        Key of `PROGRAMS`.
    ending
        ``signal`` (sent by the server), ``_exit``, ``error``, ``error in a handler``, ``exit`` or ``abort``.
    seed, after
        Seconds after which the program ends itself, and what else is left to chance.
    pause
        Seconds that each round sleeps at most.
    """
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    chance = random.Random(seed)
    log = -1
    end = float("inf")
    for number in PROGRAMS[program](folder):
        if log < 0:  # the time of all counts from the first round on
            log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            _arrange(ending, after)
            end = time.monotonic() + after
        os.write(log, b"%d %.6f\n" % (number, time.monotonic()))
        if pause:
            time.sleep(chance.random() * pause)
        if time.monotonic() >= end:
            if ending == "error":
                raise UserError("of the user")
            if ending == "exit":
                sys.exit(0)


def _arrange(ending: str, after: float) -> None:
    """Make the process end at a moment that has nothing to do with what the program does."""

    def end_now() -> None:
        time.sleep(after)
        if ending == "abort":
            os.abort()
        os._exit(7)

    def interrupt(number: int, frame: Any) -> None:
        raise UserError("of the user, in a signal handler")

    if ending in ("_exit", "abort"):
        threading.Thread(target=end_now, daemon=True).start()
    elif ending == "error in a handler":
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, after)


def _debugger(folder: Path, **config: Any) -> Any:
    from faulty_training import open_debugger

    return open_debugger(folder, **config)


def calls(folder: Path) -> Iterator[int]:
    """One API call per round: ``Torch.relu.N.forward``."""
    import torch

    debugger = _debugger(folder, level="L1")
    tensor = torch.ones(8)
    debugger.start()
    number = 0
    while True:
        torch.relu(tensor)
        yield number
        number += 1


def training(folder: Path) -> Iterator[int]:
    """One forward and backward pass per round within one step: ``Module.0.Linear.forward.N`` and its backward."""
    import torch

    debugger = _debugger(folder, level="mix")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    batch = torch.ones(4, 8)
    debugger.start(model)
    number = 0
    while True:
        model(batch).sum().backward()
        yield number
        number += 1


def steps(folder: Path) -> Iterator[int]:
    """One whole step per round."""
    import torch

    debugger = _debugger(folder, level="mix")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.ones(4, 8)
    number = 0
    while True:
        with debugger.capture(model):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        yield number
        number += 1


def tensors(folder: Path) -> Iterator[int]:
    """One API call per round with its tensors: ``Torch.add.N.forward``."""
    import torch

    debugger = _debugger(folder, level="L1", task="tensor")
    tensor = torch.arange(64.0)
    debugger.start()
    number = 0
    while True:
        torch.add(tensor, number)
        yield number
        number += 1


def values(folder: Path) -> Iterator[int]:
    """One saved value per round: ``loss.N.debug``."""
    import torch

    debugger = _debugger(folder, level="debug")
    tensor = torch.ones(8)
    number = 0
    while True:
        debugger.save({"loss": tensor, "number": number}, "loss")
        yield number
        number += 1


PROGRAMS: dict[str, Callable[[Path], Iterator[int]]] = {
    "calls": calls,
    "training": training,
    "steps": steps,
    "tensors": tensors,
    "values": values,
}
