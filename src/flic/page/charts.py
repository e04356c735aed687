"""Charts of the page, as the data and layout that plotly.js draws.

The page sets the colours of background, text and grid, since it may be dark or printed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flic.page import marks
from flic.page.contents import Gain, Gains, Measure, Report, Round
from flic.page.figures import difference, heading
from flic.page.names import distinct, plain

Chart = Mapping[str, Any]
"""`data` and `layout` as plotly.js takes them; the page's switches read a trace's `meta`."""

BLUE, VERMILLION, GREY = marks.COLOURS[0], marks.COLOURS[1], marks.COLOURS[6]
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
FEW = 40  # clients up to which each has a line of its own
HOVER = "%{text}<extra></extra>"


def scores(report: Report) -> Chart:
    """Mean scores over rounds."""
    scale = 100 if report.measure.percent else 1
    parts = {
        "held-out rows" if report.kind == "federation" else "test rows": [
            (r, r.test) for r in report.rounds
        ],
        "validation rows": [(r, r.validation) for r in report.rounds],
    }
    data = []
    for number, (name, pairs) in enumerate(parts.items()):
        known = [(r.number, scale * value) for r, value in pairs if value is not None]
        if known:
            data.append(_line(name, known, number))
    return {"data": data, "layout": _over_rounds(heading(report.measure))}


def losses(rounds: Sequence[Round]) -> Chart:
    """Loss terms over rounds, on a logarithmic axis where all are positive."""
    terms = distinct(term for r in rounds for term in r.losses)
    data = [
        _line(plain(term), [(r.number, r.losses[term]) for r in rounds if term in r.losses], number)
        for number, term in enumerate(terms)
    ]
    positive = all(value > 0 for r in rounds for value in r.losses.values())
    layout = _over_rounds("loss")
    layout["yaxis"] |= {"type": "log", "dtick": 1, "exponentformat": "power"} if positive else {}
    return {"data": data, "layout": layout}


def _line(name: str, pairs: Sequence[tuple[int, float]], number: int) -> dict[str, Any]:
    x, y = zip(*pairs, strict=True)
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(x) < 30 else "lines",
        "name": name,
        "x": x,
        "y": y,
        "line": {"color": marks.colour(number), "dash": DASHES[number % len(DASHES)], "width": 2},
        "marker": {"symbol": marks.shape(number), "size": 6},
        "hovertemplate": "%{y:.4g}",
    }


def _over_rounds(title: str) -> dict[str, Any]:
    return {
        "height": 320,
        "hovermode": "x unified",
        "xaxis": {"title": {"text": "round"}, "tickformat": "d"},
        "yaxis": {"title": {"text": title}},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "showlegend": True,
        "margin": {"t": 40},
    }


def gains(found: Gains, measure: Measure) -> Chart:
    """Gains with their intervals, the largest first; without names where there are many."""
    named = len(found.clients) <= FEW
    ordered = sorted(found.clients, key=lambda g: g.gain, reverse=not named)
    along, across = ("x", "y") if named else ("y", "x")
    ranks = list(range(1, len(ordered) + 1))
    scale = 100 if measure.percent else 1
    symbols, colours = zip(*map(_gain_mark, ordered), strict=True)
    trace = {
        "type": "scatter",
        "mode": "markers",
        along: [scale * g.gain for g in ordered],
        across: ranks,
        f"error_{along}": _error(ordered, scale),
        "marker": {"size": 11 if named else 6, "symbol": symbols, "color": colours},
        "text": [_gain_text(g, measure) for g in ordered],
        "hovertemplate": HOVER,
    }
    unit = ", percentage points" if measure.percent else ""
    value_axis = {"title": {"text": f"gain in {measure.name}{unit}"}, "zeroline": True}
    rank_axis = {"title": {"text": "clients, the largest gain first"}}
    layout = {
        "height": 24 * len(ordered) + 110 if named else 420,
        f"{along}axis": value_axis,
        f"{across}axis": _named_axis(ordered, ranks) if named else rank_axis,
    }
    return {"data": [trace], "layout": layout}


def _named_axis(ordered: Sequence[Gain], ranks: Sequence[int]) -> dict[str, Any]:
    return {
        "tickvals": ranks,
        "ticktext": [plain(g.client) for g in ordered],
        "showgrid": False,
        "range": [0.3, len(ordered) + 0.7],
    }


def _error(ordered: Sequence[Gain], scale: float) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [None if g.high is None else scale * (g.high - g.gain) for g in ordered],
        "arrayminus": [None if g.low is None else scale * (g.gain - g.low) for g in ordered],
        "thickness": 1.2,
        "width": 0,
        "color": GREY,
    }


def _gain_mark(gain: Gain) -> tuple[str, str]:
    """Symbol and colour: up, down, or neither where the interval holds zero."""
    if gain.low is not None and gain.low > 0:
        return "triangle-up", BLUE
    if gain.high is not None and gain.high < 0:
        return "triangle-down", VERMILLION
    return "circle", GREY


def _gain_text(gain: Gain, measure: Measure) -> str:
    text = f"{plain(gain.client, 60)}<br>{difference(gain.gain, measure)}"
    if gain.low is None or gain.high is None:
        return text
    return f"{text} [{difference(gain.low, measure)}, {difference(gain.high, measure)}]"
