"""Federation: the Python interface to fitting, verdict and prediction."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from flic.data.task import TaskName
from flic.errors import ConfigError
from flic.silos import folder as folders
from flic.silos.estimator import SiloClassifier, SiloRegressor, estimator_of
from flic.silos.fit_settings import fit_settings
from flic.silos.fitted import FittedFederation
from flic.silos.fitting import OnFitStep, fit
from flic.silos.joining import SharedPart, join
from flic.silos.verdict import ClientVerdict, Verdict
from flic.tables import (
    Declared,
    TableFederation,
    client_from_frame,
    load_tables,
    read_federation,
    tables_from_frames,
)
from flic.tables.declared import Raw
from flic.tables.labels import LabelNames


class Federation:
    """Clients with tables of their own: fit, look at the verdict, use each client's model.

    Example:
        >>> federation = Federation.from_frames({"a": frame_a, "b": frame_b}, label="ill")
        >>> federation.fit()
        >>> print(federation.verdict()["a"].sentence)
        >>> federation.client("a").predict(new_rows)
    """

    def __init__(
        self,
        tables: TableFederation | None,
        fitted: FittedFederation | None,
        raw: Mapping[str, Any],
    ) -> None:
        self._tables = tables
        self._fitted = fitted
        self._raw = dict(raw)

    @classmethod
    def from_frames(
        cls,
        frames: Mapping[str, Any],
        *,
        label: str,
        task: TaskName = "classification",
        labels: LabelNames | None = None,
        range: tuple[float, float] | None = None,
        declared: Declared | None = None,
    ) -> Self:
        """A federation of pandas or polars frames by client name."""
        tables = tables_from_frames(
            frames, label=label, task=task, labels=labels, range=range, declared=declared
        )
        return cls(tables, None, {})

    @classmethod
    def from_file(cls, path: Path | str) -> Self:
        """The federation that a federation.toml describes."""
        file = read_federation(Path(path))
        return cls(load_tables(file, Path(path).parent), None, file.fit)

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """A fitted federation from its folder."""
        return cls(None, folders.load(Path(folder)), {})

    @property
    def tables(self) -> TableFederation:
        """The tables it was made of."""
        if self._tables is None:
            raise ConfigError(
                "a federation that was loaded from a folder has no tables; expected one made by "
                "from_frames or from_file. Make one of those to fit again."
            )
        return self._tables

    @property
    def fitted(self) -> FittedFederation:
        """The result of the fit."""
        if self._fitted is None:
            raise ConfigError("the federation is not fitted yet; expected a fit. Call fit() first.")
        return self._fitted

    def fit(
        self,
        *,
        workers: int = 1,
        on_step: OnFitStep = lambda done, total, what: None,
        **settings: Any,
    ) -> Self:
        """Train and compare all candidates; `settings` are the keys of `[fit]`, e.g. repeats=20."""
        task = self.tables.task.name
        own = fit_settings({**self._raw, **settings}, task=task, source="fit")
        self._fitted = fit(self.tables, own, workers=workers, on_step=on_step)
        return self

    def verdict(self) -> Verdict:
        """Alone against the federation, per client."""
        return self.fitted.verdict

    def client(self, name: str) -> SiloClassifier | SiloRegressor:
        """A client's kept model as a scikit-learn estimator."""
        return estimator_of(self.fitted, name)

    def join(
        self,
        name: str,
        frame: Any,
        *,
        label: str,
        labels: Mapping[str, Sequence[Raw]] | None = None,
        declared: Declared | None = None,
        workers: int = 1,
    ) -> ClientVerdict:
        """Add a new site; it learns from the shared part and its own rows, and sends nothing.

        `labels` maps classes to the site's raw labels, where they differ from its peers'. Columns
        are read as peers read columns of the same name, unless `declared` says otherwise.
        """
        own, part = self.fitted, SharedPart.of(self.fitted)
        table, notices = client_from_frame(
            name,
            frame,
            label=label,
            task=own.task,
            labels=own.labels,
            own_labels=part.label_names(labels),
            declared=declared,
            kinds=part.kinds_of_columns(),
        )
        for message in notices:
            warnings.warn(message, UserWarning, stacklevel=2)
        self._fitted = join(own, table, workers=workers)
        for message in self._fitted.notices[len(own.notices) :]:
            warnings.warn(message, UserWarning, stacklevel=2)
        return self._fitted.verdict[name]

    def save(self, folder: Path | str) -> None:
        """Write the fitted federation to a new folder."""
        folders.save(self.fitted, Path(folder))
