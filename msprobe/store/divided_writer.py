"""One stream of records that goes into two dumps, by their names."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from msprobe.store.writer import StepWriter


class DividedWriter:
    """Stands in for the writer of a capture.

    Parameters
    ----------
    usual : StepWriter
        Takes every record that belongs nowhere else.
    other : StepWriter
    belongs_to_other : callable
        Whether a record of this name, or a file of this name, is for ``other``.
    begins : callable
        Told the name of every record for ``other`` when its call begins.
    """

    def __init__(
        self,
        usual: StepWriter,
        other: StepWriter,
        belongs_to_other: Callable[[str], bool],
        begins: Callable[[str], None],
    ) -> None:
        self.usual = usual
        self._other = other
        self._belongs_to_other = belongs_to_other
        self._begins = begins

    def _of(self, name: str) -> StepWriter:
        return self._other if self._belongs_to_other(name) else self.usual

    def add(self, name: str, record: dict[str, Any]) -> None:
        """See `StepWriter.add`."""
        self._of(name).add(name, record)

    def add_parent(self, child: str, parent: str | None) -> None:
        """See `StepWriter.add_parent`."""
        writer = self._of(child)
        if writer is self._other:
            self._begins(child)
        writer.add_parent(child, parent)

    def add_stack(self, name: str, key: Hashable) -> None:
        """See `StepWriter.add_stack`."""
        self._of(name).add_stack(name, key)

    def write_tensor(self, file_name: str, save: Any) -> str | None:
        """See `StepWriter.write_tensor`."""
        return self._of(file_name).write_tensor(file_name, save)

    def note_failure(self, text: str) -> None:
        """See `StepWriter.note_failure`."""
        self.usual.note_failure(text)
