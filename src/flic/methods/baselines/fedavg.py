"""FedAvg by feature name: the whole network shared among clients that declare the same space.

McMahan et al. 2017, with the first layer averaged feature by feature over its holders, so that
clients may lack columns of the space. Only class offsets stay at home.
"""

from flic.methods.baselines.within_space import WithinSpace

_WARM_UP_AVERAGES = 10


class FedAvg(WithinSpace):
    """Body and head shared per space, class offsets private."""

    name = "fedavg"
    rule_name = "offsets"

    @property
    def warm_up_parts(self) -> int:
        """Several parts: networks trained apart for the whole warm-up do not average well.

        With private heads (`within-space`) this does harm: heads then follow a moving body.
        """
        return min(_WARM_UP_AVERAGES, max(1, self.settings.pretraining.epochs))
