"""`self_check`: whether a graph computes the same bits with probes and without, at its first recorded runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from msprobe.measure.bitwise import same_bits

RUNS = 2
"""How many runs of each graph are checked."""


class SelfCheck:
    """Compares what the two forms of one graph compute.

    Its text is the result, for coverage.json.

    Parameters
    ----------
    skipped : str
        Why the graph is not run in two forms; empty if it is.

    Attributes
    ----------
    differs : bool
        Whether a result or a gradient has other bits.
    """

    def __init__(self, skipped: str = "") -> None:
        self._skipped = skipped
        self._equal = {"results": 0, "gradients": 0}
        self._seen = {"results": 0, "gradients": 0}
        self._differences: list[str] = []

    def __str__(self) -> str:
        if self._differences:
            return "; ".join(self._differences)
        if self._skipped:
            return f"not checked: {self._skipped}"
        counts = ", ".join(f"{name} of {count} runs" for name, count in self._equal.items() if count)
        return f"bitwise equal: {counts}" if counts else "not checked yet"

    @property
    def differs(self) -> bool:
        """Whether a result or a gradient has other bits."""
        return bool(self._differences)

    def wants(self, what: str) -> bool:
        """Whether ``what``, "results" or "gradients", is to be compared once more."""
        return not self._skipped and self._seen[what] < RUNS

    def skip(self, reason: str) -> None:
        """Check no further run."""
        self._skipped = reason

    def compare(self, what: str, first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> None:
        """Keep whether ``what`` has the same bits in both forms."""
        if not self.wants(what):
            return
        self._seen[what] += 1
        if len(first) != len(second):
            self._differences.append(f"{what} cannot be compared: {len(first)} and {len(second)}")
            return
        wrong = [at for at, pair in enumerate(zip(first, second, strict=True)) if not same_bits(*pair)]
        if wrong:
            self._differences.append(f"{len(wrong)} of {len(first)} {what} differ, the first is number {wrong[0]}")
        else:
            self._equal[what] += 1
