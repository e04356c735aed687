"""A silo's own folder: where its rows lie, what it has learnt, and the work of one visit.

SILO/
  silo.toml             name, data file and label keys; a person may edit it
  agreed.json           the federation's settings for which it was shown what will leave
  log.jsonl             a line per visit: what was done, and why something was refused
  runs/RUN/             what it keeps of each run (flic.flower.silo_run)
  told/                 of which rows it told sums (flic.flower.sums_history)
  key peers.json        its private key, and keys of silos it trusts (flic.flower.pinned_keys)
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from flic.data.client_data import ClientData
from flic.engine.engine import EVALUATE
from flic.errors import ConfigError, FederationError, RunFolderError
from flic.files import alone_in, write_atomically, write_json
from flic.flower.answers import Answers, digest_of_request
from flic.flower.federation_settings import (
    FederationSettings,
    federation_settings,
)
from flic.flower.pooling import FIRST, LAST, SUMS
from flic.flower.secure.statements import SumAnswer, SumRequest
from flic.flower.silo_engine import LinkedSiloEngine, SiloEngine, VisitResult
from flic.flower.silo_file import FILE, SiloFile, silo_file, stated
from flic.flower.silo_run import FACTS, ROWS, SiloRun
from flic.flower.sum_visit import SumVisit, as_peer
from flic.flower.sums_history import SumsHistory, Told
from flic.method_settings import Scatter
from flic.methods.linked.agreement import DETAILS
from flic.methods.protocol import ServerState
from flic.notation import counted
from flic.seeding import derive_seed
from flic.settings import read_object, read_toml, validated
from flic.shapes import Named
from flic.silos.encoding import EncodedSilo, encode
from flic.silos.fitted import FittedClient
from flic.tables import Client, SiloTable, load_client

AGREED = "agreed.json"

MOST_RUNS = 100
"""Runs that lie in a silo's folder at most."""


class SiloFolder:
    """One silo: it trains, measures and predicts on its own rows."""

    def __init__(self, folder: Path, file: SiloFile) -> None:
        self.folder = folder
        self.file = file

    @classmethod
    def create(
        cls,
        folder: Path,
        client: Client,
        *,
        test_share: float = 0.25,
        scatter: Scatter | None = None,
        agreed: FederationSettings | None = None,
    ) -> Self:
        """A new folder for a client whose data file is named from there.

        `agreed` are the settings that the silo was shown: it takes part in no other federation.
        """
        if (folder / FILE).exists():
            raise ConfigError(
                f"{folder / FILE} exists already; expected none, since it would be overwritten. "
                "Edit it, move it away, or choose another folder."
            )
        own = {"test_share": test_share} | ({} if scatter is None else {"scatter": scatter})
        file, text = silo_file(client, own)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FILE, text.encode())
        if agreed is not None:
            write_json(folder / AGREED, agreed.model_dump(mode="json"))
        return cls(folder, file)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The silo of a folder."""
        file = validated(SiloFile, read_toml(folder / FILE), source=str(folder / FILE))
        return cls(folder, file)

    @property
    def name(self) -> str:
        """Name of the silo, from which its random numbers come too."""
        return self.file.name

    def read(self, settings: FederationSettings) -> tuple[SiloTable, list[str]]:
        """The silo's table and notices about it.

        Raises:
            DataError: listing every problem of the rows.
        """
        client = Client(**stated(self.file))
        return load_client(client, self.folder, task=settings.common_task, labels=settings.classes)

    def train(
        self,
        server: ServerState,
        settings: FederationSettings,
        stage: str = "update",
        *,
        run: str,
    ) -> VisitResult:
        """One visit from the silo's own state before the round; asked again, the same again."""
        self._refuse_other_stage(stage, settings)
        # A visit of a run that was killed may still be under way.
        with alone_in(self.folder, patience_s=settings.deadline_s):
            own = self._run(run, settings)
            if settings.sends_sums:
                self._refuse_unmasked(server.round, settings)
                return self._prepare(own, server)
            begun, engine = own.round_before(server.round), SiloEngine(own.client, own.settings)
            if begun is None:
                begun = server.round - 1
                own.save(begun, engine.prepared(server), server.shared)
            least = self.min_rows(own.settings)
            trained, private = engine.train(stage, server, own.private(begun, engine), least)
            own.save(server.round, private, server.shared)
            own.keep({begun, server.round})
        return trained

    def add_to_sum(
        self, asked: SumRequest, server: ServerState, settings: FederationSettings, *, run: str
    ) -> tuple[SumAnswer, Named]:
        """One phase of a secure sum: what the silo says in it, and its masked numbers."""
        occasion = asked.occasion
        self._refuse_other_stage(occasion.stage, settings)
        if (occasion.run, occasion.round) != (run, server.round) or not settings.masks_sums:
            raise FederationError(
                f"silo {self.name!r} is asked for a secure sum of another run or round, or where "
                "there are none; expected this one. Give coordinator and silos one version of flic."
            )
        with alone_in(self.folder, patience_s=settings.deadline_s):
            own = self._run(run, settings)
            peer = as_peer(self.folder, self.name, min_holders=self.min_holders(settings))
            engine, begins = self.linked_engine(own.client, settings), asked.phase == "advertise"
            linked = engine.positions(server) if begins else []
            visit = SumVisit(own, peer, self.history)
            return visit.answer(asked, linked, lambda: self._prepare(own, server).update)

    def _refuse_unmasked(self, round: int, settings: FederationSettings) -> None:
        """Refuse to tell sums as they are unless the silo was shown that there are no masks."""
        if round == FIRST:  # keys are of no row
            return
        if settings.secure_sums or not (self.folder / AGREED).exists():
            raise FederationError(
                f"silo {self.name!r} is asked for sums without masks; expected a secure sum. If "
                "the federation was made with --no-secure-sums and you agree to that, make the "
                "silo with its --federation."
            )
        if settings.min_holders < self.file.min_holders:
            raise FederationError(
                f"silo {self.name!r} is asked for sums of columns that {settings.min_holders} "
                f"silos have; expected {self.file.min_holders} (min_holders): of two, each reads "
                "the other's sums from the total. If you agree to that, lower min_holders in "
                "silo.toml."
            )

    def min_holders(self, settings: FederationSettings) -> int:
        """Silos behind every sum: the silo has the last word on who it hides among."""
        return max(settings.min_holders, self.file.min_holders)

    def _refuse_other_stage(self, stage: str, settings: FederationSettings) -> None:
        """Refuse a stage that the method does not have, before any work."""
        expected = ("prepare",) if settings.sends_sums else ("update", "adapt")
        if stage not in expected:
            raise FederationError(
                f"silo {self.name!r} is asked for the stage {stage!r} of method "
                f"{settings.method!r}; expected {' or '.join(expected)}. Give coordinator and "
                "silos one version of flic."
            )

    def _prepare(self, own: SiloRun, server: ServerState) -> VisitResult:
        """Keys, sums or likelihoods of linked columns."""
        engine, answers = self.linked_engine(own.client, own.settings), own.answers
        step, request = f"prepare {server.round}", engine.request(server)
        positions = engine.positions(server)
        told = self._told(own, answers, step, request, positions)
        # Before the work: that it fails is an answer too, and may depend on a single row.
        answers.keep(step, request, linked=positions if server.round == SUMS else None)
        if server.round > FIRST:  # keys are of no row
            self.history.keep(told, run=own.folder.name)
        return engine.prepare(own.with_kept(server))

    def evaluate(
        self,
        server: ServerState,
        settings: FederationSettings,
        *,
        run: str,
        holders: Sequence[int] = (),
    ) -> dict[str, float]:
        """Figures of the silo's own held-out rows: sums, and none if they are of few rows.

        A round's figures are told once; asked again with another shared part, they are refused.
        """
        with alone_in(self.folder, patience_s=settings.deadline_s):
            own = self._run(run, settings)
            if settings.sends_sums:
                return self._linked_figures(own, server, holders)
            begun = own.round_before(server.round + 1)
            if begun is None:
                raise FederationError(
                    f"silo {self.name!r} is asked for figures and has not trained yet; expected a "
                    "round first. It will have figures after its first one."
                )
            return self._figures(own, server, begun)

    def _figures(self, own: SiloRun, server: ServerState, begun: int) -> dict[str, float]:
        engine, answers = SiloEngine(own.client, own.settings), own.answers
        step = _measured(server)
        engine.refuse_other_shared(server)
        request = digest_of_request(server, step)
        answers.refuse_another(step, request)
        figures = answers.figures(step, request)
        if figures is None:
            answers.keep(step, request)  # before the work, as of sums
            told = self.history.told_in(own.folder.name)
            is_told = told is not None and self._are_told(own, told)
            figures = engine.figures(server, own.private(begun, engine)) if is_told else {}
            answers.keep(step, request, figures=figures)
        return figures

    def _are_told(self, own: SiloRun, told: Told) -> bool:
        """Return whether figures leave: of enough rows, and not of almost an earlier run's."""
        least = self.min_rows(own.settings)
        is_almost = self.history.are_almost_held_out(told, own.folder.name, least=least)
        return len(own.client.test) >= least and not is_almost

    def _linked_figures(
        self, own: SiloRun, server: ServerState, holders: Sequence[int]
    ) -> dict[str, float]:
        """Figures after the last round of linked columns; the model is kept."""
        self._refuse_unfinished(server.round)
        self._refuse_other_holders(own.client, holders)
        engine, answers = self.linked_engine(own.client, own.settings), own.answers
        step, request = _measured(server), engine.request(server)
        told = self._told(own, answers, step, request, engine.positions(server))
        answers.keep(step, request)  # before the work, as of sums
        server = own.with_kept(server)
        own.save_linked(engine.known(server), holders)
        return engine.figures(server) if self._are_told(own, told) else {}

    def _refuse_unfinished(self, round: int) -> None:
        if round != LAST:
            raise FederationError(
                f"silo {self.name!r} is asked for figures in round {round - FIRST + 1} of "
                f"{LAST - FIRST + 1}; expected to be asked after the last, when there is a model. "
                "Give coordinator and silos one version of flic."
            )

    def _refuse_other_holders(self, client: ClientData, holders: Sequence[int]) -> None:
        if len(holders) != client.schema.dim or min(holders) < 1:
            raise FederationError(
                f"silo {self.name!r} is sent {counted(len(holders), 'count')} of who has its "
                f"{counted(client.schema.dim, 'feature')}; expected one for each. Give coordinator "
                "and silos one version of flic."
            )

    def model(self) -> FittedClient:
        """The silo's newest model, which reads and predicts raw rows."""
        return self.newest().model()

    def newest(self) -> SiloRun:
        """The run with the newest model."""
        newest = max(self._runs(), key=lambda run: run.changed, default=None)
        if newest is None or not newest.rounds:
            raise RunFolderError(
                f"silo {self.name!r} has no model yet; expected a finished round in {self.folder}. "
                "Take part in a federation first."
            )
        return newest

    def status(self) -> dict[str, Any]:
        """Name, and by run the silo's rounds, features that others have too, and what is said."""
        runs = self._runs()
        rounds = {run.folder.name: max(run.rounds, default=0) for run in runs}
        links = {run.folder.name: run.links for run in runs if run.links}
        notes = {run.folder.name: run.notes for run in runs if run.notes}
        return {"name": self.name, "rounds": rounds, "links": links, "notes": notes}

    @property
    def history(self) -> SumsHistory:
        """Rows that sums were told of, in all runs."""
        return SumsHistory(self.folder, self.name)

    def _told(
        self, own: SiloRun, answers: Answers, step: str, request: str, positions: Sequence[int]
    ) -> Told:
        """Rows that a run tells of, unless that would show some beside earlier answers."""
        begins_anew = not own.settings.masks_sums
        answers.refuse_out_of_turn(step, request, begins_anew=begins_anew)
        answers.refuse_other_links(positions)
        history, run, beginnings = self.history, own.folder.name, answers.beginnings(step, request)
        history.refuse_too_many(run, beginnings, most=self.file.max_runs)
        told = history.told_in(run)
        if told is None:
            told = history.rows_of(own.linked_names, own.client)
            history.refuse_almost_the_same(told, run, least=self.min_rows(own.settings))
        elif not answers.are_of_sums or not history.are_of(told, own.client):
            raise FederationError(
                f"silo {self.name!r} told sums in run {run}, whose folder in runs/ was removed or "
                "changed since; expected it as it was. Begin a new run."
            )
        return replace(told, beginnings=beginnings)

    def linked_engine(self, client: ClientData, settings: FederationSettings) -> LinkedSiloEngine:
        agreed, own = settings.method_settings.linked, self.file
        stricter = {
            "min_rows": self.min_rows(settings),
            "scatter": min([agreed.scatter, own.scatter], key=[*DETAILS].index),
            "max_numbers_per_value": self.max_numbers_per_value(settings),
        }
        return LinkedSiloEngine(client, settings, agreed.model_copy(update=stricter))

    def max_numbers_per_value(self, settings: FederationSettings) -> float:
        """Numbers per value that leave at most: the silo's own limit, or the federation's."""
        both = (
            self.file.max_numbers_per_value,
            settings.method_settings.linked.max_numbers_per_value,
        )
        return min(limit for limit in both if limit is not None)

    def min_rows(self, settings: FederationSettings) -> int:
        """Rows behind whatever leaves: the silo has the last word on what its rows may show."""
        return max(settings.min_rows, self.file.min_rows)

    def _runs(self) -> list[SiloRun]:
        found = (path.parent for path in sorted((self.folder / "runs").glob(f"*/{FACTS}")))
        return [SiloRun.open(folder) for folder in found]

    def _run(self, run: str, settings: FederationSettings) -> SiloRun:
        """The folder of a run, made at the first visit."""
        self._refuse_other_than_agreed(settings)
        folder = self.folder / "runs" / run
        if not all((folder / file).exists() for file in (FACTS, ROWS)):
            self._refuse_endless_runs()
            table, _ = self.read(settings)
            encoded, least = self.encoded(table, settings), self.min_rows(settings)
            if not settings.sends_sums:  # what sums are of is known once columns are linked
                self.history.keep(self.history.held_out_of(encoded), run=run)
            SiloRun.create(folder, table, encoded, settings, least=least)
        found = SiloRun.open(folder)
        if found.settings.agreement != settings.agreement:
            raise FederationError(
                f"silo {self.name!r} is asked to go on with run {run} under another task, "
                "network, seed or min_rows; expected those it began with. Begin a new run."
            )
        return found

    def _refuse_endless_runs(self) -> None:
        """Refuse to begin more runs than a disk should hold: each keeps a copy of the rows."""
        if len(self._runs()) >= MOST_RUNS:
            raise FederationError(
                f"silo {self.name!r} has {MOST_RUNS} runs in {self.folder / 'runs'}; expected "
                "fewer, since each keeps a copy of the rows. Move those that you do not need away."
            )

    def _refuse_other_than_agreed(self, settings: FederationSettings) -> None:
        """Refuse settings other than those shown at init, for which it was said what leaves."""
        path = self.folder / AGREED
        if not path.exists():
            return
        read = read_object(path)
        agreed = federation_settings(read, source=str(path))
        if agreed.agreement != settings.agreement:
            raise FederationError(
                f"silo {self.name!r} is asked for method {settings.method!r} under settings other "
                f"than those it agreed to (method {agreed.method!r}); expected these. If you agree "
                f"to the new ones, remove {path} and see what they send: flic silo init elsewhere "
                "with their --federation."
            )

    def encoded(self, table: SiloTable, settings: FederationSettings) -> EncodedSilo:
        """Training and held-out rows."""
        rows, least = held_out(table, self.file.test_share), self.min_rows(settings)
        if settings.sends_sums and len(rows[0]) < least:
            raise FederationError(
                f"silo {self.name!r} has {len(rows[0])} training rows; expected {least} at least "
                "(min_rows), since all that leaves would be of these few. Wait for more rows."
            )
        return encode([table], settings.common_task, {table.name: rows}).silos[0]


def held_out(table: SiloTable, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Positions of a silo's training rows and of the rows it is measured on.

    In every class, and in every tenth of a response's range, those with the smallest digests of
    what is in them: no row moves because of the order of the table, and few because of others.
    """
    cells = table.frame.map(str).to_numpy(object)
    digests = np.array([derive_seed(0, *row) for row in cells])
    strata = table.y
    if strata.dtype.kind == "f":
        strata = np.searchsorted(np.quantile(strata, np.arange(1, 10) / 10), strata)
    held = np.zeros(len(table), bool)
    for stratum in np.unique(strata):
        rows = np.flatnonzero(strata == stratum)
        count = round(share * len(rows))
        if count:  # rows that are the same stay together
            held[rows] = digests[rows] <= np.sort(digests[rows])[count - 1]
    return np.flatnonzero(~held), np.flatnonzero(held)


def _measured(server: ServerState) -> str:
    return f"{EVALUATE} {server.round}"
