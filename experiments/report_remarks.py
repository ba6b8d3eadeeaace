"""Hand-written paragraphs of a report, from one Markdown file.

What stands before the first line `# <suite>` opens the report; what follows such a line
goes below the table of that suite. In Markdown it stays as it is. For HTML, paragraphs,
lists and `code` are enough; any other block is shown as it is written.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Collection, Dict, List

from flags.errors import UsageError

OPENING = ""
_BULLET = re.compile(r"[-*] +")
_CODE = re.compile(r"`([^`]+)`")
_STRONG = re.compile(r"\*\*([^*]+)\*\*")


def read_remarks(path: Path, names: Collection[str]) -> Dict[str, str]:
    """Reads a file of remarks.

    Args:
        path: the file.
        names: the suites there are.

    Returns:
        Markdown by the suite's name, that of the opening under `OPENING`.

    Raises:
        UsageError: if it cannot be read or speaks of a suite that there is not.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise UsageError(
            f"--remarks: {path} cannot be read ({reason}); name a Markdown file"
        ) from None
    parts = _split(text)
    unknown = [name for name in parts if name != OPENING and name not in names]
    if unknown:
        raise UsageError(
            f"--remarks: {path} has a line '# {unknown[0]}', must name a suite: "
            f"{', '.join(names)}"
        )
    return parts


def to_html(markdown: str) -> str:
    """Renders remarks."""
    return "\n".join(_block(block) for block in _blocks(markdown))


def _split(text: str) -> Dict[str, str]:
    parts: Dict[str, List[str]] = {OPENING: []}
    current, fenced = OPENING, False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("# ") and not fenced:
            current = line[2:].strip()
            parts.setdefault(current, [])
        else:
            parts[current].append(line)
    return {name: "\n".join(lines).strip("\n") for name, lines in parts.items()}


def _blocks(markdown: str) -> List[List[str]]:
    """Runs of lines between empty ones; a fenced block is one, empty lines or not."""
    blocks: List[List[str]] = [[]]
    fenced = False
    for line in markdown.splitlines():
        fenced ^= line.startswith("```")
        if line.strip() or fenced:
            blocks[-1].append(line)
        else:
            blocks.append([])
    return [block for block in blocks if block]


def _block(lines: List[str]) -> str:
    if _BULLET.match(lines[0]):
        return (
            f"<ul>{''.join(f'<li>{_inline(item)}</li>' for item in _items(lines))}</ul>"
        )
    if lines[0].startswith(("```", "|", "    ", "#", ">")):
        shown = [line for line in lines if not line.startswith("```")]
        return f"<pre>{html.escape(chr(10).join(shown))}</pre>"
    return f"<p>{_inline(' '.join(lines))}</p>"


def _items(lines: List[str]) -> List[str]:
    """The items of a list; a line without a bullet goes on with the item above."""
    items: List[str] = []
    for line in lines:
        bullet = _BULLET.match(line)
        if bullet:
            items.append(line[bullet.end() :])
        else:
            items[-1] += f" {line.strip()}"
    return items


def _inline(text: str) -> str:
    escaped = html.escape(text)
    return _STRONG.sub(r"<strong>\1</strong>", _CODE.sub(r"<code>\1</code>", escaped))
