"""Run the same training script under msprobe and under mindstudio-probe, and compare what the two have written.

Rule: every record that mindstudio-probe writes for a script, we write under the same name with the same statistics.

The peer needs an environment of its own (both packages are called ``msprobe``) with the same versions of torch and
transformers::

    python -m venv peer && peer/bin/pip install mindstudio-probe transformers
    python tools/peer_parity.py --peer-python peer/bin/python --markdown docs/parity.md
    python tools/peer_parity.py --peer-python peer/bin/python --model resnet --level mix --json parity.json

A difference is *missing* (the peer wrote it, we did not), *different*, or *documented*: intended, listed in
``parity_rules.DOCUMENTED`` and explained in docs/limitations.md. What only we write is *extra*. The exit code is 1 if
anything is missing or different, or if a documented difference has no entry in docs/limitations.md, and 2 if a run
failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from parity_cases import LEVELS, SCENARIOS, SETTINGS, Case, chosen
from parity_compare import Comparison, Context, checksums_in, compare_dumps
from parity_report import explain, markdown, plain, table
from parity_rules import DOCUMENTED
from parity_runs import Run, RunError, run_cases, run_plain
from peer_python import add_peer_python
from rich.console import Console

LIMITATIONS = Path(__file__).resolve().parent.parent / "docs" / "limitations.md"
EXAMPLES = 12
MARK = "<!-- made by tools/peer_parity.py, do not edit below -->\n"


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    options = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 200)
    undocumented = _without_entry(LIMITATIONS)
    if undocumented:
        console.print(f"[red]no entry in {LIMITATIONS.name} for: {', '.join(undocumented)}")
    cases = chosen(options.model, options.level, options.setting)
    with tempfile.TemporaryDirectory(prefix="parity_") as name:
        folder = Path(options.keep or name).resolve()
        comparisons, failures = _compare(cases, options.peer_python, folder)
    for failure in failures:
        console.print(failure, style="red", markup=False, highlight=False)
    console.print(table(comparisons))
    for title, comparison in comparisons.items():
        explain(console, title, comparison, options.examples)
    if options.json:
        Path(options.json).write_text(json.dumps(plain(comparisons), indent=1), encoding="utf-8")
    if options.markdown and not failures:
        _write_below_mark(Path(options.markdown), markdown(comparisons))
    failed = any(comparison.of_kind(kind) for comparison in comparisons.values() for kind in ("missing", "different"))
    return 2 if failures else 1 if failed or undocumented else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_peer_python(parser)
    parser.add_argument("--model", choices=(*SCENARIOS, "all"), default="all")
    parser.add_argument("--level", choices=(*LEVELS, "all"), default="all")
    parser.add_argument("--setting", choices=(*SETTINGS, "all"), default="all", help="changes to the config")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="differences shown per case and kind")
    parser.add_argument("--keep", help="run in this folder, and use the runs that are there already")
    parser.add_argument("--json", help="write every difference to this file")
    parser.add_argument("--markdown", help="write the table to this file, below its line that says so")
    return parser.parse_args()


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs without a tool by scenario, runs under either tool by case."""

    plain: Mapping[str, Run]
    ours: Mapping[Case, Run]
    peer: Mapping[Case, Run]


def _compare(cases: Sequence[Case], peer_python: str, folder: Path) -> tuple[dict[str, Comparison], list[str]]:
    """Comparisons by case and step, and what became of the cases that could not be compared."""
    print(f"running {len(cases)} cases under each tool ...", file=sys.stderr, flush=True)
    runs = Runs(
        run_plain(sys.executable, list(dict.fromkeys(case.scenario for case in cases)), folder / "plain"),
        run_cases(sys.executable, _with(cases, Case.with_everything), folder / "ours"),
        run_cases(peer_python, _with(cases, Case.at_l1), folder / "peer"),
    )
    comparisons: dict[str, Comparison] = {}
    failures = []
    for case in cases:
        print(f"comparing {case.title} ...", file=sys.stderr, flush=True)
        try:
            _check_runs(runs.ours[case], runs.peer[case], runs.plain[case.scenario].parameters)
        except RunError as error:
            failures.append(f"{case.title}: {error}")
            continue
        comparisons |= {f"{case.title} {step}": found for step, found in _compare_steps(case, runs)}
    return comparisons, failures


def _with(cases: Sequence[Case], companion: Callable[[Case], Case]) -> list[Case]:
    """The cases, and the companions that they are judged by."""
    return list(dict.fromkeys([*cases, *map(companion, cases)]))


def _check_runs(ours: Run, peer: Run, without: str) -> None:
    for who, run in (("our", ours), ("the peer's", peer)):
        if run.failure:
            raise RunError(f"{who} run failed: {run.failure}")
    if ours.tool == peer.tool:
        raise RunError(f"both runs imported msprobe from {ours.tool}: --peer-python needs its own environment")
    if ours.parameters != without:
        raise RunError("our run ended with other parameters than the run without us")


def _compare_steps(case: Case, runs: Runs) -> Iterator[tuple[str, Comparison]]:
    """Name of each step and its comparison."""
    ours, complete = runs.ours[case].steps(), runs.ours[case.with_everything()].steps()
    at_l1 = runs.peer[case.at_l1()].steps() if case.level != "L1" else {}
    perturbed = runs.peer[case].parameters != runs.plain[case.scenario].parameters
    listed = tuple(SETTINGS[case.setting].section.get("list", ()))
    checksums = frozenset(checksums_in([dump.data for dump in ours.values()]))
    for step, theirs in sorted(runs.peer[case].steps().items()):
        context = Context(perturbed, at_l1.get(step), complete[step], case.setting, listed, checksums)
        yield step, compare_dumps(ours[step], theirs, context)


def _write_below_mark(path: Path, text: str) -> None:
    """Replace what stands below the mark; without one the file is written anew."""
    above = path.read_text("utf-8").partition(MARK)[0] if path.exists() else ""
    path.write_text(f"{above}{MARK}\n{text}", encoding="utf-8")


def _without_entry(limitations: Path) -> list[str]:
    """Documented differences whose key does not occur in the document."""
    text = limitations.read_text("utf-8") if limitations.exists() else ""
    return [key for key in DOCUMENTED if f"`{key}`" not in text]


if __name__ == "__main__":
    sys.exit(main())
