"""Counts of what leaves each client, tensor by tensor."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from flic.engine.engine import Engine, Job, JobResult
from flic.engine.runners import InProcess


@dataclass(frozen=True)
class SentTensor:
    """A tensor that leaves a client: bytes of one sending, and how often it was sent."""

    name: str
    shape: Sequence[int]
    bytes: int
    times: int

    @property
    def total(self) -> int:
        """Bytes over all sendings."""
        return self.bytes * self.times


@dataclass(frozen=True)
class ClientTraffic:
    """What left one client; no tensors where it sent nothing."""

    client: str
    tensors: Sequence[SentTensor]

    @property
    def total(self) -> int:
        """Bytes that left the client."""
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
        """Tensors that each client sent, in the order of their first sending."""
        found: dict[str, list[SentTensor]] = {}
        for (client, name, shape, size), times in self._times.items():
            found.setdefault(client, []).append(SentTensor(name, shape, size, times))
        return found
