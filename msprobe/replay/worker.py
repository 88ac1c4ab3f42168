"""The process that replays: it imports torch, and it may die without taking the check with it.

It reads one JSON object a line from stdin, the first one the :class:`~msprobe.replay.pool.Job`, then calls, and answers
each with a line on what was its stdout. What operators print goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import torch

from msprobe.replay import verdicts
from msprobe.replay.calls import ApiCall
from msprobe.replay.plan import one_line
from msprobe.replay.records import CallResult
from msprobe.replay.replay_call import Bench, replay_call
from msprobe.replay.reproducer import Reproducer
from msprobe.replay.resolve import import_modules


def main() -> None:
    """Serve until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    job = json.loads(sys.stdin.readline())
    try:
        bench = _bench(job)
    except (ImportError, RuntimeError, ValueError) as error:
        _answer(answers, {"refused": one_line(error)})
        return
    _answer(answers, {"ready": bench.device})
    for line in sys.stdin:
        result = _replayed(ApiCall.from_json(json.loads(line)), bench)
        broken = _device_problem(bench)
        _answer(answers, {"result": result.as_json(), "broken": broken})
        if broken:
            return


def _bench(job: dict[str, Any]) -> Bench:
    """Set the process up.

    Raises
    ------
    ImportError, RuntimeError, ValueError
        A module or the device is not there; the text says which.
    """
    import_modules(job["imports"])
    torch.set_num_threads(job["threads"])
    device = _device(job["device"], job["number"])
    folder = job["tensor_folder"]
    reproducer = Reproducer(Path(job["error_data"]), device, tuple(job["imports"]))
    return Bench(device, job["seed"], None if folder is None else Path(folder), reproducer)


def _device(kind: str, number: int) -> str:
    if kind == "cpu":
        return kind
    if kind == "npu":
        import_modules(["torch_npu"])
    module = getattr(torch, kind)
    if not module.is_available():
        raise RuntimeError(f"this PyTorch ({torch.__version__}) sees no {kind} device; --device cpu works everywhere")
    device = f"{kind}:{number % module.device_count()}"
    module.set_device(device)
    return device


def _replayed(call: ApiCall, bench: Bench) -> CallResult:
    try:
        return replay_call(call, bench)
    except Exception as error:  # noqa: BLE001 - one call must not cost the others; it becomes a reason in the table
        verdict = verdicts.SKIP if bench.is_cpu else verdicts.ERROR
        return CallResult(call.name, verdict, verdicts.SKIP, f"the replay failed: {one_line(error)}")


def _device_problem(bench: Bench) -> str:
    """Return why the device is of no use any more (a device assert stays), or an empty text."""
    if bench.is_cpu:
        return ""
    try:
        getattr(torch, bench.device.partition(":")[0]).synchronize()
    except RuntimeError as error:
        return one_line(error)
    return ""


def _answer(answers: TextIO, content: dict[str, Any]) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
