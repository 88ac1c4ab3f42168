"""The tables of docs/benchmarks.md and README.md, made from the records, and put between their comments."""

from __future__ import annotations

import re

from bench_record import Results
from step_models import CHAIN, MODELS
from step_tools import TOOLS
from step_turns import StepResult

#: Rows that README quotes.
SUMMARY = (
    "L0",
    "L1",
    "mix",
    "structure",
    "after the last step",
    "DebugMode",
    "mindstudio-probe L1",
    "mindstudio-probe mix",
)
CHAINS = {
    "add": "torch.add, forward",
    "add-backward": "torch.add, forward and backward",
    "identity": "a module, forward",
}


def blocks(results: Results) -> dict[str, str]:
    """Name of each block and its text; parts that were not measured have none, so that a page keeps what it had."""
    made = {"machine": _machine(results)}
    models = [step for step in results.steps if step.model not in CHAINS]
    if models:
        made["steps"] = _steps(models)
        made["summary"] = _summary(results, models)
    if any(step.model in CHAINS for step in results.steps):
        made["calls"] = _calls(results)
    if results.bandwidth:
        made["kernels"] = _bandwidth(results)
    if results.growth:
        made["growth"] = _growth(results)
    if results.compare:
        made["compare"] = _compare(results)
    return made


def replace_blocks(page: str, made: dict[str, str]) -> str:
    """`page` with the text between ``<!-- bench:NAME -->`` and ``<!-- /bench:NAME -->`` replaced.

    Raises
    ------
    ValueError
        A block is opened and not closed.
    """
    opened = re.findall(r"<!-- bench:(\w+) -->", page)
    for name in opened:
        if f"<!-- /bench:{name} -->" not in page:
            raise ValueError(f"block {name!r} is opened and not closed: add <!-- /bench:{name} --> after it")
    for name, text in made.items():
        inside = f"<!-- bench:{name} -->\n{text}\n<!-- /bench:{name} -->"
        page = re.sub(
            rf"<!-- bench:{name} -->.*?<!-- /bench:{name} -->", lambda _, new=inside: new, page, flags=re.DOTALL
        )
    return page


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _machine(results: Results) -> str:
    about, found = results.machine, results.versions
    named = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    quick = " Quick run: the numbers say only that it works." if results.quick else ""
    older = [f"{part} {date}" for part, date in results.dates.items() if date != results.date]
    before = f" Measured earlier: {', '.join(older)}." if older else ""
    missing = "".join(f" Not measured: {line}." for line in (*results.left_out, *results.problems))
    return (
        f"{results.date}: {about['processor']}, {about['cores']} cores, {about['memory_gib']} GiB, {about['system']}, "
        f"{about['threads']} threads of torch, load {about['load']} at the start. {named}.{before}{quick}{missing}"
    )


def _goal(step: StepResult) -> str:
    goal = TOOLS[step.tool].goal
    if goal is None or step.backend or not step.model.startswith("gpt"):
        return ""
    return f"x{1 + (goal - 1) / 2 if step.model == 'gpt-768' else goal:.2f}"


def _step_row(step: StepResult) -> list[str]:
    recorded = step.records and step.tool != "after the last step"
    per_record = f"{step.extra_ms * 1e3 / step.records:.1f}" if recorded else ""
    ratio = f"x{step.ratio.median:.2f} ({step.ratio.low:.2f} to {step.ratio.high:.2f})"
    size = f"{step.bytes / 1e6:.2f} MB" if step.bytes else ""
    milliseconds = f"{step.wall.median:.1f}"
    cells = [step.tool, ratio, _goal(step), f"x{step.cpu_ratio.median:.2f}", milliseconds, str(step.records or "")]
    return [*cells, per_record, size, f"{step.peak_mib:.0f} MiB"]


def _steps(steps: list[StepResult]) -> str:
    head = [
        "tool",
        "slow-down (quartiles)",
        "goal",
        "processor time",
        "ms",
        "records",
        "us per record",
        "dump of a step",
    ]
    head.append("peak memory")
    parts = []
    for model, backend in dict.fromkeys((step.model, step.backend) for step in steps):
        mine = [step for step in steps if (step.model, step.backend) == (model, backend)]
        rounds = sorted({step.rounds for step in mine})
        counted = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        title = f"**{model}{f', compiled ({backend})' if backend else ''}**, {counted} steps of each tool"
        parts.append(f"{title}\n\n{table(head, [_step_row(step) for step in mine])}")
    return "\n\n".join(parts)


def _summary(results: Results, steps: list[StepResult]) -> str:
    models = [name for name in MODELS if any(step.model == name and not step.backend for step in steps)]
    found = {(step.model, step.tool): step for step in steps if not step.backend}
    rows = []
    for tool in SUMMARY:
        cells = [f"x{found[model, tool].ratio.median:.2f}" if (model, tool) in found else "" for model in models]
        if any(cells):
            rows.append([tool, *cells])
    measured = f"{results.date}, {results.machine['processor']}, {results.machine['cores']} cores, medians."
    return f"{table(['slow-down of a training step', *models], rows)}\n\n{measured}"


def _calls(results: Results) -> str:
    tools = list(dict.fromkeys(step.tool for step in results.steps if step.model in CHAINS and step.tool != "no tool"))
    chains = [name for name in CHAINS if any(step.model == name for step in results.steps)]
    found = {(step.model, step.tool): step.extra_ms * 1e3 / CHAIN for step in results.steps}
    rows = []
    for tool in tools:
        cells = [f"{found[chain, tool]:.1f}" if (chain, tool) in found else "" for chain in chains]
        rows.append([tool, *cells])
    return table(["us more per call", *(CHAINS[chain] for chain in chains)], rows)


def _bandwidth(results: Results) -> str:
    sizes = list(dict.fromkeys(entry.size for entry in results.bandwidth))
    found = {(entry.name, entry.size): entry for entry in results.bandwidth}
    rows = []
    for name in dict.fromkeys(entry.name for entry in results.bandwidth):
        entries = [found.get((name, size)) for size in sizes]
        rows.append([name, *(f"{one.median:.0f} ({one.best:.0f})" if one else "" for one in entries)])
    return table(["GB/s, median (best)", *sizes], rows)


def _growth(results: Results) -> str:
    rows = []
    for found in results.growth:
        (first, _), (last, _) = found.points[0], found.points[-1]
        sizes = f"{found.size}, {first:,.0f} to {last:,.0f}"
        power, line = found.power, found.line
        per_unit = f"{line.slope * 1e3:.3g} us"
        rows.append([found.title, sizes, f"{power.slope:.2f}", f"{power.r2:.3f}", per_unit, f"{line.r2:.3f}"])
    return table(["cost of", "size", "exponent", "R²", "each one more (line)", "R²"], rows)


def _compare(results: Results) -> str:
    rows = []
    for one in results.compare:
        speed = f"{one.records / one.wall:,.0f}"
        rows.append(
            [one.tool, f"{one.records:,}", f"{one.wall:.1f} s", f"{one.cpu:.1f} s", speed, f"{one.peak_mib:.0f} MiB"]
        )
    return table(
        ["tool", "records on each side", "elapsed", "processor time", "records per second", "peak memory"], rows
    )
