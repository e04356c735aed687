"""Colours of classes and shapes of clients, for the latent view and its legend.

Colours are those of Okabe and Ito, told apart by colour-blind people; with more than eight classes
they come again as open, dotted and open dotted marks.
"""

from flic.page.markup import Markup, el

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#7F7F7F",  # for black, which a dark page would swallow
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


def colour(place: int) -> str:
    """Colour of the class at that place."""
    return COLOURS[place % len(COLOURS)]


def fill(place: int) -> str:
    """What a mark's name ends with for the class at that place."""
    return FILLS[place // len(COLOURS) % len(FILLS)]


def star(place: int) -> str:
    """Plotly's name of the anchor of the class at that place."""
    return STARS[place // len(COLOURS) % len(STARS)]


def shape(place: int) -> str:
    """Plotly's name of the shape of the client at that place."""
    return tuple(SHAPES)[place % len(SHAPES)]


def class_swatch(place: int) -> Markup:
    """The mark of a class in the legend."""
    return _icon(SHAPES["circle"], colour(place), fill(place))


def client_swatch(place: int) -> Markup:
    """The mark of a client in the legend."""
    return _icon(SHAPES[shape(place)], "currentColor", "")


def _icon(path: str, paint: str, filling: str) -> Markup:
    inner = "none" if "open" in filling else paint
    drawn = [el("path", d=path, fill=inner, stroke=paint, stroke_width=1.5)]
    if "dot" in filling:
        spot = paint if "open" in filling else "currentColor"
        drawn.append(el("circle", cx=8, cy=8, r=2, fill=spot))
    return el("svg", *drawn, viewBox="0 0 16 16", aria_hidden="true", class_="swatch")
