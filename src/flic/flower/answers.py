"""Answers that a silo gave in a run, so that it answers no step to many requests.

Whoever may ask again and again, each time with another shared part, chooses the models whose
likelihoods and figures it is told, and finds rows out one by one.

RUN/answers.json   digests of the requests that were answered, by step; the figures that were told;
                   which features are linked
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from flic.digests import digest_of, digest_of_arrays
from flic.engine.engine import EVALUATE
from flic.errors import FederationError
from flic.files import write_json
from flic.flower.pooling import FIRST, LAST, SUMS
from flic.methods.linked.linked import UPLOAD
from flic.methods.protocol import ServerState
from flic.settings import read_model

FILE = "answers.json"

#: Steps where columns are linked: the only ones, in this order.
LINKED = (*(f"{UPLOAD} {round}" for round in range(FIRST, LAST + 1)), f"{EVALUATE} {LAST}")
_ANEW = LINKED.index(f"{UPLOAD} {SUMS + 1}")  # from here on if a silo fails


class _Answered(BaseModel):
    model_config = ConfigDict(extra="forbid")
    requests: dict[str, list[str]] = {}
    figures: dict[str, dict[str, float]] = {}
    linked: list[int] | None = None  # positions of the features that sums were told of


def digest_of_request(server: ServerState, facts: object) -> str:
    """Digest of all that an answer depends on beside the silo's rows and the agreed settings."""
    arrays = {name: server.shared[name].numpy() for name in sorted(server.shared)}
    return digest_of([facts, digest_of_arrays(arrays)])


class Answers:
    """Requests that a silo answered in a run."""

    def __init__(self, folder: Path, silo: str) -> None:
        self._path, self._silo = folder / FILE, silo
        self._known = read_model(_Answered, self._path) or _Answered()

    def requests(self, step: str) -> list[str]:
        """Digests of the requests that were answered in a step."""
        return self._known.requests.get(step, [])

    def figures(self, step: str, request: str) -> dict[str, float] | None:
        """Figures that were told to the same request."""
        return self._known.figures.get(step) if request in self.requests(step) else None

    def refuse_another(self, step: str, request: str, *, most: int = 1) -> None:
        """Refuse one more request of a step than it may have; the same one again is none."""
        if request not in self.requests(step) and len(self.requests(step)) >= most:
            raise FederationError(
                f"silo {self._silo!r} answered {step!r} of run {self._path.parent.name} before, "
                "and is asked with another shared part; expected the one it answered, since "
                "answers to many would show rows. Begin a new run."
            )

    def refuse_out_of_turn(self, step: str, request: str, *, begins_anew: bool) -> None:
        """Refuse a step of linked columns before the last was answered, or more often than that.

        If a silo fails, a run that `begins_anew` asks the others again from the round after the
        sums; under masks it goes on with the sums that it has.
        """
        if step not in LINKED:
            raise FederationError(
                f"silo {self._silo!r} is asked for {step!r}; expected one of "
                f"{', '.join(LINKED)} where columns are linked. Give coordinator and silos one "
                "version of flic."
            )
        at = LINKED.index(step)
        before = len(self.requests(LINKED[at - 1])) if at else 1
        if not before:
            raise FederationError(
                f"silo {self._silo!r} is asked for {step!r} and was not asked for "
                f"{LINKED[at - 1]!r}; expected steps in their order. Begin a new run."
            )
        if not begins_anew:
            self.refuse_another(step, request)
        elif at != _ANEW:
            self.refuse_another(step, request, most=before)

    def beginnings(self, step: str, request: str) -> int:
        """Number of times the run was begun: once, and for each other request after the sums."""
        asked = {*self.requests(LINKED[_ANEW])} | ({request} if step == LINKED[_ANEW] else set())
        return max(1, len(asked))

    @property
    def are_of_sums(self) -> bool:
        """True if sums were told."""
        return bool(self.requests(LINKED[_ANEW - 1]))

    def refuse_other_links(self, positions: Sequence[int]) -> None:
        """Refuse features as linked of which no sums were told; if a silo fails, some are not."""
        known = self._known.linked
        if known is not None and not {*positions} <= {*known}:
            raise FederationError(
                f"the coordinator names linked features of which silo {self._silo!r} sent no "
                "sums; expected the same features, or fewer. Begin a new run."
            )

    def keep(
        self,
        step: str,
        request: str,
        *,
        linked: Sequence[int] | None = None,
        figures: Mapping[str, float] | None = None,
    ) -> None:
        """Remember an answer before it is given."""
        known = self._known
        if request not in self.requests(step):
            known.requests[step] = [*self.requests(step), request]
        if figures is not None:
            known.figures[step] = dict(figures)
        if linked is not None:
            known.linked = list(linked)
        write_json(self._path, known.model_dump())
