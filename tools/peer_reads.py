"""Check that the commands of mindstudio-probe read what msprobe writes, and `msprobe compare` what it writes.

Short training runs are recorded by msprobe (and, to compare with, by the peer), and the peer's own ``msprobe`` is run
on the result: ``compare``, ``graph_visualize`` and ``overflow_check``. A command has to end well **and** to know every
record::

    python tools/peer_reads.py --peer-python peer/bin/python

The environment is the one of ``peer_parity.py``. The exit code is 1 if anything is not read.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from parity_cases import Case
from parity_runs import run_cases
from peer_python import add_peer_python
from rich.console import Console
from rich.table import Table

COMMAND_LIMIT_S = 300
LAST_OF_LOG = 1500
NONFINITE = Case("nonfinite", "mix")
FIRST_NONFINITE = "Torch.log.0.forward"
COMPARED = (
    Case("zoo", "mix"),
    Case("zoo", "mix", "tensor"),
    Case("zoo", "L1", "md5"),
    Case("recompute", "mix"),
    Case("passes", "mix"),
    Case("resnet", "L0"),
    NONFINITE,
)
DRAWN = (Case("zoo", "mix"), Case("recompute", "mix"), Case("resnet", "L0"), Case("vit", "mix", "structure"))


class NotReadError(RuntimeError):
    """A command of the peer failed, or does not know a record."""


def main() -> int:
    """Run every check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_peer_python(parser)
    python = parser.parse_args().peer_python
    table = Table("command", "dump", "result", title="what the peer's commands make of our dumps")
    failed = False
    with tempfile.TemporaryDirectory(prefix="peer_reads_") as name:
        root = Path(name)
        cases = list(dict.fromkeys([*COMPARED, *DRAWN]))
        ours = {case: _first_step(run.folder) for case, run in run_cases(sys.executable, cases, root / "ours").items()}
        theirs = {case: _first_step(run.folder) for case, run in run_cases(python, cases, root / "peer").items()}
        for number, (command, case, check) in enumerate(_checks(python, ours, theirs)):
            print(f"{command} {case.title} ...", file=sys.stderr, flush=True)
            try:
                result = check(root / f"result{number}")
            except NotReadError as error:
                failed, result = True, f"NOT READ: {error}"
            table.add_row(command, case.title, result)
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    return int(failed)


Check = Callable[[Path], str]


def _checks(python: str, ours: Mapping[Case, Path], theirs: Mapping[Case, Path]) -> Iterator[tuple[str, Case, Check]]:
    """Command, case, and what runs it with a folder for its results and says how it went."""
    for case in COMPARED:
        mine, other = ours[case], theirs[case]
        yield "compare", case, partial(_compare, python, mine, other)
        yield "compare of msprobe", case, partial(_compare_by_msprobe, mine, other)
    for case in DRAWN:
        mine, other = ours[case], theirs[case]
        yield "graph_visualize", case, partial(_draw, python, mine, None)
        yield "graph_visualize, two", case, partial(_draw, python, mine, other)
    yield "overflow_check", NONFINITE, partial(_find_overflow, python, ours[NONFINITE])


def _first_step(folder: Path) -> Path:
    return folder / "dump" / "step0"


# -- the commands


def _compare(python: str, ours: Path, theirs: Path, out: Path) -> str:
    """Every record with a tensor must have rows; every record of the peer with our name must have been paired.

    Records with a tag (``#recompute``, ``#2``) may be left out: readers that do not know tags never meet them.
    """
    _msprobe(python, out, "compare", "-tp", str(ours), "-gp", str(theirs))
    with _only(out, "compare_result_*.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    mine, other = _data(ours), _data(theirs)
    listed = _prefixes(row["NPU Name"] for row in rows)
    paired = _prefixes(row["NPU Name"] for row in rows if row["Bench Name"] != "N/A")
    _all_known("rows", (name for name, record in mine.items() if _has_tensor(record) and "#" not in name), listed)
    # A list that is shorter there than here is cut by the peer, a record of it stays.
    both = (name for name, record in mine.items() if name in other and _has_tensor(record) and _has_tensor(other[name]))
    _all_known("pairs", both, paired)
    tagged = sum("#" in name for name in mine)
    return f"{len(mine)} records, {tagged} with a tag, {len(rows)} rows, {len(mine.keys() & other.keys())} pairs"


def _compare_by_msprobe(ours: Path, theirs: Path, out: Path) -> str:
    """The other direction: our compare must find the peer's dump equal to itself, and a partner for its every record.

    Where the peer counts recomputed calls, or has overwritten a record, there are not as many.
    """
    itself = _summary(theirs, theirs, out / "itself", "--tolerance", "exact")
    if itself["exit_code"] or not itself["records"].get("pass"):
        raise NotReadError(f"a dump of mindstudio-probe is not equal to itself: {itself['records']}")
    both = _summary(ours, theirs, out / "both")
    alone = both["pairs"][0]["only_golden_names"]
    if alone and not any(case in str(theirs) for case in ("recompute", "passes")):
        raise NotReadError(f"{len(alone)} records of mindstudio-probe have no partner: {alone[:5]}")
    return (
        f"{both['records']['pass']} records pass, {both['records'].get('error', 0)} differ by rule, {len(alone)} alone"
    )


def _summary(target: Path, golden: Path, out: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "msprobe", "compare", "-tp", str(target), "-gp", str(golden), "-o", str(out)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False)
    if done.returncode not in {0, 1}:
        raise NotReadError(f"exit code {done.returncode}: {done.stderr[-LAST_OF_LOG:]}")
    content: dict[str, Any] = json.loads((out / "summary.json").read_text("utf-8"))
    return content


def _draw(python: str, ours: Path, theirs: Path | None, out: Path) -> str:
    """Every node of the hierarchy must be in the graph."""
    _msprobe(python, out, "graph_visualize", "-tp", str(ours), *(["-gp", str(theirs)] if theirs else []))
    database = sqlite3.connect(_only(out, "*.vis.db"))
    side = " where data_source = 'NPU'" if theirs else ""
    nodes = {name for (name,) in database.execute(f"select node_name from tb_nodes{side}")}  # noqa: S608 - no input
    database.close()
    hierarchy = json.loads(_only(ours, "*/construct.json").read_text("utf-8"))
    _all_known("nodes", hierarchy, nodes)
    return f"{len(hierarchy)} nodes"


def _find_overflow(python: str, ours: Path, out: Path) -> str:
    """The call that makes the first infinity must be the one found."""
    _msprobe(python, out, "overflow_check", "-i", str(ours))
    found = json.loads(_only(out, "anomaly_analyze_*.json").read_text("utf-8"))
    first = [operation["op_name"] for rank in found.values() for operation in rank][:1]
    if first != [FIRST_NONFINITE]:
        raise NotReadError(f"found {first}, not {FIRST_NONFINITE}")
    return f"found {FIRST_NONFINITE}"


def _msprobe(python: str, out: Path, *arguments: str) -> None:
    """Run a command of the peer."""
    # A PYTHONPATH that leads to one of the tools would hide the other.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(Path(python).parent / "msprobe"), *arguments, "-o", str(out)]
    done = subprocess.run(
        command, cwd=out.parent, env=environment, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False
    )
    said = done.stdout + done.stderr
    if done.returncode or "Traceback" in said:
        raise NotReadError(f"exit code {done.returncode}: {said[-LAST_OF_LOG:]}")


# -- what is in a dump


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise NotReadError(f"{len(found)} files {pattern} in {folder}, expected one")
    return found[0]


def _data(step: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(_only(step, "*/dump.json").read_text("utf-8"))["data"]
    return data


def _has_tensor(value: Any) -> bool:
    if isinstance(value, dict):
        return "shape" in value or any(_has_tensor(inside) for inside in value.values())
    return isinstance(value, list) and any(_has_tensor(inside) for inside in value)


def _prefixes(names: Iterator[str]) -> set[str]:
    """Every dotted beginning of the names: the record is one of them."""
    found: set[str] = set()
    for name in names:
        parts = name.split(".")
        found.update(".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return found


def _all_known(what: str, names: Iterator[str] | Mapping[str, Any], known: set[str]) -> None:
    lost = [name for name in names if name not in known]
    if lost:
        raise NotReadError(f"no {what} for {len(lost)} records: {', '.join(lost[:5])}")


if __name__ == "__main__":
    sys.exit(main())
