"""The suite itself: it runs end to end, and its tables, fits and plots say what the records say."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from bench_plots import growth_plot  # noqa: E402
from bench_record import Results, completed, read_results  # noqa: E402
from bench_tables import blocks, replace_blocks  # noqa: E402
from fits import growth  # noqa: E402
from step_tools import TOOLS  # noqa: E402
from step_turns import Plan, batches, take_turns  # noqa: E402

REPOSITORY = BENCHMARKS.parent


def test_quick_run_writes_results_tables_and_plots(tmp_path):
    command = [
        sys.executable,
        str(BENCHMARKS / "suite.py"),
        "--quick",
        "--models",
        "tiny",
        "--tools",
        "L1,mindstudio-probe L1",
    ]
    command += ["--parts", "steps,growth,compare", "--threads", "1", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "bench.json").read_text())
    steps = {step["tool"]: step for step in results["steps"]}
    assert set(steps) == {"no tool", "L1"}
    assert steps["L1"]["records"] > 100
    assert steps["L1"]["bytes"] > 10_000
    assert steps["L1"]["rounds"] == 3
    assert steps["no tool"]["ratio"]["median"] == 1
    assert results["left_out"] == ["tiny: mindstudio-probe L1, no interpreter of its own was given"]
    assert results["compare"][0]["records"] == 300
    assert [len(sweep["points"]) for sweep in results["growth"]] == [2]
    table = (tmp_path / "bench.md").read_text()
    assert "| L1 | x" in table
    for word in (str(tmp_path), sys.prefix, "build/"):
        assert word not in table
    for name in ("bench_steps.svg", "bench_growth.svg"):
        assert ElementTree.parse(tmp_path / name).getroot().tag.endswith("svg")


def test_tool_that_fails_to_start_is_named_and_the_others_are_measured():
    broken = TOOLS["TorchLens (forward)"]
    plan = Plan("tiny", rounds=3, seconds=1, threads=1, warm_up=1)
    pythons = {"own": sys.executable, "torchlens": sys.executable}
    results, failures = take_turns(plan, [broken], TOOLS["forward alone"], pythons)
    assert [result.tool for result in results] == ["forward alone"]
    assert len(failures) == 1
    assert "No module named 'torchlens'" in failures[0]


def test_tools_that_fill_the_disk_do_not_shorten_the_runs_of_others():
    groups = batches([TOOLS[name] for name in ("L0", "tensor", "L1", "mix")], 2)
    assert [[tool.name for tool in group] for group in groups] == [["L0", "L1"], ["mix"], ["tensor"]]


@pytest.mark.parametrize(("exponent", "linear"), [(0.7, True), (1.0, True), (1.3, False), (2.0, False)])
def test_fit_finds_the_exponent_and_super_linear_growth(exponent, linear):
    found = growth("calls", "records", "ms", [(size, 0.5 * size**exponent) for size in (10, 100, 1000)])
    assert math.isclose(found.power.slope, exponent)
    assert math.isclose(found.power.r2, 1)
    assert found.at_most_linear is linear


def test_fit_without_two_costs_says_so():
    with pytest.raises(ValueError, match="calls: 1 of 2 points have a cost above zero; measure larger sizes"):
        growth("calls", "records", "ms", [(10, 1.0), (100, -0.1)])


def test_plot_of_growth_has_a_point_for_each_size_even_where_the_cost_stays_equal():
    flat = growth("flat", "records", "ms", [(1, 2.0), (10, 2.0), (100, 2.0)])
    root = ElementTree.fromstring(growth_plot([flat]))
    assert len(root.findall("{http://www.w3.org/2000/svg}circle")) == 3


def test_blocks_are_replaced_and_words_around_them_stay():
    page = "before\n<!-- bench:steps -->\nold\n<!-- /bench:steps -->\n"
    page += "after <!-- bench:calls -->\nkept\n<!-- /bench:calls -->\n"
    made = replace_blocks(page, {"steps": r"new \1 text", "growth": "not on this page"})
    assert made == page.replace("old", r"new \1 text")
    with pytest.raises(ValueError, match="'steps' is opened and not closed"):
        replace_blocks("<!-- bench:steps -->", {"steps": "new"})


def test_pages_have_the_blocks_that_the_suite_fills():
    page = (REPOSITORY / "docs" / "benchmarks.md").read_text()
    for name in ("machine", "steps", "calls", "kernels", "growth", "compare"):
        assert page.count(f"<!-- bench:{name} -->") == page.count(f"<!-- /bench:{name} -->") == 1
    assert (REPOSITORY / "README.md").read_text().count("<!-- bench:summary -->") == 1


def test_a_run_that_measures_less_leaves_the_other_rows_as_they_are():
    earlier = read_results(REPOSITORY / "docs" / "bench.json")
    first = earlier.steps[0]
    again = replace(first, rounds=first.rounds + 1)
    about = {"quick": False, "machine": earlier.machine, "versions": {"torch": "9.9", "torchlens": None}}
    found = Results(date="2999-01-01", steps=[again], seconds={"steps": 1.0}, dates={"steps": "2999-01-01"}, **about)
    made = completed(found, earlier)
    assert made.steps == [again, *earlier.steps[1:]]
    assert (made.growth, made.bandwidth, made.compare) == (earlier.growth, earlier.bandwidth, earlier.compare)
    assert made.versions == earlier.versions | {"torch": "9.9"}
    assert made.dates["steps"] == "2999-01-01"
    text = blocks(made)
    assert text["growth"] == blocks(earlier)["growth"]
    assert "Measured earlier: " in text["machine"]
    assert "steps" not in text["machine"].partition("Measured earlier: ")[2].partition(".")[0]
