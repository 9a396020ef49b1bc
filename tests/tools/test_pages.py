"""The pages of `check` and `profile` in headless Chromium: screens, keys, screen readers, both themes, paper."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from npu_tools.check import compare, session
from npu_tools.profile_data import Profile
from npu_tools.profile_page import page as profile_page
from tests.tools.browser import CHROMIUM, Browser, NoBrowserError
from tests.tools.test_check_units import operator, record, report
from tests.tools.test_profile import recorded

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path (Debian: apt install chromium)"),
]
KINDS = ("check", "profile")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    try:
        started = Browser(tmp_path_factory.mktemp("browser"))
    except NoBrowserError as error:
        pytest.skip(f"Chromium does not start here: {error}")
    with started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report with something in every section, and a profile."""
    folder = tmp_path_factory.mktemp("pages")
    session.write(full_report(), folder / "check.html")
    (folder / "profile.html").write_text(profile_page("train.py", Profile.of(recorded()), recorded()))
    return {kind: folder / f"{kind}.html" for kind in KINDS}


def full_report() -> dict[str, Any]:
    rows = [
        operator("MatMul", "NPU"),
        operator("FFT", "host", "train.py:8", remedy="register an operator " * 5),
        operator("Real", "host", "a/long/path/to/the/train.py:8"),
    ]
    kinds = ("NPU", "host", "input", "NPU")
    spans = [
        {"name": f"call{i}", "kind": kinds[i % 4], "begin": i / 100, "end": i / 100 + 0.004}
        for i in range(20)
    ]
    kernel = {
        "name": "MatMul+relu:dense/MatMul", "engine": "AI Core", "kind": "matmul", "implementation": "brgemm",
        "shape": [8, 8], "dtype": "float32", "seconds": 1e-4, "calls": 20, "flops": 1e6, "bytes": 1e5,
    }  # fmt: skip
    layers = [
        {"name": f"block{i}/dense", "place": "host" if i == 2 else "NPU", "engine": "", "nodes": 2,
         "operators": [["MatMul", 1], ["Relu", 1]], "locations": []}
        for i in range(12)
    ]  # fmt: skip
    drawing = {"layers": layers, "edges": [[i, i + 1] for i in range(11)] + [[0, 3], [5, 2]]}
    row = {
        "layer": "dense",
        "operator": "MatMul",
        "error": 1e-6,
        "reference": 1e-7,
        "largest": 1.0,
        "location": "",
    }
    modes = {"force_fp16": {"layers": [row, row | {"error": float("inf")}], "verdict": "Far from float64."}}
    made = report(
        record(
            0.01, operators=rows, spans=spans, kernels=[kernel], devices=["NPU:0"], drawing=drawing,
            spent={"total": 0.1, "NPU": 0.05, "input": 0.02, "host": 0.01, "between": 0.01, "steps": 10.0},
            precision={"modes": modes, "verdict": "As near to float64 as TensorFlow is."},
        )
    )  # fmt: skip
    made["changes"] = compare.changes(report(record(0.04)), made)
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [360, 1400])
def test_nothing_overflows_a_small_or_wide_screen(
    browser: Browser, pages: dict[str, Path], kind: str, width: int
) -> None:
    browser.open(pages[kind], width)
    wide = """[...document.querySelectorAll("main *")].filter((e) => !e.closest(".scroll, svg, pre")
        && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
        .map((e) => e.outerHTML.slice(0, 80))"""
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(wide) == []
    shown = """[...document.querySelectorAll("svg.chart, canvas, .bars svg")]
        .map((e) => e.getBoundingClientRect().width).filter((w) => w > 0)"""
    found = browser.evaluate(shown)
    assert len(found) >= 3 and min(found) > 100
    assert browser.requests == [pages[kind].as_uri()], "nothing else is loaded"
    assert browser.errors == []


def test_every_plot_is_on_the_page(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["check"])
    told = browser.accessible()
    titles = [node["name"] for node in told if node["role"] == "heading"]
    for title in ("Loss", "Layers in force_fp16", "Time by operator", "Resident memory over time (MiB)", "Timeline",
                  "The graph by placement", "Where the time of a step goes", "Changes", "Checklist"):  # fmt: skip
        assert title in titles, title
    (graph,) = [node for node in told if node["name"].startswith("The graph by placement. ")]
    assert "12 layers, 13 connections; 11 run on the NPU, 1 on the host: block2/dense" in graph["name"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_screen_reader_is_told_everything(browser: Browser, pages: dict[str, Path], kind: str) -> None:
    browser.open(pages[kind])
    told = browser.accessible()
    roles = [node["role"] for node in told]
    for role in ("banner", "navigation", "main", "contentinfo", "region", "table", "columnheader", "status"):
        assert role in roles, role
    named = {
        "image",
        "img",
        "table",
        "region",
        "navigation",
        "button",
        "searchbox",
        "link",
        "application",
        "heading",
    }
    assert [node for node in told if node["role"] in named and not node["name"].strip()] == []
    levels = [node["level"] for node in told if node["role"] == "heading"]
    assert levels[0] == 1 and all(b <= a + 1 for a, b in itertools.pairwise(levels))
    (timeline,) = [node for node in told if node["role"] == "application"]
    assert "Home shows all" in timeline["description"]


def focused(browser: Browser) -> str:
    """What has the focus: its text or label."""
    name = "e.getAttribute('aria-label') || e.textContent"
    return str(browser.evaluate(f"((e) => e === document.body ? '' : {name})(document.activeElement)"))


def tab_to(browser: Browser, name: str) -> None:
    """Press Tab until something of this name has the focus."""
    for _ in range(200):
        browser.press("Tab")
        if name in focused(browser):
            return
    raise AssertionError(f"Tab does not reach '{name}'")


def test_everything_can_be_done_with_the_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    browser.media(scheme="light")
    browser.open(pages["check"])
    browser.press("Tab")
    assert focused(browser) == "Skip to the summary"
    colour = "getComputedStyle(document.body).backgroundColor"
    before = browser.evaluate(colour)
    tab_to(browser, "Switch to dark")
    browser.press("Enter")
    assert browser.evaluate(colour) != before and focused(browser) == "Switch to light colours"
    rows = """[...document.querySelectorAll("#operator-table tbody tr")].filter((r) => !r.hidden)
        .map((r) => r.cells[0].textContent)"""
    tab_to(browser, "Filter operators")
    browser.write("train.py:8")
    assert sorted(browser.evaluate(rows)) == ["FFT", "Real"]
    assert browser.evaluate("document.getElementById('operator-table-count').textContent") == "2 of 3 rows"
    tab_to(browser, "operator")
    browser.press("Enter")
    assert browser.evaluate(rows) == ["FFT", "Real"]
    browser.press(" ")
    assert browser.evaluate(rows) == ["Real", "FFT"]
    assert (
        browser.evaluate("document.querySelector('#operator-table th').getAttribute('aria-sort')")
        == "descending"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_timeline_zooms_and_tells_its_blocks(browser: Browser, pages: dict[str, Path], kind: str) -> None:
    browser.open(pages[kind])
    for _ in range(2):  # the link to the section, then the timeline
        tab_to(browser, "Timeline")
    assert browser.evaluate("document.activeElement.tagName") == "CANVAS"
    image = "document.querySelector('canvas').toDataURL()"
    whole = browser.evaluate(image)
    browser.press("+", "+", "ArrowRight")
    assert browser.evaluate(image) != whole
    browser.press("ArrowDown")
    said = browser.evaluate("document.querySelector('.timeline .block').textContent")
    assert (
        said
        == {
            "check": "NPU: call0, 4.00 ms, at 0.0 µs",
            "profile": "NPU, thread 1: product, 3.0 µs, at 0.0 µs",
        }[kind]
    )
    browser.press("Home")
    assert browser.evaluate(image) == whole


CONTRAST = """(() => {
  const numbers = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = (rgb) => rgb.map((c) => c / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const back = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$/.test(c)) return numbers(c); } return [255, 255, 255]; };
  const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  const hidden = "title, desc, script, .inbar, .box *";
  return [...document.querySelectorAll("main *, header *, nav *, footer")].filter((e) => own(e) && !e.matches(hidden))
    .map((e) => {
      const style = getComputedStyle(e), ink = e.closest("svg") ? style.fill : style.color;
      const [a, b] = [light(numbers(ink)), light(back(e))];
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.textContent.slice(0, 40)];
    }).filter(([ratio]) => ratio < 4.5);
})()"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_both_themes(
    browser: Browser, pages: dict[str, Path], kind: str, scheme: str
) -> None:
    browser.media(scheme=scheme)
    browser.open(pages[kind])
    dark = browser.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    assert dark == (scheme == "dark"), "the page follows the system"
    assert browser.evaluate(CONTRAST) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_dark_page_prints_on_white_paper(browser: Browser, pages: dict[str, Path], kind: str) -> None:
    browser.media(scheme="dark")
    browser.open(pages[kind])
    data = browser.pdf()
    assert data.startswith(b"%PDF") and len(data) > 10_000
    assert browser.evaluate("[...document.querySelectorAll('details')].every((d) => d.open)")
    browser.media("print", "dark")
    browser.screen(760)  # A4 at 96 dots an inch, without margins
    assert browser.evaluate("document.documentElement.scrollWidth") <= 760
    shown = "[...document.querySelectorAll('{}')].map((e) => e.getBoundingClientRect().width > 0)"
    assert browser.evaluate(shown.format("nav, .timeline")) == [False, False]
    assert browser.evaluate(shown.format(".still svg")) == [True]
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.media()
