"""Classes in the latent space after 10, 50 and 100 epochs of pre-training.

Paper: fig:tsne-toy and fig:tsne-toybig. Besides the picture, the mean W₂² between a client's class
and its anchor gives the same in a number, for training rows and for test rows.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from flic.config import resolve
from flic.data.client_data import Split
from flic.data.stacked import StackedRows
from flic.engine.engine import Engine, Job
from flic.gaussians import Gaussian, wasserstein2_sq
from flic.methods.flic.anchors import mean_name
from flic.notation import counted
from flic.runs.loaded import data_of
from flic_paper.study import WHICH, Cell, CellContext, Results, Scope, Study, Table, Value, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_EPOCHS = (10, 50, 100)
_CLIENTS, _CLASSES = 3, 5
_PARTS = ("train", "test")
_MARKERS = "osD"  # one per client


def _embed(epochs: int, seed: int, rows: int, context: CellContext) -> dict[str, Any]:
    """Projected rows and anchors, and the distances of classes from their anchors."""
    from sklearn.manifold import TSNE

    context.tell(f"{counted(epochs, 'epoch')}, seed {seed}")
    engine = _engine(epochs, seed)
    server = engine.method.init_server()
    names = tuple(engine.clients.split(engine.clients.names, stack_width=_CLIENTS)[0])
    states = engine.do(Job("prepare", server, names, [None] * _CLIENTS)).states
    anchors = torch.stack([server.shared[mean_name(c)] for c in range(_CLASSES)])
    points, distances = [], {}
    for part in _PARTS:
        splits = [getattr(engine.clients[name], part) for name in names]
        latent = _latent(engine, names, [states[name] for name in names], splits)
        distances[part] = _mean_distance(latent, splits, anchors)
        for i, (z, split) in enumerate(zip(latent, splits, strict=True)):
            # Rows are sorted by class, so evenly spaced ones show every class.
            shown = torch.linspace(0, len(z) - 1, min(rows, len(z))).long()
            points += [(part, i, int(split.y[j]), z[j]) for j in shown]
    flat = torch.stack([row for *_, row in points] + list(anchors)).numpy()
    drawn = TSNE(random_state=seed, init="pca").fit_transform(flat).round(2).tolist()
    return {
        "points": [[*point[:3], *xy] for point, xy in zip(points, drawn, strict=False)],
        "anchors": drawn[len(points) :],
        "distances": distances,
    }


def _engine(epochs: int, seed: int) -> Engine:
    """Three clients of "linear mapping", three of five classes each."""
    data = {"problem": "linear-mapping", "variant": "appendix", "num_clients": _CLIENTS}
    data |= {"num_classes": _CLASSES, "train_rows_per_class": 200, "test_rows_per_class": 200}
    config = resolve({"data": data, "pretraining": {"epochs": epochs}, "seed": seed})
    return Engine.of("flic-class", config, data_of(config), seed=seed)


def _latent(
    engine: Engine, names: Sequence[str], states: Sequence[Any], splits: Sequence[Split]
) -> list[Tensor]:
    """φ_i of each client's rows."""
    stack = engine.clients.stack(names, states)
    rows = StackedRows.of(splits, width=stack.embedding.dim, dtype=torch.float32)
    with torch.no_grad():
        latent = stack.embedding.apply(stack.private, rows.x)
    return [latent[i, :count] for i, count in enumerate(rows.counts)]


def _mean_distance(latent: Sequence[Tensor], splits: Sequence[Split], anchors: Tensor) -> float:
    """Mean over clients and classes of W₂²(μ_c, ν_φi^(c))."""
    found = []
    for z, split in zip(latent, splits, strict=True):
        for c in split.y.unique().tolist():
            own = Gaussian.from_samples(z[split.y == c].double())
            found.append(wasserstein2_sq(own, Gaussian.isotropic(anchors[c].double())).item())
    return fmean(found)


class Tsne(Study):
    """Classes × clients × anchors, at three lengths of pre-training."""

    name = "tsne"
    title = "t-SNE of classes, clients and anchors, linear mapping"
    paper = "fig:tsne-toy, fig:tsne-toybig"

    def cells(self, scope: Scope) -> Sequence[Cell]:
        rows = 30 if scope.quick else 200
        return [
            Cell(_key(epochs, seed), partial(_embed, epochs, seed, rows))
            for seed in scope.seeds_or(5)
            for epochs in _EPOCHS
        ]

    def tables(self, results: Results, scope: Scope) -> Sequence[Table]:
        columns = ["epochs", WHICH, "W₂² of training rows", "spread"]
        columns += ["W₂² of test rows", "spread of test rows"]
        rows: list[Sequence[Value]] = []
        for epochs in _EPOCHS:
            seeds = [seed for seed in scope.seeds_or(5) if _key(epochs, seed) in results]
            if seeds:
                cells = [results[_key(epochs, seed)] for seed in seeds]
                rows.append([epochs, listed(seeds), *_figures(cells)])
        title = "Mean W₂² between a client's class and its anchor"
        return [Table(self.name, title, columns, rows)]

    def figures(self, results: Results, scope: Scope) -> Mapping[str, "Figure"]:
        from matplotlib.figure import Figure

        seed = scope.seeds_or(5)[0]
        figure = Figure(figsize=(12, 8.5), layout="constrained")
        for column, epochs in enumerate(_EPOCHS):
            cell = results.get(_key(epochs, seed))
            for line, part in enumerate(_PARTS):
                axes = figure.add_subplot(2, 3, 1 + column + 3 * line)
                if cell is not None:
                    _draw(axes, cell, {"train"} if part == "train" else {"train", "test"})
                shown = "training rows" if part == "train" else "training rows, pale: test rows"
                axes.set_title(f"{counted(epochs, 'epoch')}, {shown}")
        figure.legend(handles=_legend(), loc="outside lower center", ncols=_CLASSES)
        return {self.name: figure}


def _figures(cells: Sequence[Mapping[str, Any]]) -> list[Value]:
    shown: list[Value] = []
    for part in _PARTS:
        values = [cell["distances"][part] for cell in cells]
        shown += [round(fmean(values), 1), round(stdev(values), 1) if len(values) > 1 else None]
    return shown


def _colours() -> Sequence[tuple[float, float, float]]:
    """A colour for each class."""
    from matplotlib import colormaps

    return colormaps["tab10"].colors  # pyright: ignore[reportAttributeAccessIssue]


def _legend() -> list["Line2D"]:
    """Legend of colours, markers and stars."""
    from matplotlib.lines import Line2D

    looks = {f"class {c}": {"marker": "s", "color": _colours()[c]} for c in range(_CLASSES)}
    looks |= {f"client {i}": {"marker": m, "color": "0.5"} for i, m in enumerate(_MARKERS)}
    looks["anchor"] = {"marker": "*", "color": "white", "markeredgecolor": "black", "ms": 14}
    return [Line2D([], [], linestyle="", label=label, **look) for label, look in looks.items()]


def _draw(axes: "Axes", cell: Mapping[str, Any], parts: set[str]) -> None:
    """Rows in the colour of their class and with the marker of their client; anchors as stars."""
    colours = _colours()
    groups: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
    for part, client, label, x, y in cell["points"]:
        if part in parts:
            groups.setdefault((part, client, label), []).append((x, y))
    for (part, client, label), rows in groups.items():
        alpha = 0.3 if part == "test" else 0.9
        style = {"color": colours[label], "marker": _MARKERS[client], "alpha": alpha, "s": 12}
        axes.scatter(*np.array(rows).T, linewidths=0, **style)
    for label, xy in enumerate(cell["anchors"]):
        axes.scatter(*xy, marker="*", s=260, color=colours[label], edgecolors="black")
    axes.set_xticks([])
    axes.set_yticks([])


def _key(epochs: int, seed: int) -> str:
    return f"{epochs}/seed{seed}"


STUDY = Tsne()
