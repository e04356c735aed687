"""Formats of numbers on the page: scores in their measure, signed differences, sizes."""

import math
import re

from flic.page.contents import Measure

UNKNOWN = "–"


def score(value: float | None, measure: Measure) -> str:
    """A score: per cent with one digit, or a number with three."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{100 * value:.1f}" if measure.percent else _minus(f"{value:.3f}")


def difference(value: float | None, measure: Measure) -> str:
    """A difference of scores, with its sign."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return _minus(f"{100 * value:+.1f}" if measure.percent else f"{value:+.3f}")


def heading(measure: Measure) -> str:
    """The measure with its unit."""
    return f"{measure.name}, %" if measure.percent else measure.name


def number(value: float | None) -> str:
    """A number with three figures."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return _minus(shown)


def size(num_bytes: int) -> str:
    """Bytes in the unit that keeps them short."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes} B"


def prose(text: str) -> str:
    """A sentence with its signed figures in the format of the page."""
    return _SIGNED.sub(lambda found: _minus(found[0]).replace("inf", "∞"), text)


# With a point: whole numbers may be values to be typed, such as codes of missing ones.
_SIGNED = re.compile(r"(?<![^\s(])[+-](\d+\.\d+|inf\b)")


def _minus(text: str) -> str:
    """A number with a true minus sign; one that rounds to zero has no sign."""
    return text.replace("-", "−") if text.strip("+-0.") else text.lstrip("+-")
