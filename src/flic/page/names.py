"""Names on the page: their order, and their spelling in charts."""

import re
from collections.abc import Iterable


def plain(name: str, length: int = 28) -> str:
    """A name as plotly.js shows it: its pseudo-HTML switched off, and cut where it is long."""
    if len(name) > length:
        name = f"{name[: length // 2]}…{name[-(length // 2 - 1) :]}"
    return name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def distinct(names: Iterable[str]) -> list[str]:
    """Names without repetition, in the order of their first appearance."""
    return list(dict.fromkeys(names))


def in_order(names: Iterable[str]) -> list[str]:
    """Distinct names, sorted with the numbers in them as numbers: 10 comes after 9."""
    parted = {name: re.split(r"(\d+)", name) for name in names}
    key = {name: [int(p) if i % 2 else p for i, p in enumerate(ps)] for name, ps in parted.items()}
    return sorted(key, key=key.__getitem__)
