"""FedAvg by feature name: the whole network shared among clients that declare the same space.

McMahan et al. 2017, with the first layer averaged feature by feature over its holders, so that
clients may lack columns of the space. Only class offsets stay at home.
"""

from flic.algorithms.within_space import WithinSpace


class FedAvg(WithinSpace):
    """Body and head shared per space, class offsets private."""

    name = "fedavg"
    rule_name = "offsets"
