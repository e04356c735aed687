"""Traffic: counts of the tensors that each client sends."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from flic.engine.engine import Engine, Job, JobResult
from flic.engine.runners import InProcess


@dataclass(frozen=True)
class SentTensor:
    """A tensor that a client sends: its bytes, and the number of times."""

    name: str
    shape: Sequence[int]
    bytes: int
    times: int

    @property
    def total(self) -> int:
        """Bytes of all times."""
        return self.bytes * self.times


@dataclass(frozen=True)
class ClientTraffic:
    """Tensors that one client sent; none if it sent nothing."""

    client: str
    tensors: Sequence[SentTensor]

    @property
    def total(self) -> int:
        """Bytes that the client sent."""
        return sum(tensor.total for tensor in self.tensors)


class TrafficCounter(InProcess):
    """Does jobs in this process, and counts every tensor that a client sends."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._times: Counter[tuple[str, str, tuple[int, ...], int]] = Counter()

    def run(self, jobs: Iterable[Job]) -> Iterator[JobResult]:
        """Results in the order of the jobs."""
        for result in super().run(jobs):
            for update in result.updates:
                for name, entry in update.entries.items():
                    value = entry.value
                    size = value.numel() * value.element_size()
                    self._times[update.client, name, tuple(value.shape), size] += 1
            yield result

    def sent(self) -> dict[str, list[SentTensor]]:
        """Tensors that each client sent, in the order in which they were first sent."""
        found: dict[str, list[SentTensor]] = {}
        for (client, name, shape, size), times in self._times.items():
            found.setdefault(client, []).append(SentTensor(name, shape, size, times))
        return found
