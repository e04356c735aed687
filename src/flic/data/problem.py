"""Problem: settings of a data source that can make its clients."""

from abc import abstractmethod
from typing import Any

from flic.data.client_data import FederatedData
from flic.settings import Section


class Problem(Section):
    """A `[data]` section of a configuration; each kind narrows `problem` to its own names."""

    problem: Any

    @abstractmethod
    def make(self, *, seed: int) -> FederatedData:
        """Clients as these settings describe them; the same ones for the same seed."""
