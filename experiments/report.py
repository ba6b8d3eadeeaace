"""Reports the runs of a suite beside the paper's values.

    python -m experiments.report [SUITE ...|all] [--results=FOLDER,...]
        [--out_dir=FOLDER] [--remarks=FILE] [--markdown=FILE [--figures=FOLDER]]

Writes <suite>.md, <suite>.csv (a line an entry), <suite>_runs.csv (a line a run), one
self-contained page <suite>.html, and pictures; for several suites also an index. `all`
are those that have a run. With --markdown only that file is written, and pictures where
--figures says so. The same runs give the same files.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple
from urllib.parse import quote

import attr
from absl import logging

from experiments import report_csv, report_html, report_markdown
from experiments.outcomes import Account, account
from experiments.report_html import Picture
from experiments.report_remarks import OPENING, read_remarks
from experiments.report_text import SuiteText, heading, suite_text
from experiments.suites import SUITES, Suite
from fl import environment, files
from fl.progress import write_line
from flags.arguments import ArgumentParser
from flags.errors import UsageError

ALL = "all"
DEFAULT_RESULTS = "results/full"
TITLE = "Results beside the paper's"


@attr.frozen
class Report:
    """A suite, ready to be written.

    Attributes:
        account: its runs.
        text: the same in words.
        pictures: by the name of the file.
    """

    account: Account
    text: SuiteText
    pictures: Mapping[str, Picture]

    @property
    def name(self) -> str:
        """The suite's name."""
        return self.account.suite.name


def main(argv: Sequence[str], known: Mapping[str, Suite] = SUITES) -> int:
    """Runs the program; returns its exit code.

    Args:
        argv: the command line without the program's name.
        known: the suites by name.
    """
    environment.set_up_logging()
    try:
        for line in _write(_parser(known).parse_args(argv), known):
            write_line(line)
    except UsageError as error:
        sys.stderr.write(f"report: error: {error}\n")
        return 2
    return 0


def _parser(known: Mapping[str, Suite]) -> argparse.ArgumentParser:
    parser = ArgumentParser(
        prog="python -m experiments.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "suite", nargs="*", help=f"{ALL} (default) or some of {', '.join(known)}"
    )
    parser.add_argument(
        "--results",
        default=DEFAULT_RESULTS,
        help="folders of results, comma separated; of a run that lies in several, the "
        "first counts",
    )
    parser.add_argument(
        "--out_dir",
        type=Path,
        help="where the report is to stand; default: report/ in the first of --results",
    )
    parser.add_argument(
        "--remarks", type=Path, help="Markdown to include; lines `# <suite>` cut it"
    )
    parser.add_argument(
        "--markdown", type=Path, help="write this file alone, with all suites asked for"
    )
    parser.add_argument(
        "--figures", type=Path, help="with --markdown: folder for its pictures"
    )
    return parser


def _write(arguments: argparse.Namespace, known: Mapping[str, Suite]) -> List[str]:
    """Does what was asked for; returns what to tell."""
    for name in arguments.suite:
        if name not in (ALL, *known):
            raise UsageError(
                f"found suite '{name}', must be one of {', '.join(known)} or {ALL}"
            )
    if arguments.figures and not arguments.markdown:
        raise UsageError("--figures: found without --markdown; give both")
    folders = _folders(arguments.results)
    accounts, silent = _accounts(arguments.suite or [ALL], folders, known)
    remarks = read_remarks(arguments.remarks, known) if arguments.remarks else {}
    _warn(accounts)
    draws = not arguments.markdown or bool(arguments.figures)
    reports = [_report(each, draws) for each in accounts]
    if arguments.markdown:
        return _write_markdown(
            reports, silent, remarks, arguments.markdown, arguments.figures
        )
    out_dir = arguments.out_dir or folders[0] / "report"
    told = [line for r in reports for line in _write_suite(r, remarks, out_dir)]
    if len(reports) > 1 or silent:
        told += _write_index(reports, silent, remarks, out_dir)
    return told


def _folders(words: str) -> List[Path]:
    folders = [Path(word) for word in words.split(",") if word]
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(
                f"--results: found no folder {folder}; name folders that "
                "experiments.run has written, comma separated"
            )
    if not folders:
        raise UsageError("--results: found no name; name a folder of results")
    return folders


def _accounts(
    names: Sequence[str], folders: Sequence[Path], known: Mapping[str, Suite]
) -> Tuple[List[Account], List[str]]:
    """The suites asked for, and the names of those left out since they have no run."""
    paths = {cell.path for suite in known.values() for cell in suite.cells}
    chosen = list(known) if ALL in names else list(dict.fromkeys(names))
    every = [account(known[name], folders, paths) for name in chosen]
    if ALL not in names:
        return every, []
    with_runs = [each for each in every if each.has_runs]
    if not with_runs:
        shown = ", ".join(map(str, folders))
        raise UsageError(
            f"--results: found no run of any suite in {shown}; experiments.run makes "
            "them"
        )
    return with_runs, [each.suite.name for each in every if not each.has_runs]


def _warn(accounts: Sequence[Account]) -> None:
    for each in accounts:
        if not each.has_runs:
            logging.warning(
                "found no run of %s; the paper's values only", each.suite.name
            )
    faults = dict.fromkeys(fault for each in accounts for fault in each.faults)
    for fault in faults:
        logging.warning("could not be read: %s: %s", fault.path, fault.reason)


def _report(account: Account, draws: bool) -> Report:
    pictures = _pictures(account) if draws else {}
    return Report(account, suite_text(account), pictures)


def _pictures(account: Account) -> Dict[str, Picture]:
    # matplotlib takes longer to import than all else together.
    from experiments import report_plots as plots

    suite, pictures = account.suite, {}
    shown = [line.shown for line in account.lines if line.shown]
    if suite.kind == "figure" and any(result.mean is not None for result in shown):
        pictures[f"{suite.name}_figure.png"] = Picture(
            f"{suite.title}: test accuracy over {suite.x_label}",
            f"{suite.title}: the figures of the table over {suite.x_label}",
            plots.draw_points(account),
        )
    for group, lines in account.groups.items():
        if any(line.results for line in lines):
            pictures[f"{suite.name}_{group}_curves.png"] = Picture(
                f"Curves of every run, {heading(lines)}: thin lines are single seeds, "
                "thick ones their mean",
                plots.describe_group(account, lines),
                plots.draw_group(account, lines),
            )
    return pictures


def _write_suite(
    report: Report, remarks: Mapping[str, str], out_dir: Path
) -> List[str]:
    account, name = report.account, report.name
    for file, picture in report.pictures.items():
        _write_bytes(out_dir / file, picture.png, "--out_dir")
    page = report_html.suite_page(
        report.text,
        list(report.pictures.values()),
        remarks.get(name, ""),
        remarks.get(OPENING, ""),
    )
    texts = {
        f"{name}.md": _markdown([report], [], remarks, {f: f for f in report.pictures}),
        f"{name}.csv": report_csv.entries_csv(account),
        f"{name}_runs.csv": report_csv.runs_csv(account),
        f"{name}.html": page,
    }
    for file, text in texts.items():
        _write_bytes(out_dir / file, text.encode("utf-8"), "--out_dir")
    return [f"{name}: {report.text.counts}", f"page: {out_dir / name}.html"]


def _write_index(
    reports: Sequence[Report],
    silent: Sequence[str],
    remarks: Mapping[str, str],
    out_dir: Path,
) -> List[str]:
    texts = [report.text for report in reports]
    opening = remarks.get(OPENING, "")
    page = report_html.index_page(
        TITLE, texts, {r.name: f"{r.name}.html" for r in reports}, silent, opening
    )
    lines = report_markdown.introduction(TITLE, opening)
    links = {report.name: f"{report.name}.md" for report in reports}
    lines += report_markdown.index_table(texts, links, silent)
    files_of = {"index.html": page, "index.md": report_markdown.document(lines)}
    for file, text in files_of.items():
        _write_bytes(out_dir / file, text.encode("utf-8"), "--out_dir")
    return [f"index: {out_dir / 'index.html'}"]


def _write_markdown(
    reports: Sequence[Report],
    silent: Sequence[str],
    remarks: Mapping[str, str],
    path: Path,
    figures: Optional[Path],
) -> List[str]:
    links = {}
    for report in reports:
        for file, picture in report.pictures.items():
            place = Path(figures or "", file)
            _write_bytes(place, picture.png, "--figures")
            relative = Path(os.path.relpath(place, path.parent))
            links[file] = quote(relative.as_posix())
    text = _markdown(reports, silent, remarks, links)
    _write_bytes(path, text.encode("utf-8"), "--markdown")
    return [f"markdown: {path}"]


def _markdown(
    reports: Sequence[Report],
    silent: Sequence[str],
    remarks: Mapping[str, str],
    links: Mapping[str, str],
) -> str:
    lines = report_markdown.introduction(TITLE, remarks.get(OPENING, ""))
    texts = [report.text for report in reports]
    if len(reports) > 1 or silent:
        anchors = {t.suite.name: report_markdown.anchor(t.suite.title) for t in texts}
        lines += report_markdown.index_table(texts, anchors, silent)
    for report in reports:
        pictures = [(p.caption, links[f]) for f, p in report.pictures.items()]
        lines += report_markdown.suite_lines(
            report.text, pictures, remarks.get(report.name, "")
        )
    return report_markdown.document(lines)


def _write_bytes(path: Path, content: bytes, flag: str) -> None:
    try:
        with files.atomic_path(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise UsageError(
            f"{flag}: {path} cannot be written ({error.strerror}); name a place that "
            "can"
        ) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
