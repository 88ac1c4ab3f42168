"""Tensors of every dtype and layout, and the checksums that a tool writes for them.

Run under the interpreter of either tool: ``python checksum_cases.py {md5,xor} OUT.json`` writes ``{case: checksum}``. A
case that the tool cannot carry out has the text ``error: ExceptionName``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from msprobe.pytorch import PrecisionDebugger

MODES = ("md5", "xor")
DTYPES = (
    "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128 float8_e4m3fn float8_e5m2"
).split()
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "matrix": lambda matrix: matrix,
    "odd size": lambda matrix: matrix.reshape(-1)[:7],
    "transposed": lambda matrix: matrix.t(),
    "strided": lambda matrix: matrix[:, ::2],
    "expanded": lambda matrix: matrix[:1].expand(3, matrix.shape[1]),
    "empty": lambda matrix: matrix[:0],
    "0-dim": lambda matrix: matrix[1, 2],
}


def cases() -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of each case; the values are the same on every machine.

    Single complex numbers come last: mindstudio-probe writes nothing any more once it has met one.
    """
    last: list[tuple[str, torch.Tensor]] = []
    for dtype in DTYPES:
        matrix = (torch.arange(15).reshape(3, 5) * 7 % 11 - (0 if dtype == "uint8" else 4)).to(getattr(torch, dtype))
        if matrix.is_complex():
            matrix = torch.complex(matrix.real, matrix.real * 3 - 1)
        for layout, make in LAYOUTS.items():
            case = f"{dtype} {layout}", make(matrix)
            if matrix.is_complex() and layout == "0-dim":
                last.append(case)
            else:
                yield case
        if matrix.is_complex():
            yield f"{dtype} conjugated", matrix.conj()
            yield f"{dtype} imaginary part, negated", matrix.conj().imag
    yield "float32 special", torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan")])
    yield "float32 channels last", torch.arange(48.0).reshape(2, 4, 3, 2).contiguous(memory_format=torch.channels_last)
    yield "float32 view at an offset", torch.arange(20.0)[3:14]
    yield from last


def main(mode: str, out: Path) -> None:
    """Record each case in a step of its own, and collect what was written."""
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="checksums_") as name:
        folder = Path(name)
        section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": mode}
        config = {"task": "statistics", "level": "L1", "rank": [], "step": [], "risk_level": "ALL"}
        config |= {"dump_path": str(folder / "dump"), "statistics": section}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        debugger = PrecisionDebugger(config_path=str(folder / "config.json"))
        names = []
        for case, tensor in cases():
            names.append(case)
            error = _error_of(debugger.start) or _error_of(torch.unsqueeze, tensor, 0)
            error = _error_of(debugger.stop) or _error_of(debugger.step) or error
            if error is not None:
                found[case] = error
        for step, case in enumerate(names):
            if case not in found:
                found[case] = _checksum(folder / "dump" / f"step{step}")
    out.write_text(json.dumps({case: found[case] for case in names}, indent=1), encoding="utf-8")


def _error_of(call: Callable[..., object], *args: object) -> str | None:
    try:
        call(*args)
    except Exception as error:  # noqa: BLE001 - what a tool does with a tensor is the question
        return f"error: {type(error).__name__}"
    return None


def _checksum(step: Path) -> object:
    (file,) = step.glob("*/dump.json")
    record = json.loads(file.read_text("utf-8"))["data"]["Torch.unsqueeze.0.forward"]
    return record["input_args"][0]["md5"]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
