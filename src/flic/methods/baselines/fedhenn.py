"""FedHeNN (Makhija et al. 2022): clients agree on the similarity of shared probe inputs.

Paper: Baselines paragraph. Each client minimises its loss + η (1 − CKA(K_i, K̄)), with K_i the
linear kernel of its representations of a representation alignment dataset (RAD) and K̄ the
server's average of the last round's kernels. The RAD is drawn in the widest feature space and
pruned to each client's width.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from flic.methods.network import NetworkMethod
from flic.methods.protocol import Entry, ServerState, VisitContext
from flic.methods.training import LossInputs
from flic.networks.descent import Losses
from flic.seeding import generator
from flic.shapes import Named

PROBES, KERNEL = "rad.inputs", "rad.kernel"


class FedHeNN(NetworkMethod):
    """Everything private; only kernels of the probe inputs travel."""

    name = "fedhenn"
    rule_name = "alone"
    between_machines = True
    shares_inputs = True
    fixed = frozenset({PROBES})

    def init_server(self) -> ServerState:
        rows, width = self.settings.fedhenn.probe_rows, self.population.max_features
        rng = generator(self.seed, "server", "rad")
        probes = torch.randn(rows, width, generator=rng, dtype=torch.float64).to(self.dtype)
        # No kernel before the first round: CKA with zero is zero, and so is its gradient.
        kernel = torch.zeros(rows, rows, dtype=self.dtype)
        return ServerState(0, {PROBES: probes, KERNEL: kernel})

    def extra_terms(self, inputs: LossInputs) -> Losses:
        """η (1 − CKA) of each client."""
        context, clients = inputs.context, len(inputs.batch.x)
        own = self._kernel(context, inputs.private, inputs.theta, clients=clients)
        average = context.server.shared[KERNEL]
        return {"cka": self.settings.fedhenn.weight * (1 - cka(own, average))}

    def entries(
        self, context: VisitContext, client: int, private: Named, shared: Named
    ) -> dict[str, Entry]:
        """The client's kernel of the probe inputs."""
        with torch.no_grad():
            theta = self.theta(private, shared)
            kernel = self._kernel(context, private, theta, clients=len(context))[client]
        weight = self.client_weight(len(context.data.clients[client].train))
        return {KERNEL: Entry(kernel.clone(), weight)}

    def _kernel(
        self, context: VisitContext, private: Named, theta: Named, *, clients: int
    ) -> Float[Tensor, "clients probes probes"]:
        """Linear kernels of the representations, the input of the last layer."""
        probes = context.server.shared[PROBES]
        width = context.data.width
        padded = torch.nn.functional.pad(probes, (0, max(0, width - probes.shape[1])))
        # Features that a client lacks have zero weights: that prunes the RAD to its width.
        x = padded[:, :width].expand(clients, -1, -1).contiguous()
        latent = context.stack.embedding.apply(private, x)
        features = self.model.represent(theta, latent)
        return features @ features.mT


def cka(a: Float[Tensor, "*batch n n"], b: Float[Tensor, "n n"]) -> Float[Tensor, " *batch"]:
    """Centred kernel alignment ⟨A, B⟩/(‖A‖‖B‖) of centred kernels; 0 where one vanishes."""
    a, b = _centred(a), _centred(b)
    tiny = torch.finfo(a.dtype).tiny
    norms = a.square().sum((-2, -1)).clamp_min(tiny).sqrt() * b.norm().clamp_min(tiny**0.5)
    return (a * b).sum((-2, -1)) / norms


def _centred(kernel: Tensor) -> Tensor:
    rows = kernel - kernel.mean(-1, keepdim=True)
    return rows - rows.mean(-2, keepdim=True)
