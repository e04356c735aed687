"""Statements of a secure sum, as they travel: requests to silos, their answers, and signatures.

What a silo rests on is signed by the silo that says it, with the key that its peers pinned. A
signature is over the occasion too (run, round, stage, attempt, and who was invited), so that none
can be used a second time elsewhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from flic.digests import digest_of
from flic.errors import FederationError
from flic.files import parse_json
from flic.flower.keys import is_signed, sign

PHASES = ("advertise", "share", "mask", "agree", "unmask")
Phase = Literal["advertise", "share", "mask", "agree", "unmask"]

Hex = Annotated[str, Field(pattern="^([0-9a-f]{2})*$", max_length=4096)]
_Key = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

M = TypeVar("M", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


MOST_LINKED = 4096
"""Linked columns under masks, at most: a sum has a number for every pair of them."""

MOST_CLASSES = 2**16
"""Classes that a silo can say it has rows of, at most."""


class Occasion(_Strict):
    """One attempt at one sum."""

    run: str
    round: int
    stage: str
    attempt: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    invited: list[str]  # names of silos
    union: Annotated[list[str], Field(max_length=MOST_LINKED)] = []  # keys of all linked columns

    @property
    def digest(self) -> str:
        """Digest that every signature and key of this attempt is bound to."""
        return digest_of(self.model_dump())


def _each_once(values: list[Any]) -> list[Any]:
    """A list in order, without repetitions: all silos of a sum make tensors of its length."""
    if any(a >= b for a, b in pairwise(values)):
        raise ValueError("a list has something twice, or is not in order")
    return values


_Names = Annotated[
    list[Annotated[str, Field(max_length=100)]], Field(max_length=100), AfterValidator(_each_once)
]
_Columns = Annotated[list[Annotated[int, Field(ge=0, lt=MOST_LINKED)]], AfterValidator(_each_once)]
_Classes = Annotated[list[Annotated[int, Field(ge=0, lt=MOST_CLASSES)]], AfterValidator(_each_once)]


class Contents(_Strict):
    """Numbers of a sum that a silo would add to; it adds nothing to the others."""

    names: _Names = []  # of tensors
    columns: _Columns = []  # places among the linked ones of all silos
    classes: _Classes = []
    min_holders: Annotated[int, Field(ge=2)]  # members that it wants behind every number


class Advert(_Strict):
    """A silo's keys for one sum and what it would add, signed."""

    name: str
    encryption: _Key
    mask: _Key
    tag_part: _Key  # digest of the silo's part of the key of tags
    contents: Contents
    signature: Hex = ""

    def signed(self, key: EllipticCurvePrivateKey, occasion: Occasion) -> "Advert":
        """The same with the signature of its silo."""
        found = sign(key, self._statement(occasion)).hex()
        return self.model_copy(update={"signature": found})

    def is_of(self, line: str, occasion: Occasion) -> bool:
        """Return whether the owner of a public key signed it for this sum."""
        return is_signed(line, bytes.fromhex(self.signature), self._statement(occasion))

    def _statement(self, occasion: Occasion) -> bytes:
        own = self.model_dump(exclude={"signature"})
        return digest_of(["flic secure sum: keys", occasion.digest, own]).encode()


class SumRequest(_Strict):
    """A request of one phase, beside the shared part."""

    phase: Phase
    occasion: Occasion
    adverts: list[Advert] = []
    shares: dict[str, Hex] = {}  # encrypted, by sender
    members: list[str] = []  # those whose masked numbers have arrived
    signatures: dict[str, Hex] = {}


class DoubtedPeers(FederationError):
    """Some peers' keys or shares cannot be used."""

    def __init__(self, message: str, names: Sequence[str]) -> None:
        super().__init__(message)
        self.names = [*names]


class FalseTotals(FederationError):
    """Totals of a round that do not fit the tag that came out of their sum."""

    def __init__(self, message: str, round: int) -> None:
        super().__init__(message)
        self.round = round


class SumAnswer(_Strict):
    """A silo's answer to one phase, beside its masked numbers."""

    doubted: list[str] = []  # peers whose keys or shares it cannot use; then it says nothing else
    false_totals: int | None = None  # round of totals that do not fit their tag; nothing else then
    advert: Advert | None = None
    shares: dict[str, Hex] = {}  # by receiver, encrypted; or by whom they are of, to unmask
    signature: Hex = ""  # under the list of members
    seed: Hex = ""  # of its own mask


def list_statement(
    occasion: Occasion,
    adverts: Sequence[Advert],
    taking_part: Iterable[str],
    members: Iterable[str],
) -> bytes:
    """Statement of the members that a silo signs: the same keys, masks and list as its peers."""
    keys = sorted((advert.model_dump() for advert in adverts), key=lambda own: own["name"])
    said = ["flic secure sum: members", occasion.digest, keys, sorted(taking_part), sorted(members)]
    return digest_of(said).encode()


def sign_list(key: EllipticCurvePrivateKey, statement: bytes) -> str:
    """A silo's signature under the list of members."""
    return sign(key, statement).hex()


def num_signed(
    statement: bytes,
    signatures: Mapping[str, str],
    lines: Mapping[str, str],
    members: Iterable[str],
) -> int:
    """Number of members whose signature under a statement is theirs."""
    there = [name for name in members if name in signatures and name in lines]
    return sum(is_signed(lines[name], bytes.fromhex(signatures[name]), statement) for name in there)


def read_statement(kind: type[M], text: str, *, who: str) -> M:
    """A request or an answer from its text.

    Raises:
        FederationError: it is none.
    """
    try:
        return kind.model_validate(parse_json(text))
    except (ValidationError, ValueError) as error:
        said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        said = said.splitlines()[0][:200]
        raise FederationError(
            f"{who} does not say what a secure sum needs ({said}); expected flic's own words. Give "
            "coordinator and silos one version of flic."
        ) from None
