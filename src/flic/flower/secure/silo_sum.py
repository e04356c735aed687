"""A silo's part of a secure sum, phase by phase, each of them once.

RUN/sum.json          keys and seeds of the sum that is under way, and what peers said
RUN/sum.safetensors   the silo's own numbers, those that it keeps to itself, and what it was sent

Every phase is answered in a process of its own, so that what the next one needs lies in the run's
folder. Keys and seeds are gone once they are used.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError
from safetensors.numpy import load, save

from flic.errors import FederationError
from flic.files import read_bytes, write_atomically, write_json
from flic.flower.pinned_keys import refuse_strangers
from flic.flower.secure.contribution import SumLayout, sets_behind
from flic.flower.secure.fixed_point import added, encoded
from flic.flower.secure.masks import (
    SEED_BYTES,
    mask_key,
    masks_with_peers,
    own_mask,
    public_bytes,
)
from flic.flower.secure.shares import Parts, opened, sealed, split, threshold
from flic.flower.secure.statements import (
    PHASES,
    Advert,
    Contents,
    DoubtedPeers,
    Occasion,
    Phase,
    SumAnswer,
    list_statement,
    num_signed,
    sign_list,
)
from flic.flower.secure.tags import TagKey, committed, own_tags, tag_key
from flic.settings import damaged, read_model
from flic.shapes import stripped

STATE, NUMBERS = "sum.json", "sum.safetensors"

MASKED = "masked"
"""Name of the masked numbers among the tensors of an answer."""

_SENT = "sent "


class _UnderWay(BaseModel):
    """State of a sum between two phases."""

    model_config = ConfigDict(extra="forbid")
    occasion: Occasion
    next: Phase | None
    own: Advert
    encryption: str  # private key
    mask_seed: str
    self_seed: str
    tag_seed: str
    adverts: list[Advert] = []  # of all, the silo's own included
    shares: dict[str, tuple[str, str]] = {}  # of the peers' own and mask seeds
    tag_key: str = ""
    members: list[str] = []


@dataclass(frozen=True)
class Silo:
    """A silo as its peers know it."""

    name: str  # by which they know it
    key: EllipticCurvePrivateKey
    peers: Mapping[str, str]  # public keys that it pinned, its own included
    min_holders: int


@dataclass(frozen=True)
class SiloSum:
    """The sum that is under way in a run's folder, as one silo takes part in it."""

    folder: Path
    silo: Silo

    # ---- phases --------------------------------------------------------------------------

    def advertise(
        self,
        occasion: Occasion,
        contents: Contents,
        numbers: np.ndarray,
        sent: Mapping[str, np.ndarray],
    ) -> SumAnswer:
        """Begin a sum: keys for it alone. One that was under way is given up, masks and all."""
        encryption, seeds = (
            X25519PrivateKey.generate(),
            [secrets.token_bytes(SEED_BYTES) for _ in range(3)],
        )
        advert = Advert(
            name=self.silo.name,
            encryption=public_bytes(encryption).hex(),
            mask=public_bytes(mask_key(seeds[0])).hex(),
            tag_part=committed(seeds[2]),
            contents=contents,
        ).signed(self.silo.key, occasion)
        self._write_numbers({"own": numbers, **{_SENT + n: value for n, value in sent.items()}})
        self._write(
            _UnderWay(
                occasion=occasion,
                next="share",
                own=advert,
                encryption=encryption.private_bytes_raw().hex(),
                mask_seed=seeds[0].hex(),
                self_seed=seeds[1].hex(),
                tag_seed=seeds[2].hex(),
            )
        )
        return SumAnswer(advert=advert)

    def share(self, occasion: Occasion, adverts: Sequence[Advert], layout: SumLayout) -> SumAnswer:
        """Shares of the silo's seeds for each peer, once all peers are who they say."""
        known = self._at("share", occasion)
        self._refuse_adverts(known, adverts)
        found = known.model_copy(update={"adverts": [*adverts], "next": "mask"})
        holders, needed = _names(found), self._threshold(found)
        of_own, of_mask = (
            split(bytes.fromhex(seed), holders, needed)
            for seed in (known.self_seed, known.mask_seed)
        )
        private, name = _private(known), self.silo.name
        common = self._in_common(known, adverts, layout)
        kept = {name: (of_own[name].hex(), of_mask[name].hex())}
        self._write(found.model_copy(update={"shares": kept}))
        sent = {
            peer.name: sealed(
                (of_own[peer.name], of_mask[peer.name], bytes.fromhex(known.tag_seed)),
                private,
                bytes.fromhex(peer.encryption),
                direction(occasion, name, peer.name, common[peer.name]),
            ).hex()
            for peer in adverts
            if peer.name != name
        }
        return SumAnswer(shares=sent)

    def mask(self, occasion: Occasion, shares: Mapping[str, str], layout: SumLayout) -> np.ndarray:
        """The silo's numbers to which enough peers add too, and no others, under its masks."""
        known, name = self._at("mask", occasion), self.silo.name
        peers = {advert.name: advert for advert in known.adverts if advert.name in shares}
        needed = self._threshold(known)
        if name in shares or len(peers) < len(shares) or len(peers) + 1 < needed:
            raise FederationError(
                f"silo {name!r} is sent shares of {len(shares)} others of {len(known.adverts)}; "
                f"expected those of {needed - 1} at least, and of nobody else. Start the sum again."
            )
        open_shares = self._opened(known, shares, peers, layout)
        taking_part = [known.own, *peers.values()]
        known_numbers = self._numbers()
        numbers = known_numbers["own"]
        enough = layout.num_adding(a.contents for a in taking_part) >= least_of(known.adverts)
        # With what it was sent: killed before the next write, it is asked for this phase again.
        self._write_numbers({**known_numbers, "kept": np.where(enough, 0.0, numbers)})
        words = encoded(np.where(enough, numbers, 0.0), members=len(taking_part), silo=name)
        seeds = {
            name: bytes.fromhex(known.tag_seed),
            **{n: own[2] for n, own in open_shares.items()},
        }
        key, groups = tag_key(seeds, occasion), layout.groups(a.contents for a in taking_part)
        told = np.concatenate([words[enough], own_tags(key, layout, groups, words)])
        size = len(told)
        masked = added(told, own_mask(bytes.fromhex(known.self_seed), size))
        mine = mask_key(bytes.fromhex(known.mask_seed))
        public = [(peer, bytes.fromhex(advert.mask)) for peer, advert in peers.items()]
        masked = added(masked, masks_with_peers(mine, name, public, occasion.digest, size))
        held = {peer: (a.hex(), b.hex()) for peer, (a, b, _) in open_shares.items()}
        change = {"next": "agree", "shares": {**known.shares, **held}, "tag_key": key.hex()}
        self._write(known.model_copy(update=change))
        return masked

    def _opened(
        self,
        known: _UnderWay,
        shares: Mapping[str, str],
        peers: Mapping[str, Advert],
        layout: SumLayout,
    ) -> dict[str, Parts]:
        """The parts that peers encrypted for this silo.

        Raises:
            DoubtedPeers: those whose shares cannot be opened, or whose seed for tags is another
                than the one that all peers were promised.
        """
        private, common = _private(known), self._in_common(known, [*peers.values()], layout)
        found, doubted, why = dict[str, Parts](), list[str](), ""
        for peer, content in shares.items():
            towards = direction(known.occasion, peer, self.silo.name, common[peer])
            of_peer = bytes.fromhex(peers[peer].encryption)
            try:
                parts = opened(bytes.fromhex(content), private, of_peer, towards)
                _refuse_other_seed(peers[peer], parts)
                found[peer] = parts
            except FederationError as error:
                doubted, why = [*doubted, peer], str(error)
        if doubted:
            raise DoubtedPeers(why, doubted)
        return found

    def agree(self, occasion: Occasion, members: Sequence[str]) -> SumAnswer:
        """The silo's signature under the list of those who are in the sum."""
        known = self._at("agree", occasion)
        self._write(known.model_copy(update={"next": "unmask", "members": sorted(members)}))
        statement = list_statement(occasion, known.adverts, known.shares, members)
        return SumAnswer(signature=sign_list(self.silo.key, statement))

    def unmask(self, occasion: Occasion, signatures: Mapping[str, str]) -> tuple[SumAnswer, TagKey]:
        """Shares that take masks off: of a member its own, of who failed those with others.

        Never both of one silo: they would show its numbers alone. Also the key to the tags, since
        now the silo knows that it is in the sum.
        """
        known = self._at("unmask", occasion)
        statement = list_statement(occasion, known.adverts, known.shares, known.members)
        got = num_signed(statement, signatures, self.silo.peers, known.members)
        if got < (needed := self._threshold(known)):
            raise FederationError(
                f"silo {self.silo.name!r} is shown {got} signatures under the list of members that "
                f"it signed; expected {needed}. Others may have been shown another list: ask them."
            )
        for name in (STATE, NUMBERS):
            (self.folder / name).unlink()
        told = {
            peer: own if peer in known.members else of_mask
            for peer, (own, of_mask) in known.shares.items()
            if peer != self.silo.name
        }
        key = TagKey(key=known.tag_key, union=occasion.union, members=len(known.members))
        return SumAnswer(shares=told, seed=known.self_seed), key

    # ---- what the silo's history needs ---------------------------------------------------

    def sets(
        self, occasion: Occasion, members: Sequence[str] | None = None
    ) -> dict[str, frozenset[str]]:
        """Members behind what the silo adds; those that it signed if none are given."""
        known = self._at("agree" if members is not None else "unmask", occasion)
        chosen, least = {*(known.members if members is None else members)}, least_of(known.adverts)
        said = {a.name: a.contents for a in known.adverts if a.name in known.shares}
        every = sets_behind(said, self.silo.name)
        return {label: own & chosen for label, own in every.items() if len(own) >= least}

    def _in_common(
        self, known: _UnderWay, peers: Sequence[Advert], layout: SumLayout
    ) -> dict[str, str]:
        """By peer, a digest of the shared part as far as both were sent it."""
        sent = stripped(_SENT, self._numbers())
        own = known.own.contents.columns
        return {peer.name: layout.in_common(sent, own, peer.contents.columns) for peer in peers}

    def kept(self) -> np.ndarray:
        """Numbers of the sum under way that the silo keeps to itself, of use once unmasked."""
        return self._numbers()["kept"]

    # ---- refusals ------------------------------------------------------------------------

    def refuse_invited(self, occasion: Occasion) -> None:
        """Refuse a sum with strangers, or of few."""
        name, invited, least = self.silo.name, occasion.invited, self.silo.min_holders
        refuse_strangers(name, invited, self.silo.peers)
        if name not in invited or len({*invited}) < len(invited) or len(invited) < least:
            raise FederationError(
                f"silo {name!r} is asked for a sum of {len(invited)} silos; expected itself and "
                f"others, {least} at least (min_holders): in a sum of fewer, a silo's part could "
                "be read by the others. Wait for more silos, or lower min_holders in silo.toml."
            )

    def _refuse_adverts(self, known: _UnderWay, adverts: Sequence[Advert]) -> None:
        """Refuse keys that are not those of the silos that were pinned, each once."""
        names, occasion = [advert.name for advert in adverts], known.occasion
        if known.own not in adverts or len({*names}) < len(names):
            raise FederationError(
                f"silo {self.silo.name!r} is sent the keys of a sum without its own, or some "
                "twice; expected each silo's once. Start the sum again."
            )
        pinned = {name: own for name, own in self.silo.peers.items() if name in occasion.invited}
        false = [
            own.name
            for own in adverts
            if own.name not in pinned or not own.is_of(pinned[own.name], occasion)
        ]
        if false:
            raise DoubtedPeers(
                f"silo {self.silo.name!r} is sent keys in the name of {', '.join(false)[:200]!r} "
                "that the key it pinned did not sign for this sum; expected that silo's own. "
                "Somebody plays that silo, or it has a new key: ask it, not the operator.",
                false,
            )
        if len(adverts) < (least := least_of(adverts)):
            raise FederationError(
                f"silo {self.silo.name!r} is asked for a sum of {len(adverts)} silos; expected "
                f"{least} at least (min_holders of all). Wait for more silos."
            )

    def refuse_members(self, occasion: Occasion, members: Sequence[str], layout: SumLayout) -> None:
        """Refuse a list of members of which too few are left, as a whole or behind a number."""
        known = self._at("agree", occasion)
        name, needed = self.silo.name, self._threshold(known)
        taking_part = {*known.shares}
        if name not in members or not {*members} <= taking_part or len({*members}) < len(members):
            raise FederationError(
                f"silo {name!r} is asked to sign a list of members without itself, or with silos "
                "that are not in its sum; expected those that it has masks with. Start again."
            )
        if len(members) < needed:
            raise FederationError(
                f"silo {name!r} is asked to unmask a sum of {len(members)} silos; expected "
                f"{needed} at least. Start the silos that are missing, and the sum again."
            )
        said = {advert.name: advert.contents for advert in known.adverts}
        if reason := thinly_added(layout, said, sorted(taking_part), members):
            raise FederationError(f"silo {name!r} does not unmask a sum: {reason}")

    def _threshold(self, known: _UnderWay) -> int:
        return threshold(len(known.adverts), least_of(known.adverts))

    # ---- the folder ----------------------------------------------------------------------

    def _at(self, phase: Phase, occasion: Occasion) -> _UnderWay:
        """The state of the sum, if this phase of it is the next."""
        known = read_model(_UnderWay, self.folder / STATE)
        if known is None or known.occasion != occasion or known.next != phase:
            order = ", ".join(PHASES)
            raise FederationError(
                f"silo {self.silo.name!r} is asked to {phase} in a sum in which that is not the "
                f"next step, or was done; expected {order}, each once. Start a new sum."
            )
        return known

    def _write(self, state: _UnderWay) -> None:
        write_json(self.folder / STATE, state.model_dump(mode="json"))

    def _write_numbers(self, numbers: Mapping[str, np.ndarray]) -> None:
        write_atomically(self.folder / NUMBERS, save(dict(numbers)))

    def _numbers(self) -> dict[str, np.ndarray]:
        path = self.folder / NUMBERS
        try:
            return load(read_bytes(path))
        except (SafetensorError, OSError) as error:
            raise damaged(path, error) from error


def thinly_added(
    layout: SumLayout,
    said: Mapping[str, Contents],
    taking_part: Sequence[str],
    members: Sequence[str],
) -> str | None:
    """The reason why a sum shows the part of few: too few of the members add to a number of it.

    Args:
        layout: the numbers of the sum.
        said: what each silo said it would add.
        taking_part: silos with masks in the sum, by which each chose what to add.
        members: those whose masked numbers have arrived.
    """
    least = max(own.min_holders for own in said.values())
    before = layout.num_adding(said[name] for name in taking_part) >= least
    now = layout.num_adding(said[name] for name in members)
    if not bool((before & (now > 0) & (now < least)).any()):
        return None
    gone = ", ".join(sorted({*taking_part} - {*members}))
    return (
        f"without {gone}, fewer than {least} silos (min_holders) add to some of its numbers; "
        "expected as many, or none. Start the sum again without it."
    )


def least_of(adverts: Sequence[Advert]) -> int:
    """Members that the strictest silo wants behind every number."""
    return max(advert.contents.min_holders for advert in adverts)


def direction(occasion: Occasion, sender: str, receiver: str, common: str) -> str:
    """Name of what one silo sends to another in a sum; `common` digests what both were sent."""
    return f"{occasion.digest} from {sender!r} to {receiver!r}, who were both sent {common}"


def masked_tensor(words: np.ndarray) -> torch.Tensor:
    """Masked numbers as they travel: words of 64 bits, whose sign means nothing."""
    return torch.from_numpy(words.view(np.int64).copy())


def masked_words(tensor: torch.Tensor) -> np.ndarray:
    """Masked numbers as they are added."""
    return tensor.numpy().view(np.uint64)


def _refuse_other_seed(advert: Advert, parts: Parts) -> None:
    """Refuse a seed for tags that is not the one of its silo's advert."""
    if committed(parts[2]) != advert.tag_part:
        raise FederationError(
            f"silo {advert.name!r} gives a part of the key of tags that is not the one it signed; "
            "expected the same for all peers: with several keys, no tag fits. Ask that silo."
        )


def _names(known: _UnderWay) -> list[str]:
    return sorted(advert.name for advert in known.adverts)


def _private(known: _UnderWay) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(known.encryption))
