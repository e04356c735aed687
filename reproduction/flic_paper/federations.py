"""Studies that compare methods on federations: cells, and columns of their tables.

Every table has two scores. "Last round" is the arm at its own settings after the last round, as
the paper reports. "Tuned" is the arm at the round, and if the study searches also at the setting,
that the mean of the clients' validation scores chooses; gains are between tuned scores.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

from flic.runs.comparison import ComparedRun, Row, compare
from flic.settings import merge
from flic_paper.arms import Arm, Changes, configure
from flic_paper.study import WHICH, Cell, Results, Scope, Study, Table, Value, listed
from flic_paper.study_runs import outcome_of, run_cell, searched_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class StudiedFederation:
    """One federation of a study, and the paper's figures for it."""

    name: str
    experiment: str  # file under experiments/, without suffix
    seeds: int
    changes: Changes = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)  # arm → accuracy in %
    arms: Collection[str] = ()  # names of its arms; empty: all of the study


class FederationStudy(Study):
    """Arms × federations × seeds."""

    federations: ClassVar[Sequence[StudiedFederation]]
    arms: ClassVar[Sequence[Arm]]
    quick_arms: ClassVar[Sequence[str]] = ("local", "lda", "flic-class")
    quick: ClassVar[Changes]  # changes that shorten a run to seconds
    searches: ClassVar[bool] = False  # whether settings are searched, besides the round
    reported: ClassVar[str] = "paper %"  # heading of the figures of `StudiedFederation.paper`
    clients_repeat: ClassVar[bool] = False  # whether seeds have the same clients with the same rows
    spaces: ClassVar[Sequence[str]] = ()  # first parts of clients' names, each with a column
    on_page: ClassVar[Collection[str]] = ()  # arms of the table in brief; empty: all

    def cells(self, scope: Scope) -> Sequence[Cell]:
        """Cells seed by seed, so that an interruption leaves whole seeds."""
        most = max(len(self.seeds(federation, scope)) for federation in self.federations)
        return [
            self._cell(federation, arm, seeds[i], scope)
            for i in range(most)
            for arm in self.arms_of(scope)
            for federation in self.federations_of(scope)
            for seeds in [self.seeds(federation, scope)]
            if i < len(seeds) and (not federation.arms or arm.name in federation.arms)
        ]

    def arms_of(self, scope: Scope) -> Sequence[Arm]:
        """Arms of that scope."""
        return [arm for arm in self.arms if not scope.quick or arm.name in self.quick_arms]

    def federations_of(self, scope: Scope) -> Sequence[StudiedFederation]:
        """Federations of that scope; a quick one has only the first and the last."""
        all_of_them = list(self.federations)
        return all_of_them[:: max(1, len(all_of_them) - 1)] if scope.quick else all_of_them

    def seeds(self, federation: StudiedFederation, scope: Scope) -> tuple[int, ...]:
        """Seeds of a federation."""
        return scope.seeds_or(federation.seeds)

    def _cell(self, federation: StudiedFederation, arm: Arm, seed: int, scope: Scope) -> Cell:
        key = _key(federation, arm, seed)
        changes = merge(federation.changes, self.quick) if scope.quick else federation.changes
        if self.searches and not scope.quick:
            return searched_cell(key, federation.experiment, arm, seed, changes)
        return run_cell(key, configure(federation.experiment, arm, seed, changes))

    def results_of(
        self, results: Results, federation: StudiedFederation, arm: Arm, scope: Scope
    ) -> dict[int, Mapping[str, Any]]:
        """Finished cells of an arm by seed."""
        keys = {seed: _key(federation, arm, seed) for seed in self.seeds(federation, scope)}
        return {seed: results[key] for seed, key in keys.items() if key in results}

    def rows_of(
        self, results: Results, federation: StudiedFederation, scope: Scope, *, tuned: bool
    ) -> dict[str, Row]:
        """A row per arm that has finished cells."""
        ran = [
            ComparedRun(
                arm.name, seed, outcome_of(cell, tuned=tuned), cell["seconds"], cell["bytes_sent"]
            )
            for arm in self.arms_of(scope)
            for seed, cell in self.results_of(results, federation, arm, scope).items()
        ]
        by_reference = {
            reference: {
                row.method: row
                for row in compare(ran, reference=reference, clients_repeat=self.clients_repeat)
            }
            for reference in {arm.reference for arm in self.arms_of(scope)}
        }
        return {
            arm.name: by_reference[arm.reference][arm.name]
            for arm in self.arms_of(scope)
            if arm.name in by_reference[arm.reference]
        }

    def tables(self, results: Results, scope: Scope) -> Sequence[Table]:
        rows = [
            line
            for federation in self.federations_of(scope)
            for line in self._lines(results, federation, scope)
        ]
        table = Table(self.name, self.title, self._columns, rows, self._note(results, scope))
        parts = ["weighted %", *self._by_space] if self.spaces else []
        shown = {"federation", "arm", self.reported, *_IN_BRIEF, *parts}
        return [table.cut(shown, lambda row: not self.on_page or row["arm"] in self.on_page)]

    @property
    def _columns(self) -> list[str]:
        return ["federation", "arm", self.reported, *_FIGURES, "weighted %", *self._by_space]

    @property
    def _by_space(self) -> list[str]:
        return [f"{space} %" for space in self.spaces]

    def _lines(
        self, results: Results, federation: StudiedFederation, scope: Scope
    ) -> list[Sequence[Value]]:
        last = self.rows_of(results, federation, scope, tuned=False)
        tuned = self.rows_of(results, federation, scope, tuned=True)
        lines = []
        for arm in self.arms_of(scope):
            if arm.name in last:
                cells = self.results_of(results, federation, arm, scope)
                line = _line(federation, last[arm.name], tuned[arm.name], cells)
                lines.append([*line, *self._parts(cells)])
        return lines

    def _parts(self, cells: Mapping[int, Mapping[str, Any]]) -> list[Value]:
        """Last round over all test rows together, and the mean over clients of each space."""
        scores = [outcome_of(cell, tuned=False).last for cell in cells.values()]
        found: list[Value] = [percent(fmean(own.weighted for own in scores))]
        for space in self.spaces:
            members = [
                value
                for own in scores
                for name, value in own.clients.items()
                if name.startswith(f"{space}-")
            ]
            found.append(percent(fmean(members)) if members else None)
        return found

    def _note(self, results: Results, scope: Scope) -> str:
        ceilings = {
            federation.name: [
                cell["ceiling"]
                for arm in self.arms_of(scope)
                for cell in self.results_of(results, federation, arm, scope).values()
                if cell["ceiling"] is not None
            ]
            for federation in self.federations_of(scope)
        }
        known = [f"{name} {100 * fmean(c):.1f}" for name, c in ceilings.items() if c]
        searched = self.searches and not scope.quick
        over = (
            "clients, whose gains are averaged over seeds"
            if self.clients_repeat
            else "seeds × clients"
        )
        note = (
            f"Tuned: {'learning rate (or penalty) and ' if searched else 'the '}round by the mean "
            "of the clients' validation scores, per seed. Gain: tuned, over "
            f"{self._reference(scope)}, paired; ± is its 95 % interval over {over}."
        )
        if self.spaces:
            note += " Weighted: last round, all test rows together, as the authors' program scores."
        return note + (f" Bayes accuracy: {', '.join(known)}." if known else "")

    def _reference(self, scope: Scope) -> str:
        first = self.arms_of(scope)[0].reference
        several = any(arm.reference != first for arm in self.arms_of(scope))
        return f"`{first}` tuned" + (", of @ arms over `local` at that preset" if several else "")

    def figures(self, results: Results, scope: Scope) -> Mapping[str, "Figure"]:
        """Gains over `local` with their intervals, a panel per federation."""
        from matplotlib.figure import Figure

        shown = [
            (federation, rows)
            for federation in self.federations_of(scope)
            for rows in [self.rows_of(results, federation, scope, tuned=True)]
            if any(row.gain is not None for row in rows.values())
        ]
        if not shown:
            return {}
        figure = Figure(figsize=(1 + 3.2 * len(shown), 4.2), layout="constrained")
        order = [arm.name for arm in self.arms_of(scope) if arm.name != arm.reference]
        panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
        for axes, (federation, rows) in zip(panels, shown, strict=True):
            known = [rows[name] for name in order if name in rows and rows[name].gain is not None]
            axes.errorbar(
                [100 * (row.gain or 0) for row in known],
                [order.index(row.method) for row in known],
                xerr=[100 * (row.gain_interval or 0) for row in known],
                fmt="o",
                markersize=4,
            )
            axes.axvline(0, color="0.7", linewidth=0.8)
            axes.set_title(federation.name)
            axes.set_xlabel("points over its local, tuned")
        panels[0].set_yticks(range(len(order)), labels=order)
        panels[0].invert_yaxis()
        return {self.name: figure}


_IN_BRIEF = (WHICH, "last round %", "spread", "tuned %", "gain over local", "±")
_FIGURES = (
    WHICH,
    "last round %",
    "spread",
    "tuned %",
    "worst decile %",
    "gain over local",
    "±",
    "clients that gain %",
    "wall s",
    "CPU s",
    "MB sent",
)


def _key(federation: StudiedFederation, arm: Arm, seed: int) -> str:
    return f"{federation.name}/{arm.name}/seed{seed}"


def _line(
    federation: StudiedFederation, last: Row, tuned: Row, cells: Mapping[int, Mapping[str, Any]]
) -> list[Value]:
    compared = tuned.gaining + tuned.losing + tuned.tied
    return [
        federation.name,
        last.method,
        federation.paper.get(last.method),
        listed(cells),
        percent(last.mean),
        percent(last.spread),
        percent(tuned.mean),
        percent(tuned.worst_decile),
        percent(tuned.gain),
        percent(tuned.gain_interval),
        round(100 * tuned.gaining / compared) if compared else None,
        *seconds(cells.values()),
        round(last.bytes_sent / 1e6, 2),
    ]


def seconds(cells: Collection[Mapping[str, Any]]) -> list[Value]:
    """Wall and CPU seconds of a run, means over cells."""
    return [round(fmean(cell[unit] for cell in cells), 1) for unit in ("seconds", "cpu_seconds")]


def percent(share: float | None) -> float | None:
    """A share in percent."""
    return None if share is None else round(100 * share, 2)
