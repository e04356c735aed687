"""Quality of predictions: figures for people, and a score per row for choosing.

Figures are of held-out rows of one client. A row score is larger for better predictions. Its mean
follows the metric of the verdict, so that choices can estimate their noise from rows.
"""

from collections.abc import Mapping

import numpy as np

from flic.data.task import Classification, Task
from flic.silos.model import FLOOR

#: Whether a larger figure is better.
HIGHER_IS_BETTER: Mapping[str, bool] = {
    "accuracy": True,
    "balanced_accuracy": True,
    "auroc": True,
    "log_loss": False,
    "calibration_error": False,
    "r2": True,
    "rmse": False,
    "mae": False,
}

_BINS = 10


def figures(task: Task, predicted: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """All metrics of a client's held-out rows; NaN where one is not defined on these rows."""
    if isinstance(task, Classification):
        return _class_figures(np.exp(predicted), y)
    error = predicted[:, 0] - y
    spread = float(((y - y.mean()) ** 2).sum())
    return {
        "r2": 1 - float((error**2).sum()) / spread if spread else float("nan"),
        "rmse": float(np.sqrt((error**2).mean())),
        "mae": float(np.abs(error).mean()),
    }


def _class_figures(probabilities: np.ndarray, y: np.ndarray) -> dict[str, float]:
    hits = probabilities.argmax(1) == y
    held = np.unique(y)
    of_truth = probabilities[np.arange(len(y)), y].clip(FLOOR)
    return {
        "accuracy": float(hits.mean()),
        "balanced_accuracy": float(np.mean([hits[y == c].mean() for c in held])),
        "auroc": _auroc(probabilities, y, held),
        "log_loss": float(-np.log(of_truth).mean()),
        "calibration_error": calibration_error(probabilities, y),
    }


def _auroc(probabilities: np.ndarray, y: np.ndarray, held: np.ndarray) -> float:
    """Mean area of one class against the rest, over the classes that occur."""
    if len(held) < 2:
        return float("nan")
    from sklearn.metrics import roc_auc_score

    areas = [roc_auc_score(y == c, probabilities[:, c]) for c in held]
    return float(np.mean(areas))


def calibration_error(probabilities: np.ndarray, y: np.ndarray) -> float:
    """Expected gap between confidence and accuracy, in ten bins of confidence (Guo et al. 2017)."""
    confidence, hits = probabilities.max(1), probabilities.argmax(1) == y
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = [
        abs(hits[bins == b].mean() - confidence[bins == b].mean()) * (bins == b).mean()
        for b in np.unique(bins)
    ]
    return float(np.sum(gaps))


def row_scores(metric: str, predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A score per row whose mean follows the metric."""
    if metric in ("accuracy", "balanced_accuracy"):
        hits = (predicted.argmax(1) == y).astype(float)
        if metric == "accuracy":
            return hits
        _, index, counts = np.unique(y, return_inverse=True, return_counts=True)
        return hits * len(y) / (len(counts) * counts[index])
    if metric in ("auroc", "log_loss", "calibration_error"):
        # These are no means over rows; the likelihood covers ranking and calibration.
        return log_likelihoods(predicted, y)
    error = predicted[:, 0] - y
    scale = y.std() or 1.0
    return -np.abs(error) / scale if metric == "mae" else -((error / scale) ** 2)


def log_likelihoods(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Predicted log-probability of each row's class, bounded below."""
    return predicted[np.arange(len(y)), y].clip(np.log(FLOOR))
