"""The report in a real browser: headless Chromium on a small and a wide screen, with the keyboard, printed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from npu_tools.check import session
from tests.tools.test_check_units import operator, record, report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
PROBE = """<script>addEventListener("load", () => {{
  const found = {{}};
  {body}
  const place = document.createElement("pre");
  place.id = "probe";
  place.textContent = JSON.stringify(found);
  document.body.append(place);
}});</script>"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


def page(folder: Path) -> Path:
    """A report with something in every section."""
    rows = [
        operator("MatMul", "NPU"),
        operator("FFT", "host", "train.py:8"),
        operator("Real", "host", "train.py:8"),
    ]
    spans = [{"name": f"call{i}", "kind": "NPU", "begin": i / 100, "end": i / 100 + 0.004} for i in range(20)]
    kernel = {
        "name": "dense/MatMul", "engine": "AI Core", "kind": "matmul", "implementation": "brgemm", "shape": [8, 8],
        "dtype": "float32", "seconds": 1e-4, "calls": 20, "flops": 1e6, "bytes": 1e5,
    }  # fmt: skip
    spent = {"total": 0.1, "NPU": 0.05, "input": 0.02, "host": 0.01, "between": 0.01, "steps": 10.0}
    made = report(record(0.01, operators=rows, spans=spans, kernels=[kernel], spent=spent, devices=["NPU:0"]))
    session.write(made, folder / "r.html")
    return folder / "r.html"


def browse(path: Path, folder: Path, body: str, *flags: str, width: int = 1280) -> dict[str, Any]:
    """What a script finds on the page once it is loaded."""
    probed = path.with_name("probed.html")
    probed.write_text(path.read_text().replace("</body>", PROBE.format(body=body) + "</body>"))
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        *FLAGS,
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},900",
        *flags,
    ]
    done = subprocess.run(
        [*command, "--virtual-time-budget=5000", "--dump-dom", probed.as_uri()],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    (text,) = re.findall(r'<pre id="probe">(.*?)</pre>', done.stdout)
    found: dict[str, Any] = json.loads(text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    return found


@pytest.mark.parametrize("width", [500, 1400])
def test_nothing_overflows_a_small_or_wide_screen(tmp_path: Path, width: int) -> None:
    body = """
      found.page = document.documentElement.scrollWidth - document.documentElement.clientWidth;
      const room = document.documentElement.clientWidth;
      found.wide = [...document.querySelectorAll("main *")].filter((e) => !e.closest(".scroll, svg, pre, nav")
        && e.getBoundingClientRect().right > room + 1).map((e) => e.outerHTML.slice(0, 80));
      found.charts = [...document.querySelectorAll("svg.chart")].map((e) => e.getBoundingClientRect().width);"""
    found = browse(page(tmp_path), tmp_path, body, width=width)
    assert found["page"] <= 0 and found["wide"] == []
    assert len(found["charts"]) >= 5 and min(found["charts"]) > 200


def test_filter_sort_and_theme_work_with_the_keyboard(tmp_path: Path) -> None:
    body = """
      const rows = () => [...document.querySelectorAll("#operator-table tbody tr")].filter((r) => !r.hidden)
        .map((r) => r.cells[0].textContent);
      const field = document.querySelector("input[data-filter]");
      field.value = "train.py:8";
      field.dispatchEvent(new Event("input"));
      found.filtered = rows();
      found.said = document.getElementById("operator-table-count").textContent;
      field.value = "";
      field.dispatchEvent(new Event("input"));
      const head = document.querySelector("#operator-table th");
      head.querySelector("button").click();
      found.up = rows();
      found.sort = head.getAttribute("aria-sort");
      head.querySelector("button").click();
      found.down = rows();
      const colour = () => getComputedStyle(document.body).backgroundColor;
      const before = colour();
      document.getElementById("theme").click();
      found.changed = colour() !== before;
      const active = "a, button, input, summary, [tabindex]";
      found.focusable = [...document.querySelectorAll(active)].every((e) => e.tabIndex >= 0);
      found.unnamed = [...document.querySelectorAll("button, input")].filter(
        (e) => !(e.getAttribute("aria-label") || e.textContent.trim())).length;"""
    found = browse(page(tmp_path), tmp_path, body)
    assert sorted(found["filtered"]) == ["FFT", "Real"] and found["said"] == "2 of 3 rows"
    assert found["up"] == sorted(found["up"]) and found["down"] == found["up"][::-1]
    assert found["sort"] == "ascending" and found["changed"] and found["focusable"] and found["unnamed"] == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_both_themes(tmp_path: Path, scheme: str) -> None:
    body = f"""
      document.documentElement.dataset.theme = "{scheme}";
      const numbers = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
      const light = (rgb) => rgb.map((c) => c / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
      const back = (e) => {{ for (; e; e = e.parentElement) {{ const c = getComputedStyle(e).backgroundColor;
        if (!/, 0\\)$/.test(c)) return numbers(c); }} return [255, 255, 255]; }};
      found.poor = [...document.querySelectorAll("main *, header *, nav *")].filter((e) => !e.closest("svg")
        && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())).map((e) => {{
          const [a, b] = [light(numbers(getComputedStyle(e).color)), light(back(e))];
          return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.textContent.slice(0, 40)];
        }}).filter(([ratio]) => ratio < 4.5);""".replace("{{", "{").replace("}}", "}")
    assert browse(page(tmp_path), tmp_path, body)["poor"] == []


def test_the_page_prints(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    target = tmp_path / "r.pdf"
    subprocess.run(
        [
            *(CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}"),
            *(f"--print-to-pdf={target}", page(tmp_path).as_uri()),
        ],
        capture_output=True, timeout=300, check=True,
    )  # fmt: skip
    assert target.read_bytes().startswith(b"%PDF") and target.stat().st_size > 10_000
