"""Values in words, TOML and JSON."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def counted(num: int, noun: str) -> str:
    """A number of things, e.g. "1 client", "1,200 clients" or "3 classes"."""
    ending = "" if num == 1 else "es" if noun.endswith("s") else "s"
    return f"{num:,} {noun}{ending}"


def are(num: int) -> str:
    """The verb that goes with a number of things: "is" or "are"."""
    return "is" if num == 1 else "are"


def toml_list(names: Sequence[str]) -> str:
    """Texts as a list in TOML."""
    return f"[{', '.join(map(toml_text, names))}]"


def toml_text(text: str) -> str:
    """A text in TOML, whose basic strings are those of JSON."""
    return json.dumps(text, ensure_ascii=False)


def toml_key(name: str) -> str:
    """A key in TOML, in quotes only where it needs them."""
    return name if _BARE_KEY.fullmatch(name) else toml_text(name)


def json_values(value: Any) -> Any:
    """Values with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): json_values(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
