"""Memory does not grow with the size of the dump files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from written_dumps import call, tensor, write

MEASURE = """
import resource, sys
from msprobe.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert end.code == 0, end.code
print("PEAK", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_mib(dump: Path, out: Path) -> float:
    command = [sys.executable, "-c", MEASURE, "compare", "-tp", dump, "-gp", dump, "-o", out, "--jobs", "1"]
    done = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    return int(done.stdout.rpartition("PEAK")[2]) / 1024


@pytest.mark.parametrize("layout", ["ours", "peer"])
def test_peak_memory_is_that_of_a_small_dump(tmp_path: Path, layout: str) -> None:
    def dump(name: str, padding: int) -> Path:
        filled = call(tensor(), out=tensor(note="x" * padding))
        return write(tmp_path / name, [(f"Torch.relu.{n}.forward", filled) for n in range(3000)], layout=layout)

    small, large = dump("small", 10), dump("large", 30_000)
    size = (large / "step0" / "rank0" / "dump.json").stat().st_size / 2**20
    assert size > 80
    growth = peak_mib(large, tmp_path / "a") - peak_mib(small, tmp_path / "b")
    assert growth < size / 4
