"""Studies that draw accuracy against one setting, a panel per data set and a curve per arm."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, ClassVar

from flic_paper.arms import Arm, Changes
from flic_paper.federations import FederationStudy, StudiedFederation, percent, seconds
from flic_paper.study import WHICH, Results, Scope, Table, Value, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Point:
    """Position of a federation in the figure."""

    panel: str
    x: float


class SweepStudy(FederationStudy):
    """Accuracy at the last round, at the round that validation chooses, and at the best round.

    The best round is that of the test rows, so no one can choose it. The paper takes the last
    round, and shows the best one beside it in fig:participation alone.
    """

    setting: ClassVar[str]  # the setting on the horizontal axis
    in_words: ClassVar[str]  # the paper's description of its figure, which has no numbers
    is_logarithmic: ClassVar[bool] = False
    measures: ClassVar[Sequence[str]] = ("last",)  # rounds of the paper's figure: a row each

    def point(self, federation: StudiedFederation) -> Point:
        """Point of a federation, which is named panel/x."""
        panel, _, x = federation.name.rpartition("/")
        return Point(panel, int(x) if x.isdigit() else float(x))

    def federations_of(self, scope: Scope) -> Sequence[StudiedFederation]:
        """Federations of that scope; a quick one has the first panel's first and last point."""
        if not scope.quick:
            return self.federations
        panel = self.point(self.federations[0]).panel
        of_panel = [f for f in self.federations if self.point(f).panel == panel]
        return [of_panel[0], of_panel[-1]]

    def tables(self, results: Results, scope: Scope) -> Sequence[Table]:
        columns = ["data", self.setting, "arm", WHICH, "last round %", "spread"]
        columns += ["chosen round %", "best round %", "wall s", "CPU s"]
        rows: list[Sequence[Value]] = []
        for federation in self.federations_of(scope):
            for arm in self.arms_of(scope):
                cells = self.results_of(results, federation, arm, scope)
                if cells:
                    rows.append(self._row(federation, arm, cells))
        note = "Chosen round: by validation. Best round: by the test rows, so no one can choose it."
        note += " Wall s and CPU s: of one run. The paper has a figure only, of the "
        note += f"{' and the '.join(self.measures)} round; {self.in_words}"
        return [Table(self.name, self.title, columns, rows, note, self._brief(results, scope))]

    def _brief(self, results: Results, scope: Scope) -> Table:
        """Last round, and its spread over seeds: a row per curve, a column per value."""
        points = [self.point(federation) for federation in self.federations_of(scope)]
        values = sorted({point.x for point in points})
        rows: list[Sequence[Value]] = []
        for panel in dict.fromkeys(point.panel for point in points):
            for arm in self.arms_of(scope):
                found = {
                    self.point(federation).x: _with_spread(cells.values())
                    for federation in self.federations_of(scope)
                    if self.point(federation).panel == panel
                    for cells in [self.results_of(results, federation, arm, scope)]
                    if cells
                }
                if found:
                    rows.append([panel, arm.name, *map(found.get, values)])
        columns = ["data", "arm", *(f"{self.setting} {x:g}" for x in values)]
        return Table(self.name, self.title, columns, rows)

    def _row(
        self, federation: StudiedFederation, arm: Arm, by_seed: Mapping[int, Mapping[str, Any]]
    ) -> list[Value]:
        point, cells = self.point(federation), by_seed.values()
        last = [means(cell)["last"] for cell in cells]
        return [
            point.panel,
            point.x,
            arm.name,
            listed(by_seed),
            percent(fmean(last)),
            percent(stdev(last)) if len(last) > 1 else None,
            percent(fmean(means(cell)["chosen"] for cell in cells)),
            percent(fmean(means(cell)["best"] for cell in cells)),
            *seconds(cells),
        ]

    def figures(self, results: Results, scope: Scope) -> Mapping[str, "Figure"]:
        from matplotlib.figure import Figure

        done = [
            federation
            for federation in self.federations_of(scope)
            if any(self.results_of(results, federation, arm, scope) for arm in self.arms_of(scope))
        ]
        if not done:
            return {}
        panels = list(dict.fromkeys(self.point(federation).panel for federation in done))
        size = (4 * len(panels), 1 + 2.8 * len(self.measures))
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(self.measures), len(panels), squeeze=False)
        for line, measure in zip(grid, self.measures, strict=True):
            for axes, panel in zip(line, panels, strict=True):
                self._draw(axes, panel, measure, results, scope)
        figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        return {self.name: figure}

    def _draw(self, axes: "Axes", panel: str, measure: str, results: Results, scope: Scope) -> None:
        """Curves of one panel; bars are the standard deviation over seeds."""
        for arm in self.arms_of(scope):
            found = [
                (self.point(federation).x, [100 * means(cell)[measure] for cell in cells.values()])
                for federation in self.federations_of(scope)
                if self.point(federation).panel == panel
                for cells in [self.results_of(results, federation, arm, scope)]
                if cells
            ]
            spread = [stdev(values) if len(values) > 1 else 0.0 for _, values in found]
            heights = [fmean(values) for _, values in found]
            axes.errorbar([x for x, _ in found], heights, yerr=spread, marker="o", label=arm.name)
        axes.set_title(f"{panel}, {measure} round")
        axes.set_xlabel(self.setting)
        axes.set_ylabel("accuracy %")
        if self.is_logarithmic:
            axes.set_xscale("log")


# The data sets of the appendix's sweeps, and their experiments.
SETS = {
    "noisy-features": "toy-noisy-features",
    "linear-mapping": "toy-linear-mapping",
    "modalities": "modalities-100x3",
}


def along(
    values: Sequence[float], changes: Callable[[float], Changes], *, seeds: int
) -> tuple[StudiedFederation, ...]:
    """A federation for each of the three sets and each value of the setting."""
    return tuple(
        StudiedFederation(f"{panel}/{value}", experiment, seeds, changes(value))
        for panel, experiment in SETS.items()
        for value in values
    )


def _with_spread(cells: Collection[Mapping[str, Any]]) -> str:
    last = [100 * means(cell)["last"] for cell in cells]
    return f"{fmean(last):.1f}" + (f" ± {stdev(last):.1f}" if len(last) > 1 else "")


def means(cell: Mapping[str, Any]) -> dict[str, float]:
    """Mean accuracy over clients at the last, the chosen and the best round of a run."""
    chosen = cell["chosen"] or cell["last"]
    return {
        "last": fmean(cell["last"]["clients"].values()),
        "chosen": fmean(chosen["clients"].values()),
        "best": max(cell["test"]),
    }
