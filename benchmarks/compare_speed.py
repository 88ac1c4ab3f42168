"""How long `msprobe compare` takes for large dumps, and how much memory.

``python benchmarks/compare_speed.py`` makes dumps of 100,000 records of a transformer (forward and backward, modules
and APIs, call stacks, every value different in its last digits), one with a call more than the other, and compares
them on one core. ``--peer-python`` gives the interpreter of an environment with mindstudio-probe, whose compare then
reads the same dumps (without the extra call, which it cannot skip); ``--megabytes`` compares a dump
of that size with itself.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msprobe.store.json_bytes import dumps_json

#: API, how many tensors go in, what module makes it.
CALLS = (
    ("Functional.layer_norm", 3, "norm1.LayerNorm"),
    ("Functional.linear", 3, "attention.q.Linear"),
    ("Functional.linear", 3, "attention.k.Linear"),
    ("Functional.linear", 3, "attention.v.Linear"),
    ("Functional.scaled_dot_product_attention", 3, ""),
    ("Functional.linear", 3, "attention.out.Linear"),
    ("Tensor.__add__", 2, ""),
    ("Functional.layer_norm", 3, "norm2.LayerNorm"),
    ("Functional.linear", 3, "mlp.up.Linear"),
    ("Functional.gelu", 1, "mlp.act.GELU"),
    ("Functional.linear", 3, "mlp.down.Linear"),
    ("Tensor.__add__", 2, ""),
)


def entry(value: random.Random, noise: float, *, checksum: bool) -> dict[str, Any]:
    scale = value.random() * (1 + noise * value.random())
    made: dict[str, Any] = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [4, 2048, 4096],
        "Max": 4.1 * scale,
        "Min": -3.9 * scale,
        "Mean": 0.001 * scale,
        "Norm": 1234.5 * scale,
        "requires_grad": True,
    }
    if checksum:
        made["md5"] = f"{value.getrandbits(32):08x}"
    return made


def records(count: int, noise: float, *, extra: bool) -> Iterator[tuple[str, dict[str, Any], str | None]]:
    """Yield name, record and enclosing module: layers forward, then backward in the other order."""
    value = random.Random(1)
    layers = count // sum(3 if module else 2 for _, _, module in CALLS) + 1
    index: dict[str, int] = {}
    done: list[tuple[str, int, str]] = []
    made = 0
    for layer in range(layers):
        for api, inputs, module in CALLS:
            parent = f"Module.layers.{layer}.Block.forward.0"
            number = index.get(api, 0)
            index[api] = number + 1
            tensors = [entry(value, noise, checksum=False) for _ in range(inputs)]
            record = {"input_args": tensors, "input_kwargs": {}, "output": [entry(value, noise, checksum=False)]}
            inner = f"Module.layers.{layer}.{module}.forward.0" if module else parent
            yield f"{api}.{number}.forward", record, inner
            done.append((api, number, inner))
            if module:
                yield inner, {**record, "parameters": {}}, parent
            if extra and layer == layers // 2 and api == "Functional.gelu":
                yield "Torch.relu.0.forward", record, inner
            made += 2 if module else 1
    for api, number, inner in reversed(done):
        if made >= count:
            return
        gradient = {"input": [entry(value, noise, checksum=False)], "output": [entry(value, noise, checksum=False)] * 3}
        yield f"{api}.{number}.backward", gradient, inner.replace("forward", "backward")
        made += 1


def write_dump(folder: Path, count: int, noise: float, *, extra: bool) -> Path:
    rank = folder / "step0" / "rank0"
    rank.mkdir(parents=True)
    groups: dict[str, list[str]] = {}
    parents: dict[str, str | None] = {}
    with (rank / "dump.json").open("wb") as file:
        file.write(b'{"task":"statistics","level":"mix","framework":"pytorch","dump_data_dir":null,"data":{\n')
        for number, (name, record, parent) in enumerate(records(count, noise, extra=extra)):
            file.write((b",\n" if number else b"") + dumps_json(name) + b":" + dumps_json(record))
            parents[name] = parent
            if "forward" in name:
                layer, _, place = (parent or "").removeprefix("Module.layers.").partition(".")
                groups.setdefault(f"{len(layer)} {place} {name.split('.')[1]}", []).append(name)
        file.write(b"\n}}\n")
    lines = [dumps_json(name) + b":" + dumps_json(parent) for name, parent in parents.items()]
    (rank / "construct.json").write_bytes(b"{\n" + b",\n".join(lines) + b"\n}\n")
    frames = [f"File /home/user/model_{n}.py, line {n}, in forward, \n return f{n}(x)" for n in range(12)]
    stacks = {
        str(place): [names, [f"File /home/user/model.py, line {place}, in forward, \n y = f{place}(x)", *frames]]
        for place, names in enumerate(groups.values())
    }
    (rank / "stack.json").write_bytes(dumps_json(stacks))
    (rank / "coverage.json").write_bytes(b'{"complete":true}')
    return folder


def run(command: list[str]) -> tuple[float, float, float, int]:
    """Run a command; wall and CPU seconds, peak memory in MiB, exit code."""
    begin = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        os.execve(command[0], command, environment)
    _, status, usage = os.wait4(child, 0)
    cpu = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - begin, cpu, usage.ru_maxrss / 1024, os.waitstatus_to_exitcode(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--megabytes", type=int, help="size of each dump.json instead of a number of records")
    parser.add_argument("--peer-python", help="interpreter of an environment with mindstudio-probe")
    arguments = parser.parse_args()
    count = arguments.records if arguments.megabytes is None else arguments.megabytes * 1290
    with tempfile.TemporaryDirectory(prefix="compare_speed_") as name:
        root = Path(name)
        golden = write_dump(root / "golden", count, 0.0, extra=False)
        cases = {"itself": golden}
        if arguments.megabytes is None:
            cases["equal names"] = write_dump(root / "same", count, 1e-6, extra=False)
            cases["one extra call"] = write_dump(root / "extra", count, 1e-6, extra=True)
        size = (golden / "step0" / "rank0" / "dump.json").stat().st_size / 2**20
        print(f"{count} records, {size:.0f} MiB of JSON on each side, one core")
        for title, target in cases.items():
            command = [sys.executable, "-m", "msprobe", "compare", "-tp", str(target), "-gp", str(golden)]
            wall, cpu, memory, code = run([*command, "-o", str(root / f"out_{title.split()[0]}"), "--jobs", "1"])
            print(f"msprobe, {title}: {wall:.1f} s ({cpu:.1f} s of CPU), {memory:.0f} MiB, exit code {code}")
        if arguments.peer_python and arguments.megabytes is None:
            peer = str(Path(arguments.peer_python).parent / "msprobe")
            step = [str(folder / "step0") for folder in (cases["equal names"], golden)]
            wall, cpu, memory, code = run(
                [arguments.peer_python, peer, "compare", "-tp", step[0], "-gp", step[1], "-o", str(root / "peer")]
            )
            rows = sum(1 for file in (root / "peer").glob("*.csv") for _ in file.open())
            print(f"mindstudio-probe, equal names: {wall:.1f} s ({cpu:.1f} s of CPU), {memory:.0f} MiB, ", end="")
            print(f"exit code {code}, {rows} rows")


if __name__ == "__main__":
    main()
