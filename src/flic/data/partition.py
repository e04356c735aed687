"""Partition of classes and rows among clients.

It makes the prior probability shift between clients, 𝒴_i ⊆ [C].
Paper: "Data Sets" and "Toy data sets"; the authors' variant follows their public code.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from flic.errors import DataError
from flic.notation import counted

Holdings = list[tuple[int, ...]]
"""Classes of each client's shards; a class that occurs twice has two shards."""


Space = TypeVar("Space")
Made = TypeVar("Made")


def in_turn(
    spaces: Sequence[Space], num_clients: int, make: Callable[[Space, range], Iterable[Made]]
) -> tuple[Made, ...]:
    """Clients of the first space, the second and so on, and again from the first.

    `make` makes the clients of a space, whose numbers it is told.
    """
    clients: dict[int, Made] = {}
    for first, space in enumerate(spaces):
        members = range(first, num_clients, len(spaces))
        clients.update(zip(members, make(space, members), strict=True))
    return tuple(clients[number] for number in range(num_clients))


def draw_classes(
    num_clients: int, num_classes: int, classes_per_client: int, *, rng: torch.Generator
) -> Holdings:
    """Distinct classes per client; numbers of holders differ by at most one between classes.

    Hence every class is held as soon as num_clients · classes_per_client ≥ num_classes.
    """
    return draw_uneven_classes([classes_per_client] * num_clients, num_classes, rng=rng)


def draw_uneven_classes(
    sizes: Sequence[int], num_classes: int, *, rng: torch.Generator
) -> Holdings:
    """Distinct classes per client, `sizes` of them, with holders per class as in `draw_classes`."""
    holders = torch.zeros(num_classes)
    holdings: Holdings = []
    for size in sizes:
        # the classes with fewest holders so far; the draw below 1 only breaks ties
        drawn = (holders + torch.rand(num_classes, generator=rng)).argsort()[:size]
        holders[drawn] += 1
        holdings.append(tuple(sorted(drawn.tolist())))
    return holdings


def draw_shards_with_repeats(
    num_clients: int, num_classes: int, classes_per_client: int, *, rng: torch.Generator
) -> Holdings:
    """Shards drawn at random, so that some clients have fewer distinct classes.

    As in the authors' code, every class is cut into classes_per_client · num_clients /
    num_classes shards (here the remainder goes to classes at random) and each client draws
    `classes_per_client` (at least 2) of them.

    Departs: no client ends with a single class, where any accuracy would be 100 %; it
    swaps a shard with a client that can spare one.
    """
    per_class, remainder = divmod(num_clients * classes_per_client, num_classes)
    extra = torch.randperm(num_classes, generator=rng)[:remainder]
    shards = torch.cat([torch.arange(num_classes).repeat(per_class), extra])
    shuffled = shards[torch.randperm(len(shards), generator=rng)]
    table = _without_one_class_rows(shuffled.view(num_clients, classes_per_client), rng=rng)
    return [tuple(sorted(row)) for row in table.tolist()]


def _without_one_class_rows(table: Tensor, *, rng: torch.Generator) -> Tensor:
    """Table of shards [clients, shards] with one swap for every client of one class."""
    table = table.clone()
    for client, row in enumerate(table):
        held = int(row[0])
        if (row != held).any():
            continue
        # A client with two shards of other classes still has two classes after the swap. Such
        # a client exists: shards of one class are at most half, up to rounding, of all.
        is_other = table != held
        spare = (is_other & (is_other.sum(dim=1, keepdim=True) >= 2)).nonzero()
        giver, shard = spare[torch.randint(len(spare), (), generator=rng)].tolist()
        table[client, 0] = table[giver, shard]
        table[giver, shard] = held
    return table


def deal_rows(labels: Tensor, holdings: Holdings, *, rng: torch.Generator) -> list[Tensor]:
    """Row indices per client: the rows of each class, divided equally among its shards."""
    dealt: list[list[Tensor]] = [[] for _ in holdings]
    for label in sorted({label for held in holdings for label in held}):
        holders = [client for client, held in enumerate(holdings) for c in held if c == label]
        rows = (labels == label).nonzero().flatten()
        if len(rows) < len(holders):
            raise DataError(
                f"Class {label} has {counted(len(rows), 'row')} for "
                f"{counted(len(holders), 'shard')}; expected at least one row per shard. Take more "
                "rows per class, fewer clients or fewer classes each."
            )
        shuffled = rows[torch.randperm(len(rows), generator=rng)]
        for client, shard in zip(holders, shuffled.tensor_split(len(holders)), strict=True):
            dealt[client].append(shard)
    return [torch.cat(shards) for shards in dealt]


def subsample(labels: Tensor, *, rng: torch.Generator) -> Tensor:
    """Positions among one client's training rows after the authors' uneven subsampling.

    Paper: "Toy data sets", "randomly subsample examples on all clients".
    With probability ½ a share of 5 + 100u %, else 15 + 20u %, u uniform, drawn with
    replacement. A class that the draw missed gets one row back, so 𝒴_i stays as dealt.
    """
    coin, u = torch.rand(2, generator=rng).tolist()
    share = 0.05 + u if coin < 0.5 else 0.15 + 0.2 * u
    drawn = torch.randint(len(labels), (int(share * len(labels)),), generator=rng)
    missed = set(labels.tolist()) - set(labels[drawn].tolist())
    restored = [(labels == label).nonzero()[0] for label in sorted(missed)]
    return torch.cat([drawn, *restored])


def split_by_class(
    labels: Tensor, test_share: float, *, rng: torch.Generator
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Shuffled training rows and test rows of every class, `test_share` of it for testing."""
    train: dict[int, Tensor] = {}
    test: dict[int, Tensor] = {}
    for label in labels.unique().tolist():
        rows = (labels == label).nonzero().flatten()
        rows = rows[torch.randperm(len(rows), generator=rng)]
        cut = round(test_share * len(rows))
        test[label], train[label] = rows[:cut], rows[cut:]
    return train, test


def deal_few_rows(
    pool: dict[int, Tensor],
    holdings: Holdings,
    rows_per_class: tuple[int, int],
    *,
    rng: torch.Generator,
) -> list[Tensor]:
    """Training rows per client, few of each class; no row goes to two clients.

    Args:
        pool: shuffled rows of every class.
        holdings: classes of every client.
        rows_per_class: least and most rows of a class at one client.
        rng: generator of the number of rows.
    """
    pool = dict(pool)
    low, high = rows_per_class
    dealt: list[Tensor] = []
    for held in holdings:
        shards: list[Tensor] = []
        for label in held:
            size = int(torch.randint(low, high + 1, (), generator=rng))
            _refuse_exhausted(label, len(pool[label]), size)
            shards.append(pool[label][:size])
            pool[label] = pool[label][size:]
        dealt.append(torch.cat(shards))
    return dealt


def _refuse_exhausted(label: int, left: int, wanted: int) -> None:
    if left < wanted:
        raise DataError(
            f"Class {label} has {left} training rows left and the next client wants {wanted}; "
            "expected enough for rows of its own on every client. Lower num_clients, "
            "classes_per_client or rows_per_class."
        )


def draw_rows(rows: Tensor, at_most: int, *, rng: torch.Generator) -> Tensor:
    """Random rows without repeats, `at_most` of them."""
    return rows[torch.randperm(len(rows), generator=rng)[:at_most]]


def keep_features(
    num_features: int, missing_share: tuple[float, float], *, rng: torch.Generator
) -> Tensor:
    """Sorted columns of one client after a random share of them is dropped.

    Paper: "TextCaps data set", "randomly pruned".
    """
    low, high = missing_share
    share = low + (high - low) * torch.rand((), generator=rng).item()
    order = torch.randperm(num_features, generator=rng)
    return order[round(share * num_features) :].sort().values
