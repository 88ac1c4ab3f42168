"""A debugger around a model on a GPU: is every number in the dump right, is nothing waited for, is nothing changed?

Part of `gpu_check.py`. Every check takes the device, so that all but the last run on the CPU as well.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import torch

from msprobe.measure.backends import counts
from msprobe.measure.device_streams import CAPTURING
from msprobe.measure.encode import ValueEncoder
from msprobe.pytorch import PrecisionDebugger
from msprobe.store import read_dump

MODES = ("statistics", "md5", "xor", "hash")


class Block(torch.nn.Module):
    """Attention by hand, normalisation and an in-place activation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.value = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.norm = torch.nn.LayerNorm(width)
        self.activation = torch.nn.ReLU(inplace=True)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query = self.query(hidden)
        weights = torch.softmax(query @ query.transpose(-1, -2) / math.sqrt(query.shape[-1]), dim=-1)
        return hidden + self.activation(self.norm(weights @ self.value(hidden)))


def train(device: torch.device, debugger: PrecisionDebugger | None, steps: int = 1) -> tuple[torch.nn.Module, float]:
    """Return the model after some training steps, and the seconds of the fastest one."""
    torch.manual_seed(7)
    model = torch.nn.Sequential(*[Block(64) for _ in range(2)]).to(device, torch.bfloat16)
    batch = torch.randn(4, 32, 64).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    best = math.inf
    for _ in range(steps):
        begin = time.perf_counter()
        if debugger is not None:
            debugger.start(model)
        model(batch).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begin)
    return model, best


def check_debugger(device: torch.device, steps: int = 2) -> tuple[list[str], dict[str, float]]:
    """Record training steps with tensor files; compare numbers with the files, and the model with that of a plain run.

    Returns
    -------
    tuple of (list of str, dict)
        What is wrong, and seconds of a step without and with the debugger (which writes every tensor).
    """
    plain, seconds = train(device, None, steps)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.json")
        content = {"task": "tensor", "level": "mix", "dump_path": folder, "risk_level": "ALL", "precision": "high"}
        config.write_text(json.dumps({**content, "tensor": {"summary_mode": "md5"}}), encoding="utf-8")
        recorded, seconds_with = train(device, PrecisionDebugger(config_path=config), steps)
        (rank,) = Path(folder, "step0").iterdir()
        wrong = compare_with_files(read_dump(rank), device)
    for (name, expected), found in zip(plain.named_parameters(), recorded.parameters(), strict=True):
        if not torch.equal(expected, found):
            wrong.append(f"{name} differs from the run without the debugger")
    return wrong, {"step": seconds, "step with every tensor written": seconds_with}


def compare_with_files(dump: Any, device: torch.device) -> list[str]:
    """Return the entries of a dump whose numbers are not those of the tensor in their file."""
    encoder = ValueEncoder(summary_mode="md5", precision="high")
    wrong: list[str] = []
    compared = 0
    for entry in entries_of(dump.data):
        tensor = torch.load(dump.tensor_folder / entry["data_name"], map_location="cpu").detach()
        compared += 1
        wrong += differences(entry["data_name"], entry, as_json(encoder.encode(tensor)))
    if compared < 100:
        wrong.append(f"{device}: only {compared} tensors recorded")
    return wrong


def entries_of(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every entry of a tensor with a file."""
    if isinstance(value, dict):
        if "data_name" in value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from entries_of(item)


def differences(name: str, entry: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Return which numbers of two entries differ: sums by more than 2e-6, anything else by more than a rounding."""
    spread = (expected.get("Norm") or 0.0) / math.sqrt(max(1, math.prod(expected["shape"])))
    tolerances = {"Max": (1e-15, 0.0), "Min": (1e-15, 0.0), "Mean": (2e-6, 2e-6 * spread), "Norm": (2e-6, 0.0)}
    found = []
    for key in (*tolerances, "NaN", "Inf", "md5"):
        left, right = entry.get(key), expected.get(key)
        if left != right and not (key in tolerances and near(left, right, *tolerances[key])):
            found.append(f"{name}: {key} is {left} instead of {right}")
    return found


def near(left: Any, right: Any, relative: float, absolute: float) -> bool:
    """Whether two numbers agree; a mean may be off by what cancelled in its sum."""
    return left is not None and right is not None and math.isclose(left, right, rel_tol=relative, abs_tol=absolute)


def sample(device: torch.device, rows: int) -> list[torch.Tensor]:
    """Return tensors of many dtypes and layouts."""
    base = torch.randn(rows, 77, generator=torch.Generator().manual_seed(2)).to(device)
    strided = [base.t(), base[:, ::3], base[::2, ::3], base[0, 0], base[:1].expand(5, 77), base[:0]]
    dtypes = (torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool, torch.complex64)
    return [base, *strided, *[base.to(dtype) for dtype in dtypes]]


def as_json(entries: Any) -> Any:
    """Return entries as a reader of the dump sees them."""
    return json.loads(orjson.dumps(entries))


@contextmanager
def waiting_is_an_error(device: torch.device) -> Iterator[None]:
    """Operations that wait for the GPU raise inside."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def check_encoder(device: torch.device, modes: Sequence[Any] = MODES, rows: int = 300) -> list[str]:
    """Encode tensors of many kinds without a wait, overwrite them, then read back."""
    wrong: list[str] = []
    for mode in modes:
        tensors = sample(device, rows)
        on_host = [item.cpu() for item in tensors]
        expected = as_json(ValueEncoder(summary_mode=mode, precision="high").encode_sequence(on_host))
        encoder = ValueEncoder(summary_mode=mode, precision="high", immediate=())
        encoder.encode_sequence(tensors)  # compiles, and makes buffers and tables
        with waiting_is_an_error(device):
            found = encoder.encode_sequence(tensors)
        for item in (tensors[0], *tensors[7:]):  # the others are views of the first
            item.zero_()
        encoder.resolve()
        for index, (entry, wanted) in enumerate(zip(as_json(found), expected, strict=True)):
            wrong += differences(f"{mode} of sample {index}", entry, wanted)
    return wrong


def check_capture(device: torch.device) -> list[str]:
    """Encode a tensor while a CUDA graph is captured: the entry says so and the capture succeeds."""
    encoder = ValueEncoder()
    tensor, graph = torch.ones(8, device=device), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.add_(1)
        entry = encoder.encode(tensor)
    graph.replay()
    encoder.resolve()
    right = entry.get("reason") == CAPTURING and tensor[0].item() == 2
    return [] if right else [f"during a capture: {entry}, {tensor.tolist()}"]


def check_end_to_end(device: torch.device) -> tuple[list[str], dict[str, Any]]:
    """Run all checks; return what is wrong, and what was measured on the way."""
    wrong, seconds = check_debugger(device)
    wrong += check_encoder(device)
    if device.type == "cuda":
        wrong += check_capture(device)
        if not counts().get("cuda", {}).get("triton statistics"):
            wrong.append(f"no statistics by the Triton kernels: {counts()}")
    return wrong, {"seconds": seconds, "kernels": counts()}
