"""The candidates of a fit: stay alone, join flic, or one of the classical ways to share.

Each learns from the same encoded rows and gives every client a model of its own. A `Candidate` is a
view of columns, a method and changed settings; `Mix` alone is none of these, since it weighs the
models of the others. To add one, add an entry to `CANDIDATES`.
"""

from collections.abc import Mapping
from typing import Any

from flic.silos.candidate import Candidate, Learner
from flic.silos.column_views import linked_columns, pooled_columns, same_columns, shared_columns
from flic.silos.mixing import Mix

#: FedAvg needs frequent averages, and does not use the shared hidden layer of FLIC-HL.
AVERAGED: Mapping[str, Any] = {
    "training": {"rounds": 40, "local": "10 steps"},
    "model": {"hidden_layer": False, "predict_by": "head"},
}

FLIC = Candidate("flic", "flic (shared anchors, private embeddings)", "flic-class")
LINKED = Candidate("linked", "pooled statistics of linked columns", "linked", pooled_columns)

_ALL: tuple[Learner, ...] = (
    Candidate("network", "the same network alone", "local", federated=False),
    Candidate("lda", "discriminant analysis alone", "lda", federated=False),
    Candidate("ridge", "ridge regression alone", "ridge", federated=False),
    Candidate("boosting", "gradient boosting alone", "boosting", federated=False),
    FLIC,
    Candidate(
        "shared-columns", "one network on the shared columns", "fedavg", shared_columns, AVERAGED
    ),
    Candidate(
        "same-space", "one network per group of equal columns", "fedavg", same_columns, AVERAGED
    ),
    Candidate("keyed", "one network on all linked columns", "fedavg", linked_columns, AVERAGED),
    LINKED,
    Mix(),
)
CANDIDATES: dict[str, Learner] = {candidate.name: candidate for candidate in _ALL}
