"""FLIC as the authors' published program runs it: anchor means move after every batch.

The preset `authors` has the program's settings. docs/departures.md lists what else it does.
"""

from dataclasses import replace

import torch

from flic.methods.baselines.permuted_anchors import PermutedAnchors
from flic.methods.flic.algorithm import Flic
from flic.methods.flic.anchors import MEAN
from flic.methods.flic.scheme import ByClass, calibration_loss
from flic.methods.flic.targets import alignment_loss
from flic.methods.network import NetworkMethod
from flic.methods.training import LossInputs
from flic.networks.descent import Losses


class AuthorsFlic(Flic):
    """FLIC whose anchors are trained together with φ and β, by the authors' own loss."""

    tasks = ("classification",)
    between_machines = False  # never tried there

    def joint_names(self) -> set[str]:
        """The anchor means move after every batch."""
        return {MEAN}

    def apart_names(self) -> set[str]:
        """α alone."""
        return NetworkMethod.apart_names(self)

    def extra_terms(self, inputs: LossInputs) -> Losses:
        """FLIC's terms with the anchors fixed, and the authors' loss of the anchors.

        Departs: they step the anchors after the batch's step of φ and β; here both steps are
        taken from the same point, which differs by one learning rate.
        """
        shared, latent = inputs.shared, inputs.latent.detach()
        fixed = {name: value.detach() for name, value in shared.items()}
        terms = super().extra_terms(replace(inputs, shared=fixed))
        if not shared[MEAN].requires_grad:
            return terms
        theta = {name: value.detach() for name, value in inputs.theta.items()}
        assert isinstance(self.scheme, ByClass)
        scores = self.scheme.anchor_scores(inputs.context, self.model.apply(theta, shared[MEAN]))
        every_class = torch.arange(self.scheme.num_anchors).expand(scores.shape[:2])
        targets = self.scheme.targets(inputs.context, shared, latent, inputs.batch)
        pulled = alignment_loss(latent, inputs.batch, targets)
        return {**terms, "anchors": calibration_loss(scores, every_class) + pulled}


class AuthorsFlicClass(AuthorsFlic):
    """The authors' FLIC without a shared layer."""

    name = "flic-class-authors"
    hidden_layer = False


class AuthorsFlicHL(AuthorsFlic):
    """The authors' FLIC with a shared hidden layer."""

    name = "flic-hl-authors"
    hidden_layer = True


class AuthorsPermutedAnchors(AuthorsFlic, PermutedAnchors):
    """The authors' FLIC with each client's anchors shuffled, as a control."""

    name = "permuted-anchors-authors"
