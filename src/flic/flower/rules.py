"""Rules of a federation: what silos are sent, and what is taken from them.

How messages travel, and how many answers are enough, is the runner's concern.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from statistics import median_low

import torch

from flic.data.task import TaskName
from flic.engine.score import Errors, Hits
from flic.errors import FederationError, IncompatibleUpdate
from flic.flower.exchange import Reply
from flic.flower.federation_settings import LARGEST, MOST_ROWS, FederationSettings
from flic.flower.secure.contribution import SumLayout
from flic.flower.secure.pooled_sum import PooledSum
from flic.method_settings import unit_of
from flic.methods.protocol import ServerState, Stage, Step, Update, check_update
from flic.shapes import Named

HARMLESS = {"steps": 0.02, "epochs": 0.25}
"""Share of a tensor's first size by which one silo may move it whatever the others do.

All silos take the same number of steps; of epochs, one of more rows takes more.
"""

WEIGHT_FACTOR = 1000.0
"""Times the median of a round that a silo may count for."""


class Rules:
    """Rules for methods that train networks."""

    plan = "{rounds} of training and a last one from which no tensor leaves"
    """A description of the rounds, for the operator."""

    @property
    def fewest(self) -> tuple[int, str, str]:
        """Silos without which no round can count, the rule that says so, and what to do."""
        return self.settings.quorum, "quorum", "Admit more, or lower the quorum."

    #: Tensors whose weight is no number of rows, and need not be 1 where silos count alike.
    weighted: frozenset[str] = frozenset()

    def __init__(self, settings: FederationSettings) -> None:
        self.settings = settings
        self.method = settings.coordinated_method()

    def programme(self) -> list[Step]:
        """The steps of a run."""
        return self.settings.programme(self.settings.rounds)

    def initial(self) -> ServerState:
        """The shared part before the first round."""
        return self.method.init_server()

    def count(self, stage: Stage, server: ServerState, updates: Sequence[Update]) -> ServerState:
        """The shared part after a stage.

        Raises:
            FederationError: it would not be numbers, and every silo would start from it.
        """
        found = stage.server_half(server, updates)
        wrong = [n for n, v in found.shared.items() if not bool(v.isfinite().all())]
        if wrong:
            raise FederationError(
                f"round {server.round}: the shared {', '.join(wrong)} would not be finite; "
                "expected numbers. The rounds before are kept; look for a silo whose updates are "
                "out of proportion in the coordinator's log.jsonl, and revoke it."
            )
        return found

    def sum_layout(self, stage: str, round: int) -> SumLayout | None:
        """The numbers of a stage's secure sum; None if each silo's answer is taken by itself."""
        del stage, round
        return None

    def take(self, one: PooledSum, update: Update, server: ServerState) -> None:
        """Take a secure sum, and remember what its silos need to know of it."""

    def keep_list(self, stage: str, round: int, members: Sequence[str]) -> None:
        """Remember the silos that are about to unmask a stage's secure sum."""

    def listed(self, stage: str, round: int) -> frozenset[str]:
        """Silos that were last asked to unmask a stage's secure sum; nobody if none were."""
        del stage, round
        return frozenset()

    def passed_over(
        self, round: int, names: Sequence[str], there: Collection[str]
    ) -> dict[str, str]:
        """Silos, of those that are there or were before, that a secure sum is not to have."""
        del round, names, there
        return {}

    def unsound(self, server: ServerState) -> list[str]:
        """Names of shared tensors that no finished round leaves as they are."""
        return self.method.unsound(server.shared)

    # ---- what silos are sent -------------------------------------------------------------

    def totals(self, name: str) -> str:
        """Tags of the pooled sums that a silo is sent, as they travel; "" where there are none."""
        del name
        return ""

    def asked(self, stage: str, round: int, names: Iterable[str]) -> list[str]:
        """Those of the silos that a stage of a round, or an evaluation after it, is for."""
        del stage, round
        return sorted(names)

    def shared_with(self, name: str, server: ServerState) -> ServerState:
        """The shared part as a silo is sent it."""
        del name
        return server

    def holders(self, name: str) -> tuple[int, ...]:
        """Silos that have each feature of a silo, where columns are linked."""
        del name
        return ()

    # ---- what is taken from them ---------------------------------------------------------

    def expects(self, server: ServerState, keys: Sequence[str]) -> ServerState:
        """Names and shapes that an answer may hold."""
        return server if not keys else ServerState(server.round, {})

    def check(self, name: str, stage: Stage, server: ServerState, reply: Reply) -> str | None:
        """The reason why a reply cannot be counted; None if it can."""
        update = reply.update
        if reply.round != server.round:
            return (
                f"update of silo {name!r} is of round {reply.round}; expected one of round "
                f"{server.round}. It may be a replay; look at the silo's log."
            )
        if not stage.sends and update.entries:
            return (
                f"update of silo {name!r} holds tensors in a round from which none leaves; "
                "expected loss terms alone. Give all silos one version of flic."
            )
        entries = update.entries.items()
        weights = {entry.weight for name, entry in entries if name not in self.weighted}
        if self.settings.weights == "equal" and weights - {1.0}:
            return (
                f"update of silo {name!r} has weights other than 1; expected equal weights. Give "
                "all silos one version of flic."
            )
        try:
            check_update(self.expects(server, reply.keys), update, self.method.fixed)
        except IncompatibleUpdate as error:
            return str(error)
        return None

    def outliers(self, server: ServerState, replies: Mapping[str, Reply]) -> dict[str, str]:
        """Updates out of all proportion to the others and to the shared part at the beginning."""
        updates = [reply.update for reply in replies.values()]
        far = too_far(
            updates,
            server.shared,
            self.initial().shared,
            factor=self.settings.norm_factor,
            harmless=HARMLESS[unit_of(self.settings.method_settings.training.shared)],
        )
        return too_heavy(updates) | far

    def contributes(self, update: Update) -> bool:
        """Return whether a quorum counts an update: an empty one hides nobody among its rows."""
        return bool(update.entries)

    def finish(self) -> None:
        """Remove what was kept for a failure that did not come."""


def too_far(
    updates: Sequence[Update], shared: Named, first: Named, *, factor: float, harmless: float
) -> dict[str, str]:
    """Updates with a tensor far from the one that the silo was sent, and why.

    Silos take small steps from the same tensors, so the median move of a round is the measure. A
    silo of more rows may take more steps: a move by a share `harmless` of the tensor's first size
    is let be, and none may be `factor` times it. That size is the one before the first round, which
    no silo can inflate.
    """
    moves = {u.client: _moves(u, shared, first) for u in updates if u.entries}
    usual = median_low([_size(own.values()) for own in moves.values()]) if moves else 0.0
    found: dict[str, str] = {}
    for silo, own in moves.items():
        for name, move in own.items():
            size = _size([first[name]])
            bound = factor * usual
            if size:
                bound = min(max(bound, harmless * size), factor * size)
            if (got := _size([move])) > bound:
                found[silo] = (
                    f"update of silo {silo!r}: {name!r} is a root mean square of {got:.3g} away "
                    f"from what it was sent; expected {bound:.3g} at most, from {factor:g} times "
                    f"the median of the round and its first size, {size:.3g}."
                    f"{_exchanged(name, own, shared)} Look at the silo's rows and its log; "
                    "--set norm_factor=… allows more."
                )
    return found


def _moves(update: Update, shared: Named, first: Named) -> dict[str, torch.Tensor]:
    """Change of each tensor from what was sent; from zero where each round makes it anew."""
    return {
        name: entry.value.double() - (shared[name].double() if first[name].any() else 0.0)
        for name, entry in update.entries.items()
    }


def _exchanged(name: str, moves: Named, shared: Named) -> str:
    """A sentence where a tensor lies where another one was, as if two were exchanged."""
    own = shared[name].double() + moves[name]
    alike = [n for n in moves if shared[n].shape == own.shape]
    nearest = min(alike, key=lambda n: _size([own - shared[n].double()]))
    return (
        "" if nearest == name else f" It is nearest to {nearest!r}, as if the two were exchanged."
    )


def too_heavy(updates: Sequence[Update]) -> dict[str, str]:
    """Updates that would count for far more rows than the others: rows are taken on trust."""
    heaviest = {
        update.client: max(entry.weight for entry in update.entries.values())
        for update in updates
        if update.entries
    }
    if not heaviest:
        return {}
    bound = min(MOST_ROWS, WEIGHT_FACTOR * median_low(heaviest.values()))
    return {
        name: f"update of silo {name!r} counts for {weight:.3g} rows; expected {bound:.3g} at most "
        f"({WEIGHT_FACTOR:g} times the median). Use --weights equal."
        for name, weight in heaviest.items()
        if weight > bound
    }


def is_evaluation(numbers: Mapping[str, float], task: TaskName) -> bool:
    """Return whether numbers are what an evaluation gives."""
    kind = Hits if task == "classification" else Errors
    expected = {f"test_{own.name}" for own in fields(kind)}
    if {*numbers} != expected or not 1 <= numbers["test_rows"] <= MOST_ROWS:
        return False
    most = numbers["test_rows"] if kind is Hits else LARGEST
    return all(0 <= value <= most for name, value in numbers.items() if name != "test_rows")


def _size(tensors: Iterable[torch.Tensor]) -> float:
    """Root mean square of all numbers."""
    flat = torch.cat([tensor.flatten().double() for tensor in tensors])
    return float(flat.square().mean().sqrt())
