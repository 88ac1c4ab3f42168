"""One measured tool in a process of its own: runs a step whenever it is told to. Started by step_turns.py.

The first line on standard input is the order, as JSON; each "go" that follows runs one timed step and is answered with
its times in milliseconds; "end" is answered with what the tool left behind.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


def answers() -> IO[str]:
    """The stream of answers; whatever tools print goes to standard error instead."""
    stream = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return stream


def timed(step: Callable[[], object]) -> dict[str, float]:
    begin, cpu = time.perf_counter(), time.process_time()
    step()
    return {"wall": (time.perf_counter() - begin) * 1e3, "cpu": (time.process_time() - cpu) * 1e3}


def left_behind(folder: Path) -> dict[str, Any]:
    """Records and bytes of the first step (hard links of one file count once), and this process's largest size."""
    dump = folder / "dump"
    steps = sorted(dump.glob("step*"), key=lambda path: path.stat().st_mtime)
    first = steps[0] if steps else None
    files = (
        [] if first is None else [first] if first.is_file() else [path for path in first.rglob("*") if path.is_file()]
    )
    sizes = {path.stat().st_ino: path.stat().st_size for path in files}
    dumps = [json.loads(path.read_text()) for path in files if path.name == "dump.json"]
    return {
        "records": sum(len(content.get("data", {})) for content in dumps),
        "bytes": sum(sizes.values()),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    stream = answers()
    order = json.loads(sys.stdin.readline())
    import torch
    from step_models import build
    from step_tools import step_with

    torch.set_num_threads(order["threads"])
    with tempfile.TemporaryDirectory(dir=order["folder"]) as name:
        folder = Path(name)
        workload = build(order["model"], order["backend"])
        step = step_with(order["kind"], order["config"], workload, folder)
        for _ in range(order["warm_up"]):
            step()
        print(json.dumps({"ready": torch.__version__}), file=stream)
        for line in sys.stdin:
            if line.strip() == "end":
                print(json.dumps(left_behind(folder)), file=stream)
                return
            print(json.dumps(timed(step)), file=stream)


if __name__ == "__main__":
    main()
