"""What a page carries, without a browser: its data, its texts in both languages, and that it is self-contained."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import tracemalloc
from importlib import resources
from pathlib import Path

import pytest
from report_cases import STACK, blocks_of, comparison, msprobe, nan_network

from msprobe.report import comparison_page
from msprobe.report.dump_report import dump_page
from msprobe.report.page_data import plain
from msprobe.store.json_bytes import loads_json

TEMPLATES = resources.files("msprobe.report") / "templates"


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    summary, rows = comparison(900, steps=2, ranks=2, fault=450)
    return comparison_page(summary, rows, tmp_path_factory.mktemp("page") / "new" / "compare.html")


def test_a_comparison_carries_every_record_of_every_pair(compared):
    blocks = blocks_of(compared)
    page = blocks["page"]
    assert [(part["step"], part["rank"], part["records"]) for part in page["parts"]] == [
        (step, rank, 900) for step in ("step0", "step1") for rank in ("rank0", "rank1")
    ]
    assert page["first"] == 1
    assert page["parts"][1]["finding"]["position"] == 450
    assert page["parts"][1]["finding"]["chain"][1][0] == "Functional.linear.450.forward"
    rows = blocks["list-1"]
    keys = [status["key"] for status in page["statuses"]]
    assert [place for place, code in enumerate(rows["status"]) if keys[code] == "error"] == [450, 455]
    assert rows["modules"][rows["module"][450]] == "layers.4.mlp.fc0"
    assert len(rows["names"]) == len(rows["cells"][0]) == 900


def test_details_have_both_sides_with_nan_as_text(compared):
    detail = blocks_of(compared)["detail-1-1"][50]
    assert detail["sides"] == ["Functional.linear.450.forward"] * 2
    assert detail["stack"] == list(STACK)
    output = detail["leaves"][1]
    assert output["sides"][0][3] == "NaN"
    assert output["relative"][0] == "Infinity"
    assert output["metrics"]["worst"] == [1, 2]


def test_a_report_carries_states_series_and_the_way_of_nan(tmp_path):
    nan_network(tmp_path / "run" / "step0" / "rank0", healthy=True)
    nan_network(tmp_path / "run" / "step1" / "rank0")
    blocks = blocks_of(dump_page([tmp_path / "run"], tmp_path / "report.html"))
    page = blocks["page"]
    assert page["first"] == 1
    states = [page["statuses"][code]["key"] for code in blocks["list-1"]["status"]]
    assert states[:7] == ["finite", "finite", "finite", "finite", "source", "encloses", "inherits"]
    assert page["parts"][0]["series"]["layers.0"] == [0.25, 2.0, -1.0, 0.25, None]
    assert page["parts"][1]["series"]["layers.1"] == ["NaN", "NaN", "NaN", "NaN", "NaN"]
    assert page["parts"][1]["finding"]["chain"][0][0] == "Torch.log.0.forward"


def test_a_page_of_a_dump_without_modules_draws_its_calls(tmp_path, debugger):
    import torch

    tool = debugger(task="statistics", level="L1", dump_path=str(tmp_path / "dump"))
    tool.start()
    torch.exp(torch.ones(3))
    tool.stop()
    tool.step()
    page = blocks_of(dump_page([tmp_path / "dump"], tmp_path / "report.html"))["page"]
    assert list(page["parts"][0]["series"]) == ["Torch.exp"]


def test_memory_does_not_grow_with_the_details_of_a_page(tmp_path):
    def peak(records: int) -> int:
        summary, rows = comparison(records)
        tracemalloc.start()
        comparison_page(summary, rows, tmp_path / "page.html")
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(400)
    small, large = peak(2_000), peak(8_000)
    per_record = (large - small) / 6_000
    assert per_record < 600  # its columns; the JSON of its details alone has more than 500 bytes


def test_the_only_script_that_may_run_is_the_one_of_the_page(compared):
    text = compared.read_text("utf-8")
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'" in text
    assert "<b>" not in text  # from the path of golden in `comparison`
    for word in ("eval(", "new Function", "innerHTML", 'http-equiv="refresh"', '<link rel="stylesheet"'):
        assert word not in text
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_both_languages_have_every_text_that_is_asked_for():
    labels = json.loads((TEMPLATES / "labels.json").read_text("utf-8"))
    asked = set(re.findall(r'data-label(?:-\w+)?="(\w+)"', (TEMPLATES / "page.html.jinja").read_text("utf-8")))
    for file in TEMPLATES.iterdir():
        if file.name.endswith(".js"):
            asked |= set(re.findall(r'\bt\("([^"]+)"', file.read_text("utf-8")))
    assert asked - labels["en"].keys() == set()
    assert labels["en"].keys() - labels["zh"].keys() == set()
    placeholder = re.compile(r"\{\w+\}")
    for key, text in labels["en"].items():
        assert set(placeholder.findall(text)) == set(placeholder.findall(labels["zh"][key])), key


def test_every_key_that_data_brings_has_a_text(compared, tmp_path):
    labels = json.loads((TEMPLATES / "labels.json").read_text("utf-8"))
    nan_network(tmp_path / "rank0")
    for file in (compared, dump_page([tmp_path / "rank0"], tmp_path / "report.html")):
        page = blocks_of(file)["page"]
        keys = {status["key"] for status in page["statuses"]} | {side for side, _ in page["sides"]}
        keys |= {f"column_{column['key']}" for column in page["columns"]} | {page["kind"]}
        keys |= {f"measure_{name}" for name in page["measures"]} | {f"metric_{name}" for name in page["metrics"]}
        assert keys - labels["en"].keys() == set()


def test_every_cause_of_a_divergence_has_a_chinese_text():
    from typing import get_args

    from msprobe.compare.rows import CauseKind

    labels = json.loads((TEMPLATES / "labels.json").read_text("utf-8"))
    assert set(get_args(CauseKind)) - labels["zh"].keys() == set()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (2**53 + 1, str(2**53 + 1)),
        (1 + 2j, "(1+2j)"),
        (7, 7),
        (True, True),
    ],
)
def test_numbers_that_javascript_does_not_have_become_text(value, shown):
    assert plain(value) == shown
    assert loads_json(json.dumps(plain(value)).encode()) == shown


def test_a_name_with_a_lone_surrogate_does_not_stop_a_page(tmp_path):
    folder = nan_network(tmp_path / "rank0")
    file = folder / "dump.json"
    file.write_text(file.read_text().replace("Torch.log.0", "Torch.log\\ud800.0"))
    assert "page" in blocks_of(dump_page([folder], tmp_path / "report.html"))


def test_without_jinja2_the_message_says_what_to_install(tmp_path):
    nan_network(tmp_path / "rank0")
    program = "import sys; sys.modules['jinja2'] = None; from msprobe.cli import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, "report", str(tmp_path / "rank0"), "-o", str(tmp_path / "page.html")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'msprobe[report]'" in done.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_path_without_a_dump_is_bad_input(tmp_path):
    done = msprobe("report", tmp_path / "nothing", "-o", tmp_path / "page.html")
    assert done.returncode == 2
    assert "no such file or folder" in done.stderr
    assert not (tmp_path / "page.html").exists()


def test_the_commands_of_this_room_import_no_framework():
    program = (
        "import sys; from msprobe.cli import app; import msprobe.report.overflow, msprobe.report.parse, "
        "msprobe.report.dump_report, msprobe.report.comparison; "
        "print([name for name in ('torch', 'mindspore') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_templates_are_part_of_the_package():
    names = {Path(file.name).suffix for file in TEMPLATES.iterdir()}
    assert {".jinja", ".css", ".js", ".json"} <= names
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '"msprobe.report.templates" = ["*"]' in pyproject
    assert '"msprobe.report.templates",' in pyproject
