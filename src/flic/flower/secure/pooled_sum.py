"""The coordinator's part of a secure sum: it passes messages on, and takes the masks off the sum.

A silo that fails in a phase is asked no more in this sum. The others go on as long as enough are
left to take its masks off, and as long as enough add to every number.
"""

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import torch

from flic.errors import FederationError
from flic.flower.exchange import Asked, Reply, SumPhase
from flic.flower.secure.contribution import SumLayout
from flic.flower.secure.fixed_point import added, decoded, negated
from flic.flower.secure.masks import mask_key, masks_with_peers, own_mask, public_bytes
from flic.flower.secure.shares import recovered, threshold
from flic.flower.secure.silo_sum import MASKED, least_of, masked_words, thinly_added
from flic.flower.secure.statements import (
    Advert,
    Occasion,
    Phase,
    SumAnswer,
    SumRequest,
    read_statement,
)
from flic.methods.protocol import Update

Ask = Callable[[SumPhase], Asked]


class _TooFew(Exception):
    """Too few silos were left for a sum, which may be tried again."""


class PooledSum:
    """One attempt at one sum, and how it went."""

    def __init__(self, occasion: Occasion, layout: SumLayout, ask: Ask, *, fewest: int) -> None:
        self.occasion, self.layout = occasion, layout
        self._ask, self._fewest = ask, fewest
        self.members: list[str] = []
        self.absent: dict[str, str] = {}  # who failed, and why
        self.refused: dict[str, str] = {}
        self.num_bytes: Counter[str] = Counter()  # that each silo sent

    def run(self) -> Update | str:
        """The sum as one update; or the reason why it came to nothing, and none of it was read."""
        try:
            num_invited = len(self.occasion.roster)
            self._refuse_few(num_invited, self._fewest, "are there", "min_holders and quorum")
            adverts = self._adverts()
            needed = threshold(len(adverts), least_of([*adverts.values()]))
            sealed = self._shares(adverts, needed)
            masked = self._masked(adverts, sealed, needed)
            answers = self._unmasking([*masked], needed)
            self.members = sorted(masked)
            return self._unmasked(adverts, {*sealed}, masked, answers, needed)
        except _TooFew as error:
            return str(error)

    # ---- phases --------------------------------------------------------------------------

    def _adverts(self) -> dict[str, Advert]:
        answers = self._answers("advertise", {name: {} for name in self.occasion.roster})
        found: dict[str, Advert] = {}
        for name, (answer, _) in answers.items():
            if answer.advert is None or answer.advert.name != name:
                self._refuse(name, "has no keys for a secure sum, or those of another name")
            else:
                found[name] = answer.advert
        # A sum of two would show each of them the other's part.
        least = least_of([*found.values()]) if found else 2
        self._refuse_few(len(found), least, "gave keys", "min_holders")
        return found

    def _shares(self, adverts: Mapping[str, Advert], needed: int) -> dict[str, dict[str, str]]:
        """By sender, shares that are encrypted to each receiver."""
        everyone = {"adverts": [adverts[name].model_dump() for name in sorted(adverts)]}
        found: dict[str, dict[str, str]] = {}
        for name, (answer, _) in self._answers("share", dict.fromkeys(adverts, everyone)).items():
            if {*answer.shares} != {*adverts} - {name}:
                self._refuse(name, "has shares for other silos than those that take part")
            else:
                found[name] = answer.shares
        self._refuse_few(len(found), needed, "shared their masks' seeds", "threshold")
        return found

    def _masked(
        self, adverts: Mapping[str, Advert], sealed: Mapping[str, Mapping[str, str]], needed: int
    ) -> dict[str, np.ndarray]:
        incoming = {
            name: {"shares": {peer: sealed[peer][name] for peer in sealed if peer != name}}
            for name in sealed
        }
        found: dict[str, np.ndarray] = {}
        for name, (_, reply) in self._answers("mask", incoming).items():
            if MASKED not in reply.update.entries:
                self._refuse(name, "has no masked numbers")
            else:
                found[name] = masked_words(reply.update.entries[MASKED].value)
        least = max(needed, self._fewest)
        self._refuse_few(
            len(found), least, "sent masked numbers", "threshold, min_holders and quorum"
        )
        said = {name: advert.contents for name, advert in adverts.items()}
        if reason := thinly_added(self.layout, said, sorted(sealed), sorted(found)):
            raise _TooFew(f"a secure sum cannot be unmasked: {reason}")
        return found

    def _unmasking(self, members: list[str], needed: int) -> dict[str, SumAnswer]:
        """Answers of members, each of whom has seen that enough signed the same list."""
        whole = {"members": sorted(members)}
        listed = self._answers("agree", dict.fromkeys(members, whole))
        signed = {name: answer.signature for name, (answer, _) in listed.items()}
        self._refuse_few(len(signed), needed, "signed the list of members", "threshold")
        shown = {"signatures": signed}
        found = self._answers("unmask", dict.fromkeys(signed, shown))
        self._refuse_few(len(found), needed, "took part in unmasking", "threshold")
        return {name: answer for name, (answer, _) in found.items()}

    # ---- the sum -------------------------------------------------------------------------

    def _unmasked(
        self,
        adverts: Mapping[str, Advert],
        taking_part: set[str],
        masked: Mapping[str, np.ndarray],
        answers: Mapping[str, SumAnswer],
        needed: int,
    ) -> Update:
        """The sum without its masks: those of members' own, and those with silos that failed."""
        holders = sorted(adverts)
        total = np.zeros((self.layout.size, 2), np.uint64)
        for words in masked.values():
            total = added(total, words)
        for name in masked:
            seed = self._seed(name, answers, holders, needed)
            total = added(total, negated(own_mask(seed, self.layout.size)))
        public = [(name, bytes.fromhex(adverts[name].mask)) for name in sorted(masked)]
        for name in sorted(taking_part - {*masked}):
            key = mask_key(recovered(_shares_of(name, answers), holders, needed))
            if public_bytes(key).hex() != adverts[name].mask:
                raise _TooFew(
                    f"the shares of {name}'s masks do not fit its key; expected those that it "
                    "gave out. It, or who holds them, lies: go on without it, and ask."
                )
            digest, size = self.occasion.digest, self.layout.size
            # What the members' numbers still carry is the opposite of what its own would have.
            total = added(total, masks_with_peers(key, name, public, digest, size))
        return self.layout.pooled(decoded(total), f"{len(masked)} silos")

    def _seed(
        self, name: str, answers: Mapping[str, SumAnswer], holders: list[str], needed: int
    ) -> bytes:
        """Seed of a member's own mask: as it says, or by its peers' shares if it failed since."""
        if name in answers:
            return bytes.fromhex(answers[name].seed)
        return recovered(_shares_of(name, answers), holders, needed)

    # ---- messages ------------------------------------------------------------------------

    def _answers(
        self, phase: Phase, letters: Mapping[str, Mapping[str, object]]
    ) -> dict[str, tuple[SumAnswer, Reply]]:
        """Answers of silos in a phase; the others are noted with the reason."""
        texts = {
            name: SumRequest.model_validate(
                {"phase": phase, "occasion": self.occasion, **letter}
            ).model_dump_json(exclude_defaults=True)
            for name, letter in letters.items()
        }
        expected = {}
        if phase == "mask":
            expected[MASKED] = torch.zeros(self.layout.size, 2, dtype=torch.int64)
        asked = self._ask(SumPhase(phase == "advertise", texts, expected))
        self.absent |= asked.absent
        self.refused |= asked.refused
        found: dict[str, tuple[SumAnswer, Reply]] = {}
        for name, reply in asked.replies.items():
            self.num_bytes[name] += reply.update.num_bytes + len(reply.statement)
            try:
                answer = read_statement(SumAnswer, reply.statement, who=f"answer of silo {name!r}")
                found[name] = answer, reply
            except FederationError as error:
                self.refused[name] = str(error)
        return found

    def _refuse(self, name: str, what: str) -> None:
        self.refused[name] = (
            f"answer of silo {name!r} {what}; expected flic's own. Give all silos one version."
        )

    def _refuse_few(self, got: int, needed: int, what: str, rule: str) -> None:
        if got < needed:
            raise _TooFew(
                f"{got} silos {what} in a secure sum; expected {needed} at least ({rule})."
            )


def _shares_of(name: str, answers: Mapping[str, SumAnswer]) -> dict[str, bytes]:
    """Shares of one silo's seed, by who held them."""
    return {
        holder: bytes.fromhex(answer.shares[name])
        for holder, answer in answers.items()
        if name in answer.shares
    }
