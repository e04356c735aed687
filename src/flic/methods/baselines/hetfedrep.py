"""HetFedRep: a shared hidden layer over private embeddings, with no alignment.

FLIC-HL without its anchors. The name comes from the authors' program, not from the paper
(docs/departures.md).
"""

from flic.methods.network import NetworkMethod


class HetFedRep(NetworkMethod):
    """FedRep on top of private φ_i."""

    name = "hetfedrep"
    hidden_layer = True
    between_machines = True
