"""What coverage.json says about compiled functions: graphs, graph breaks, and what ran without probes, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from msprobe.graph.dynamo_hooks import BreakReason
from msprobe.graph.graph_plan import REGISTRY, GraphPlan
from msprobe.graph.kernel_registry import KERNELS

_MOST = 200  # of one kind; a program with more is told how many are left out
# What is compiled then, if anything, are the functions that the frame calls.
_NOTHING_TO_COMPILE = ("skipfiles list", "no tensor", "Dynamo-generated", "exec()", "namedtuple", "no content")
_LINE = 300  # characters of a reason


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that happened to one function.

    Attributes
    ----------
    function : str
        Qualified name of what was compiled; of a function that goes on after a graph break, Dynamo's name.
    at : str
        ``file:line``: where the graph broke, or where the function begins.
    reason : str
    """

    function: str
    at: str
    reason: str

    def entry(self) -> dict[str, str]:
        """The entry in coverage.json."""
        return {"function": self.function, "at": self.at, "reason": self.reason}


@dataclass(slots=True)
class GraphLog:
    """Kept as long as the probed graphs: a later step runs them without compiling anything.

    Attributes
    ----------
    ways : dict of int to Way
        By number of the graph; its text says where the program's values come from.
    checks : dict of int to SelfCheck
        By number of the graph; its text is the result.
    """

    ways: dict[int, Any] = field(default_factory=dict)
    checks: dict[int, Any] = field(default_factory=dict)
    _breaks: dict[Remark, None] = field(default_factory=dict)
    _eager: dict[Remark, None] = field(default_factory=dict)
    _unprobed: dict[Remark, None] = field(default_factory=dict)
    _stances: set[str] = field(default_factory=set)

    def compiled(self, code: CodeType, skip_reason: str | None, breaks: Iterable[BreakReason]) -> None:
        """Dynamo is done with a function.

        Parameters
        ----------
        code : code object
            Of the function.
        skip_reason : str or None
            Why it runs eagerly; None if it was compiled.
        breaks : iterable of BreakReason
            Graph breaks met meanwhile.
        """
        name = _name_of(code)
        for found in breaks:
            at = f"{found.file}:{found.line}" if found.file else place_of(code)
            self._breaks[Remark(name, at, _first_line(found.reason))] = None
        if skip_reason is None or any(part in skip_reason for part in _NOTHING_TO_COMPILE):
            return
        self._eager[Remark(name, place_of(code), _first_line(skip_reason))] = None

    def compiled_with_probes(self, graph: int, way: Any, check: Any) -> None:
        """A graph is there; how it will run, and the check of its results, None if there is none."""
        self.ways[graph] = way
        if check is not None:
            self.checks[graph] = check

    def without_probes(self, code: CodeType, reason: str) -> None:
        """A graph runs as the user's backend compiled it."""
        self._unprobed[Remark(_name_of(code), place_of(code), _first_line(reason))] = None

    def backend_failed(self, code: CodeType, error: Exception) -> None:
        """The user's backend cannot compile a graph, also without probes; Dynamo may run it eagerly."""
        self._eager[Remark(_name_of(code), place_of(code), _first_line(f"{type(error).__name__}: {error}"))] = None

    def stance(self, stance: str) -> None:
        """``torch.compiler.set_stance`` kept Dynamo from compiling."""
        self._stances.add(stance)

    def report(self, runs: Mapping[int, int]) -> dict[str, Any]:
        """What is known, given how often each graph ran in the step."""
        probes = Counter(event.call for event in REGISTRY.events) if runs else Counter()
        graphs = [self._graph(REGISTRY.graphs[number], count, probes) for number, count in sorted(runs.items())]
        found = {
            "graphs": graphs,
            "graph_breaks": _entries(self._breaks),
            "ran_eagerly": [*_entries(self._eager), *map(_stance_entry, sorted(self._stances))],
            "ran_without_probes": _entries(self._unprobed),
            "perturbed": self._perturbed(runs),
        }
        return {key: value for key, value in found.items() if value}

    def _perturbed(self, runs: Mapping[int, int]) -> str | None:
        """Whether probes can have changed results, None if not."""
        inside = [number for number in sorted(runs) if not getattr(self.ways.get(number), "beside", False)]
        differing = [number for number in inside if getattr(self.checks.get(number), "differs", False)]
        if differing:
            return f"self_check: results of compiled graphs {_numbers(differing)} differ from those without probes"
        lossy = [number for number in inside if getattr(self.ways.get(number), "perturbs", False)]
        if not lossy:
            return None
        return (
            f"compiled graphs {_numbers(lossy)} computed results with probes in them: a probe can make the compiler "
            "compute other last bits; `computed` says why they did not run without"
        )

    def _graph(self, plan: GraphPlan, runs: int, probes: Mapping[int, int]) -> dict[str, Any]:
        calls = [number for number, begins in plan.events if begins]
        entry = {
            "graph": plan.number,
            "function": _name_of(plan.root),
            "at": place_of(plan.root),
            "runs": runs,
            "calls": len(calls),
            "probes": sum(probes[number] for number in calls) + KERNELS.probes_of(plan),
        }
        if plan.number in self.ways:
            entry["computed"] = str(self.ways[plan.number])
        check = self.checks.get(plan.number)
        return {**entry, "self_check": str(check)} if check is not None else entry


def place_of(code: CodeType) -> str:
    """``file:line`` of the beginning of a function."""
    return f"{code.co_filename}:{code.co_firstlineno}"


def _name_of(code: CodeType) -> str:
    return getattr(code, "co_qualname", code.co_name)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:_LINE]


def _entries(remarks: Mapping[Remark, None]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = [remark.entry() for remark in list(remarks)[:_MOST]]
    if len(remarks) > _MOST:
        entries.append({"left_out": len(remarks) - _MOST})
    return entries


def _stance_entry(stance: str) -> dict[str, str]:
    return {"function": "*", "at": "", "reason": f'torch.compiler.set_stance("{stance}"): nothing new is compiled'}


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
