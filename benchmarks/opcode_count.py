"""How many bytecode instructions a recorded call executes: the same number every time, whatever else the machine does.

Usage: python benchmarks/opcode_count.py; prints a JSON object of counts per call.

``sys.settrace`` reports every instruction of every Python frame of this thread. What a chain of calls executes with
the tool, less what it executes without it, is the tool's. Neither C++ nor other threads are seen, and counts differ
between minor versions of Python. Hardware counters and callgrind would see more, but containers have no counters, and
under callgrind importing torch alone takes minutes.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from step_models import CHAIN, build
from step_tools import TOOLS, step_with

#: What is counted: model, and tool. One process has one debugger, so each pair has a process of its own.
CASES = {
    "API call, forward": ("add", "L1"),
    "API call, forward and backward": ("add-backward", "L1"),
    "API call, md5": ("add", "L1 md5"),
    "API call of an optimiser": ("optimizer", "L1"),
    "module call, forward": ("identity", "L0"),
    "module call, structure": ("identity", "structure"),
    "module call, after the last step": ("identity", "after the last step"),
}


def instructions(action: Callable[[], object]) -> int:
    """Bytecode instructions that `action` executes in this thread, in every frame below it."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def per_call(case: str) -> float:
    """Instructions that one call costs more with the tool; the smallest of four steps, after two."""
    model, tool = CASES[case]
    workload = build(model)
    with tempfile.TemporaryDirectory() as folder:
        step = step_with(TOOLS[tool].kind, TOOLS[tool].config, workload, Path(folder))
        for _ in range(2):
            workload.step()
            step()
        gc.collect()
        gc.disable()
        counts = [(instructions(workload.step), instructions(step)) for _ in range(4)]
    plain, recorded = (min(column) for column in zip(*counts, strict=True))
    return (recorded - plain) / CHAIN


if __name__ == "__main__":
    print(json.dumps(per_call(sys.argv[1])))
