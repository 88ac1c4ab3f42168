"""What became of a process of a fault test."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of a process.

    Attributes
    ----------
    code
        Exit status; negative: the signal that ended it.
    signalled
        When the signal of the job was sent, on the monotonic clock.
    overdue
        Whether it had to be ended because it did not end by itself.
    out, err
        What it has written.
    """

    code: int
    signalled: float | None
    overdue: bool
    out: str
    err: str

    @property
    def answer(self) -> Any:
        """The JSON value of the last line of its output; the process must have ended well."""
        assert self.code == 0, f"ended with {self.code}, overdue: {self.overdue}\n{self.err}"
        return json.loads(self.out.splitlines()[-1])

    @property
    def warnings(self) -> list[str]:
        """Lines that msprobe has logged."""
        return [line for line in self.err.splitlines() if line.startswith("msprobe")]
