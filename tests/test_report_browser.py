"""The report's page in a real browser: Chromium, without a display or a network.

Where there is none these tests skip; Debian has it as `apt-get install chromium`.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import numpy as np
import pytest
from fake_runs import curve, entry, write_quick, write_run
from PIL import Image

from experiments import report
from experiments.suites import SUITES

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 120
# The page may take this long of its own time to settle; it does so in none.
PAGE_MILLISECONDS = 5000
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--allow-file-access-from-files",
    f"--virtual-time-budget={PAGE_MILLISECONDS}",
)
# Shows the page in a frame of a given width and writes down what the browser made of
# it; the page itself has no script.
PROBE = """<!DOCTYPE html><meta charset="utf-8"><body><pre id="told"></pre>
<iframe src="{page}" width="{width}" height="900" style="border:0"></iframe><script>
window.onload = () => {{
  const frame = document.querySelector('iframe'), page = frame.contentDocument;
  const all = (what) => Array.from(page.querySelectorAll(what));
  const tables = {{}};
  for (const table of all('table'))
    tables[table.id] = Array.from(table.rows, (row) =>
      Array.from(row.cells, (cell) => cell.innerText));
  const style = (node) => frame.contentWindow.getComputedStyle(node);
  document.getElementById('told').textContent = JSON.stringify({{
    tables: tables,
    width: page.documentElement.scrollWidth,
    frames: all('.scroll').map((node) => [node.clientWidth, node.scrollWidth]),
    images: all('img').map((node) => [node.naturalWidth, node.clientWidth]),
    marks: all('.mark').map((node) =>
      [node.innerText, style(node).backgroundColor, style(node).color]),
    body: style(page.body).backgroundColor,
    loaded: frame.contentWindow.performance.getEntriesByType('resource')
      .map((entry) => entry.name).filter((name) => !name.startsWith('data:')),
  }});
}};
</script>"""

FULL = entry("main", "cifar10_iid/protofssl_fedavg").cell
QUICK = entry("main", "cifar10_noniid/protofssl_fedavg").cell
PARTIAL = entry("main", "svhn_iid/protofssl_fedavg").cell


def _find() -> Optional[str]:
    return next((path for path in map(shutil.which, NAMES) if path), None)


pytestmark = pytest.mark.skipif(
    _find() is None, reason=f"no browser: none of {', '.join(NAMES)} is on the PATH"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with a run of each kind."""
    results = tmp_path_factory.mktemp("results")
    for seed in (1000, 1001):
        write_run(results, FULL, seed, curve(300, 0.66, phase=seed))
    write_quick(results, QUICK, 1000, curve(30, 0.4))
    write_run(results, PARTIAL, 1000, curve(120, 0.7))
    write_run(results, PARTIAL, 1001, None)
    assert report.main(["main", f"--results={results}"]) == 0
    return results / "report" / "main.html"


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., str]:
    """Opens a file: browse(path, flag, ...) -> the page as the browser has it."""

    def open_file(path: Path, *flags: str) -> str:
        command = [str(_find()), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}"]
        done = subprocess.run(
            [*command, *flags, path.as_uri()],
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return open_file


@pytest.fixture
def probe(
    page: Path, tmp_path: Path, browse: Callable[..., str]
) -> Callable[..., Dict[str, Any]]:
    """Opens the report at a width: probe(width) -> what the browser made of it."""

    def measure(width: int, *flags: str) -> Dict[str, Any]:
        file = tmp_path / "probe.html"
        file.write_text(PROBE.format(page=page.as_uri(), width=width))
        dom = browse(file, "--dump-dom", *flags)
        found = re.search(r'<pre id="told">(.+?)</pre>', dom, re.DOTALL)
        assert found, dom[:2000]
        told: Dict[str, Any] = json.loads(html.unescape(found.group(1)))
        return told

    return measure


def test_finds_the_tables_with_their_figures_and_marks(
    probe: Callable[..., Dict[str, Any]],
) -> None:
    told = probe(1400)
    tables: Dict[str, List[List[str]]] = told["tables"]
    assert list(tables) == ["results", "runs", "environments", "faults"]
    rows = {row[0]: row[1:] for row in tables["results"]}
    assert rows[""] == list(SUITES["main"].columns)
    full, quick, partial, absent, _ = rows["ProtoFSSL-FedAvg"]
    lines = full.splitlines()
    assert lines[0] == "paper 67.8"
    assert re.fullmatch(r"ours 6\d\.\d ± \d\.\d", lines[1])
    assert lines[2] == "2 seeds, 300 rounds"
    assert re.fullmatch(r"difference −\d\.\d", lines[3])
    assert quick.splitlines()[:2] == ["paper 66.5", "quick 1/50"]
    assert partial.splitlines()[:2] == ["paper 88.3", "partial 120/300 rounds"]
    assert "difference" not in quick + partial
    assert absent.splitlines() == ["paper 88.1", "not run"]
    assert len(tables["runs"]) == 5
    assert tables["faults"][1][1] == "metrics.csv: missing"
    assert [mark[0] for mark in told["marks"]] == [
        "quick 1/50",
        "partial 120/300 rounds",
    ]


def test_shows_the_pictures_and_loads_nothing(
    page: Path, browse: Callable[..., str], probe: Callable[..., Dict[str, Any]]
) -> None:
    told = probe(1400)
    assert len(told["images"]) == 3
    assert all(natural == 1210 for natural, _ in told["images"])
    assert told["loaded"] == []
    dom = browse(page, "--dump-dom")
    addresses = re.findall(r'(?:src|href)=["\']([^"\']{1,40})', dom)
    assert addresses
    assert all(a.startswith(("data:image/png;base64,", "#")) for a in addresses)


@pytest.mark.parametrize("width", [1400, 800, 360])
def test_is_no_wider_than_the_window(
    width: int, probe: Callable[..., Dict[str, Any]]
) -> None:
    """A wide table scrolls in a frame of its own."""
    told = probe(width)
    assert told["width"] <= width
    assert all(shown <= width for _, shown in told["images"])
    results_frame = told["frames"][0]
    assert (results_frame[1] > results_frame[0]) == (width < 1000)


def _luminance(color: str) -> float:
    """Relative luminance, as WCAG 2 has it."""
    shares = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [
        s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares
    ]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("dark", [False, True])
def test_marks_are_legible_in_light_and_dark(
    dark: bool, probe: Callable[..., Dict[str, Any]]
) -> None:
    """A contrast of 4.5 at least; the scheme is really the one asked for."""
    scheme = 0 if dark else 1
    told = probe(1400, f"--blink-settings=preferredColorScheme={scheme}")
    assert (_luminance(told["body"]) < 0.1) == dark
    for _, back, ink in told["marks"]:
        low, high = sorted((_luminance(back), _luminance(ink)))
        assert (high + 0.05) / (low + 0.05) >= 4.5
        assert back != told["body"]


def test_a_screenshot_shows_the_marks(
    page: Path, tmp_path: Path, browse: Callable[..., str]
) -> None:
    """The colours of quick and of partial are there to be seen, and much ink."""
    shot = tmp_path / "page.png"
    browse(page, f"--screenshot={shot}", "--window-size=1300,2400")
    pixels = np.asarray(Image.open(shot).convert("RGB"))
    assert pixels.shape == (2400, 1300, 3)
    for color in ((0xFF, 0xE9, 0xD1), (0xF0, 0xE3, 0xFB)):
        assert (pixels == color).all(axis=2).sum() > 300
    assert (pixels.max(axis=2) < 100).mean() > 0.005
