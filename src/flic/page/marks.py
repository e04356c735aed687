"""Colours of classes and shapes of clients, for the latent view and its legend.

Colours are those of Okabe and Ito, which colour-blind people can distinguish. With more than eight
classes they repeat as open, dotted and open dotted marks.
"""

from typing import NamedTuple

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#7F7F7F",  # for black, which is invisible on a dark page
    "#F0E442",
)
FILLS = ("", "-open", "-dot", "-open-dot")
STARS = ("star", "hexagram", "star-square", "star-diamond")  # filled, to stand out from rows

# Plotly's names, and the same shapes in a box of 16 × 16 for the legend.
SHAPES = {
    "circle": "M8 2a6 6 0 1 0 .01 0Z",
    "square": "M3 3h10v10H3Z",
    "diamond": "M8 1l6 7-6 7-6-7Z",
    "triangle-up": "M8 2l7 12H1Z",
    "cross": "M6 2h4v4h4v4h-4v4H6v-4H2V6h4Z",
    "triangle-down": "M8 14L1 2h14Z",
    "x": "M4 1l4 4 4-4 3 3-4 4 4 4-3 3-4-4-4 4-3-3 4-4-4-4Z",
    "pentagon": "M8 1l7 5-2.7 8.5H3.7L1 6Z",
}


def colour(number: int) -> str:
    """Colour of the class at that position."""
    return COLOURS[number % len(COLOURS)]


def fill(number: int) -> str:
    """Ending of a mark's name for the class at that position."""
    return FILLS[number // len(COLOURS) % len(FILLS)]


def star(number: int) -> str:
    """Plotly's name of the mark for the anchor of the class at that position."""
    return STARS[number // len(COLOURS) % len(STARS)]


def shape(number: int) -> str:
    """Plotly's name of the shape of the client at that position."""
    return tuple(SHAPES)[number % len(SHAPES)]


class Swatch(NamedTuple):
    """A mark in the legend: its path, and the colours of its inside, its edge and its spot."""

    path: str
    fill: str
    stroke: str
    spot: str | None


def class_swatch(number: int) -> Swatch:
    """The mark of the class at that position."""
    paint, filling = colour(number), fill(number)
    is_open = "open" in filling
    spot = (paint if is_open else "currentColor") if "dot" in filling else None
    return Swatch(SHAPES["circle"], "none" if is_open else paint, paint, spot)


def client_swatch(number: int) -> Swatch:
    """The mark of the client at that position."""
    return Swatch(SHAPES[shape(number)], "currentColor", "currentColor", None)
