"""The command line itself: absl flags from the declarations, and their help."""

from __future__ import annotations

import difflib
import textwrap
from collections import deque
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

from absl import flags as absl_flags

from flags import flagfile
from flags.config import declarations
from flags.errors import UsageError
from flags.resolve import Resolved, resolve

BOOLEAN_WORDS = {
    **dict.fromkeys(("true", "t", "1", "yes", "y"), "true"),
    **dict.fromkeys(("false", "f", "0", "no", "n"), "false"),
}
KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
}
HELP_NAMES = ("h", "help", "helpfull", "helpshort")
INTRODUCTION = """\
Trains ProtoFSSL (Kim et al. 2022) and the methods it is compared with, on TensorFlow
Federated. Without flags: handwritten digits, some minutes on two cores.

  python main.py --dataset=cifar10 --bn=true     the paper's best setting
  python main.py --exp_name=first --resume       continue a run
  python main.py --flagfile=my.flags --dry_run   show what would run

`--flag=value` and `--flag value` both work. --flagfile=FILE reads flags from a file.
"""


class HelpWanted(Exception):  # noqa: N818 - asking for help is no error
    """The user asked for help; the text is the help."""


def parse(argv: Sequence[str]) -> Resolved:
    """Parses and resolves a command line.

    Args:
        argv: the arguments without the program's name.

    Raises:
        UsageError: for anything that cannot be understood or cannot run.
        HelpWanted: for --help.
    """
    return resolve(given_flags(argv))


def given_flags(argv: Sequence[str]) -> Mapping[str, Any]:
    """The flags on the command line, by name, with typed values; the last one wins."""
    _heed_help(argv)
    words = flagfile.expand(argv)
    _heed_help(words)
    values = _flag_values()
    for name, text in _pairs(words):
        try:
            values[name].parse(text)
        except absl_flags.IllegalFlagValueError:
            kind = KINDS[type(_declared()[name].default)]
            raise UsageError(f"--{name}: found '{text}', must be {kind}") from None
    return {name: values[name].value for name in values if values[name].present}


def help_text() -> str:
    """All flags under their headings."""
    lines = [INTRODUCTION]
    groups: Dict[str, List[Any]] = {}
    for declared in declarations():
        groups.setdefault(declared.metadata["group"], []).append(declared)
    for group, members in groups.items():
        lines.append(f"\n{group}\n")
        lines.extend(_describe(declared) for declared in members)
    return "\n".join(lines)


def _describe(declared: Any) -> str:
    """One flag: its name and default, and its help indented below."""
    choices, columns = declared.metadata["choices"], declared.metadata["columns"]
    if columns:
        default = ", ".join(f"{k} {_show(v)}" for k, v in columns.items())
    else:
        default = f"default {_show(declared.default)}"
    head = f"  --{declared.name} ({default})"
    text = declared.metadata["help"]
    if choices:
        text += f" One of: {', '.join(choices)}."
    body = textwrap.fill(
        text, width=80, initial_indent=" " * 6, subsequent_indent=" " * 6
    )
    return f"{head}\n{body}"


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value == "" else str(value)


def _heed_help(words: Sequence[str]) -> None:
    if any(w.startswith("-") and _split(w)[0] in HELP_NAMES for w in words):
        raise HelpWanted(help_text())


def _flag_values() -> absl_flags.FlagValues:
    """One absl flag a declaration, apart from absl's global flags."""
    values = absl_flags.FlagValues()
    define = {
        bool: absl_flags.DEFINE_boolean,
        int: absl_flags.DEFINE_integer,
        float: absl_flags.DEFINE_float,
        str: absl_flags.DEFINE_string,
    }
    for declared in declarations():
        define[type(declared.default)](
            declared.name,
            declared.default,
            declared.metadata["help"],
            flag_values=values,
        )
    return values


def _pairs(words: Sequence[str]) -> Iterator[Tuple[str, str]]:
    """Names and values, in order, from all the ways in which they can be written.

    absl's own parser takes `--use_noise False` as true and a stray word, and knows no
    abbreviations; the authors' argparse takes any unambiguous start of a name.
    """
    queue = deque(words)
    while queue:
        word = queue.popleft()
        name, equals, value = _split(word)
        if not word.startswith("-") or not name:
            raise UsageError(f"found '{word}', which is no flag; flags start with --")
        if _is_negation(name):
            if equals:
                raise UsageError(f"--{name}: found '={value}', must have no value")
            yield name[2:], "false"
        elif _is_boolean(name := _full_name(name)):
            if not equals:
                follows = bool(queue) and queue[0].lower() in BOOLEAN_WORDS
                value = queue.popleft() if follows else "true"
            yield name, BOOLEAN_WORDS.get(value.lower(), value)
        else:
            if not equals and (not queue or queue[0].startswith("--")):
                raise UsageError(f"--{name}: found no value; give --{name}=VALUE")
            yield name, value if equals else queue.popleft()


def _split(word: str) -> Tuple[str, str, str]:
    """A word's name without its dashes, the = if there is one, and the value."""
    return word[2 if word.startswith("--") else 1 :].partition("=")


def _declared() -> Mapping[str, Any]:
    return {declared.name: declared for declared in declarations()}


def _is_boolean(name: str) -> bool:
    return name in _declared() and isinstance(_declared()[name].default, bool)


def _is_negation(name: str) -> bool:
    return name.startswith("no") and name not in _declared() and _is_boolean(name[2:])


def _full_name(name: str) -> str:
    """The flag of that name, or the one of the authors' flags that starts with it."""
    declared = _declared()
    if name in declared:
        return name
    theirs = [d.name for d in declared.values() if d.metadata["theirs"]]
    starts = [n for n in (*theirs, "help") if n.startswith(name)]
    if len(starts) == 1:
        return starts[0]
    if starts:
        options = ", ".join(f"--{n}" for n in starts)
        raise UsageError(f"--{name}: found the start of {options}; give one of them")
    near = difflib.get_close_matches(name, declared, n=1)
    hint = f", the nearest is --{near[0]}" if near else ""
    raise UsageError(f"--{name}: no such flag{hint}; --help lists them")
