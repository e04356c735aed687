"""Rules of a federation: what silos are sent, and what is taken from them.

How messages travel, and how many answers are enough, is the runner's concern.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from flic.errors import FederationError, IncompatibleUpdate
from flic.flower.exchange import Reply
from flic.flower.federation_settings import FederationSettings
from flic.flower.proportion import too_far, too_heavy
from flic.flower.silo_engine import as_coordinated
from flic.method_settings import unit_of
from flic.methods.protocol import ServerState, Stage, Step, Update, check_update

HARMLESS = {"steps": 0.02, "epochs": 0.25}
"""Share of a tensor's first size by which one silo may move it whatever the others do.

All silos take the same number of steps; of epochs, one of more rows takes more.
"""


class Rules:
    """Rules for methods that train networks."""

    plan = "{rounds} of training and a last one from which no tensor leaves"
    """A description of the rounds, for the operator."""

    #: Tensors whose weight is no number of rows, and need not be 1 where silos count alike.
    weighted: frozenset[str] = frozenset()

    def __init__(self, settings: FederationSettings) -> None:
        self.settings = settings
        self.method = as_coordinated(settings)

    def programme(self) -> list[Step]:
        """The steps of a run; silos prepare by themselves, when they first take part."""
        final = self.settings.method_settings.training.final_round
        steps = self.method.programme(self.settings.rounds, final_round=final)
        return [self.counted(step) for step in steps if step.round > 0]

    def counted(self, step: Step) -> Step:
        """The step with these rules' own count as the server half of its stages."""
        stages = (replace(own, server_half=partial(self.count, own)) for own in step.stages)
        return replace(step, stages=tuple(stages))

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

    # ---- what silos are sent -------------------------------------------------------------

    def asked(self, round: int, names: Iterable[str]) -> list[str]:
        """Those of the silos that a round, or an evaluation after it, is for."""
        del round
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
        """Whether a quorum counts an update: who sends nothing hides nobody among its rows."""
        return bool(update.entries)

    def finish(self) -> None:
        """Remove what was kept for a failure that did not come."""
