"""Listen at the autograd nodes of a call for its gradients.

Hooks of nodes change nothing; a tap in the graph, as a backward hook of a Cell makes it, could change the order in
which gradients are added up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msprobe.core.backward_records import BackwardRecords
from msprobe.core.backward_span import Slot, Span
from msprobe.core.open_call import OpenCall
from msprobe.ms_dynamic.graph_edges import SpanPlan
from msprobe.ms_dynamic.tensor_hooks import MindsporeHooks

if TYPE_CHECKING:
    from msprobe.ms_dynamic.capture import MindsporeCapture


class GradientWatch(BackwardRecords):
    """Installs the hooks of calls and assembles their backward records.

    Parameters
    ----------
    capture : MindsporeCapture
    """

    def __init__(self, capture: MindsporeCapture) -> None:
        super().__init__(capture, MindsporeHooks(capture))
        self._leaf_handles: list[Any] = []

    def watch(self, opened: OpenCall, plan: SpanPlan, results: int) -> None:
        """Listen for the gradients of a call that has just ended."""
        span = Span(opened, opened.epoch, results, opened.edges.count)
        span.total = len(plan.results) + len(plan.arguments) + len(plan.passed_through)
        for node, slots in plan.results:
            node.register_prehook(self._arriving(span, slots))
        for node, slots in plan.arguments:
            span.expect(slots)
            node.register_hook(self._leaving(span, slots))
        for passed in plan.passed_through:
            arriving, leaving = Slot(passed.number, passed.result), Slot(passed.number, passed.argument)
            if passed.node.is_leaf():  # hooks of a leaf's node are never called
                hook = self._at_leaf(span, arriving._replace(number=0), leaving._replace(number=0))
                self._leaf_handles.append(passed.tensor.register_hook(hook))
            else:
                passed.node.register_prehook(self._passing(span, arriving, leaving))

    def release(self) -> None:
        """Take the hooks of leaves away; those of nodes go with their graph."""
        for handle in self._leaf_handles:
            handle.remove()
        self._leaf_handles.clear()

    def _at_leaf(self, span: Span, arriving: Slot, leaving: Slot) -> Any:
        passing = self._passing(span, arriving, leaving)

        def hook(gradient: Any) -> None:
            passing((gradient,))

        return hook
