"""What was seen and not recorded, and why: counted while capturing, written as ``coverage.json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any


class Coverage:
    """Counts of one step. Hot counters are plain attributes.

    Attributes
    ----------
    low_risk, filtered : int
        API calls left out by ``risk_level``; calls left out by ``scope`` or ``list``.
    recomputed : int
        Calls that activation checkpointing repeated.
    not_recorded : Counter
        Other calls by reason.
    filter_reason : str
        What ``filtered`` calls were left out by.
    notes : dict
        Facts about the run, e.g. which kernels measured.
    """

    __slots__ = ("filter_reason", "filtered", "low_risk", "not_recorded", "notes", "recomputed")

    def __init__(self) -> None:
        self.notes: dict[str, Any] = {}
        self.filter_reason = "filtered by scope or list"
        self.reset()

    def reset(self) -> None:
        """Start a new step."""
        self.low_risk = 0
        self.filtered = 0
        self.recomputed = 0
        self.not_recorded: Counter[str] = Counter()

    def filter_by(self, reason: str) -> None:
        """Calls that are filtered from now on are left out for another reason."""
        self.not_recorded[self.filter_reason] += self.filtered
        self.filtered = 0
        self.filter_reason = reason

    def report(self, null_statistics: Mapping[str, int], kernels: Mapping[str, Any]) -> dict[str, Any]:
        """The content of ``coverage.json``, apart from what the writer adds (records, bytes, failures).

        Parameters
        ----------
        null_statistics : mapping of str to int
            How often a statistic is null, by reason.
        kernels : mapping
            Which kernels measured, and how often.
        """
        skipped = {
            "LOW risk API (see risk_level)": self.low_risk,
            self.filter_reason: self.filtered,
            **self.not_recorded,
        }
        return {
            "not_recorded": {reason: count for reason, count in skipped.items() if count},
            "recomputed_calls": self.recomputed,
            "null_statistics": dict(null_statistics),
            "kernels": dict(kernels),
            "notes": dict(self.notes),
        }
