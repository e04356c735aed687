"""A fitted federation: the verdict, and for every client the model it keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from torch import Tensor

from flic.data.task import Classification, Task
from flic.engine.journal import Record
from flic.errors import ConfigError, DataError, NumericalError
from flic.notation import counted
from flic.silos.choice import CandidatePrior
from flic.silos.encoding import EncodedSilo
from flic.silos.fit_settings import FitSettings
from flic.silos.linked_state import LinkedState
from flic.silos.mixing import Weighed
from flic.silos.model import Features, Model, tempered
from flic.silos.trained_rows import Trained, digests_of
from flic.silos.verdict import Verdict
from flic.tables import Column, Declared, Labelling, SiloTable, conform
from flic.tables.columns import BadValues, Oddities
from flic.tables.encoder import TableEncoder

if TYPE_CHECKING:
    from flic.silos.report_data import ReportData


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions of some rows, in their order, and notes on their columns."""

    values: np.ndarray  # names of classes, or responses
    probabilities: np.ndarray | None  # [rows, classes]; None in a regression
    scores: np.ndarray  # log-probabilities, or responses in one column
    notes: Sequence[str]  # about whole columns
    bad: Mapping[str, BadValues]  # column → values of the wrong kind
    unseen: Mapping[str, Sequence[str]]  # column → levels that no training row had


@dataclass(frozen=True, eq=False)
class FittedClient:
    """One client after a fit: its columns, encoder and model. It stays with the client."""

    name: str
    columns: tuple[Column, ...]
    declared: Declared
    labelling: Labelling
    encoder: TableEncoder
    candidate: str
    temperature: float | None
    model: Model
    task: Task
    labels: tuple[str, ...]
    trained: Trained | None  # None of a model that an older version wrote

    @classmethod
    def of(
        cls,
        table: SiloTable,
        silo: EncodedSilo,
        kept: tuple[str, float | None, Model],
        task: Task,
        labels: tuple[str, ...],
    ) -> "FittedClient":
        """The client of a table, with the model it keeps of all rows."""
        assert table.labelling is not None
        candidate, temperature, model = kept
        return cls(
            name=table.name,
            columns=table.columns,
            declared=table.declared,
            labelling=table.labelling,
            encoder=silo.encoder,
            candidate=candidate,
            temperature=temperature,
            model=model,
            task=task,
            labels=labels,
            trained=digests_of(silo.data.train),
        )

    def predict(self, frame: pd.DataFrame) -> Predicted:
        """Predictions of raw rows."""
        formed, odd = self._formed(frame)
        notes = [f"client '{self.name}': {note}" for note in odd.names]
        if not self.labelling.is_own(frame, self.declared).all():
            notes.append(
                f"client '{self.name}': some rows belong to other sites; they are predicted as if "
                "they were its own."
            )
        notes += [f"client '{self.name}': {note}" for note in self.encoder.unlike(formed)]
        scores = scores_of(formed, self.encoder, self.model, self.temperature, self.task)
        unseen = self.encoder.unseen(formed)
        if not isinstance(self.task, Classification):
            return Predicted(scores[:, 0], None, scores, notes, odd.bad, unseen)
        names = np.array(self.labels, dtype=object)
        return Predicted(names[scores.argmax(1)], np.exp(scores), scores, notes, odd.bad, unseen)

    def encoded(self, frame: pd.DataFrame) -> np.ndarray:
        """Raw rows as the model was trained on them."""
        return self.encoder.transform(self._formed(frame)[0])

    def _formed(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, Oddities]:
        known = [self.labelling.column, *(self.labelling.site or ())[:1]]
        rows = frame.drop(columns=known, errors="ignore")  # labels may come along
        return formed_rows(rows, self.columns, self.declared, self.name)


def formed_rows(
    rows: pd.DataFrame, columns: Sequence[Column], declared: Declared, client: str
) -> tuple[pd.DataFrame, Oddities]:
    """Raw rows in the form of a client's columns, and their oddities.

    Raises:
        DataError: the rows have none of its columns.
    """
    if not set(rows.columns) & {column.name for column in columns}:
        raise DataError(
            f"client '{client}': the rows have none of its {counted(len(columns), 'column')}; "
            f"expected {', '.join(c.name for c in columns[:5])} and so on. Give rows of this "
            "client."
        )
    return conform(rows, columns, declared)


def scores_of(
    formed: pd.DataFrame,
    encoder: TableEncoder,
    model: Model,
    temperature: float | None,
    task: Task,
) -> np.ndarray:
    """Log-probabilities, or responses in one column, of rows in their form."""
    if not len(formed):
        return np.zeros((0, task.num_outputs))
    rows = Features(partial(encoder.transform, formed), partial(encoder.plain, formed))
    scores = tempered(model.predict(rows), temperature)
    if np.isnan(scores).any():
        raise NumericalError(
            f"the model gives no number for {int(np.isnan(scores).any(1).sum())} of {len(formed)} "
            "rows; expected values it can compute with. Look for huge values in these rows, or "
            "fit the model again."
        )
    return scores


@dataclass(frozen=True, eq=False)
class FittedFederation:
    """The result of a fit; it holds no rows."""

    task: Task
    labels: tuple[str, ...]
    settings: FitSettings
    verdict: Verdict
    clients: Mapping[str, FittedClient]
    shared: Mapping[str, Tensor]  # {α, μ} of flic, all that a newcomer gets
    known: Mapping[str, CandidatePrior]  # with each candidate, for a newcomer's choice
    temperatures: Mapping[str, float]
    weights: Weighed  # of candidates in the mix of a newcomer
    records: Sequence[Record]  # of flic's rounds
    report_data: "ReportData"  # flic's scores, latent view, traffic
    environment: Mapping[str, str]  # versions and machine of the fit
    notices: Sequence[str] = ()
    linked: LinkedState | None = None  # of linked columns, likewise

    def __repr__(self) -> str:
        return f"FittedFederation({', '.join(self.clients)})"

    def __deepcopy__(self, memo: object) -> "FittedFederation":
        """Itself: nothing of it changes, and scikit-learn copies what estimators are given."""
        return self

    def client(self, name: str) -> FittedClient:
        """One client by name."""
        if name not in self.clients:
            raise ConfigError(
                f"client is {name!r}; expected one of {', '.join(map(repr, self.clients))}. "
                "To add a site, use: flic join"
            )
        return self.clients[name]

    def with_client(
        self, client: FittedClient, verdict: Verdict, notices: Sequence[str]
    ) -> "FittedFederation":
        """The federation with one more client, its line in the verdict, and its notices."""
        return replace(
            self,
            clients={**self.clients, client.name: client},
            verdict=self.verdict.with_more(verdict),
            notices=(*self.notices, *notices),
        )
