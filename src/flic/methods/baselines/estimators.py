"""Strong simple baselines: a scikit-learn estimator per client, fitted on its own rows.

They take no part in rounds and share nothing. Fitting is deterministic, so a prediction fits anew
instead of storing a foreign model. scikit-learn is imported where it is used, here and in the
data: its import takes as long as torch's, in every process.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flic.data.client_data import ClientData, Split
from flic.data.stacked import StackedData
from flic.data.task import Regression
from flic.errors import DataError
from flic.method_settings import MethodSettings
from flic.methods.protocol import (
    Exported,
    Method,
    Population,
    ServerState,
    Stack,
    Stage,
    Step,
)
from flic.networks.base import Embedding
from flic.notation import counted
from flic.shapes import Named


class PerClientEstimator(Method):
    """One scikit-learn estimator per client."""

    def __init__(
        self, settings: MethodSettings, population: Population, *, seed: int, dtype: torch.dtype
    ) -> None:
        self.settings = settings.estimators
        self.population = population
        self.seed = seed
        self.dtype = dtype

    @abstractmethod
    def estimator(self) -> Any:
        """A fresh estimator of scikit-learn's interface."""

    def init_server(self) -> ServerState:
        return ServerState(0, {})

    def init_client(self, client: ClientData, embedding: Embedding) -> dict[str, Tensor]:
        del client, embedding
        return {}

    @property
    def stages(self) -> dict[str, Stage]:
        return {}

    def programme(self, rounds: int, *, final_round: bool) -> list[Step]:
        """An evaluation only: prediction does the fitting, and nothing is shared."""
        del rounds, final_round
        return [Step("evaluate", 0, measured="always")]

    def predict(
        self, server: ServerState, stack: Stack, data: StackedData, splits: Sequence[Split]
    ) -> list[Tensor]:
        del server, stack
        pairs = zip(data.clients, splits, strict=True)
        return [self._scores(client, split) for client, split in pairs]

    @property
    def is_regression(self) -> bool:
        """True if labels are real responses."""
        return isinstance(self.population.task, Regression)

    def _scores(self, client: ClientData, split: Split) -> Tensor:
        scores = torch.full((len(split), self.population.task.num_outputs), float("-inf"))
        if not len(split):
            return scores
        model = self.fitted(client)
        if self.is_regression:
            return torch.from_numpy(model.predict(split.x.numpy())).to(self.dtype)[:, None]
        probabilities = model.predict_proba(split.x.numpy())
        floor = np.finfo(probabilities.dtype).tiny
        scores[:, model.classes_] = torch.from_numpy(np.log(probabilities.clip(floor))).float()
        return scores

    def export(self, server: ServerState, client: ClientData, state: Named | None) -> Exported:
        del server, state
        if not self.is_regression and len(client.classes) == 1:  # nothing to distinguish
            weights, bias = self._of_no_class(client.schema.dim)
            bias[client.classes[0]] = 0.0
            return _linear(weights, bias)
        return self.exported(self.fitted(client))

    @abstractmethod
    def exported(self, fitted: Any) -> Exported:
        """The model of a fitted estimator."""

    def _of_no_class(self, features: int) -> tuple[np.ndarray, np.ndarray]:
        """W and b of a client that holds no class: scores are −∞."""
        outputs = self.population.task.num_outputs
        return np.zeros((features, outputs)), np.full(outputs, -np.inf)

    def fitted(self, client: ClientData) -> Any:
        """The estimator, fitted to a client's training rows."""
        x, y = client.train.x.numpy(), client.train.y.numpy()
        try:
            return self.estimator().fit(x, y)
        except ValueError as error:
            kinds = "" if self.is_regression else f" of {counted(len(client.classes), 'class')}"
            raise DataError(
                f"client {client.name!r} has {counted(len(y), 'training row')}{kinds}, and "
                f"{self.name} cannot be fitted to them: {error} Give the client more rows, or "
                "leave the method out."
            ) from error


def _linear(weights: np.ndarray, bias: np.ndarray) -> Exported:
    """Scores x W + b."""
    tensors = {"weights": torch.from_numpy(weights), "bias": torch.from_numpy(bias)}
    return Exported("linear", tensors)


class PooledLda:
    """Linear discriminant analysis with one Ledoit-Wolf covariance of all within-class residuals.

    scikit-learn's own shrinks class by class, which needs two rows of each, and solves by least
    squares, which takes seconds for a client with 700 features.
    """

    def fit(self, x: np.ndarray, y: np.ndarray) -> "PooledLda":
        """Fit to rows and labels."""
        from sklearn.covariance import ledoit_wolf

        self.classes_, index, counts = np.unique(y, return_inverse=True, return_counts=True)
        means = np.stack([x[index == c].mean(0) for c in range(len(counts))]).astype(float)
        residuals = x - means[index]
        spread = residuals.std(0)
        # If every class is one row, or copies of one, only the means can be compared.
        spread[spread == 0] = spread.max() or 1.0
        covariance, _ = ledoit_wolf(residuals / spread, assume_centered=True)
        covariance += (1e-6 if covariance.any() else 1.0) * np.eye(len(covariance))
        self.weights_ = np.linalg.solve(covariance, means.T / spread[:, None]) / spread[:, None]
        self.bias_ = np.log(counts / len(y)) - (means.T * self.weights_).sum(0) / 2
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        """Class probabilities of rows."""
        scores = torch.from_numpy(x @ self.weights_ + self.bias_)
        return scores.softmax(1).numpy()


class Lda(PerClientEstimator):
    """Linear discriminant analysis with Ledoit-Wolf shrinkage."""

    name = "lda"
    tasks = ("classification",)

    def estimator(self) -> Any:
        return PooledLda()

    def exported(self, fitted: PooledLda) -> Exported:
        weights, bias = self._of_no_class(len(fitted.weights_))
        weights[:, fitted.classes_], bias[fitted.classes_] = fitted.weights_, fitted.bias_
        return _linear(weights, bias)


class Logistic(PerClientEstimator):
    """Logistic regression on standardised features."""

    name = "logistic"
    tasks = ("classification",)

    def estimator(self) -> Any:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        return make_pipeline(
            StandardScaler(), LogisticRegression(C=self.settings.logistic_c, max_iter=2000)
        )

    def exported(self, fitted: Any) -> Exported:
        scaler, logistic = fitted
        own = (logistic.coef_ / scaler.scale_).T
        offset = logistic.intercept_ - scaler.mean_ @ own
        # Of two classes, scikit-learn has scores of the second, beside 0 for the first.
        told = logistic.classes_[-len(offset) :]
        weights, bias = self._of_no_class(len(own))
        bias[logistic.classes_] = 0.0
        weights[:, told], bias[told] = own, offset
        return _linear(weights, bias)


class Ridge(PerClientEstimator):
    """Linear regression on standardised features; leave-one-out chooses the penalty."""

    name = "ridge"
    tasks = ("regression",)

    def estimator(self) -> Any:
        from sklearn.linear_model import RidgeCV
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        return make_pipeline(StandardScaler(), RidgeCV(alphas=np.logspace(-2, 4, 25)))

    def exported(self, fitted: Any) -> Exported:
        scaler, ridge = fitted
        weights = np.asarray(ridge.coef_) / scaler.scale_
        bias = np.asarray(ridge.intercept_) - scaler.mean_ @ weights
        return _linear(weights[:, None], bias[None])


class Boosting(PerClientEstimator):
    """Gradient boosted trees."""

    name = "boosting"

    def estimator(self) -> Any:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        regressor, classifier = HistGradientBoostingRegressor, HistGradientBoostingClassifier
        kind = regressor if self.is_regression else classifier
        rate, seed = self.settings.boosting_rate, self.seed % 2**32
        return kind(learning_rate=rate, random_state=seed, min_samples_leaf=5)

    def exported(self, fitted: Any) -> Exported:
        return Exported("boosting", estimator=fitted)
