"""Values in words, TOML and JSON."""

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_BIDI = {*"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}

_LISTED = 10
"""Most values that a sentence lists: a table can have thousands of columns."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def counted(num: int, noun: str) -> str:
    """A number of things, e.g. "1 client", "1,200 clients" or "3 classes"."""
    ending = "" if num == 1 else "es" if noun.endswith("s") else "s"
    return f"{num:,} {noun}{ending}"


def are(num: int) -> str:
    """The verb that goes with a number of things: "is" or "are"."""
    return "is" if num == 1 else "are"


def listed(values: Iterable[object]) -> str:
    """The first values, and the number of the others."""
    texts = [str(value) for value in values]
    more = len(texts) - _LISTED
    return ", ".join(texts[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def quoted(values: Iterable[object]) -> str:
    """The first values in quotes, and the number of the others."""
    return listed(f"'{value}'" for value in values)


def toml_list(names: Sequence[str]) -> str:
    """Texts as a list in TOML."""
    return f"[{', '.join(map(toml_text, names))}]"


def toml_text(text: str) -> str:
    """A text in TOML, whose basic strings are those of JSON, without control characters."""
    return plain(json.dumps(text, ensure_ascii=False))


def toml_key(name: str) -> str:
    """A key in TOML, in quotes only where it needs them."""
    return name if _BARE_KEY.fullmatch(name) else toml_text(name)


def plain(text: str) -> str:
    """A text without control characters, which names in a file may have.

    Control characters are escaped as in JSON, so that JSON stays JSON.
    """
    if text.isprintable():
        return text
    return "".join(json.dumps(letter)[1:-1] if _is_obeyed(letter) else letter for letter in text)


def _is_obeyed(letter: str) -> bool:
    if letter in "\n\t":
        return False
    return letter in _BIDI or unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")


def json_values(value: Any) -> Any:
    """Values with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): json_values(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
