"""HTML pages, and commands that look at one dump: ``overflow_check``, ``parse``, ``report``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msprobe.compare.rows import PairSummary, RecordRow, Summary


def comparison_page(summary: Summary, records: Callable[[PairSummary], Iterable[RecordRow]], out: Path) -> Path:
    """Write a comparison as one self-contained HTML file; see `msprobe.report.comparison.comparison_page`."""
    from msprobe.report.comparison import comparison_page as write  # noqa: PLC0415 - commands import this package early

    return write(summary, records, out)
