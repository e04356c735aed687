"""Check of a client's linked features: those that behave unlike its peers', by pooled sums."""

from jaxtyping import Float
from torch import Tensor

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
    """Marginals of the linked features, at the client and at its peers.

    The client's are its sums as it sends them. Of the rows themselves, shares would tell the mean
    of a class of few, or a value that is hidden: a server that makes up the peers' sums asks until
    they are no longer unlike.
    """
    pool = known.pool
    linked = pool.is_linked.nonzero().flatten()
    own = pool.told_squares(linked)
    squares, dof = pool.others_squares(linked)
    return (
        Marginals.of(own, pool.shift[linked], pool.scale[linked]),
        Marginals(pool.others.count[:, linked], pool.others.total[:, linked], squares, dof),
    )
