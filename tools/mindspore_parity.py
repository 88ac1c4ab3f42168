"""Run the same MindSpore training under msprobe and under mindstudio-probe, and compare what the two have written.

As ``peer_parity.py`` for PyTorch: what only the peer has is *missing*, what is not the same *different*, what is
intended *documented* (``parity_rules.DOCUMENTED``), what only we have *extra*. The peer needs an environment of its own
with mindspore 2.10.0, mindstudio-probe 26.2.0, numpy 1.26.4 and pandas 2; it and ours run on the CPU target::

    python tools/mindspore_parity.py --peer-python peer/bin/python --markdown docs/parity.md

The exit code is 1 if anything is missing or different, or if a run of ours has not computed bit by bit what a run
without a tool computes, and 2 if a run failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from mindspore_runs import LEVELS, MODELS, Case, Run, RunError, run_cases, run_plain
from parity_compare import Comparison, Context, checksums_in, compare_dumps
from parity_dump import Dump
from parity_report import explain, markdown, table
from peer_python import add_peer_python
from rich.console import Console

BEGIN, END = "<!-- mindspore: made by tools/mindspore_parity.py -->\n", "<!-- /mindspore -->"
EXAMPLES = 12

CASES = (
    *(Case(model, level) for model in MODELS for level in LEVELS),
    Case("transformer", "mix", "md5", section={"summary_mode": "md5"}),
    Case("convolutions", "mix", "tensor", "tensor"),
    Case("transformer", "mix", "structure", "structure"),
    Case("transformer", "mix", "forward", section={"data_mode": ["forward"]}),
    Case("convolutions", "mix", "backward and output", section={"data_mode": ["backward", "output"]}),
    Case("transformer", "L1", "list of parts", section={"list": ["matmul", "softmax"]}),
    Case("convolutions", "mix", "list of a Cell", section={"list": ["Cell.head.Dense.forward.0"]}),
    Case(
        "convolutions",
        "L0",
        "scope",
        section={"scope": ["Cell.norm.BatchNorm2d.forward.0", "Cell.flatten.Flatten.forward.0"]},
    ),
)


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    options = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 200)
    cases = [case for case in CASES if options.case in ("all", case.title, case.model)]
    if not cases:
        console.print(f"--case {options.case}: one of {', '.join(case.title for case in CASES)}", markup=False)
        return 2
    with tempfile.TemporaryDirectory(prefix="mindspore_parity_") as name:
        try:
            comparisons, changed = _compare(cases, options.peer_python, Path(name))
        except RunError as error:
            console.print(str(error), style="red", markup=False, highlight=False)
            return 2
    console.print(table(comparisons))
    for title, comparison in comparisons.items():
        explain(console, title, comparison, EXAMPLES)
    for title in changed:
        console.print(f"[red]{title}: our run did not compute what a run without a tool computes")
    if options.markdown:
        _write_between_marks(Path(options.markdown), markdown(comparisons))
    wrong = any(found.of_kind(kind) for found in comparisons.values() for kind in ("missing", "different"))
    return 1 if wrong or changed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_peer_python(parser)
    parser.add_argument("--case", default="all", help="a model, or the title of one case")
    parser.add_argument("--markdown", help="write the table to this file, between its marks")
    return parser.parse_args()


def _compare(cases: list[Case], peer_python: str, folder: Path) -> tuple[dict[str, Comparison], list[str]]:
    """Comparisons by case and step, and the cases in which our run was not that without a tool."""
    without = run_plain(sys.executable, list(dict.fromkeys(case.model for case in cases)), folder / "plain")
    everything = [Case(case.model, case.level) for case in cases]
    ours = run_cases(sys.executable, list(dict.fromkeys([*cases, *everything])), folder / "ours")
    peer = run_cases(peer_python, cases, folder / "peer")
    comparisons: dict[str, Comparison] = {}
    for case, complete in zip(cases, everything, strict=True):
        if ours[case].tool == peer[case].tool:
            raise RunError(
                f"both runs imported msprobe from {ours[case].tool}: --peer-python needs its own environment"
            )
        mine, all_of_it = (_written(run[one]) for run, one in ((ours, case), (ours, complete)))
        listed = tuple(case.section.get("list", ()))
        checksums = frozenset(checksums_in([dump.data for dump in mine.values()]))
        perturbed = peer[case].outcome != without[case.model].outcome
        for step, theirs in sorted(_written(peer[case]).items()):
            context = Context(perturbed, None, all_of_it[step], case.word or "default", listed, checksums)
            comparisons[f"{case.title} {step}"] = compare_dumps(mine[step], theirs, context)
    return comparisons, [case.title for case in cases if ours[case].outcome != without[case.model].outcome]


def _written(run: Run) -> dict[str, Dump]:
    """What a run has dumped, without the results of BatchNorm that its CPU kernel leaves as the memory was."""
    steps = run.steps()
    for dump in steps.values():
        for name, record in dump.data.items():
            if name.startswith("Primitive.bn_train.BatchNorm.") and name.endswith(".forward") and "output" in record:
                record["output"][1:3] = [None] * len(record["output"][1:3])
    return steps


def _write_between_marks(path: Path, text: str) -> None:
    content = path.read_text("utf-8")
    before, begin, rest = content.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path}: no place for the table: it belongs between {BEGIN.strip()} and {END}")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
