"""Made-up wards with columns of every kind, and a small federation of them, fitted once."""

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd

from flic.silos.evaluator import Evaluator
from flic.silos.fit_settings import FitSettings
from flic.silos.fitted import FittedClient, FittedFederation
from flic.silos.fitting import fit
from flic.tables import tables_from_frames

NETWORK = {
    "training": {"rounds": 2, "local": "3 steps", "shared": "1 steps"},
    "pretraining": {"epochs": 2},
    "linked": {"random_features": 16},
}
SETTINGS = {"repeats": 2, "folds": 2, "scheme": "splits", "network": NETWORK}
COMPLAINTS = ["cough", "fever at night", "pain in the chest", "dizzy since monday"]


def ward(seed, rows=60, without=()):
    """Rows of a ward: numbers, categories, dates, booleans, free text and gaps."""
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, rows).round(1)
    days = pd.to_timedelta(rng.integers(0, 700, rows), unit="D")
    made = {
        "age": age,
        "smoker": rng.choice(["yes", "no"], rows),
        "blood": rng.choice(["A", "B", None], rows),
        "seen": pd.Timestamp("2024-01-01") + days,
        "dose": np.where(rng.random(rows) < 0.2, np.nan, rng.normal(size=rows)),
        "notes": [f"{' and '.join(rng.choice(COMPLAINTS, 2))}, day {i}" for i in range(rows)],
        "stay": (age / 5 + rng.normal(0, 2, rows)).round(2),
        "ill": (age / 10 + rng.normal(0, 1, rows) > 6).astype(int),
    }
    return pd.DataFrame({name: v for name, v in made.items() if name not in without})


def wards(label="ill"):
    """Three clients with different columns."""
    other = "stay" if label == "ill" else "ill"
    return {
        "north": ward(0, without=("notes", other)),
        "south": ward(1, without=("seen", "dose", other)),
        "east": ward(2, without=("blood", other)),
    }


@cache
def fitted_wards(task="classification") -> FittedFederation:
    """The wards after a fit; each keeps another kind of model, whatever was chosen."""
    if task == "classification":
        tables = tables_from_frames(wards(), label="ill", labels={"well": (0,), "ill": (1,)})
        kept = {"north": "lda", "south": "boosting", "east": "flic"}
    else:
        tables = tables_from_frames(wards("stay"), label="stay", task=task, range=(0, 25))
        kept = {"north": "ridge", "south": "boosting", "east": "flic"}
    # What FedAvg makes of them takes longer than all the rest, and nobody here keeps it.
    settings = FitSettings(**SETTINGS, candidates=("network", *kept.values()))
    return _keeping(kept, fit(tables, settings), Evaluator(tables, settings))


def _keeping(kept, fitted, evaluator):
    everything = {t.name: (np.arange(len(t)), np.arange(0)) for t in evaluator.federation.tables}
    encoded = evaluator.encode(everything)
    clients = {}
    for table, silo in zip(evaluator.federation.tables, encoded.silos, strict=True):
        name = kept[table.name]
        model = evaluator.learn(evaluator.offered[name], encoded, seed=0).models[table.name]
        own = (name, fitted.temperatures.get(name), model)
        clients[table.name] = FittedClient.of(table, silo, own, fitted.task, fitted.labels)
    return replace(fitted, clients=clients)
