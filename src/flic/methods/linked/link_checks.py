"""Check of a client's linked features: those that behave unlike its peers', by pooled sums."""

from jaxtyping import Float
from torch import Tensor

from flic.methods.linked.agreement import class_of
from flic.methods.linked.deviations import (
    FAR,
    KINDS,
    Marginals,
    deviations,
    shares_beyond,
    usual_deviations,
)
from flic.methods.linked.linked_client import LinkedClient

UNLIKE = "scores.unlike"
"""Name of the shares of features that differ; weighted by a client's number of links."""


def shares_unlike(known: LinkedClient) -> Float[Tensor, "3 usual"]:
    """Shares of features that differ, from which the federation learns usual differences."""
    return shares_beyond(*_marginals(known))


def unlike(known: LinkedClient) -> list[tuple[str, str, float]]:
    """Linked features that are unlike its peers': name, kind, and distance."""
    if not known.pool.has_links:
        return []
    found = deviations(*_marginals(known), usual_deviations(known.shared[UNLIKE]))
    features, linked = known.client.schema.features, known.pool.is_linked.nonzero().flatten()
    return [
        (features[int(linked[j])], KINDS[k], float(found[k, j]))
        for k, j in (found.abs() > FAR).nonzero().tolist()
    ]


def _marginals(known: LinkedClient) -> tuple[Marginals, Marginals]:
    """Marginals of the linked features, at the client and at its peers."""
    agreed, linked = known.agreed, known.pool.is_linked.nonzero().flatten()
    columns, y = known.linear.columns[:, linked], class_of(agreed, known.client.train)
    squares, dof = known.pool.others_squares(linked)
    others = known.pool.others
    return (
        Marginals.of(columns, y, agreed.num_classes),
        Marginals(others.count[:, linked], others.total[:, linked], squares, dof),
    )
