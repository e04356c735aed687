"""Cost of masks alone: one secure sum of many silos in this process, without Flower's messages."""

import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from flic.flower.exchange import Asked, Reply, SumPhase
from flic.flower.federation_settings import MIN_HOLDERS, FederationSettings
from flic.flower.keys import create_pair, read_private, read_public
from flic.flower.secure.contribution import SumLayout
from flic.flower.secure.pooled_sum import PooledSum
from flic.flower.secure.silo_sum import MASKED, Silo, SiloSum, masked_tensor
from flic.flower.secure.statements import (
    Contents,
    Occasion,
    SumAnswer,
    SumRequest,
    read_statement,
)
from flic.methods.protocol import Entry, Update

_ROUND = 1


@dataclass(frozen=True)
class MaskingCost:
    """Seconds and bytes of one sum, of one silo and of the coordinator."""

    silos: int
    numbers: int
    silo_seconds: float  # of all five phases
    coordinator_seconds: float
    silo_sends: float  # bytes
    silo_is_sent: float


@dataclass
class _Silos:
    """Silos in folders, and what they took."""

    own: dict[str, SiloSum]
    layout: SumLayout
    seconds: float = 0.0
    received: Counter[str] = field(default_factory=Counter[str])

    def ask(self, phase: SumPhase) -> Asked:
        """Answers of all silos that are asked, one after the other."""
        found = Asked()
        for name, text in phase.statements.items():
            began = time.perf_counter()
            answer, entries = self._answer(name, read_statement(SumRequest, text, who="a request"))
            said = answer.model_dump_json(exclude_defaults=True)
            self.seconds += time.perf_counter() - began
            self.received[name] += len(text)
            found.replies[name] = Reply(_ROUND, Update(name, entries), statement=said)
        return found

    def _answer(self, name: str, asked: SumRequest) -> tuple[SumAnswer, dict[str, Entry]]:
        one, occasion = self.own[name], asked.occasion
        if asked.phase == "advertise":
            said = Contents(
                names=sorted(n for n in self.layout.shapes if not n.startswith("weight of ")),
                min_holders=MIN_HOLDERS,
            )
            numbers = np.ones(self.layout.size)
            return one.advertise(occasion, said, numbers, {}), {}
        if asked.phase == "share":
            return one.share(occasion, asked.adverts, self.layout), {}
        if asked.phase == "mask":
            masked = one.mask(occasion, asked.shares, self.layout)
            return SumAnswer(), {MASKED: Entry(masked_tensor(masked), 1.0)}
        if asked.phase == "agree":
            return one.agree(occasion, asked.members), {}
        return one.unmask(occasion, asked.signatures)[0], {}


def masking_costs(counts: Iterable[int]) -> list[MaskingCost]:
    """Costs of sums of so many silos."""
    return [_measured(count) for count in counts]


def _measured(count: int) -> MaskingCost:
    settings = FederationSettings(classes=("malignant", "benign"), secure_sums=True)
    layout = SumLayout(settings, "update", _ROUND, ())
    with tempfile.TemporaryDirectory(prefix="flic-bench-") as root:
        silos = _Silos(_with_keys(Path(root), count), layout)
        occasion = Occasion(
            run="0" * 16, round=_ROUND, stage="update", attempt="0" * 32, invited=sorted(silos.own)
        )
        one = PooledSum(occasion, layout, silos.ask, lambda members: None, fewest=MIN_HOLDERS)
        began = time.perf_counter()
        found = one.run()
        whole = time.perf_counter() - began
    assert isinstance(found, Update)  # nobody fails here
    return MaskingCost(
        silos=count,
        numbers=layout.size,
        silo_seconds=silos.seconds / count,
        coordinator_seconds=whole - silos.seconds,
        silo_sends=one.num_bytes.total() / count,
        silo_is_sent=silos.received.total() / count,
    )


def _with_keys(root: Path, count: int) -> dict[str, SiloSum]:
    """Silos that have pinned each other's keys."""
    names = [f"silo-{number:03d}" for number in range(count)]
    for name in names:
        (root / name).mkdir()
        create_pair(root / name / "key", root / name / "key.pub")
    lines = {name: read_public(root / name / "key.pub") for name in names}
    return {
        name: SiloSum(
            root / name, Silo(name, read_private(root / name / "key"), lines, MIN_HOLDERS)
        )
        for name in names
    }
