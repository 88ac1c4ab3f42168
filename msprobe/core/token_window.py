"""Which forward calls of a generating model are recorded (``start(token_range=[first, last])``)."""

from __future__ import annotations

from collections.abc import Sequence

from msprobe.core.errors import LifecycleError


class TokenWindow:
    """Counts the forward calls of a model within one step: call 0 reads the prompt, each further one makes a token.

    Parameters
    ----------
    first, last : int
        Numbers of the first and the last recorded call, both included.
    """

    __slots__ = ("calls", "first", "last")

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self.calls = 0

    @classmethod
    def from_argument(cls, token_range: Sequence[int] | None) -> TokenWindow | None:
        """Check the argument of ``start``.

        Raises
        ------
        LifecycleError
            If it is anything but two integers 0 <= first <= last.
        """
        if token_range is None:
            return None
        whole = isinstance(token_range, (list, tuple)) and all(type(number) is int for number in token_range)
        if not whole or len(token_range) != 2 or not 0 <= token_range[0] <= token_range[1]:
            raise LifecycleError(
                "start(token_range=[first, last]): expected two integers with 0 <= first <= last, the first and the "
                f"last recorded forward call of the model, not {token_range!r}"
            )
        return cls(*token_range)

    def enter(self) -> bool:
        """A forward call begins. Returns whether it is recorded, and what follows until the next one."""
        number = self.calls
        self.calls += 1
        return self.first <= number <= self.last

    def __str__(self) -> str:
        return f"token_range [{self.first}, {self.last}]"
