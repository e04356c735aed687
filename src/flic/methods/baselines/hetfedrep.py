"""HetFedRep: a shared hidden layer over private embeddings, with no alignment.

Paper: Baselines paragraph. FLIC-HL without its anchors.
"""

from flic.methods.network import NetworkMethod


class HetFedRep(NetworkMethod):
    """FedRep on top of private φ_i."""

    name = "hetfedrep"
    hidden_layer = True
