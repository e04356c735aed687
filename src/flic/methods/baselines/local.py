"""Each client alone: the same network and the same budget, nothing shared.

Paper: Baselines paragraph.
"""

from flic.methods.network import NetworkMethod


class Local(NetworkMethod):
    """Plain training of g_θ ∘ φ at each client."""

    name = "local"
    rule_name = "alone"
