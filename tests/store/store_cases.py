"""Writers and records that several store tests share."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from msprobe.store import RunLayout, StepWriter


def tensor_entry(value: float = 1.0) -> dict[str, Any]:
    """Return an entry as the value encoder makes it."""
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [8, 128, 768],
        "Max": value,
        "Min": -3.2345678,
        "Mean": 1.2345e-4,
        "Norm": 886.2345,
        "requires_grad": True,
    }


def record(value: float = 1.0) -> dict[str, Any]:
    """Return a record with three tensors."""
    return {
        "input_args": [tensor_entry(value), tensor_entry(value)],
        "input_kwargs": {},
        "output": [tensor_entry(value)],
    }


OPTIONS: dict[str, Any] = {
    "task": "statistics",
    "level": "L1",
    "framework": "pytorch",
    "extra_info": True,
    "tensors": True,
    "render_stack": lambda key: [f"File a.py, line {key}, in f"],
    "flush_every": None,
}


def open_writer(folder: Path, **changes: Any) -> StepWriter:
    """Open a writer with everything switched on; keyword arguments replace single options."""
    return StepWriter(folder, **(OPTIONS | changes))


def open_step(layout: RunLayout, step: int = 0, **changes: Any) -> StepWriter:
    """Do the same for a step of a run."""
    return layout.open_step(step, **(OPTIONS | changes))


PRELUDE = f"""
import json, logging, os, signal, sys, threading, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
logging.basicConfig(stream=sys.stderr, format="LOG %(name)s %(levelname)s %(message)s")
from store_cases import open_writer, record, tensor_entry
from msprobe.store import RunLayout, StepWriter, read_dump
"""


def script(body: str) -> list[str]:
    """Return the command line of a Python process that runs the body with the names above at hand."""
    return [sys.executable, "-c", PRELUDE + textwrap.dedent(body)]


def run(body: str, *arguments: object, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a body in a process of its own and wait for it."""
    command = [*script(body), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
