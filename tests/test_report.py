"""The report, through the program itself: Markdown, CSV, HTML and pictures."""

from __future__ import annotations

import csv
import html.parser
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

import attr
import pytest
from fake_runs import curve, entry, rounds, write_quick, write_run

from experiments import outcomes, report, report_plots, report_remarks
from experiments.suites import SUITES, Suite

ROOT = Path(__file__).parents[1]
FULL = entry("main", "cifar10_iid/protofssl_fedavg")
QUICK = entry("main", "cifar10_noniid/protofssl_fedavg")
PARTIAL = entry("main", "svhn_iid/protofssl_fedavg")
OTHER = entry("main", "svhn_noniid/protofssl_fedavg")
BROKEN = entry("main", "stl10/protofssl_fedavg")
SHARED = entry("main", "cifar10_iid/fedavg")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of every kind in the row of ProtoFSSL-FedAvg, and one of FedAvg."""
    folder = tmp_path_factory.mktemp("full")
    for seed, value in ((1000, 0.6), (1001, 0.66), (1002, 0.69)):
        write_run(folder, FULL.cell, seed, rounds([value], 300))
    for seed in (1000, 1001):
        write_quick(folder, QUICK.cell, seed, rounds([0.41], 30))
    write_run(folder, PARTIAL.cell, 1000, rounds([0.5], 120))
    write_quick(folder, PARTIAL.cell, 1005, rounds([0.3], 30))
    write_run(folder, OTHER.cell, 1000, rounds([0.7], 300), {"opt_lr": 0.01})
    write_run(folder, BROKEN.cell, 1000, None)
    write_run(folder, SHARED.cell, 1000, curve(300, 0.6), commit="")
    return folder


@pytest.fixture(scope="module")
def written(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of it."""
    out_dir = tmp_path_factory.mktemp("report")
    assert report.main(["main", f"--results={results}", f"--out_dir={out_dir}"]) == 0
    return out_dir


def markdown_cells(text: str, row: str) -> List[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {row} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


class PageReader(html.parser.HTMLParser):
    """Collects a page's tables, cell by cell, and everything that has an address."""

    def __init__(self, text: str):
        """Reads it all."""
        super().__init__()
        self.tables: Dict[str, List[List[str]]] = {}
        self.tags: List[Tuple[str, Mapping[str, Optional[str]]]] = []
        self._table = ""
        self._open = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        values = dict(attrs)
        self.tags.append((tag, values))
        if tag == "table":
            self._table = str(values["id"])
            self.tables[self._table] = []
        if tag == "tr":
            self.tables[self._table].append([])
        if tag in ("td", "th"):
            self.tables[self._table][-1].append("")
            self._open = True
        if tag == "div" and self._open and self.tables[self._table][-1][-1]:
            self.tables[self._table][-1][-1] += " / "

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._open = False

    def handle_data(self, data: str) -> None:
        if self._open:
            self.tables[self._table][-1][-1] += data


def rows_of(path: Path) -> List[Dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def test_the_table_is_that_of_the_paper(written: Path) -> None:
    """60, 66 and 69 have mean 65 and deviation sqrt(21) = 4.58; the paper has 67.8."""
    text = (written / "main.md").read_text(encoding="utf-8")
    assert "|  | CIFAR-10 i.i.d. | CIFAR-10 non-i.i.d. | SVHN i.i.d. | " in text
    assert markdown_cells(text, "ProtoFSSL-FedAvg") == [
        "paper 67.8<br>ours **65.0 ± 4.6** (3 seeds, 300 rounds)<br>difference −2.8",
        "paper 66.5<br>**quick 1/50**<br>ours 41.0 ± 0.0 (2 seeds, 30 rounds)",
        "paper 88.3<br>**partial 120/300 rounds**<br>ours 50.0 (1 seed, 120 rounds)"
        "<br>also quick 1/50 (1 run)",
        "paper 88.1<br>**other settings**<br>ours 70.0 (1 seed, 300 rounds)",
        "paper 76.4<br>not run",
    ]
    # The paper's table has no such cell; the notes are numbered.
    assert markdown_cells(text, "FedAvg-SL")[-1] == "–"
    assert markdown_cells(text, "FedRGD")[0] == r"paper 69.7 \[3\]<br>not run"
    assert "\n3. The printed value is not of this setting" in text
    counts = "55 entries: 3 full, 1 quick, 1 partial, 1 other settings, 49 not run"
    # 3 * 600 s, 2 * 60, 240, 60, 600 and 1050 of the runs above.
    assert f"{counts}; 9 runs, 64 min of training in all." in text


def test_runs_have_their_provenance(written: Path) -> None:
    text = (written / "main.md").read_text(encoding="utf-8")
    runs = f"| `{FULL.cell.path}/seed_1001` | 66.00 | 66.00 | 300 | 300/300 | 600 s |"
    assert f"{runs} B |  |" in text
    remark = "quick 1/50: num_round 30 instead of 300; local_episode 2 instead of 10"
    assert f"| 30 | 30/30 | 60 s | B | {remark} |" in text
    assert "| A | unknown | Python 3.11.7, tensorflow 2.14.1, numpy 1.25.2 |" in text
    assert "| B | 0123456789ab | Python 3.11.7, " in text
    assert "opt_lr 0.01 instead of 0.001" in text
    assert f"| {BROKEN.cell.path}/seed_1000 | metrics.csv: missing |" in text


def test_csv_has_a_line_an_entry(written: Path) -> None:
    rows = rows_of(written / "main.csv")
    assert len(rows) == len(SUITES["main"].entries)
    by_cell = {(row["row"], row["column"]): row for row in rows}
    full = by_cell["ProtoFSSL-FedAvg", "CIFAR-10 i.i.d."]
    assert float(full["mean"]) == pytest.approx(65.0)
    assert float(full["deviation"]) == pytest.approx(21.0**0.5)
    assert float(full["difference"]) == pytest.approx(-2.8)
    assert full["seed_list"] == "1000 1001 1002"
    told = ("paper", "seeds", "rounds", "num_round", "budget", "partial", "comparable")
    values = " ".join(full[name] for name in told)
    assert values == "67.8 3 300 300 full no yes"
    quick = by_cell["ProtoFSSL-FedAvg", "CIFAR-10 non-i.i.d."]
    assert (quick["budget"], quick["factor"], quick["mark"]) == (
        "quick",
        "0.02",
        "quick 1/50",
    )
    assert (quick["comparable"], quick["difference"]) == ("no", "")
    absent = by_cell["FedMatch", "STL-10"]
    assert (absent["paper"], absent["mean"], absent["mark"]) == ("66.1", "", "not run")
    # A training without unlabelled data stands in both columns.
    assert by_cell["FedAvg", "CIFAR-10 non-i.i.d."]["cell"] == SHARED.cell.path


def test_csv_has_a_line_a_run(written: Path) -> None:
    rows = {row["run"]: row for row in rows_of(written / "main_runs.csv")}
    assert len(rows) == 9
    run = rows[f"{FULL.cell.path}/seed_1001"]
    assert (run["test_acc"], run["best_round"], run["seconds"]) == (
        "66.0",
        "300",
        "600.0",
    )
    assert (run["bytes_down"], run["bytes_up"]) == ("100", "50")
    assert run["commit"] == "0123456789abcdef0123456789abcdef01234567"
    assert run["counted"] == "yes"
    other = rows[f"{OTHER.cell.path}/seed_1000"]
    assert other["differences"] == "opt_lr 0.01 instead of 0.001"


def test_the_page_has_the_same_tables(written: Path) -> None:
    page = PageReader((written / "main.html").read_text(encoding="utf-8"))
    assert list(page.tables) == ["results", "runs", "environments", "faults"]
    table = {row[0]: row[1:] for row in page.tables["results"]}
    assert table[""] == list(SUITES["main"].columns)
    assert list(table)[1:] == list(SUITES["main"].rows)
    assert table["ProtoFSSL-FedAvg"] == [
        "paper 67.8 / ours 65.0 ± 4.6 / 3 seeds, 300 rounds / difference −2.8",
        "paper 66.5 / quick 1/50 / ours 41.0 ± 0.0 / 2 seeds, 30 rounds",
        "paper 88.3 / partial 120/300 rounds / ours 50.0 / 1 seed, 120 rounds / also "
        "quick 1/50 (1 run)",
        "paper 88.1 / other settings / ours 70.0 / 1 seed, 300 rounds",
        "paper 76.4 / not run",
    ]
    assert len(page.tables["runs"]) == 10
    assert page.tables["faults"][1:] == [
        [f"{BROKEN.cell.path}/seed_1000", "metrics.csv: missing"]
    ]


def test_the_page_is_sound_and_needs_nothing_else(written: Path) -> None:
    text = (written / "main.html").read_text(encoding="utf-8")
    page = PageReader(text)
    assert text.startswith("<!DOCTYPE html>")
    assert not {"script", "link", "iframe"} & {tag for tag, _ in page.tags}
    sources = [a["src"] for _, a in page.tags if "src" in a]
    assert len(sources) == 4  # Curves of four groups; none of STL-10 could be read.
    assert all(str(src).startswith("data:image/png;base64,") for src in sources)
    links = [str(a["href"]) for _, a in page.tags if "href" in a]
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert links
    assert all(link[0] == "#" and link[1:] in ids for link in links)
    assert not re.search(r"https?://|url\(|@import", text)
    heads = [a for tag, a in page.tags if tag == "th"]
    assert {a.get("scope") for a in heads} == {"row", "col"}
    captions = [a["id"] for tag, a in page.tags if tag == "caption"]
    regions = [a["aria-labelledby"] for _, a in page.tags if a.get("role") == "region"]
    assert regions == captions
    assert all(a.get("alt") for tag, a in page.tags if tag == "img")


def test_pictures_are_png_without_dates(written: Path) -> None:
    names = sorted(path.name for path in written.glob("*.png"))
    groups = ("cifar10_iid", "cifar10_noniid", "svhn_iid", "svhn_noniid")
    assert names == [f"main_{group}_curves.png" for group in groups]
    for name in names:
        content = (written / name).read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n"
        assert b"Software" not in content
        assert b"Date" not in content
        text = (written / "main.md").read_text(encoding="utf-8")
        assert f"]({name})" in text


def test_the_same_runs_give_the_same_files(
    results: Path, written: Path, tmp_path: Path
) -> None:
    """Wherever the results and the report lie."""
    moved = tmp_path / "moved"
    moved.symlink_to(results)
    arguments = ["main", f"--results={moved}", f"--out_dir={tmp_path / 'again'}"]
    assert report.main(arguments) == 0
    names = sorted(path.name for path in written.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (
            written / name
        ).read_bytes(), name


def test_no_place_of_this_machine_is_told(results: Path, written: Path) -> None:
    for name in ("main.md", "main.csv", "main_runs.csv", "main.html"):
        text = (written / name).read_text(encoding="utf-8")
        assert str(results.parent) not in text
        assert str(ROOT) not in text


def test_what_cannot_be_read_is_one_warning(
    results: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: List[str] = []
    monkeypatch.setattr(report.logging, "warning", lambda t, *a: told.append(t % a))
    assert report.main(["main", f"--results={results}", f"--out_dir={tmp_path}"]) == 0
    reason = f"{BROKEN.cell.path}/seed_1000: metrics.csv: missing"
    assert told == [f"could not be read: {reason}"]
    assert capsys.readouterr().out.splitlines()[-1] == f"page: {tmp_path}/main.html"


def test_a_suite_without_a_run_has_the_papers_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: List[str] = []
    monkeypatch.setattr(report.logging, "warning", lambda t, *a: told.append(t % a))
    assert report.main(["noise", f"--results={tmp_path}"]) == 0
    assert told == ["found no run of noise; the paper's values only"]
    text = (tmp_path / "report" / "noise.md").read_text(encoding="utf-8")
    assert markdown_cells(text, "10.0")[0] == "paper 47.5<br>not run"
    assert sorted(path.suffix for path in (tmp_path / "report").iterdir()) == [
        ".csv",
        ".csv",
        ".html",
        ".md",
    ]


def test_all_suites_with_a_run_and_an_index(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ProtoFSSL(BN) on STL-10 stands in three suites, and is the only run."""
    cell = entry("main", "stl10/protofssl_bn_fedavg").cell
    write_run(tmp_path, cell, 1000, rounds([0.5], 300))
    assert report.main([f"--results={tmp_path}"]) == 0
    folder = tmp_path / "report"
    assert capsys.readouterr().out.splitlines()[-1] == f"index: {folder}/index.html"
    having = ["main", "noise", "lambda_zero"]
    assert sorted(path.stem for path in folder.glob("*.html")) == sorted(
        [*having, "index"]
    )
    index = PageReader((folder / "index.html").read_text(encoding="utf-8"))
    assert [row[0] for row in index.tables["index"]] == ["Suite", *having]
    links = [a["href"] for tag, a in index.tags if tag == "a"]
    assert links == [f"{name}.html" for name in having]
    text = (folder / "index.md").read_text(encoding="utf-8")
    assert "| [noise](noise.md) | Table 9, noise on prototypes | 35 entries: 1 " in text
    assert "Not run at all: normalisation, unlabeled_per_episode, " in text


def test_one_markdown_file_with_remarks_and_no_pictures(
    results: Path, tmp_path: Path
) -> None:
    remarks = tmp_path / "remarks.md"
    remarks.write_text(
        "How it was *made*.\n\n# main\n\nWhat it shows.\n\n```\n# not a suite\n```\n"
    )
    path = tmp_path / "RESULTS.md"
    arguments = [f"--results={results}", f"--markdown={path}", f"--remarks={remarks}"]
    assert report.main(["main", "noise", *arguments]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["RESULTS.md", "remarks.md"]
    text = path.read_text(encoding="utf-8")
    assert "\n\nHow it was *made*.\n\nTest accuracy in per cent" in text
    assert "against ours.\n\nWhat it shows.\n\n```\n# not a suite\n```\n\n" in text
    assert "| [main](#table-3-main-results) |" in text
    assert "\n## Table 3, main results\n" in text
    assert "![" not in text
    assert text.endswith("|\n")


def test_pictures_beside_the_markdown_file(results: Path, tmp_path: Path) -> None:
    path, figures = tmp_path / "a" / "RESULTS.md", tmp_path / "b" / "my figures"
    arguments = [f"--markdown={path}", f"--figures={figures}"]
    assert report.main(["main", f"--results={results}", *arguments]) == 0
    link = "../b/my%20figures/main_svhn_iid_curves.png"
    assert f"]({link})" in path.read_text(encoding="utf-8")
    assert len(list(figures.glob("*.png"))) == 4


def test_several_folders_of_results(results: Path, tmp_path: Path) -> None:
    more, out_dir = tmp_path / "more", tmp_path / "out"
    write_run(more, FULL.cell, 1000, rounds([0.9], 300))
    write_run(more, FULL.cell, 1003, rounds([0.73], 300))
    arguments = [f"--results={results},{more}", f"--out_dir={out_dir}"]
    assert report.main(["main", *arguments]) == 0
    text = (out_dir / "main.md").read_text(encoding="utf-8")
    assert "ours **67.0 ± 5.5** (4 seeds, 300 rounds)" in text
    assert "not counted: a folder named earlier has it" in text


def test_data_from_elsewhere_is_told_beside_the_figure(tmp_path: Path) -> None:
    flags = {"data_dir": "/some/where"}
    write_run(tmp_path, FULL.cell, 1000, rounds([0.678], 300), flags)
    assert report.main(["main", f"--results={tmp_path}"]) == 0
    text = (tmp_path / "report" / "main.md").read_text(encoding="utf-8")
    # 67.8 as in the paper: a difference of nothing has no sign.
    assert markdown_cells(text, "ProtoFSSL-FedAvg")[0] == (
        "paper 67.8<br>ours **67.8** (1 seed, 300 rounds, data from --data_dir)<br>"
        "difference 0.0"
    )
    assert "/some/where" not in text


def test_nothing_of_a_run_becomes_markup(tmp_path: Path) -> None:
    """A configuration may hold anything; so may a damaged file."""
    evil = "<script>alert(1)</script>|`*[x](y)\n# h"
    write_run(tmp_path, FULL.cell, 1000, rounds([0.5], 300), commit=evil)
    files = write_run(tmp_path, QUICK.cell, 1000, None)
    files.metrics_file.write_text(f'round,val_acc,test_acc\n"1{evil}",0.5,0.5\n')
    assert report.main(["main", f"--results={tmp_path}"]) == 0
    page = (tmp_path / "report" / "main.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    text = (tmp_path / "report" / "main.md").read_text(encoding="utf-8")
    assert not re.search(r"(?<!\\)<(?!br>)", text)
    assert r"\<script\>alert(1)" in text
    assert "\n# h" not in text
    fault = next(line for line in text.splitlines() if "metrics.csv line 2" in line)
    assert len(re.findall(r"(?<!\\)\|", fault)) == 3


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["mian"], "found suite 'mian', must be one of main, normalisation, "),
        (["main", "--results=absent"], "--results: found no folder absent; name "),
        (["main", "--results=,"], "--results: found no name; "),
        (["all", "--results={}"], "--results: found no run of any suite in "),
        (["main", "--results={}", "--figures=x"], "--figures: found without --mark"),
        (["main", "--results={}", "--remarks=x"], "--remarks: x cannot be read (No "),
        (["main", "--results={}", "--out_dir=/dev/null/x"], "--out_dir: /dev/null/x/"),
        (
            ["main", "--results={}", "--markdown=/dev/null/x"],
            "--markdown: /dev/null/x cannot be written (",
        ),
        (["main", "--resluts=x"], "unrecognized arguments: --resluts=x"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: List[str],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert report.main([word.format(tmp_path) for word in arguments]) == 2
    captured = capsys.readouterr()
    errors = [line for line in captured.err.splitlines() if "warning" not in line]
    assert len(errors) == 1
    assert errors[0].startswith(f"report: error: {told}")
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_remarks_about_no_suite_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remarks = tmp_path / "remarks.md"
    remarks.write_text("# mian\n")
    arguments = [f"--results={tmp_path}", f"--remarks={remarks}"]
    assert report.main(["main", *arguments]) == 2
    assert "has a line '# mian', must name a suite: main, " in capsys.readouterr().err


def test_remarks_as_html() -> None:
    text = (
        "One `a<b>`,\ntwo **three**.\n\n- x\n  y\n- z\n\n| a |\n|---|\n\n"
        "```\nc\n\nd\n```"
    )
    assert report_remarks.to_html(text) == (
        "<p>One <code>a&lt;b&gt;</code>, two <strong>three</strong>.</p>\n"
        "<ul><li>x y</li><li>z</li></ul>\n"
        "<pre>| a |\n|---|</pre>\n"
        "<pre>c\n\nd</pre>"
    )


def test_it_works_without_tensorflow(results: Path, tmp_path: Path) -> None:
    program = (
        "import sys\nfrom experiments import report\n"
        f"code = report.main(['main', '--results={results}', '--out_dir={tmp_path}'])\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "sys.stdout.write(' '.join(loaded & {'tensorflow', 'keras', 'matplotlib'}))\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # matplotlib is there, so the reader of modules sees what is loaded.
    assert done.stdout.splitlines()[-1] == "matplotlib"
    assert (tmp_path / "main.html").exists()


def drawn(monkeypatch: pytest.MonkeyPatch) -> List[Any]:
    """The figures that are drawn from now on."""
    figures: List[Any] = []
    png = report_plots._png
    monkeypatch.setattr(
        report_plots, "_png", lambda figure: figures.append(figure) or png(figure)
    )
    return figures


def account_of(suite: Suite, results: Path) -> outcomes.Account:
    return outcomes.account(suite, [results], [cell.path for cell in suite.cells])


def texts_of(legend: Any) -> List[str]:
    return [text.get_text() for text in legend.get_texts()]


def test_curves_show_every_run(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three seeds are three thin lines and a thick one; one seed is one line."""
    figures = drawn(monkeypatch)
    account = account_of(SUITES["main"], results)
    report_plots.draw_group(account, account.groups["cifar10_iid"])
    (figure,) = figures
    validation, test = figure.axes
    for axes, label in ((validation, "validation"), (test, "test")):
        assert axes.get_xlabel() == "round"
        assert axes.get_ylabel() == f"{label} accuracy (%)"
        assert len(axes.lines) == 5
    last = sorted(float(line.get_ydata()[-1]) for line in test.lines[-4:])
    assert last == pytest.approx([60.0, 65.0, 66.0, 69.0])
    curved = test.lines[0]
    assert list(curved.get_xdata()) == list(range(5, 301, 5))
    assert validation.get_ylim() == test.get_ylim()
    assert texts_of(figure.legends[0]) == ["FedAvg", "ProtoFSSL-FedAvg"]


def test_budgets_have_panels_of_their_own(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = drawn(monkeypatch)
    account = account_of(SUITES["main"], results)
    lines = account.groups["svhn_iid"]
    report_plots.draw_group(account, lines)
    axes = figures[0].axes
    assert [a.get_title(loc="left") for a in axes[::2]] == [
        "full budget",
        "quick budget",
    ]
    assert [texts_of(legend) for legend in figures[0].legends] == [
        ["ProtoFSSL-FedAvg (partial 120/300 rounds)"],
        ["ProtoFSSL-FedAvg (quick 1/50)"],
    ]
    # Hollow, since neither is the paper's experiment.
    assert {a.lines[0].get_markerfacecolor() for a in axes} == {"white"}
    assert report_plots.describe_group(account, lines).endswith(
        "SVHN i.i.d.: ProtoFSSL-FedAvg (partial 120/300 rounds), seeds 1000; "
        "ProtoFSSL-FedAvg (quick 1/50), seeds 1005"
    )


def test_legends_hide_no_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve methods with long marks: all below their panels and in the picture."""
    for each in SUITES["main"].entries:
        if each.column == "SVHN i.i.d.":
            write_quick(tmp_path, each.cell, 1, rounds([0.3, 0.4], 12))
    figures = drawn(monkeypatch)
    account = account_of(SUITES["main"], tmp_path)
    report_plots.draw_group(account, account.groups["svhn_iid"])
    (figure,) = figures
    legend = figure.legends[0].get_window_extent()
    lowest = min(axes.get_tightbbox().y0 for axes in figure.axes)
    assert len(texts_of(figure.legends[0])) == 11
    assert legend.y1 <= lowest
    assert legend.y0 >= 0
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.x1


def test_no_two_of_twelve_methods_look_alike() -> None:
    looks = [report_plots._look(place) for place in range(12)]
    assert len({(look.color, look.marker) for look in looks}) == 12
    for color in {look.color for look in looks}:
        styles = [look.style for look in looks if look.color == color]
        assert len(set(styles)) == len(styles)


def test_curves_without_any_value_still_come_out(tmp_path: Path) -> None:
    write_run(tmp_path, FULL.cell, 1, [])
    write_run(tmp_path, QUICK.cell, 1, rounds([float("nan")] * 2, 4))
    assert report.main(["main", f"--results={tmp_path}"]) == 0
    text = (tmp_path / "report" / "main.md").read_text(encoding="utf-8")
    assert markdown_cells(text, "ProtoFSSL-FedAvg")[0] == (
        "paper 67.8<br>**partial 0/300 rounds**<br>**1 of 1 runs without a figure**"
        "<br>ours no figure yet (0 seeds, 0 rounds)"
    )
    assert len(list((tmp_path / "report").glob("*.png"))) == 2


def test_a_figure_has_the_papers_points_and_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full and quick points of one row are two lines, never one."""
    suite = SUITES["helper_count"]
    printed = tuple(attr.evolve(e, paper=60.0 + float(e.column)) for e in suite.entries)
    suite = attr.evolve(suite, entries=printed)
    row = [e for e in printed if e.row == "ProtoFSSL, m = 5"]
    for each in row[:3]:
        for seed, value in ((1, 0.5), (2, 0.6)):
            write_run(tmp_path, each.cell, seed, rounds([value], 300))
    for each in row[3:]:
        write_quick(tmp_path, each.cell, 1, rounds([0.2], 30))
    figures = drawn(monkeypatch)
    report_plots.draw_points(account_of(suite, tmp_path))
    (axes,) = figures[0].axes
    assert axes.get_xlabel() == "helpers, H"
    assert axes.get_ylabel() == "test accuracy (%)"
    by_label = dict(zip(*reversed(axes.get_legend_handles_labels())))
    assert list(by_label) == [
        "paper: ProtoFSSL, m = 5",
        "paper: ProtoFSSL, m = 30",
        "paper: FedMatch, m = 5",
        "ProtoFSSL, m = 5",
        "ProtoFSSL, m = 5 (quick 1/50)",
    ]
    ours = by_label["ProtoFSSL, m = 5"]
    assert list(ours[0].get_xdata()) == [1.0, 2.0, 3.0]
    assert list(ours[0].get_ydata()) == pytest.approx([55.0] * 3)
    quick = by_label["ProtoFSSL, m = 5 (quick 1/50)"]
    assert list(quick[0].get_xdata()) == [4.0, 5.0]
    paper = by_label["paper: ProtoFSSL, m = 30"]
    assert list(paper.get_ydata()) == [61.0, 65.0, 70.0, 90.0]


def test_a_figure_of_the_suites_comes_out(tmp_path: Path) -> None:
    """Of label_ratio, whose groups have several rows and columns."""
    for each in SUITES["label_ratio"].entries:
        if each.cell.suite == "label_ratio" and each.column in ("10", "20"):
            write_quick(tmp_path, each.cell, 1, curve(30, 0.5))
    assert report.main(["label_ratio", f"--results={tmp_path}"]) == 0
    folder = tmp_path / "report"
    assert sorted(path.name for path in folder.glob("*.png")) == [
        "label_ratio_cifar10_iid_curves.png",
        "label_ratio_cifar10_noniid_curves.png",
        "label_ratio_figure.png",
    ]
    text = (folder / "label_ratio.md").read_text(encoding="utf-8")
    assert "| labelled images per class and client | 5 | 10 | 20 | 30 |" in text
    cells = markdown_cells(text, "FedMatch, i.i.d.")
    assert cells[0] == "paper not printed<br>not run"
    assert cells[1].startswith("paper not printed<br>**quick 1/50**<br>ours 4")
