"""Charts of the page, as the data and layout that plotly.js draws.

Colours of paper, ink and grid are left to the page, which knows whether it is dark or printed.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flic.page import marks
from flic.page.contents import Gain, Gains, Group, Measure, Report, Round
from flic.page.figures import difference, heading, number
from flic.runs.latent import AlignmentCell, Latent, Split

Chart = Mapping[str, Any]
"""`data` and `layout` as plotly.js takes them; a trace's `meta` holds what the switches go by."""

BLUE, VERMILLION, GREY = marks.COLOURS[0], marks.COLOURS[1], marks.COLOURS[6]
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
NAMED_GAINS = 40  # clients up to which every gain has a line and a name of its own
READABLE = 28  # names that an axis has room for
WRITTEN_CELLS = 120  # cells up to which a heat map has its numbers written in
TALLEST = 560  # pixels of a heat map


def plain(name: str, length: int = 28) -> str:
    """A name as plotly.js shows it: its pseudo-HTML switched off, and cut where it is long."""
    if len(name) > length:
        name = f"{name[: length // 2]}…{name[-(length // 2 - 1) :]}"
    return name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def distinct(values: Iterable[str]) -> list[str]:
    """Values in the order in which they first come."""
    return list(dict.fromkeys(values))


def in_order(names: Iterable[str]) -> list[str]:
    """Distinct names with the numbers in them in their order, so that 10 comes after 9."""
    parted = {name: re.split(r"(\d+)", name) for name in names}
    key = {name: [int(p) if i % 2 else p for i, p in enumerate(ps)] for name, ps in parted.items()}
    return sorted(key, key=key.__getitem__)


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
    for place, (name, pairs) in enumerate(parts.items()):
        known = [(r.number, scale * value) for r, value in pairs if value is not None]
        if known:
            data.append(_line(name, known, place))
    return {"data": data, "layout": _over_rounds(heading(report.measure))}


def losses(rounds: Sequence[Round]) -> Chart:
    """Loss terms over rounds, on a logarithmic axis where all are positive."""
    terms = distinct(term for r in rounds for term in r.losses)
    data = [
        _line(plain(term), [(r.number, r.losses[term]) for r in rounds if term in r.losses], place)
        for place, term in enumerate(terms)
    ]
    positive = all(value > 0 for r in rounds for value in r.losses.values())
    layout = _over_rounds("loss")
    layout["yaxis"] |= {"type": "log", "dtick": 1, "exponentformat": "power"} if positive else {}
    return {"data": data, "layout": layout}


def _line(name: str, pairs: Sequence[tuple[int, float]], place: int) -> dict[str, Any]:
    x, y = zip(*pairs, strict=True)
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(x) < 30 else "lines",
        "name": name,
        "x": x,
        "y": y,
        "line": {"color": marks.colour(place), "dash": DASHES[place % len(DASHES)], "width": 2},
        "marker": {"symbol": marks.shape(place), "size": 6},
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
    named = len(found.clients) <= NAMED_GAINS
    ordered = sorted(found.clients, key=lambda g: g.gain, reverse=not named)
    scale = 100 if measure.percent else 1
    values = [scale * g.gain for g in ordered]
    ranks = list(range(1, len(ordered) + 1))
    along, across = ("x", "y") if named else ("y", "x")
    trace = {
        "type": "scatter",
        "mode": "markers",
        along: values,
        across: ranks,
        f"error_{along}": _error(ordered, scale),
        "marker": {
            "size": 11 if named else 6,
            "symbol": [_gain_mark(g)[0] for g in ordered],
            "color": [_gain_mark(g)[1] for g in ordered],
        },
        "text": [_gain_text(g, measure) for g in ordered],
        "hovertemplate": "%{text}<extra></extra>",
    }
    unit = ", percentage points" if measure.percent else ""
    value_axis = {"title": {"text": f"gain in {measure.name}{unit}"}, "zeroline": True}
    names = {"tickvals": ranks, "ticktext": [plain(g.client) for g in ordered], "showgrid": False}
    names |= {"range": [0.3, len(ordered) + 0.7]}
    rank_axis = names if named else {"title": {"text": "clients, the largest gain first"}}
    height = 24 * len(ordered) + 110 if named else 420
    layout = {"height": height, f"{along}axis": value_axis, f"{across}axis": rank_axis}
    return {"data": [trace], "layout": layout}


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


def latent_labels(latent: Latent) -> list[str]:
    """Classes of the view, in the order of their colours."""
    return in_order([a.label for a in latent.anchors] + [p.label for p in latent.points])


def latent_clients(latent: Latent) -> list[str]:
    """Clients of the view, in the order of their shapes."""
    return distinct(p.client for p in latent.points)


def latent(view: Latent, group: Group = "class") -> Chart:
    """Rows in the colour of their class and the shape of their client; anchors as stars."""
    labels, clients = latent_labels(view), latent_clients(view)
    place = {name: i for i, name in enumerate(clients)}
    first = splits(p.split for p in view.points)[:1]
    data = []
    for split in splits(p.split for p in view.points):
        for i, label in enumerate(labels):
            own = [p for p in view.points if p.split == split and p.label == label]
            if not own:
                continue
            trace = {
                "type": "scatter",
                "mode": "markers",
                "x": [_short(p.x) for p in own],
                "y": [_short(p.y) for p in own],
                "customdata": [place[p.client] for p in own],
                "text": [f"{plain(p.client, 60)}<br>{group} {plain(label, 60)}" for p in own],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {
                    "color": marks.colour(i),
                    "symbol": [marks.shape(place[p.client]) + marks.fill(i) for p in own],
                    "size": 7,
                    "line": {"width": 1.2 if "open" in marks.fill(i) else 0.4},
                },
                "visible": split in first,
                "meta": {"split": split, "label": i},
            }
            data.append(trace)
    data += [
        _star(a.x, a.y, labels.index(a.label), f"{group} {plain(a.label, 60)}")
        for a in view.anchors
    ]
    axis = {
        "showticklabels": False,
        "showgrid": False,
        "showline": True,
        "mirror": True,
        "ticks": "",
    }
    layout = {"height": 560, "xaxis": axis, "yaxis": axis | _SAME_SCALE, "margin": {"b": 12}}
    return {"data": data, "layout": layout}


_SAME_SCALE = {"scaleanchor": "x", "scaleratio": 1}


def _star(x: float, y: float, place: int, what: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [_short(x)],
        "y": [_short(y)],
        "text": [f"anchor of {what}"],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "color": marks.colour(place),
            "symbol": marks.star(place),
            "size": 18,
            "line": {"width": 1.6},
        },
        "meta": {"anchor": True, "label": place},
    }


def _short(value: float) -> float:
    """Enough figures for a screen, which keeps the page small."""
    return float(f"{value:.4g}")


def splits(found: Iterable[Split]) -> list[Split]:
    """The splits there are, training rows first."""
    return sorted(set(found), reverse=True)


def alignment(cells: Sequence[AlignmentCell], group: Group = "class") -> Chart:
    """W₂² per client and class, a map for each split on one logarithmic scale of colours."""
    clients, labels = distinct(c.client for c in cells), in_order(c.label for c in cells)
    which = splits(c.split for c in cells)
    scale = _colour_scale([c.w2sq for c in cells])
    floor = scale["zmin"]
    data = []
    for split in which:
        found = {(c.client, c.label): c for c in cells if c.split == split}
        grid = [[found.get((client, label)) for label in labels] for client in clients]
        trace = {
            "type": "heatmap",
            "x": list(range(len(labels))),
            "y": list(range(len(clients))),
            "z": [[None if c is None else _log(c.w2sq, floor) for c in row] for row in grid],
            "text": [["" if c is None else number(c.w2sq) for c in row] for row in grid],
            "customdata": [
                ["" if c is None else _cell_text(c, group) for c in row] for row in grid
            ],
            "hovertemplate": "%{customdata}<extra></extra>",
            "hoverongaps": False,
            "xgap": 1,
            "ygap": 1 if len(clients) <= NAMED_GAINS else 0,
            "visible": split == which[0],
            "meta": {"split": split},
        } | scale
        if len(clients) * len(labels) <= WRITTEN_CELLS:
            trace["texttemplate"] = "%{text}"
        data.append(trace)
    layout = {
        "height": min(TALLEST, 120 + 30 * len(clients)),
        "xaxis": {"title": {"text": group}, "showgrid": False} | _names(labels),
        "yaxis": {"autorange": "reversed", "showgrid": False} | _names(clients),
    }
    return {"data": data, "layout": layout}


def _colour_scale(values: Sequence[float]) -> dict[str, Any]:
    """Colours over the logarithms of the values, at most three decades of them."""
    highest = max(*values, 1e-12)
    low, high = math.log10(max(*(min(values), highest * 1e-3), 1e-15)), math.log10(highest)
    ticks = [low + (high - low) * i / 4 for i in range(5)] if high > low else [low]
    bar = {"title": {"text": "W₂²"}, "thickness": 12, "outlinewidth": 0}
    bar |= {"tickvals": ticks, "ticktext": [number(10**tick) for tick in ticks]}
    return {"zmin": low, "zmax": high, "colorscale": "Cividis", "colorbar": bar}


def _log(value: float, floor: float) -> float:
    return _short(max(math.log10(value), floor)) if value > 0 else floor


def _cell_text(cell: AlignmentCell, group: Group) -> str:
    where = f"{plain(cell.client, 60)}<br>{group} {plain(cell.label, 60)}"
    found = f"{where}<br>W₂² {number(cell.w2sq)}"
    return f"{found} [{interval(cell)}]" if cell.low is not None else f"{found}, no interval"


def interval(cell: AlignmentCell) -> str:
    """The ends of a cell's interval."""
    return f"{number(cell.low)}, {number(cell.high)}"


def _names(names: Sequence[str]) -> dict[str, Any]:
    """Ticks with names, as many as can be read."""
    every = -(-len(names) // READABLE)
    shown = list(range(0, len(names), every))
    return {"tickvals": shown, "ticktext": [plain(names[i], 20) for i in shown], "zeroline": False}
