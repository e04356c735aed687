"""Charts of the latent space: the rows of clients, and their distances to the anchors."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flic.page import marks
from flic.page.charts import FEW, HOVER, Chart
from flic.page.contents import Group
from flic.page.figures import number
from flic.page.names import distinct, in_order, plain
from flic.runs.latent import AlignmentCell, Anchor, Latent, LatentPoint, SplitName

READABLE = 28  # most names on an axis
WRITTEN_CELLS = 120  # most cells of a heat map that shows its numbers
TALLEST = 560  # pixels of a chart
SPLITS: Mapping[SplitName, str] = {"train": "Training rows", "test": "Test rows"}


def splits(found: Sequence[LatentPoint] | Sequence[AlignmentCell]) -> dict[SplitName, str]:
    """Titles of the splits, training rows first."""
    own = {one.split for one in found}
    return {split: title for split, title in SPLITS.items() if split in own}


# ---- rows --------------------------------------------------------------------------------


def class_marks(view: Latent) -> dict[str, marks.Swatch]:
    """Classes of the view, in the order of their colours."""
    labels = in_order([a.label for a in view.anchors] + [p.label for p in view.points])
    return {label: marks.class_swatch(number) for number, label in enumerate(labels)}


def client_marks(view: Latent) -> dict[str, marks.Swatch]:
    """Clients of the view, in the order of their shapes."""
    clients = distinct(p.client for p in view.points)
    return {client: marks.client_swatch(number) for number, client in enumerate(clients)}


def latent(view: Latent, group: Group) -> Chart:
    """Rows in the colour of their class and the shape of their client; anchors as stars."""
    labels = {label: number for number, label in enumerate(class_marks(view))}
    clients = {client: number for number, client in enumerate(client_marks(view))}
    which = splits(view.points)
    first, *_ = which
    rows: dict[tuple[SplitName, str], list[LatentPoint]] = {
        (split, label): [] for split in which for label in labels
    }
    for point in view.points:
        rows[point.split, point.label].append(point)
    data = [
        _cloud(own, group, labels[label], clients) | {"visible": split == first}
        for (split, label), own in rows.items()
        if own
    ]
    data += [_star(anchor, group, labels[anchor.label]) for anchor in view.anchors]
    axis = {"showticklabels": False, "showgrid": False, "showline": True}
    axis |= {"mirror": True, "ticks": ""}
    same_scale = {"scaleanchor": "x", "scaleratio": 1}
    layout = {"height": TALLEST, "xaxis": axis, "yaxis": axis | same_scale, "margin": {"b": 12}}
    return {"data": data, "layout": layout}


def _cloud(
    own: Sequence[LatentPoint], group: Group, label: int, clients: Mapping[str, int]
) -> dict[str, Any]:
    """Rows of one split and of the class at position `label`."""
    filling = marks.fill(label)
    marker = {
        "color": marks.colour(label),
        "symbol": [marks.shape(clients[p.client]) + filling for p in own],
        "size": 7,
        "line": {"width": 1.2 if "open" in filling else 0.4},
    }
    texts = [f"{plain(p.client, 60)}<br>{group} {plain(p.label, 60)}" for p in own]
    seen = {"customdata": [clients[p.client] for p in own]}
    return _scatter(own, texts, marker) | seen | {"meta": {"split": own[0].split, "label": label}}


def _star(anchor: Anchor, group: Group, label: int) -> dict[str, Any]:
    marker = {
        "color": marks.colour(label),
        "symbol": marks.star(label),
        "size": 18,
        "line": {"width": 1.6},
    }
    text = f"anchor of {group} {plain(anchor.label, 60)}"
    return _scatter([anchor], [text], marker) | {"meta": {"anchor": True, "label": label}}


def _scatter(
    own: Sequence[LatentPoint] | Sequence[Anchor], texts: Sequence[str], marker: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [_short(p.x) for p in own],
        "y": [_short(p.y) for p in own],
        "text": texts,
        "hovertemplate": HOVER,
        "marker": marker,
    }


def _short(value: float) -> float:
    """The value with enough figures for a screen, to keep the page small."""
    return float(f"{value:.4g}")


# ---- distances ---------------------------------------------------------------------------


def alignment(cells: Sequence[AlignmentCell], group: Group) -> Chart:
    """W₂² per client and class, a heat map for each split on one logarithmic colour scale."""
    clients, labels = distinct(c.client for c in cells), in_order(c.label for c in cells)
    which = splits(cells)
    first, *_ = which
    look = _colour_scale([c.w2sq for c in cells]) | {"xgap": 1}
    look |= {"ygap": 1 if len(clients) <= FEW else 0}
    if len(clients) * len(labels) <= WRITTEN_CELLS:
        look |= {"texttemplate": "%{text}"}
    data = []
    for split in which:
        found = {(c.client, c.label): c for c in cells if c.split == split}
        grid = [[found.get((client, label)) for label in labels] for client in clients]
        shown = {"visible": split == first, "meta": {"split": split}}
        data.append(_map(grid, group, floor=look["zmin"]) | shown | look)
    layout = {
        "height": min(TALLEST, 120 + 30 * len(clients)),
        "xaxis": {"title": {"text": group}, "showgrid": False} | _names(labels),
        "yaxis": {"autorange": "reversed", "showgrid": False} | _names(clients),
    }
    return {"data": data, "layout": layout}


def _map(
    grid: Sequence[Sequence[AlignmentCell | None]], group: Group, *, floor: float
) -> dict[str, Any]:
    """Cells in rows of clients and columns of classes; None leaves a gap."""
    return {
        "type": "heatmap",
        "x": list(range(len(grid[0]))),
        "y": list(range(len(grid))),
        "z": [[None if c is None else _log(c.w2sq, floor) for c in row] for row in grid],
        "text": [["" if c is None else number(c.w2sq) for c in row] for row in grid],
        "customdata": [["" if c is None else _cell_text(c, group) for c in row] for row in grid],
        "hovertemplate": "%{customdata}<extra></extra>",
        "hoverongaps": False,
    }


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
    if cell.low is None:
        return f"{found}, no interval"
    return f"{found} [{number(cell.low)}, {number(cell.high)}]"


def _names(names: Sequence[str]) -> dict[str, Any]:
    """Ticks with names, as many as can be read."""
    every = -(-len(names) // READABLE)
    shown = list(range(0, len(names), every))
    return {"tickvals": shown, "ticktext": [plain(names[i], 20) for i in shown], "zeroline": False}
