"""Settings of a data source, which make its clients."""

from abc import abstractmethod
from typing import Any

from flic.data.client_data import FederatedData
from flic.settings import Section


class Problem(Section):
    """A `[data]` section of a configuration; each kind narrows `problem` to its own names."""

    problem: Any

    @abstractmethod
    def make(self, *, seed: int) -> FederatedData:
        """Make the clients that these settings describe; the same seed gives the same clients."""
