"""docs/complaints.md names a test, or an entry of docs/limitations.md, for each complaint, and they exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    line
    for line in (ROOT / "docs" / "complaints.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| complaint")
]


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_the_page_has_every_complaint() -> None:
    assert len(ROWS) == 74


@pytest.mark.parametrize("row", ROWS)
def test_what_guards_a_complaint_exists(row: str) -> None:
    complaint, guard = row.strip("| ").split(" | ", 1)
    assert complaint
    found = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", guard)
    if found:
        assert [name for file, name in found if name not in names_in(file)] == []
        return
    entry = guard.removeprefix("limitations.md: ").strip("`")
    assert entry != guard
    assert entry in (ROOT / "docs" / "limitations.md").read_text(encoding="utf-8")
