"""One secure sum among silos of numbers: what one that lies, or is killed, does to the others."""

from dataclasses import dataclass, field
from secrets import token_bytes

import numpy as np
import pytest
import torch

from flic.errors import FederationError
from flic.flower.exchange import Asked, Reply
from flic.flower.keys import create_pair, read_private, read_public
from flic.flower.pooling import SUMS
from flic.flower.secure import silo_sum
from flic.flower.secure.contribution import SumLayout
from flic.flower.secure.pooled_sum import PooledSum
from flic.flower.secure.silo_sum import MASKED, Silo, SiloSum, masked_tensor
from flic.flower.secure.statements import (
    Contents,
    DoubtedPeers,
    Occasion,
    SumAnswer,
    SumRequest,
    read_statement,
)
from flic.methods.protocol import Entry, Update
from hospitals import FIVE, SALT, settings_of

UNION = ("a" * 32, "b" * 32)
LAYOUT = SumLayout(
    settings_of(method="linked", salt=SALT, network={"linked": {"random_features": 4}}),
    "prepare",
    SUMS,
    UNION,
)
NUMBERS = {name: np.full(LAYOUT.size, place + 1.0) for place, name in enumerate(FIVE)}
SAID = Contents(names=sorted(LAYOUT.shapes), columns=[0, 1], classes=[0, 1], min_holders=3)


@dataclass
class Silos:
    """Silos of the same columns, each in a folder, and what they are asked and answer."""

    own: dict[str, SiloSum]
    change: object = staticmethod(lambda name, phase, answer: answer)
    numbers: dict[str, np.ndarray] = field(default_factory=lambda: dict(NUMBERS))

    def ask(self, phase):
        found = Asked()
        for name, text in phase.statements.items():
            asked = read_statement(SumRequest, text, who="a request")
            answer, masked = self.answer(name, asked)
            answer = self.change(name, asked.phase, answer)
            if answer is None:
                found.absent[name] = "no answer"
                continue
            entries = {} if masked is None else {MASKED: Entry(masked_tensor(masked), 1.0)}
            said = answer if isinstance(answer, str) else answer.model_dump_json()
            found.replies[name] = Reply(SUMS, Update(name, entries), statement=said)
        return found

    def answer(self, name, asked):
        one, occasion = self.own[name], asked.occasion
        try:
            if asked.phase == "advertise":
                return one.advertise(occasion, SAID, self.numbers[name], {"x": np.zeros(1)}), None
            if asked.phase == "share":
                return one.share(occasion, asked.adverts, LAYOUT), None
            if asked.phase == "mask":
                return SumAnswer(), one.mask(occasion, asked.shares, LAYOUT)
            if asked.phase == "agree":
                return one.agree(occasion, asked.members), None
            return one.unmask(occasion, asked.signatures)[0], None
        except DoubtedPeers as error:
            return SumAnswer(doubted=error.names), None

    def sum(self, names=FIVE):
        """An attempt at the sum of some silos, and what came of it."""
        occasion = Occasion(
            run="a" * 16,
            round=SUMS,
            stage="prepare",
            attempt="0a" * 16,
            invited=[*names],
            union=[*UNION],
        )
        found = PooledSum(occasion, LAYOUT, self.ask, lambda members: None, fewest=3)
        return found, found.run()


@pytest.fixture
def silos(tmp_path):
    for name in FIVE:
        (tmp_path / name).mkdir()
        create_pair(tmp_path / name / "key", tmp_path / name / "key.pub")
    lines = {name: read_public(tmp_path / name / "key.pub") for name in FIVE}
    return Silos(
        {
            name: SiloSum(
                tmp_path / name, Silo(name, read_private(tmp_path / name / "key"), lines, 3)
            )
            for name in FIVE
        }
    )


def is_of(update, names):
    """Return whether a sum is that of these silos' numbers."""
    expected = sum(NUMBERS[name] for name in names)
    return all(
        torch.equal(entry.value, LAYOUT.tensors(expected)[name])
        for name, entry in update.entries.items()
    )


def test_the_sum_of_all_comes_out(silos):
    _, update = silos.sum()
    assert is_of(update, FIVE)


# ---- what a silo says it would add -----------------------------------------------------------

LISTS = {
    "a column many times": {"columns": [0] * 15000},
    "columns in no order": {"columns": [1, 0]},
    "a class twice": {"classes": [0, 0]},
    "a tensor twice": {"names": [SAID.names[0]] * 2},
    "more tensors than there are": {"names": [f"{i:05d}" for i in range(5000)]},
    "a name as long as a book": {"names": ["a" * 100_000]},
    "a column that no sum has": {"columns": [2**40]},
    "a class that no task has": {"classes": [2**40]},
}


@pytest.mark.parametrize("what", LISTS)
def test_a_silo_that_says_more_than_there_is_is_named_before_others_hear_of_it(silos, what):
    """Others would make tensors of all that it says, and one silo takes the memory of all."""

    def change(name, phase, answer):
        if name != "south" or phase != "advertise":
            return answer
        contents = answer.advert.contents.model_copy(update=LISTS[what])
        said = answer.advert.model_copy(update={"contents": contents})
        return answer.model_copy(update={"advert": said})

    silos.change = change
    found, update = silos.sum()
    assert [*found.refused] == ["south"]
    assert "answer of silo 'south' does not say what a secure sum needs" in found.refused["south"]
    assert is_of(update, [name for name in FIVE if name != "south"])


def test_peers_refuse_it_too():
    said = SAID.model_dump() | LISTS["a column many times"]
    with pytest.raises(FederationError, match=r"a secure sum needs .* a list has something twice"):
        read_statement(Contents, Contents.model_construct(**said).model_dump_json(), who="a peer")


# ---- what a silo says of totals ----------------------------------------------------------------


@pytest.mark.parametrize(("phase", "round"), [("advertise", SUMS), ("share", SUMS - 1)])
def test_a_silo_that_doubts_totals_that_it_was_not_sent_is_named(silos, phase, round):
    """In the first sum there are no totals yet, and after its first phase none are sent."""

    def change(name, at, answer):
        is_lie = (name, at) == ("south", phase)
        return SumAnswer(false_totals=round) if is_lie else answer

    silos.change = change
    found, update = silos.sum()
    assert [*found.refused] == ["south"]
    assert "says that totals are false which it was not sent" in found.refused["south"]
    assert is_of(update, [name for name in FIVE if name != "south"])


def test_a_silo_that_gives_each_peer_another_part_of_the_key_of_tags_is_named(silos, monkeypatch):
    """Each would have a key of its own, and all but the liar find totals false."""

    def answer(name, asked):
        with monkeypatch.context() as patch:
            if name == "south":
                sealed = silo_sum.sealed
                patch.setattr(
                    silo_sum, "sealed", lambda own, *to: sealed((*own[:2], token_bytes(16)), *to)
                )
            return Silos.answer(silos, name, asked)

    silos.answer = answer
    found, reason = silos.sum()
    assert "sent masked numbers in a secure sum; expected 4 at least" in reason
    assert [*found.refused] == ["south"]
    assert "has keys or shares that 4 others cannot use" in found.refused["south"]
    found, update = silos.sum([name for name in FIVE if name != "south"])
    assert is_of(update, found.members)


# ---- a silo that leaves shares out -----------------------------------------------------------


def without_share(name, phase, answer):
    """South keeps its share of west's mask back."""
    if (name, phase) != ("south", "unmask"):
        return answer
    shares = {peer: own for peer, own in answer.shares.items() if peer != "west"}
    return answer.model_copy(update={"shares": shares})


def test_a_silo_that_leaves_out_a_share_is_named_and_the_others_unmask(silos):
    silos.change = without_share
    found, update = silos.sum()
    assert "has shares of other silos than those that it has masks with" in found.refused["south"]
    assert is_of(update, FIVE)


def test_a_silo_that_leaves_out_a_share_that_is_needed_stops_no_run(silos):
    """West fails as it unmasks, so that all others' shares of its mask are needed."""

    def change(name, phase, answer):
        is_gone = (name, phase) == ("west", "unmask")
        return None if is_gone else without_share(name, phase, answer)

    silos.change = change
    found, reason = silos.sum()
    assert reason == (
        "3 silos took part in unmasking in a secure sum; expected 4 at least (threshold)."
    )
    assert [*found.refused] == ["south"]
    assert found.members == FIVE


# ---- a silo that is killed -------------------------------------------------------------------


def test_a_silo_that_is_killed_as_it_masks_can_do_so_again(silos, monkeypatch):
    """Its numbers were written and what it was sent was not, so that it doubted all peers."""
    once = []

    def killed(self, state):
        if self.silo.name == "south" and state.next == "agree" and not once:
            once.append(state)
            raise KeyboardInterrupt
        write(self, state)

    def answer(name, asked):
        try:
            return Silos.answer(silos, name, asked)
        except KeyboardInterrupt:
            return Silos.answer(silos, name, asked)

    write = SiloSum._write
    monkeypatch.setattr(SiloSum, "_write", killed)
    silos.answer = answer
    _, update = silos.sum()
    assert once
    assert is_of(update, FIVE)
