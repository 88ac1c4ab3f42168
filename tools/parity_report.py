"""Show what ``peer_parity.py`` found: a table and examples on the terminal, a Markdown page, JSON."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from parity_compare import Comparison
from parity_names import Name
from parity_rules import DOCUMENTED
from parity_values import Finding
from rich.console import Console
from rich.table import Table

SHOWN_LENGTH = 160
EXTRA_SHOWN = 12


def table(comparisons: Mapping[str, Comparison]) -> Table:
    """Counts of every comparison, for the terminal."""
    table = Table(title="what the peer wrote, and what became of it")
    for heading in ("case, step", "peer", "ours", "missing", "different", "documented", "extra"):
        table.add_column(heading, justify="left" if heading.startswith("case") else "right")
    for title, comparison in comparisons.items():
        missing, different, documented = (_records(comparison, kind) for kind in ("missing", "different", "documented"))
        counts = [comparison.peer_records, comparison.our_records, missing, different, documented]
        style = "red" if missing or different else "green"
        table.add_row(title, *map(str, counts), str(comparison.extra.total()), style=style)
    return table


def explain(console: Console, title: str, comparison: Comparison, examples: int) -> None:
    """Print the differences of one comparison, equal ones together."""
    console.rule(title)
    for kind in ("missing", "different"):
        groups = list(_grouped(comparison.of_kind(kind)))
        for number, first in groups[:examples]:
            console.print(f"{kind} {number} x {_line(first)}", markup=False, highlight=False)
        if len(groups) > examples:
            console.print(f"... and {len(groups) - examples} more kinds of {kind}")
    reasons: dict[str, set[str]] = defaultdict(set)
    for finding in comparison.of_kind("documented"):
        reasons[finding.reason].add(finding.record)
    for reason, records in sorted(reasons.items()):
        console.print(f"documented {len(records)} records: {DOCUMENTED[reason]}", markup=False, highlight=False)
    if comparison.extra:
        shown = ", ".join(f"{name} x{count}" for name, count in comparison.extra.most_common(EXTRA_SHOWN))
        console.print(f"extra: {shown}", markup=False, highlight=False)


def _grouped(findings: list[Finding]) -> Iterator[tuple[int, Finding]]:
    groups: dict[tuple[str, ...], list[Finding]] = defaultdict(list)
    for finding in findings:
        name = Name.parse(finding.record)
        base = name and ("Module" if name.module else name.base)
        groups[finding.where, str(base), re.sub(r"\d+", "n", finding.path)].append(finding)
    for found in groups.values():
        yield len(found), found[0]


def _line(finding: Finding) -> str:
    shown = [json.dumps(value, default=str)[:SHOWN_LENGTH] for value in (finding.peer, finding.ours)]
    values = "" if finding.kind == "missing" else f": peer {shown[0]} ours {shown[1]}"
    return f"{finding.where} {finding.record} {finding.path}{values}"


def plain(comparisons: Mapping[str, Comparison]) -> dict[str, Any]:
    """Everything that was found, for JSON."""
    return {
        title: {
            "peer_records": comparison.peer_records,
            "our_records": comparison.our_records,
            "extra": dict(comparison.extra),
            "findings": [dataclasses.asdict(finding) for finding in comparison.findings],
        }
        for title, comparison in comparisons.items()
    }


def markdown(comparisons: Mapping[str, Comparison]) -> str:
    """A page with one row per case: the records of all its steps and what became of them."""
    rows = ["| case | theirs | ours | missing | different | different by rule |", "|---|---|---|---|---|---|"]
    cases: dict[str, list[Comparison]] = defaultdict(list)
    for title, comparison in comparisons.items():
        cases[title.rpartition(" ")[0]].append(comparison)
    for case, steps in cases.items():
        theirs, ours = (sum(getattr(step, side) for step in steps) for side in ("peer_records", "our_records"))
        wrong = [sum(_records(step, kind) for step in steps) for kind in ("missing", "different")]
        rules: Counter[str] = Counter()
        for step in steps:
            rules.update(reason for reason, _ in {(f.reason, f.record) for f in step.of_kind("documented")})
        by_rule = ", ".join(f"{rule} {count}" for rule, count in sorted(rules.items()))
        rows.append(f"| {case} | {theirs} | {ours} | {wrong[0]} | {wrong[1]} | {by_rule or '-'} |")
    return "\n".join(rows) + "\n"


def _records(comparison: Comparison, kind: str) -> int:
    """Number of records with a finding of the kind."""
    return len({(finding.where, finding.record) for finding in comparison.of_kind(kind)})
