"""Models of scikit-learn's estimators for a client, as plain values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from flic.data.task import Regression, Task
from flic.errors import Damaged
from flic.methods.protocol import Exported
from flic.notation import counted
from flic.silos.model import Features, MethodModel, Origin, Saved, log_probabilities


@dataclass(frozen=True, eq=False)
class LinearModel(MethodModel):
    """Scores x W + b: discriminant analysis, or ridge regression."""

    kind: ClassVar[str] = "linear"
    weights: np.ndarray  # [features, outputs]
    bias: np.ndarray  # [outputs], −∞ for classes not held
    is_regression: bool

    @classmethod
    def of(cls, exported: Exported, origin: Origin) -> "LinearModel":
        weights, bias = (exported.tensors[name].numpy() for name in ("weights", "bias"))
        return cls(weights, bias, isinstance(origin.task, Regression))

    def predict(self, rows: Features) -> np.ndarray:
        scores = rows.standard.astype(float) @ self.weights + self.bias
        return scores if self.is_regression else log_probabilities(scores)

    def reads(self, features: Sequence[str]) -> bool:
        return len(features) == len(self.weights)

    def save(self) -> Saved:
        tensors = {"weights": torch.from_numpy(self.weights), "bias": torch.from_numpy(self.bias)}
        return Saved(self.kind, {}, tensors)

    @classmethod
    def load(cls, saved: Saved, task: Task) -> "LinearModel":
        weights, bias = (saved.tensors[name].numpy() for name in ("weights", "bias"))
        outputs = (task.num_outputs,)
        if weights.ndim != 2 or bias.shape != outputs or weights.shape[1:] != outputs:
            raise Damaged(
                f"a linear model has weights {weights.shape} and bias {bias.shape}; expected "
                f"{counted(task.num_outputs, 'output')}. Fit the federation again."
            )
        return cls(weights, bias, isinstance(task, Regression))


@dataclass(frozen=True, eq=False)
class BoostedModel(MethodModel):
    """Gradient boosted trees of scikit-learn."""

    kind: ClassVar[str] = "boosting"
    #: The only type in our files beyond skops' own list; never read from the file.
    TRUSTED: ClassVar[Sequence[str]] = (
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    )
    estimator: Any
    num_outputs: int
    is_regression: bool
    source: bytes = b""  # the file it was read from; skops writes the same trees differently

    @classmethod
    def of(cls, exported: Exported, origin: Origin) -> "BoostedModel":
        return cls._of_trees(exported.estimator, origin.task)

    def predict(self, rows: Features) -> np.ndarray:
        x = rows.standard
        if self.is_regression:
            return self.estimator.predict(x)[:, None]
        probabilities = np.zeros((len(x), self.num_outputs))
        probabilities[:, self.estimator.classes_] = self.estimator.predict_proba(x)
        with np.errstate(divide="ignore"):
            return np.log(probabilities)

    def reads(self, features: Sequence[str]) -> bool:
        return len(features) == self.estimator.n_features_in_

    def save(self) -> Saved:
        import skops.io

        return Saved(self.kind, {}, trees=self.source or skops.io.dumps(self.estimator))

    @classmethod
    def load(cls, saved: Saved, task: Task) -> "BoostedModel":
        import skops.io

        try:
            estimator = skops.io.loads(saved.trees, trusted=list(cls.TRUSTED))
        except Exception as error:  # skops raises what the broken part happens to raise
            raise Damaged(
                f"a boosted model cannot be read ({error}); expected the file that flic wrote. "
                "Fit the federation again."
            ) from error
        return replace(cls._of_trees(estimator, task), source=saved.trees)

    @classmethod
    def _of_trees(cls, fitted: Any, task: Task) -> "BoostedModel":
        return cls(fitted, task.num_outputs, isinstance(task, Regression))
