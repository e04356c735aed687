"""What leaves each client while a candidate learns, counted as it is sent."""

from collections import Counter
from collections.abc import Iterable, Iterator

from flic.federation.runners import InProcess
from flic.federation.work import Answer, Task, Workshop
from flic.report.page.story import SentTensor


class Overheard(InProcess):
    """Does tasks here, and counts every tensor that a client sends."""

    def __init__(self, workshop: Workshop) -> None:
        super().__init__(workshop)
        self._times: Counter[tuple[str, str, tuple[int, ...], int]] = Counter()

    def run(self, tasks: Iterable[Task]) -> Iterator[Answer]:
        """Answers in the order of the tasks."""
        for answer in super().run(tasks):
            for update in answer.updates:
                for name, entry in update.entries.items():
                    value = entry.value
                    size = value.numel() * value.element_size()
                    self._times[update.client, name, tuple(value.shape), size] += 1
            yield answer

    def sent(self) -> dict[str, list[SentTensor]]:
        """Tensors that each client sent, in the order of their first sending."""
        found: dict[str, list[SentTensor]] = {}
        for (client, name, shape, size), times in self._times.items():
            found.setdefault(client, []).append(SentTensor(name, shape, size, times))
        return found
