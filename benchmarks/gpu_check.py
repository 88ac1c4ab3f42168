"""The Triton kernels on a real device: values against references, a debugger around a model, then speed.

Usage: python benchmarks/gpu_check.py [--json FILE] [--values-only]

Exit codes: 0 all values right, 1 some value wrong, 2 no device. Meant to take less than three minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from msprobe.kernels.triton.availability import triton_availability

SIZES = {"1K": 1 << 10, "1M": 1 << 20, "64M": 1 << 26, "1G": 1 << 30}
SPEED_DTYPES = (torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class Speed:
    """Median device time of one operation.

    Attributes
    ----------
    name, dtype, numel
        What ran on how many elements.
    ms
        Milliseconds, cold second-level cache.
    gb_per_s
        Bytes of the tensor per time; an operation that reads it several times shows that here.
    """

    name: str
    dtype: str
    numel: int
    ms: float
    gb_per_s: float


def require_device() -> torch.device:
    """Return the device to check, or end the program with one line that says why there is none."""
    found = triton_availability()
    if torch.cuda.is_available() and found.usable:
        return torch.device("cuda", torch.cuda.current_device())
    reason = found.reason or "torch sees no device"
    sys.stderr.write(f"gpu_check needs a CUDA or ROCm device and triton: {' '.join(reason.split())}\n")
    sys.exit(2)


def value_cases(device: torch.device, sizes: tuple[int, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield named tensors of every dtype, several layouts and awkward values."""
    from msprobe.kernels.triton.elements import ELEMENTS

    generator = torch.Generator().manual_seed(0)
    for size in sizes:
        for dtype in ELEMENTS:
            base = torch.randint(0, 9, (size,), generator=generator).float()
            if dtype.is_complex:
                base = torch.complex(base - 4, base.flip(0) - 3)
            elif dtype.is_floating_point and dtype != torch.float8_e8m0fnu:
                base = base - 4.5
            yield f"{dtype} {size}", base.to(dtype).to(device)
    normal = torch.randn(sizes[-1] // 60 + 1, 60, generator=generator)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        plain = normal.to(dtype).to(device)
        yield f"{dtype} columns", plain[:, 8:24]
        yield f"{dtype} odd columns", plain[:, 3:20]
        yield f"{dtype} odd address", plain.view(-1)[1:]
        yield f"{dtype} transposed", plain.t()
    for value in (math.nan, math.inf, 3e38, 1e-30):
        for place in (0, -1):
            special = normal.clone()
            special.view(-1)[place] = value
            yield f"float32 with {value} at {place}", special.to(device)
    yield "float32 tiny", (normal * 1e-38).to(device)
    yield "int64 limits", torch.tensor([2**63 - 1, -(2**63), 2**53 + 1], device=device)


def close(found: Any, expected: Any, numel: int) -> bool:
    """Compare reductions: extremes and counts exactly (moduli of complex numbers to 1e-15), sums to 2e-6."""
    if found[4:] != expected[4:]:
        return False
    if expected[4]:
        return all(math.isnan(value) for value in found[:4])
    extremes = all(a == b or math.isclose(a, b, rel_tol=1e-15) for a, b in zip(found[:2], expected[:2], strict=True))
    magnitude = math.sqrt(expected[3] * numel)
    sums = found[2] == expected[2] or not math.isfinite(magnitude) or abs(found[2] - expected[2]) <= 2e-6 * magnitude
    return extremes and sums and math.isclose(found[3], expected[3], rel_tol=2e-6)


def check_values(cases: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """Return what is wrong with the results of named tensors."""
    from msprobe.kernels.triton.device_statistics import DeviceStatistics
    from msprobe.kernels.triton.nonfinite import reference_nonfinite
    from msprobe.kernels.triton.tensor_statistics import reference_statistics

    from msprobe.measure.checksums import checksum_cpu

    wrong: list[str] = []
    kernels = DeviceStatistics(zeros=True, rows=64)
    for name, tensor in cases:
        found: list[Any] = []
        add = found.append
        taken = [
            kernels.submit(tensor, add),
            kernels.submit(tensor, add),
            *kernels.submit_many([tensor] * 2, [add] * 2),
        ]
        taken += [kernels.submit_checksum(mode, tensor, add) for mode in ("xor", "hash", "crc32")]
        taken.append(kernels.submit_probe(tensor, add))
        kernels.flush()
        if not all(taken):
            wrong.append(f"{name}: refused ({kernels.failure or dict(kernels.refused)})")
            continue
        statistics, (xor, hashed, crc, probe) = found[:4], found[4:]
        host = tensor.cpu()
        expected = reference_statistics(host)
        if len(set(map(str, statistics))) != 1:
            wrong.append(f"{name}: not the same bits every time")
        if not close(statistics[0].reduction, expected, tensor.numel()):
            wrong.append(f"{name}: {statistics[0]} instead of {expected}")
        texts = [f"0x{xor:016x}", f"0x{hashed:016x}", f"{crc:08x}"]
        if texts != [checksum_cpu(mode, (host,)) for mode in ("xor", "hash", "md5")]:
            wrong.append(f"{name}: checksums {texts}")
        if probe != reference_nonfinite(host):
            wrong.append(f"{name}: probe {probe}")
    return wrong


def check_streams(device: torch.device) -> list[str]:
    """Return what is wrong when two streams launch at once and the tensors are overwritten right after."""
    from msprobe.kernels.triton.device_statistics import DeviceStatistics

    kernels = DeviceStatistics()
    streams = [torch.cuda.Stream(device), torch.cuda.Stream(device)]
    torch.cuda.synchronize(device)
    found: list[Any] = []
    for index in range(200):
        with torch.cuda.stream(streams[index % 2]):
            tensor = torch.full((1 << 20,), float(index), device=device)
            kernels.submit(tensor, found.append)
            tensor.zero_()
    kernels.flush()
    extremes = [item.reduction[:2] for item in found]
    return [] if extremes == [(index, index) for index in range(200)] else [f"two streams: {extremes}"]


def median_ms(run: Callable[[], object], repeats: int = 20) -> float:
    """Return the median device time; a buffer larger than the second-level cache is zeroed in between."""
    eraser = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        eraser.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[repeats // 2]


def four_operations(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Measure as one does without kernels."""
    return tensor.max(), tensor.min(), tensor.mean(), tensor.norm()


def ignore(_: object) -> None:
    """Take a result that nobody looks at."""


def bandwidth(device: torch.device) -> list[Speed]:
    """Return the speed of kernels and of torch operations on tensors of every size."""
    from msprobe.kernels.triton.device_statistics import DeviceStatistics

    kernels = DeviceStatistics()
    found = []
    for dtype in SPEED_DTYPES:
        for numel in SIZES.values():
            tensor = torch.randn(numel, device=device, dtype=dtype)
            runs: dict[str, Callable[[], object]] = {
                "statistics": partial(kernels.submit, tensor, ignore),
                "xor": partial(kernels.submit_checksum, "xor", tensor, ignore),
                "hash": partial(kernels.submit_checksum, "hash", tensor, ignore),
                "crc32": partial(kernels.submit_checksum, "crc32", tensor, ignore),
                "probe": partial(kernels.submit_probe, tensor, ignore),
                "torch.sum": tensor.sum,
                "4 torch ops": partial(four_operations, tensor),
            }
            for name, run in runs.items():
                ms = median_ms(run)
                found.append(Speed(name, str(dtype), numel, ms, numel * dtype.itemsize / ms / 1e6))
            kernels.flush()
            del tensor, runs
    return found


def host_times(device: torch.device) -> dict[str, float]:
    """Return microseconds of the host per small tensor, without and with reading the results."""
    from msprobe.kernels.triton.device_statistics import DeviceStatistics

    kernels = DeviceStatistics()
    tensors = [torch.randn(64, device=device) for _ in range(2000)]
    sweep = [torch.randn(1 << (10 + index % 12), device=device, dtype=torch.bfloat16) for index in range(300)]

    def timed(run: Callable[[], object], count: int) -> float:
        best = math.inf
        for _ in range(3):
            torch.cuda.synchronize(device)
            begin = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - begin)
            kernels.flush()
        return best / count * 1e6

    def read_back() -> None:
        for tensor in tensors:
            kernels.submit(tensor, ignore)
        kernels.flush()

    return {
        "submit": timed(lambda: [kernels.submit(tensor, ignore) for tensor in tensors], 2000),
        "submit and flush": timed(read_back, 2000),
        "4 torch ops": timed(lambda: [four_operations(tensor) for tensor in tensors], 2000),
        "4 torch ops and item()": timed(lambda: [[v.item() for v in four_operations(t)] for t in tensors], 2000),
        "table of 300": timed(lambda: (kernels.submit_many(sweep, [ignore] * len(sweep)), kernels.flush()), 300),
        "torch._foreach_norm of 300": timed(lambda: [v.item() for v in torch._foreach_norm(sweep)], 300),
    }


def print_tables(speeds: list[Speed], host: dict[str, float]) -> None:
    """Print the results for people."""
    names = {numel: name for name, numel in SIZES.items()}
    print(f"{'operation':14} {'dtype':15} {'elements':>8} {'ms':>9} {'GB/s':>8}")
    for item in speeds:
        print(f"{item.name:14} {item.dtype:15} {names[item.numel]:>8} {item.ms:9.4f} {item.gb_per_s:8.0f}")
    print("\nhost time per tensor")
    for name, microseconds in host.items():
        print(f"{name:28} {microseconds:8.1f} us")


def main() -> None:
    """Run the checks named on the command line."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--json", type=Path, help="write the results to this file")
    arguments.add_argument("--values-only", action="store_true", help="no timing")
    chosen = arguments.parse_args()
    device = require_device()
    begin = time.perf_counter()
    wrong = check_values(value_cases(device, (1, 1000, 1 << 20))) + check_streams(device)
    from gpu_end_to_end import check_end_to_end

    more, end_to_end = check_end_to_end(device)
    wrong += more
    name = torch.cuda.get_device_name(device)
    print(f"{name}: values checked in {time.perf_counter() - begin:.0f} s, {len(wrong)} wrong", *wrong, sep="\n  ")
    print(json.dumps(end_to_end, indent=1))
    results: dict[str, Any] = {"device": name, "wrong": wrong, "end_to_end": end_to_end}
    if not chosen.values_only:
        speeds, host = bandwidth(device), host_times(device)
        print_tables(speeds, host)
        results |= {"speeds": [asdict(item) for item in speeds], "host_us": host}
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
