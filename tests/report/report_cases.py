"""Dumps and comparisons that several report tests share: small ones, and one of any size."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msprobe.compare.rows import (
    ChainLink,
    Decision,
    Differences,
    Divergence,
    Entry,
    InheritedGroup,
    LeafRow,
    Metrics,
    PairSummary,
    RecordRow,
    Summary,
)

STACK = (
    "File /work/model.py, line 12, in forward, \n return self.fc(x)",
    "File /work/train.py, line 40, in <module>, \n model(x)",
)


def msprobe(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "msprobe", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def tensor(largest: Any = 1.0, smallest: Any = -1.0, **more: Any) -> dict[str, Any]:
    """Return a tensor entry as msprobe writes it."""
    mean = math.nan if isinstance(largest, float) and math.isnan(largest) else 0.25
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2, 3],
        "Max": largest,
        "Min": smallest,
        "Mean": mean,
        "Norm": mean,
        "requires_grad": False,
        **more,
    }


NAN = tensor(math.nan, math.nan, NaN=4)
INF = tensor(math.inf, -1.0, Inf=1)
MASK = tensor(0.0, -math.inf, Inf=3)


def api(inputs: list[Any], outputs: list[Any], **more: Any) -> dict[str, Any]:
    """Return the record of a forward call."""
    return {"input_args": inputs, "input_kwargs": {}, "output": outputs, **more}


def back(inputs: list[Any], outputs: list[Any]) -> dict[str, Any]:
    """Return the record of a backward pass."""
    return {"input": inputs, "output": outputs}


def write_dump(
    folder: Path, data: dict[str, Any], parents: dict[str, Any] | None = None, task: str = "statistics"
) -> Path:
    """Write a rank folder as mindstudio-probe lays it out; every record has the stack `STACK`."""
    folder.mkdir(parents=True)
    head = {"task": task, "level": "mix", "framework": "pytorch", "dump_data_dir": None, "data": data}
    (folder / "dump.json").write_text(json.dumps(head), encoding="utf-8")
    (folder / "construct.json").write_text(json.dumps(parents or {}), encoding="utf-8")
    (folder / "stack.json").write_text(json.dumps({"0": [list(data), list(STACK)]}), encoding="utf-8")
    return folder


def nan_network(folder: Path, *, healthy: bool = False) -> Path:
    """Write a step of two layers in which layer 1 takes the logarithm of a negative number, or does not."""
    bad = tensor() if healthy else NAN
    block, norm = "Module.layers.1.Block.forward.0", "Module.layers.1.norm.LayerNorm.forward.0"
    data = {
        "Functional.linear.0.forward": api([tensor()], [tensor(2.0)]),
        "Module.layers.0.Linear.forward.0": {**api([tensor()], [tensor(2.0)]), "parameters": {"weight": tensor()}},
        "Functional.layer_norm.0.forward": api([tensor(2.0)], [tensor(0.5)]),
        norm: api([tensor(2.0)], [tensor(0.5)]),
        "Torch.log.0.forward": api([tensor(0.5)], [bad]),
        block: api([tensor(2.0)], [bad]),
        "Functional.cross_entropy.0.forward": api([bad], [bad]),
        "Functional.cross_entropy.0.backward": back([tensor()], [bad]),
        "Module.layers.1.Block.backward.0": back([bad], [bad]),
    }
    parents = {
        "Functional.linear.0.forward": "Module.layers.0.Linear.forward.0",
        "Functional.layer_norm.0.forward": norm,
        norm: block,
        "Torch.log.0.forward": block,
        block: None,
    }
    return write_dump(folder, data, parents)


def blocks_of(page: Path) -> dict[str, Any]:
    """Return the unpacked data of a page, by name."""
    found = re.findall(
        r'<script type="application/octet-stream" id="([^"]+)">([^<]*)</script>', page.read_text("utf-8")
    )
    return {name: json.loads(gzip.decompress(base64.b64decode(text))) for name, text in found}


def comparison(records: int, *, steps: int = 1, ranks: int = 1, fault: int | None = None) -> tuple[Summary, Any]:
    """Return a comparison of any size, and the function that gives its rows.

    ``fault`` is the position of the first divergence, on the last rank of the first step.
    """
    pairs = [
        _pair(f"step{step}", f"rank{rank}", records, fault if (step, rank) == (0, ranks - 1) else None)
        for step in range(steps)
        for rank in range(ranks)
    ]
    faulty = next((pair.divergence for pair in pairs if pair.divergence), None)
    summary = Summary(
        target="runs/new",
        golden="runs/golden </script><b>",
        tolerance="default",
        first_divergence=faulty,
        rank_only=(faulty.rank,) if faulty and ranks > 1 else (),
        records={},
        values={},
        only_target=0,
        only_golden=0,
        pairs=tuple(pairs),
        notes=("a note",),
    )

    def rows(pair: PairSummary) -> Iterator[RecordRow]:
        for position in range(records):
            yield _row(position, pair.divergence)

    return summary, rows


def _name(position: int) -> str:
    return f"Functional.linear.{position}.forward"


def _module(position: int) -> str:
    return f"layers.{position // 100 % 80}.{('attn', 'mlp')[position // 50 % 2]}.fc{position // 10 % 5}"


def _pair(step: str, rank: str, records: int, fault: int | None) -> PairSummary:
    trend = {_module(place): 0.01 for place in range(0, min(records, 2000), 10)}
    divergence = None
    if fault is not None:
        trend[_module(fault)] = 250.0
        link = ChainLink(_name(fault - 1), _name(fault - 1), _module(fault - 1), "pass", 0.0, "output.0")
        divergence = Divergence(
            step=step,
            rank=rank,
            position=fault,
            record=_name(fault),
            golden_record=_name(fault),
            leaf="output.0",
            cause="outputs differ from equal inputs",
            explanation="output.0 differs by 0.5 although both inputs are equal.",
            module=_module(fault),
            parent="",
            call_site="/work/model.py, line 12, in forward",
            stack=STACK,
            decision=Decision("error", "relative Norm difference", 0.5, 0.002, "default for float32"),
            chain=(link, ChainLink(_name(fault), _name(fault), _module(fault), "error", 0.5)),
        )
    return PairSummary(
        step=step,
        rank=rank,
        target=f"new/{step}/{rank}/dump.json",
        golden=f"golden/{step}/{rank}/dump.json",
        records={},
        values={},
        mode="statistics",
        divergence=divergence,
        inherited=(InheritedGroup("layers.3", "forward", 7, _name(1), _name(8), 3.5),) if divergence else (),
        trend=trend,
    )


def _row(position: int, divergence: Divergence | None) -> RecordRow:
    first = None if divergence is None else divergence.position
    bad = first is not None and (position == first or position == first + 5)
    decision = (
        Decision("error", "relative Norm difference", 0.5, 0.002, "default for float32", "Norm 1.5, golden 1.0")
        if bad
        else Decision("pass", "relative Norm difference", 0.0, 0.002, "default for float32")
    )
    golden = Entry("tensor", "float32", (4, 16), 2.5, -2.5, 0.125 + position, 1.0, False)
    target = Entry(
        "tensor", "float32", (4, 16), math.nan if bad else 2.5, -2.5, 0.125 + position, 1.0, False, nan=int(bad)
    )
    differences = Differences(math.nan if bad else 0.0, 0.0, 0.0, 0.5, math.inf if bad else 0.0, 0.0, 0.0, 0.5)
    metrics = Metrics(0.9, 0.1, 0.01, 0.5, 0.5, 0.8, 0.9, 4096.0, (1, 2), 1.5, 1.0) if bad else None
    passed = Decision("pass", "difference", 0.0, 0.0, "equal")
    leaves = (
        LeafRow("input.0", "input.0", golden, golden, passed),
        LeafRow("output.0", "output.0", target, golden, decision, differences, metrics),
    )
    return RecordRow(
        position=position,
        target=_name(position),
        golden=_name(position),
        module=_module(position),
        parent="",
        call_site="/work/model.py, line 12, in forward",
        stack=STACK if bad else (),
        verdict=decision.verdict,
        role="source" if bad else "equal",
        worst=decision,
        leaves=leaves,
    )
