"""Plots of the suite as small SVG files, drawn by hand: bars of slow-downs, and how costs grow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from fits import Growth
from step_turns import StepResult

OURS, OTHERS, AXIS = "#2563eb", "#9ca3af", "#374151"
#: Tools of other projects, by how their names begin.
FOREIGN = ("mindstudio-probe", "DebugMode", "TorchLens")


def svg(width: float, height: float, body: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
    style = ' font-family="sans-serif" font-size="11">'
    background = f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>'
    return "\n".join([head + style, background, *body, "</svg>"]) + "\n"


def text(x: float, y: float, content: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{AXIS}"{weight}>{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str = AXIS, width: float = 1) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def slow_down_plot(steps: Sequence[StepResult]) -> str:
    """A bar per tool and model on a logarithmic axis, from x1; the thin line is the range between the quartiles."""
    shown = [step for step in steps if step.ratio.median > 0 and step.tool not in ("no tool", "forward alone")]
    groups = [group for group in dict.fromkeys((s.model, s.backend) for s in shown) if group[0].split("-")[0] != "add"]
    groups = [group for group in groups if group[0] != "identity"]
    left, right, row, width = 170, 60, 16, 720
    largest = max([2.0, *(step.ratio.high for step in shown if (step.model, step.backend) in groups)])
    scale = (width - left - right) / math.log(largest)

    def place(ratio: float) -> float:
        return left + scale * math.log(max(1.0, ratio))

    body, y = [text(10, 18, "Slow-down of a step (logarithmic; median, quartiles)", bold=True)], 30.0
    for model, backend in groups:
        y += row
        body.append(text(10, y + 4, f"{model}{f', compiled ({backend})' if backend else ''}", bold=True))
        for step in (step for step in shown if (step.model, step.backend) == (model, backend)):
            y += row
            colour = OTHERS if step.tool.startswith(FOREIGN) else OURS
            length = max(1.0, place(step.ratio.median) - left)
            body.append(text(left - 6, y + 4, step.tool, anchor="end"))
            body.append(f'<rect x="{left}" y="{y - 5:.1f}" width="{length:.1f}" height="10" fill="{colour}"/>')
            body.append(line(place(step.ratio.low), y, place(step.ratio.high), y, AXIS, 2))
            body.append(text(place(step.ratio.high) + 5, y + 4, f"x{step.ratio.median:.2f}"))
        y += row / 2
    body.append(line(left, 34, left, y))
    return svg(width, y + 16, body)


def growth_plot(sweeps: Sequence[Growth]) -> str:
    """A panel per sweep, both axes logarithmic: measured points, and the power law that fits them."""
    panel, columns, margin = 230.0, 3, 46.0
    body = [text(10, 18, "How the cost grows (both axes logarithmic; the line is the fitted power law)", bold=True)]
    for number, sweep in enumerate(sweeps):
        x, y = (number % columns) * panel, 26 + (number // columns) * panel
        body += _panel(sweep, x + margin, y + 30, panel - margin - 20, panel - margin - 40)
    rows = max(1, math.ceil(len(sweeps) / columns))
    return svg(columns * panel, 30 + rows * panel, body)


def _panel(sweep: Growth, x: float, y: float, width: float, height: float) -> list[str]:
    points = [(math.log(size), math.log(cost)) for size, cost in sweep.points if cost > 0]
    fitted = [(size, sweep.power.intercept + sweep.power.slope * size) for size, _ in points]
    low_x, high_x = min(size for size, _ in points), max(size for size, _ in points)
    costs = [cost for _, cost in (*points, *fitted)]
    low_y, high_y = min(costs), max(costs)

    def at(size: float, cost: float) -> tuple[float, float]:
        across = (size - low_x) / (high_x - low_x)
        up = (cost - low_y) / (high_y - low_y) if high_y > low_y else 0.5
        return x + width * across, y + height * (1 - up)

    body = [
        text(x, y - 16, sweep.title, bold=True),
        text(x, y - 4, f"exponent {sweep.power.slope:.2f}, R² {sweep.power.r2:.3f}"),
    ]
    body += [line(x, y + height, x + width, y + height), line(x, y, x, y + height)]
    body.append(line(*at(*fitted[0]), *at(*fitted[-1]), OTHERS, 1.5))
    for point in points:
        across, up = at(*point)
        body.append(f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3" fill="{OURS}"/>')
    body.append(text(x, y + height + 13, f"{math.exp(low_x):,.0f}"))
    body.append(text(x + width, y + height + 13, f"{math.exp(high_x):,.0f} {sweep.size}", anchor="end"))
    body.append(text(x - 4, y + height, f"{math.exp(low_y):.3g}", anchor="end"))
    body.append(text(x - 4, y + 8, f"{math.exp(high_y):.3g}", anchor="end"))
    return body
