"""A client's model as a scikit-learn estimator.

Fitting it again, as `clone` and `cross_val_score` do, learns the private part from new rows; the
part that the federation shared stays as it is. Without a federation it learns alone.
"""

import numbers
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from flic.data.task import Classification, Regression, Task
from flic.errors import ConfigError
from flic.notation import counted
from flic.silos.candidate import Learner
from flic.silos.candidates import CANDIDATES, FLIC, LINKED
from flic.silos.encoding import encode
from flic.silos.fit_settings import FitSettings
from flic.silos.fitted import FittedClient, FittedFederation, formed_rows, scores_of
from flic.silos.mixing import Mix
from flic.silos.model import Model
from flic.silos.models import LinkedModel, MixModel, NetworkModel
from flic.silos.newcomers import JoinedFlic, JoinedLinked, JoinedOffsets
from flic.tables import Declared, SiloTable, as_pandas, conform, find_columns
from flic.tables.values import text_of


class _Silo(BaseEstimator):
    """Common part of classifiers and regressors."""

    def __init__(
        self,
        method: str = FLIC.name,
        federation: FittedFederation | None = None,
        client: str | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.method = method
        self.federation = federation
        self.client = client
        self.random_state = random_state

    # ---- learning ------------------------------------------------------------------------

    def _fit(self, rows: Any, y: np.ndarray, task: Task) -> Self:
        """Learn from rows and encoded labels."""
        frame = self._frame(rows, reset=True)
        if len(frame) != len(y):
            raise ValueError(
                f"X has {counted(len(frame), 'row')} and y {len(y)}; expected the same number."
            )
        declared = self._declared()
        self.columns_ = find_columns(frame, declared)
        formed, _ = conform(frame, self.columns_, declared)
        table = SiloTable(self._name, self.columns_, formed, y, declared=declared)
        everything = np.arange(len(y))
        encoded = encode([table], task, {table.name: (everything, everything[:0])})
        self.encoder_ = encoded.silos[0].encoder
        settings = self.federation.settings if self.federation is not None else FitSettings()
        candidate = self._candidate(self.method, self._kept(), task)
        if not candidate.served(encoded):
            raise ConfigError(
                f"method is {self.method!r}, but X has no column that the federation shares for "
                f"it; expected at least one. Choose {FLIC.name!r}."
            )
        learned = candidate.learn(encoded, settings, seed=self._seed())
        self.model_ = learned.models[table.name]
        self.temperature_ = self._temperature()
        self.task_ = task
        return self

    @property
    def _name(self) -> str:
        return self.client or "client"

    def _seed(self) -> int:
        """The seed as scikit-learn reads it: a number as it is; None and generators draw one."""
        given = self.random_state
        if isinstance(given, numbers.Integral):
            return int(given)
        return int(check_random_state(given).randint(2**31))

    def _candidate(self, method: str, model: Model | None, task: Task) -> Learner:
        """The candidate that learns `model` again."""
        if method not in CANDIDATES or task.name not in CANDIDATES[method].tasks:
            able = [name for name, c in CANDIDATES.items() if task.name in c.tasks]
            raise ConfigError(
                f"method is {method!r}; expected one of {', '.join(able)}. Choose one of them."
            )
        if not CANDIDATES[method].federated:
            return CANDIDATES[method]
        if method == FLIC.name:
            shared = self._shared(task)
            return JoinedFlic(shared) if shared else CANDIDATES[method]
        if isinstance(model, MixModel):
            if method == Mix.name:
                return self._mix(model, task)
            model = next((part.model for part in model.parts if part.candidate == method), None)
        if method == LINKED.name:
            linked = self._linked(model, task)
            if linked is not None:
                return linked
        if not isinstance(model, NetworkModel):
            raise ConfigError(
                f"method is {method!r}, which needs what a federation shares; "
                "expected a federation and the name of a client that keeps it. Give both, or "
                f"choose {FLIC.name!r}."
            )
        return JoinedOffsets(model)

    def _mix(self, model: MixModel, task: Task) -> Mix:
        parts = model.parts
        return Mix(
            {p.candidate: self._candidate(p.candidate, p.model, task) for p in parts},
            {p.candidate: p.temperature for p in parts if p.temperature is not None},
            {self._name: {p.candidate: p.weight for p in parts}},
        )

    def _shared(self, task: Task) -> Mapping[str, Tensor]:
        """The federation's anchors, if it has the same task."""
        own = self.federation
        return own.shared if own is not None and own.task == task else {}

    def _linked(self, kept: Model | None, task: Task) -> JoinedLinked | None:
        """Linked columns without the client's own sums; None if these are not available."""
        own = self.federation
        if own is None or own.linked is None or own.task != task:
            return None
        if isinstance(kept, LinkedModel):
            return JoinedLinked(own.linked, kept.sent)
        # Sums that cannot be left out would test the client on rows that it has learnt from.
        return JoinedLinked(own.linked) if self.client is None else None

    def _kept(self) -> Model | None:
        if self.federation is None or self.client is None:
            return None
        return self.federation.client(self.client).model

    def _declared(self) -> Declared:
        if self.federation is None or self.client is None:
            return Declared()
        return self.federation.client(self.client).declared

    def _temperature(self) -> float | None:
        return self.federation.temperatures.get(self.method) if self.federation else None

    def _adopt(self, kept: FittedClient) -> Self:
        """Take over a client's model from a fit of the federation."""
        self.columns_, self.encoder_, self.model_ = kept.columns, kept.encoder, kept.model
        self.temperature_, self.task_ = kept.temperature, kept.task
        self.feature_names_in_ = np.array([c.name for c in kept.columns], dtype=object)
        self.n_features_in_ = len(kept.columns)
        return self

    # ---- predicting ----------------------------------------------------------------------

    def _scores(self, rows: Any) -> np.ndarray:
        check_is_fitted(self, "model_")
        frame = self._frame(rows, reset=False)
        formed, odd = formed_rows(frame, self.columns_, self._declared(), self._name)
        if {c.name for c in self.columns_} - {*frame.columns}:
            warnings.warn(f"client '{self._name}': {odd.names[0]}", UserWarning, stacklevel=3)
        return scores_of(formed, self.encoder_, self.model_, self.temperature_, self.task_)

    def _frame(self, rows: Any, *, reset: bool) -> pd.DataFrame:
        """Rows as a frame of named columns; arrays get names by position."""
        if hasattr(rows, "columns") and not isinstance(rows, np.ndarray):
            frame = as_pandas(rows)
            if reset:
                self.feature_names_in_ = np.array(frame.columns, dtype=object)
                self.n_features_in_ = frame.shape[1]
            return frame
        # scikit-learn types these arguments by their defaults alone.
        numeric: Any = {"X": rows, "dtype": np.float64, "ensure_all_finite": "allow-nan"}
        array = np.asarray(validate_data(self, reset=reset, **numeric))
        if np.isinf(array).any():
            raise ValueError("Input contains infinity; expected finite numbers or NaN for missing.")
        return pd.DataFrame(array, columns=[f"x{i}" for i in range(array.shape[1])])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = False
        tags.non_deterministic = False
        return tags


class SiloClassifier(ClassifierMixin, _Silo):
    """Classes of one client's rows.

    Args:
        method: a candidate of the verdict, such as "flic", "network", "lda" or "boosting".
        federation: the fitted federation whose shared part is used; None learns alone.
        client: name of this client in it.
        random_state: seed of everything random; None draws one at every fit.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from rows and their classes."""
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        self.classes_, index = self._known_classes(y)
        if len(np.unique(index)) < 2:
            raise ValueError(
                f"Classifier can't train when only one class is present: got {self.classes_!r}; "
                "expected at least two."
            )
        return self._fit(X, index.astype(np.int64), Classification(len(self.classes_)))

    def _known_classes(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Classes, and the position of each label; in the federation's order if it knows all."""
        positions = self._positions(y)
        if self.federation is None or positions is None:
            return np.unique(y, return_inverse=True)
        return self._classes(self.federation.labels), positions

    def _classes(self, labels: Sequence[str]) -> np.ndarray:
        if self.federation is None or self.client is None:
            return np.array(labels, dtype=object)
        return self.federation.client(self.client).labelling.classes(labels)

    def _positions(self, y: np.ndarray) -> np.ndarray | None:
        """Positions in the federation's classes, by name or raw label; None if one is unknown."""
        own = self.federation.labels if self.federation is not None else ()
        known = {label: i for i, label in enumerate(own)}
        if self.federation is not None and self.client is not None:
            known |= self.federation.client(self.client).labelling.positions or {}
        texts = [text_of(value) for value in y]
        return np.array([known[t] for t in texts]) if known.keys() >= {*texts} else None

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Mean accuracy; raw labels of the client are read as its classes."""
        check_is_fitted(self, "model_")
        y = column_or_1d(y, warn=True)
        positions = self._positions(y)
        known = y if positions is None else self.classes_[positions]
        return super().score(X, known, sample_weight)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, in the order of `classes_`."""
        return np.exp(self._scores(X))

    def predict(self, X: Any) -> np.ndarray:
        """Classes."""
        best = self._scores(X).argmax(1)
        return self.classes_[best]


class SiloRegressor(RegressorMixin, _Silo):
    """Responses of one client's rows; arguments as for `SiloClassifier`."""

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from rows and their responses."""
        y = column_or_1d(y, warn=True).astype(float)
        if not np.isfinite(y).all():
            raise ValueError("y holds NaN or infinity; expected finite responses.")
        known = self.federation.task if self.federation is not None else None
        low, high = float(y.min()), float(y.max())
        task = known if isinstance(known, Regression) else Regression(low, max(high, low + 1e-6))
        return self._fit(X, y, task)

    def predict(self, X: Any) -> np.ndarray:
        """Responses."""
        return self._scores(X)[:, 0]


def estimator_of(fitted: FittedFederation, name: str) -> SiloClassifier | SiloRegressor:
    """A client's kept model as an estimator that is fitted already."""
    kept = fitted.client(name)
    kind = SiloClassifier if isinstance(kept.task, Classification) else SiloRegressor
    made = kind(kept.candidate, fitted, name, fitted.settings.seed)._adopt(kept)
    if isinstance(made, SiloClassifier):
        made.classes_ = kept.labelling.classes(kept.labels)
    return made
