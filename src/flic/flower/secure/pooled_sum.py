"""The coordinator's part of a secure sum: it passes messages on, and takes the masks off the sum.

A silo that fails in a phase is asked no more in this sum. The others go on as long as enough are
left to take its masks off, and as long as enough add to every number.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from flic.errors import FederationError
from flic.flower.exchange import Asked, Reply, SumPhase
from flic.flower.pooling import SUMS
from flic.flower.secure.contribution import Group, SumLayout
from flic.flower.secure.fixed_point import added, decoded, negated
from flic.flower.secure.masks import (
    SEED_BYTES,
    mask_key,
    masks_with_peers,
    own_mask,
    public_bytes,
)
from flic.flower.secure.shares import recovered, threshold
from flic.flower.secure.silo_sum import MASKED, least_of, masked_words, thinly_added
from flic.flower.secure.statements import (
    Advert,
    FalseTotals,
    Occasion,
    Phase,
    SumAnswer,
    SumRequest,
    read_statement,
)
from flic.flower.secure.tags import GroupTotals, sent_totals, tag_words
from flic.methods.protocol import Update
from flic.shapes import Named

Ask = Callable[[SumPhase], Asked]


class _TooFew(Exception):
    """Too few silos were left for a sum, which may be tried again."""


class PooledSum:
    """One attempt at one sum, and how it went."""

    def __init__(
        self,
        occasion: Occasion,
        layout: SumLayout,
        ask: Ask,
        keep_list: Callable[[list[str]], None],
        *,
        fewest: int,
    ) -> None:
        """`keep_list` is given the members before any of them unmasks the sum."""
        self.occasion, self.layout = occasion, layout
        self._ask, self._keep_list, self._fewest = ask, keep_list, fewest
        self.members: list[str] = []  # whose numbers are in what silos were asked to unmask
        self.absent: dict[str, str] = {}  # who failed, and why
        self.refused: dict[str, str] = {}
        self.num_bytes: Counter[str] = Counter()  # that each silo sent
        self.totals: list[GroupTotals] = []  # as silos are to be sent them
        self._doubts: Counter[str] = Counter()  # of how many others each silo's answers are no use
        self._deceived: dict[str, int] = {}  # rounds whose totals silos say are false

    def run(self) -> Update | str:
        """The sum as one update; or the reason why it came to nothing, and none of it was read.

        Raises:
            FalseTotals: silos say that the totals of an earlier sum do not fit their tag.
        """
        try:
            num_invited = len(self.occasion.invited)
            self._refuse_few(num_invited, self._fewest, "are there", "min_holders and quorum")
            adverts = self._adverts()
            sealed = self._shares(adverts)
            begun = _Begun.of(self.layout, adverts, sorted(sealed))
            masked = self._masked(begun, sealed)
            answers = self._unmasking([*masked], begun)
            return self._unmasked(begun, masked, answers)
        except _TooFew as error:
            return str(error)

    # ---- phases --------------------------------------------------------------------------

    def _adverts(self) -> dict[str, Advert]:
        answers = self._answers("advertise", {name: {} for name in self.occasion.invited})
        self._stop_if_deceived()
        found: dict[str, Advert] = {}
        for name, (answer, _) in answers.items():
            if answer.advert is None or answer.advert.name != name:
                self._refuse(name, "has no keys for a secure sum, or those of another name")
            elif not self.layout.has_room_for(answer.advert.contents):
                self._refuse(name, "would add to numbers that are none of the sum's")
            elif answer.advert.contents.min_holders > len(self.occasion.invited):
                self._refuse(name, "wants more silos in a sum than were asked (min_holders)")
            else:
                found[name] = answer.advert
        # A sum of two would show each of them the other's part.
        least = least_of([*found.values()]) if found else 2
        self._refuse_few(len(found), least, "gave keys", "min_holders")
        return found

    def _shares(self, adverts: Mapping[str, Advert]) -> dict[str, dict[str, str]]:
        """By sender, shares that are encrypted to each receiver."""
        everyone = {"adverts": [adverts[name].model_dump() for name in sorted(adverts)]}
        found: dict[str, dict[str, str]] = {}
        for name, (answer, _) in self._answers("share", dict.fromkeys(adverts, everyone)).items():
            if {*answer.shares} != {*adverts} - {name}:
                self._refuse(name, "has shares for other silos than those that take part")
            else:
                found[name] = answer.shares
        self._refuse_doubted()
        needed = threshold(len(adverts), least_of([*adverts.values()]))
        self._refuse_few(len(found), needed, "shared their masks' seeds", "threshold")
        return found

    def _masked(
        self, begun: "_Begun", sealed: Mapping[str, Mapping[str, str]]
    ) -> dict[str, np.ndarray]:
        incoming = {
            name: {"shares": {peer: sealed[peer][name] for peer in sealed if peer != name}}
            for name in sealed
        }
        form = {MASKED: torch.zeros(begun.size, 2, dtype=torch.int64)}
        found: dict[str, np.ndarray] = {}
        for name, (_, reply) in self._answers("mask", incoming, form).items():
            if MASKED not in reply.update.entries:
                self._refuse(name, "has no masked numbers")
            else:
                found[name] = masked_words(reply.update.entries[MASKED].value)
        self._refuse_doubted()
        least, rules = max(begun.needed, self._fewest), "threshold, min_holders and quorum"
        self._refuse_few(len(found), least, "sent masked numbers", rules)
        said = {name: advert.contents for name, advert in begun.adverts.items()}
        if reason := thinly_added(self.layout, said, begun.taking_part, sorted(found)):
            raise _TooFew(f"a secure sum cannot be unmasked: {reason}")
        return found

    def _unmasking(self, members: list[str], begun: "_Begun") -> dict[str, SumAnswer]:
        """Answers of members, each of whom has seen that enough signed the same list."""
        whole = {"members": sorted(members)}
        listed = self._answers("agree", dict.fromkeys(members, whole))
        signed = {name: answer.signature for name, (answer, _) in listed.items()}
        self._refuse_few(len(signed), begun.needed, "signed the list of members", "threshold")
        self.members, shown = sorted(members), {"signatures": signed}
        self._keep_list(self.members)
        found: dict[str, SumAnswer] = {}
        for name, (answer, _) in self._answers("unmask", dict.fromkeys(signed, shown)).items():
            if any(len(own) != 2 * SEED_BYTES for own in (answer.seed, *answer.shares.values())):
                self._refuse(name, "has seeds or shares of another size")
            elif {*answer.shares} != {*begun.taking_part} - {name}:
                self._refuse(name, "has shares of other silos than those that it has masks with")
            else:
                found[name] = answer
        self._refuse_few(len(found), begun.needed, "took part in unmasking", "threshold")
        return found

    # ---- the sum -------------------------------------------------------------------------

    def _unmasked(
        self, begun: "_Begun", masked: Mapping[str, np.ndarray], answers: Mapping[str, SumAnswer]
    ) -> Update:
        """The sum without its masks: those of members' own, and those with silos that failed."""
        total = np.zeros((begun.size, 2), np.uint64)
        for name, words in masked.items():
            said = answers[name].seed if name in answers else ""
            seed = bytes.fromhex(said) or begun.recovered(name, answers)  # it failed since
            total = added(added(total, words), negated(own_mask(seed, begun.size)))
        public = [(name, bytes.fromhex(begun.adverts[name].mask)) for name in sorted(masked)]
        for name in sorted({*begun.taking_part} - {*masked}):
            key = mask_key(begun.recovered(name, answers))
            if public_bytes(key).hex() != begun.adverts[name].mask:
                raise _TooFew(
                    f"the shares of {name}'s masks do not fit its key; expected those that it "
                    "gave out. It, or who holds them, lies: go on without it, and ask."
                )
            # What the members' numbers still carry is the opposite of what its own would have.
            total = added(
                total, masks_with_peers(key, name, public, self.occasion.digest, begun.size)
            )
        whole = np.zeros((self.layout.size, 2), np.uint64)
        numbers = int(begun.enough.sum())
        whole[begun.enough] = total[:numbers]
        self.totals = self._tagged(begun, whole, total[numbers:])
        return self.layout.pooled(decoded(whole), f"{len(masked)} silos")

    def _tagged(self, begun: "_Begun", whole: np.ndarray, tags: np.ndarray) -> list[GroupTotals]:
        """The tag of the totals of each group."""
        words, found = tag_words([()]), list[GroupTotals]()
        for i, group in enumerate(begun.groups):
            own = tags[i * words : (i + 1) * words]
            totals = sent_totals(self.occasion.round, self.layout, whole, own, group)
            names = [n for n in self.members if self._group_of(begun.adverts[n]) == group]
            found.append(GroupTotals(names=names, totals=totals))
        return found

    def _group_of(self, advert: Advert) -> Group | None:
        """The group of a silo; None if it is sent no totals."""
        columns = advert.contents.columns
        return self.layout.group_of([self.layout.union[i] for i in columns]) if columns else None

    # ---- messages ------------------------------------------------------------------------

    def _answers(
        self,
        phase: Phase,
        letters: Mapping[str, Mapping[str, object]],
        expected: Named | None = None,
    ) -> dict[str, tuple[SumAnswer, Reply]]:
        """Answers of silos in a phase; the others are noted with the reason."""
        texts = {
            name: SumRequest.model_validate(
                {"phase": phase, "occasion": self.occasion, **letter}
            ).model_dump_json(exclude_defaults=True)
            for name, letter in letters.items()
        }
        asked = self._ask(SumPhase(phase == "advertise", texts, expected or {}))
        self.absent |= asked.absent
        self.refused |= asked.refused
        found: dict[str, tuple[SumAnswer, Reply]] = {}
        for name, reply in asked.replies.items():
            self.num_bytes[name] += reply.update.num_bytes + len(reply.statement)
            try:
                answer = read_statement(SumAnswer, reply.statement, who=f"answer of silo {name!r}")
                if answer.false_totals is not None:
                    self._take_deceived(name, phase, answer.false_totals)
                elif answer.doubted:
                    self._doubts.update({*answer.doubted} - {name})
                    self.absent[name] = f"doubts what {', '.join(answer.doubted)[:200]} sent"
                else:
                    found[name] = answer, reply
            except FederationError as error:
                self.refused[name] = str(error)
        return found

    def _take_deceived(self, name: str, phase: Phase, round: int) -> None:
        """Note that a silo says that totals are false, if it is one that was sent such totals."""
        has_tags = self.layout.settings.sends_sums and SUMS <= round < self.occasion.round
        if phase == "advertise" and has_tags:
            self._deceived[name] = round
        else:
            self._refuse(name, "says that totals are false which it was not sent")

    def _stop_if_deceived(self) -> None:
        if self._deceived:
            names = ", ".join(sorted(self._deceived))
            why = f"{names} said that totals do not fit their tag"
            raise FalseTotals(why, min(self._deceived.values()))

    def _refuse_doubted(self) -> None:
        """Refuse silos whose keys or shares several cannot use; of two, nobody knows who lies."""
        for name, count in self._doubts.items():
            if count > 1 and name in self.occasion.invited:
                self._refuse(name, f"has keys or shares that {count} others cannot use")

    def _refuse(self, name: str, what: str) -> None:
        self.refused[name] = (
            f"answer of silo {name!r} {what}; expected flic's own. Give all silos one version."
        )

    def _refuse_few(self, got: int, needed: int, what: str, rule: str) -> None:
        if got < needed:
            raise _TooFew(
                f"{got} silos {what} in a secure sum; expected {needed} at least ({rule})."
            )


@dataclass(frozen=True)
class _Begun:
    """A sum whose silos have shared the seeds of their masks."""

    adverts: Mapping[str, Advert]
    taking_part: list[str]
    needed: int  # shares, for a seed
    enough: np.ndarray  # true for the numbers to which enough silos add
    groups: list[Group]  # of silos that are sent the same totals, each with a tag

    @classmethod
    def of(
        cls, layout: SumLayout, adverts: Mapping[str, Advert], taking_part: list[str]
    ) -> "_Begun":
        """State after the silos' keys, and after who shared seeds is known."""
        least = least_of([*adverts.values()])
        enough = layout.num_adding(adverts[name].contents for name in taking_part) >= least
        groups = layout.groups(adverts[name].contents for name in taking_part)
        return cls(adverts, taking_part, threshold(len(adverts), least), enough, groups)

    @property
    def size(self) -> int:
        """Count of the numbers in the sum, tags included."""
        return int(self.enough.sum()) + tag_words(self.groups)

    def recovered(self, name: str, answers: Mapping[str, SumAnswer]) -> bytes:
        """The seed of one silo that its peers have shares of."""
        parts = {
            holder: bytes.fromhex(answer.shares[name])
            for holder, answer in answers.items()
            if name in answer.shares
        }
        return recovered(parts, sorted(self.adverts), self.needed)
