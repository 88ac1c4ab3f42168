"""Pages in a real headless Chromium: they open from a file, and every control does what it says."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from report_browser import Browser
from report_cases import NAN, api, comparison, msprobe, nan_network, tensor, write_dump

from msprobe.report import comparison_page

FAULT = 1234
FAULTY = f"Functional.linear.{FAULT}.forward"


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    summary, rows = comparison(3000, steps=3, ranks=2, fault=FAULT)
    return comparison_page(summary, rows, tmp_path_factory.mktemp("pages") / "compare.html")


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    for step in range(3):
        for rank in range(2):
            nan_network(folder / "run" / f"step{step}" / f"rank{rank}", healthy=(step, rank) != (2, 1))
    done = msprobe("report", folder / "run", "-o", folder / "report.html")
    assert done.returncode == 0, done.stderr
    return folder / "report.html"


@pytest.fixture
def page(browser, compared):
    """The comparison, freshly opened; at the end nothing may have been complained about."""
    browser.open(compared)
    yield browser
    assert browser.console() == []


@pytest.fixture
def report(browser, reported):
    browser.open(reported)
    yield browser
    assert browser.console() == []


def test_a_comparison_opens_at_its_first_divergence(page: Browser):
    assert page.selected() == FAULTY
    assert FAULTY in page.shown()
    assert page.run("return document.getElementById('part').selectedOptions[0].textContent") == "✕ step0 / rank1"
    overview = page.text("#overview")
    for text in ("outputs differ from equal inputs", "differs by 0.5", "model.py, line 12", "Only on: rank1", "a note"):
        assert text in overview
    assert page.text('#tree [aria-current="location"] .name') == "fc3"


def test_a_long_way_to_a_divergence_is_shown_from_its_end(browser: Browser, tmp_path):
    summary, rows = comparison(100, fault=50)
    (pair,) = summary.pairs
    *_, last = pair.divergence.chain
    first = replace(pair.divergence, chain=(*[pair.divergence.chain[0]] * 12, last))
    pair = replace(pair, divergence=first)
    browser.open(comparison_page(replace(summary, first_divergence=first, pairs=(pair,)), rows, tmp_path / "c.html"))
    browser.selected()
    shown = [item.text for item in browser.all("#overview .chain li")]
    assert (shown[0], shown[-1]) == ("5 before", "✕ Functional.linear.50.forward")


def test_a_record_shows_both_sides_metrics_limit_and_stack(page: Browser):
    page.selected()
    detail = page.text("#detail")
    for text in ("Target", "Golden", "NaN", "+∞", "50 %", "cosine 0.9", "limit 0.002, default for float32", "[1, 2]"):
        assert text in detail
    page.click("#detail summary")
    assert "train.py, line 40" in page.text("#detail .stack")


def test_a_page_asks_for_nothing_else(page: Browser):
    assert page.run("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []
    text = page.run("return document.documentElement.outerHTML")
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


def test_search_keeps_records_with_all_words(page: Browser):
    page.press("/")
    page.press("linear.12 forward")
    page.until(lambda: page.text("#scope").startswith("111 of 3000"))
    assert all(".12" in name for name in page.shown())
    page.press("ESCAPE")
    page.until(lambda: page.text("#scope").startswith("3000 of 3000"))


def test_filters_by_status_and_direction_work_together_and_can_be_cleared(page: Browser):
    page.click('[data-status="error"]')
    assert page.shown() == [FAULTY, f"Functional.linear.{FAULT + 5}.forward"]
    page.run(
        "const d = document.getElementById('direction'); d.value = 'backward'; d.dispatchEvent(new Event('change'))"
    )
    assert page.shown() == []
    page.click("#scope button")
    assert page.text("#scope").startswith("3000 of 3000")
    assert page.one('[data-status="error"]').get_attribute("aria-pressed") == "false"


def test_keys_jump_between_faults_and_back_to_the_first(page: Browser):
    page.selected()
    page.press("n")
    assert page.selected() == f"Functional.linear.{FAULT + 5}.forward"
    page.press("p")
    assert page.selected() == FAULTY
    page.press("HOME")
    assert page.selected() == "Functional.linear.0.forward"
    page.press("END", "ARROW_UP")
    assert page.selected() == "Functional.linear.2998.forward"
    page.press("g")
    assert page.selected() == FAULTY


def test_the_first_divergence_is_found_from_another_rank(page: Browser):
    page.run("const p = document.getElementById('part'); p.value = '4'; p.dispatchEvent(new Event('change'))")
    page.until(lambda: "No difference" in page.text("#overview"))
    page.click("#overview button")
    page.until(lambda: "outputs differ" in page.text("#overview"))
    assert page.selected() == FAULTY


def test_the_tree_opens_closes_and_filters_with_keys_and_clicks(page: Browser):
    page.run("document.getElementById('tree').focus()")
    page.press("HOME", "ARROW_DOWN")
    page.until(lambda: page.text("#scope").startswith("3000 of 3000") and "layers" in page.text("#scope"))
    page.press("ARROW_LEFT")
    assert page.one('#tree .row[aria-selected="true"]').get_attribute("aria-expanded") == "false"
    page.press("ARROW_RIGHT", "ARROW_RIGHT")
    page.until(lambda: page.text("#scope").startswith("100 of 3000"))
    assert page.shown()[0] == "Functional.linear.0.forward"
    page.press("ARROW_RIGHT", "ARROW_RIGHT")
    page.until(lambda: page.text("#scope").startswith("50 of 3000"))
    page.click('#tree .row[title^="layers.0.mlp"]')
    page.until(lambda: page.shown()[:1] == ["Functional.linear.50.forward"])


def test_columns_sort_in_both_directions_and_back(page: Browser):
    number = "#list .head .cell:nth-child(4) button"
    page.click(number)
    assert page.shown()[0] == FAULTY
    assert page.one("#list .head .cell:nth-child(4)").get_attribute("aria-sort") == "descending"
    page.click(number)
    page.click(number)
    assert page.shown().index(FAULTY) > 0


def test_theme_and_language_switch_and_are_remembered(page: Browser):
    def colour():
        return page.run("return getComputedStyle(document.body).backgroundColor")

    page.click("#theme")
    light = colour()
    page.click("#theme")
    assert colour() != light
    page.click("#language")
    assert page.text("#first") == "首个差异点"
    assert "输入一致而输出不同" in page.text("#overview")
    assert " 默认" in page.text("#overview")
    assert "L2 范数相对误差 0.5 (阈值 0.002, float32 的默认阈值)" in page.text("#detail")
    assert page.run("return document.documentElement.lang") == "zh-CN"
    page.driver.refresh()
    page.until(lambda: page.run("return document.documentElement.dataset.ready") == "true")
    assert page.text("#first") == "首个差异点"
    assert page.run("return document.documentElement.dataset.theme") == "dark"


def test_a_rank_that_stands_out_is_seen_in_the_heat_map_and_opens(page: Browser):
    page.run("const p = document.getElementById('part'); p.value = '0'; p.dispatchEvent(new Event('change'))")
    page.until(lambda: "No difference" in page.text("#overview"))
    page.press("3")
    (hot,) = page.all(".heat-map .shade-3 button")
    assert hot.text == "250"
    hot.click()
    page.until(lambda: "outputs differ" in page.text("#overview"))
    assert "layers.12" in page.text("#scope")


def test_curves_over_steps_come_with_their_numbers(page: Browser):
    page.press("2")
    lines = page.all("#view-trend svg .line")
    assert len(lines) == 8
    assert len(page.all("#view-trend svg .line.colour-0 circle")) == 3
    assert page.all("#view-trend svg .limit")
    rows = {row.text.split()[0]: row.text.split()[1:] for row in page.all("#view-trend tbody tr")}
    assert rows["layers.12.attn.fc3"] == ["250", "0.01", "0.01"]


def test_help_lists_the_keys_and_closes(page: Browser):
    page.press("?")
    assert "next / previous" in page.text("#help")
    page.press("ESCAPE")
    page.until(lambda: not page.run("return document.getElementById('help').open"))


CONTRAST = """
const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
const linear = (c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const light = (rgb) => rgb.slice(0, 3).map((c) => linear(c / 255))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (node) => {
    for (; node; node = node.parentElement) {
        const rgb = parse(getComputedStyle(node).backgroundColor);
        if (rgb.length === 3 || rgb[3] === 1) return rgb;
    }
    return [255, 255, 255];
};
const poor = new Set();
for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest('script, option')) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.add(`${node.tagName}.${node.className}: ${ratio.toFixed(2)}`);
}
return [...poor];
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("tab", ["1", "2", "3"])
def test_text_has_the_contrast_that_wcag_asks_for(page: Browser, theme, tab):
    page.run("document.documentElement.dataset.theme = arguments[0]", theme)
    page.press(tab)
    assert page.run(CONTRAST) == []


def test_controls_have_names_and_roles(page: Browser):
    unnamed = page.run(
        """return [...document.querySelectorAll('button, select, input, [role=grid], [role=tree], [role=tabpanel]')]
        .filter((node) => node.checkVisibility())
        .filter((node) => !(node.textContent.trim() || node.labels?.length || node.getAttribute('aria-label')
            || node.getAttribute('aria-labelledby') || node.title)).map((node) => node.outerHTML)"""
    )
    assert unnamed == []
    assert page.one("#list").get_attribute("aria-rowcount") == "3001"
    assert page.run("return document.activeElement.id") == "list"
    active = page.one("#list").get_attribute("aria-activedescendant")
    assert page.all(f"#{active}")


def test_names_from_a_dump_are_never_markup(browser: Browser, tmp_path):
    name = 'Torch.<img src=x onerror="document.title=1">.0.forward'
    write_dump(tmp_path / "</script><b>" / "step0" / "rank0", {name: api([tensor()], [NAN])})
    done = msprobe("report", tmp_path / "</script><b>", "-o", tmp_path / "report.html")
    assert done.returncode == 0, done.stderr
    browser.open(tmp_path / "report.html")
    assert browser.selected() == name
    assert browser.all("#list img, #detail img, #overview img, b:not(.chip b)") == []
    assert browser.run("return document.title").endswith("</script><b>")
    assert browser.console() == []


def test_a_hundred_thousand_records_open_scroll_and_filter_quickly(browser: Browser, tmp_path):
    summary, rows = comparison(100_000, fault=61_234)
    page = comparison_page(summary, rows, tmp_path / "big.html")
    assert page.stat().st_size < 12e6
    assert browser.open(page) < 10
    assert browser.selected() == "Functional.linear.61234.forward"
    assert len(browser.all("#list .row")) < 80
    begin = time.monotonic()
    for _ in range(2):
        browser.press("PAGE_DOWN", "PAGE_DOWN", "END")
        browser.until(lambda: browser.shown()[-1:] == ["Functional.linear.99999.forward"])
        browser.run("document.getElementById('list').scrollTop = 0")
        browser.until(lambda: browser.shown()[:1] == ["Functional.linear.0.forward"])
    for position in (17, 50_000, 99_998):
        browser.run(
            "const s = document.getElementById('search'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))",
            f".{position}.",
        )
        browser.until(lambda wanted=f"Functional.linear.{position}.forward": browser.shown() == [wanted])
    assert time.monotonic() - begin < 20
    assert browser.console() == []


def test_a_report_opens_where_nan_begins_and_shows_its_way(report: Browser):
    assert report.selected() == "Torch.log.0.forward"
    overview = report.text("#overview")
    assert "NaN or Inf begins" in overview
    assert "step2 / rank1" in overview
    chain = [item.text for item in report.all("#overview .chain li")]
    assert chain[0].endswith("Torch.log.0.forward")
    assert any(text.endswith("cross_entropy.0.forward") for text in chain)
    assert "Its outputs have NaN or Inf although its inputs are finite" in report.text("#detail")
    report.all("#overview .chain button")[1].click()
    assert report.selected() == "Module.layers.1.Block.forward.0"
    assert "begins in a record inside" in report.text("#detail")


def test_a_report_draws_nan_over_steps_and_ranks(report: Browser):
    report.press("2")
    assert report.all("#view-trend .cross")
    report.press("3")
    hot = report.all(".heat-map .shade-6")
    assert [cell.text for cell in hot] == ["NaN"]


def test_a_dump_without_records_says_so(browser: Browser, tmp_path):
    write_dump(tmp_path / "rank0", {})
    assert msprobe("report", tmp_path / "rank0", "-o", tmp_path / "empty.html").returncode == 0
    browser.open(tmp_path / "empty.html")
    assert "no records" in browser.text("#overview")
    assert browser.console() == []
