"""Compile kernels for a GPU that is not there and tell what came out, as JSON. Run by test_triton_codegen.py.

A process of its own: TRITON_INTERPRET=1 of the other tests would make the kernels numpy programs.

Usage: python compile_kernels.py cuda|hip
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
import triton
from msprobe.kernels.triton import crc32, hash64, nonfinite, table_statistics, tensor_statistics, xor64
from msprobe.kernels.triton.elements import ELEMENTS
from msprobe.kernels.triton.launch_options import OPTIONS
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = {"cuda": GPUTarget("cuda", 90, 32), "hip": GPUTarget("hip", "gfx942", 64)}
TYPES = {
    **dict.fromkeys(("address", "nbytes"), "i64"),
    **dict.fromkeys(("rows", "scratch", "table", "partials"), "*i64"),
    "powers": "*i32",
}
#: Compiled for CUDA only: for AMD they would tell nothing that the others do not.
CUDA_ONLY = tuple(
    "float16 float64 int64 uint64 bool complex64 ZEROS=True PITCHED=True ALIGN=2 ALIGN=1 xor64 nonfinite".split()
)
LOADS = r"ld\.global[\w.]*|global_load_\w+|buffer_load_\w+"


def compiled(kernel: Any, target: GPUTarget, constants: dict[str, Any]) -> dict[str, Any]:
    """Compile one variant as a launch would: integers not specialised, tensor arguments aligned."""
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else TYPES.get(name, "i32") for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in names if signature[name].startswith("*")}
    options = {name: value for name, value in OPTIONS.items() if name != "maxnreg" or target.backend == "cuda"}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    binary = triton.compile(source, target=target, options=options)
    text = binary.asm["ptx" if target.backend == "cuda" else "amdgcn"]
    found: dict[str, Any] = {"loads": dict(Counter(re.findall(LOADS, text))), "bytes": len(binary.kernel)}
    spills = re.findall(r"\.vgpr_spill_count:\s+(\d+)", text)
    if spills:
        found["spilled"] = sum(map(int, spills))
    return found


def cases() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield name, kernel and constants of every variant worth a compilation."""
    one: dict[str, Any] = {"MAX_CHUNKS": 2048, "ALIGN": 16, "PITCHED": False, "VECTOR": 1, "ZEROS": False}

    def statistics(name: str, **changes: Any) -> tuple[str, Any, dict[str, Any]]:
        constants = {**ELEMENTS[getattr(torch, name)].constants(), **one, **changes}
        label = "".join(f" {key}={value}" for key, value in changes.items())
        return f"statistics {name}{label}", tensor_statistics.tensor_statistics, constants

    for name in ("float32", "bfloat16", "float16", "float64", "int64", "uint64", "bool", "float8_e4m3fn", "complex64"):
        yield statistics(name)
    yield statistics("bfloat16", ALIGN=2)
    yield statistics("bfloat16", PITCHED=True, VECTOR=8)
    yield statistics("float32", ZEROS=True)
    table = {**ELEMENTS[torch.bfloat16].constants(), "ALIGN": 16, "ZEROS": False}
    yield "table bfloat16", table_statistics.table_statistics, table
    for align in (16, 1):
        yield f"xor64 ALIGN={align}", xor64.xor64, {"ALIGN": align}
        yield f"hash64 ALIGN={align}", hash64.hash64, {"ALIGN": align}
    yield "crc32", crc32.crc32, {"ALIGN": 16}
    test = nonfinite.BIT_TESTS[torch.bfloat16]
    probe = {"STORED": test.stored, "LANE": test.lane, "MASK": test.mask, "EQUAL": test.equal, "BLOCK": 1024}
    yield "nonfinite bfloat16", nonfinite.nonfinite, {**probe, "ALIGN": 16, "PITCHED": False, "VECTOR": 1}


def main() -> None:
    """Compile every case for the target named on the command line."""
    target = TARGETS[sys.argv[1]]
    with tempfile.TemporaryDirectory() as folder:
        triton.knobs.cache.dir = folder  # nothing compiled earlier answers for the sources of today
        results = {
            name: compiled(kernel, target, constants)
            for name, kernel, constants in cases()
            if target.backend == "cuda" or not any(part in name.split() for part in CUDA_ONLY)
        }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
