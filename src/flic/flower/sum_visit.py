"""A silo's visit for one phase of a secure sum, with what it remembers of earlier ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flic.errors import FederationError
from flic.flower.keys import line_of, read_private
from flic.flower.pinned_keys import pinned_peers
from flic.flower.pooling import rounds_of_sums
from flic.flower.secure.contribution import SumLayout
from flic.flower.secure.plausible import wrong_in_sum
from flic.flower.secure.silo_sum import MASKED, Silo, SiloSum, masked_tensor
from flic.flower.secure.statements import Occasion, SumAnswer, SumRequest, read_statement
from flic.flower.secure.tags import AllTotals, refuse_made_up
from flic.flower.silo_run import SiloRun
from flic.flower.sums_history import SumsHistory
from flic.methods.linked.linked import UPLOAD
from flic.methods.protocol import ServerState, Update
from flic.shapes import Named

KEY = "key"


@dataclass(frozen=True)
class SumVisit:
    """One visit: the run, who the silo is to its peers, and the sums that it told before."""

    run: SiloRun
    silo: Silo
    history: SumsHistory
    min_rows: int

    def answer(
        self,
        asked: SumRequest,
        shared: Named,
        linked: Sequence[int],
        make: Callable[[], Update],
    ) -> tuple[SumAnswer, Named]:
        """The silo's answer in a phase, and its masked numbers.

        Args:
            asked: the request.
            shared: the shared part, which the first phase alone has.
            linked: places of the silo's features that are linked, as the first phase has them.
            make: function that makes the silo's update; called in the first phase alone.
        """
        occasion = asked.occasion
        one = SiloSum(self.run.folder, self.silo)
        layout = SumLayout(self.run.settings, occasion.stage, occasion.round, tuple(occasion.union))
        if asked.phase == "advertise":
            keys = self._linked_keys(layout, linked)
            return self._advertise(one, layout, occasion, shared, keys, make), {}
        if asked.phase == "share":
            return one.share(occasion, asked.adverts, layout), {}
        if asked.phase == "mask":
            masked = one.mask(occasion, asked.shares, layout)
            return SumAnswer(), {MASKED: masked_tensor(masked)}
        if asked.phase == "agree":
            one.refuse_members(occasion, asked.members, layout)
            self._behind(layout, occasion, one.sets(occasion, asked.members))
            return one.agree(occasion, asked.members), {}
        return self._unmask(one, layout, asked), {}

    def _advertise(
        self,
        one: SiloSum,
        layout: SumLayout,
        occasion: Occasion,
        shared: Named,
        keys: Sequence[str],
        make: Callable[[], Update],
    ) -> SumAnswer:
        """The silo's numbers, made and put aside; keys for their sum, and what they are."""
        one.refuse_invited(occasion)
        update = make()
        if wrong := wrong_in_sum(update, 1):
            raise FederationError(
                f"the update of silo {self.run.name!r} {wrong}. Look at the table; nothing was "
                "sent."
            )
        contents = layout.contents(update, keys, self.silo.min_holders)
        own, sent = layout.own(update, keys), layout.sent(shared, keys)
        return one.advertise(occasion, contents, own, sent)

    def _unmask(self, one: SiloSum, layout: SumLayout, asked: SumRequest) -> SumAnswer:
        """Shares that take the masks off a sum whose members the silo signed."""
        occasion = asked.occasion
        behind = self._behind(layout, occasion, one.sets(occasion))
        kept = layout.in_own_columns(one.kept(), self._keys_in(layout))
        answer, key = one.unmask(occasion, asked.signatures)
        # What was not told in a sum that is never unmasked was not left out of any total.
        self.run.keep_to_itself(kept)
        self.run.keep_tag_key(occasion.round, key)
        self.history.keep_sets(self.run.folder.name, self._step(occasion), behind)
        return answer

    def _behind(
        self, layout: SumLayout, occasion: Occasion, sets: Mapping[str, frozenset[str]]
    ) -> dict[str, frozenset[str]]:
        """Members behind all that the silo adds, unless sums told before would show few of them.

        Columns go by the digests of their names, which later runs have too.
        """
        run, features = self.run.folder.name, self.run.client.schema.features
        told = self.history.told_in(run)
        assert told is not None  # its rows were kept before they were masked
        # Behind the features, the history has a response.
        digests = dict(zip(features, told.train.features, strict=False))
        names = {f"column {i}": digests.get(key, key) for i, key in enumerate(layout.union)}
        behind = {names.get(label, label): members for label, members in sets.items()}
        self.history.refuse_subtraction(
            run,
            self._step(occasion),
            behind,
            least=self.silo.min_holders,
            min_rows=self.min_rows,
        )
        return behind

    def _step(self, occasion: Occasion) -> str:
        """Name of the sums that may be subtracted from each other: of linked columns, a round's.

        A network hardly changes from round to round once training has settled, nor do its figures;
        with another seed it is another from the beginning.
        """
        settings = self.run.settings
        if settings.sends_sums:
            return f"{occasion.stage} {occasion.round}"
        return f"network, seed {settings.seed}"

    def _linked_keys(self, layout: SumLayout, linked: Sequence[int]) -> list[str]:
        """Keys of the features that are linked, if the request says twice the same of them."""
        keys, features = self._keys_in(layout), self.run.client.schema.features
        if [features[i] for i in linked] != keys:
            raise FederationError(
                f"silo {self.run.name!r} is told that {len(linked)} of its features are linked, "
                f"and {len(keys)} are among those of all silos; expected the same. Begin a new run."
            )
        return keys

    def _keys_in(self, layout: SumLayout) -> list[str]:
        """Keys of the silo's features that are linked, in its own order."""
        union = {*layout.union}
        return [key for key in self.run.client.schema.features if key in union]


def refuse_made_up_sums(run: SiloRun, server: ServerState, keys: Sequence[str], text: str) -> None:
    """Refuse pooled sums of linked columns other than those that came out of earlier rounds."""
    got = read_statement(AllTotals, text or "{}", who="a request")
    tags, known = {own.round: own for own in got.rounds}, run.tag_keys
    for round in rounds_of_sums(run.settings) if keys else ():
        if round >= server.round:
            return
        if round not in known or round not in tags:
            raise FederationError(
                f"silo {run.name!r} is sent pooled sums without a tag, or of a sum that it was not "
                "in; expected those of its own sums. Begin a new run."
            )
        layout = SumLayout(run.settings, UPLOAD, round, tuple(known[round].union))
        refuse_made_up(run.name, known[round], layout, keys, server.shared, tags[round])


def as_peer(folder: Path, silo: str, *, min_holders: int) -> Silo:
    """A silo as other silos know it: by its key, under the name that they pinned."""
    key, peers = read_private(folder / KEY), pinned_peers(folder)
    own = [name for name, line in peers.items() if line == line_of(key)]
    if not own:
        raise FederationError(
            f"silo {silo!r} trusts no other silo's key yet; expected a list of keys that its "
            "administrator compared. Ask the operator for it, and type: flic silo trust "
            f"{folder} LIST"
        )
    return Silo(own[0], key, peers, min_holders)
