"""Imagined movements of forty people, each person a client.

The features of EEG trials were published by the paper's authors.
Paper: `bci` in the authors' public code; the text does not report it.
"""

from typing import Literal

import numpy as np
import torch

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.problem import Problem
from flic.data.schema import FeatureSchema
from flic.data.task import Classification
from flic_paper.problems.store import Arrays, load_arrays

NUM_CLASSES = 3


class EegConfig(Problem):
    """Settings of the EEG problem: none, since clients and splits are as published."""

    problem: Literal["eeg"] = "eeg"

    def make(self, *, seed: int) -> FederatedData:
        return make_eeg(self, seed=seed)


def make_eeg(config: EegConfig, *, seed: int) -> FederatedData:
    """A client per person, two classes of three each, training and test trials as published.

    All five collections have the same six features (docs/data.md), hence one space. Values are
    taken as they are, of size 0.1 to 0.6.
    """
    del config, seed  # every loader has both; nothing is drawn here
    arrays = load_arrays("eeg")
    clients = (_make_client(arrays, user) for user in range(len(arrays["collection"])))
    return FederatedData("eeg", Classification(NUM_CLASSES), tuple(clients))


def _make_client(arrays: Arrays, user: int) -> ClientData:
    """Client of one person's trials."""
    dim = arrays["x"].shape[1]
    own = arrays["user"] == user
    return ClientData(
        name=f"user-{user:02d}",
        schema=FeatureSchema("eeg", tuple(f"eeg{j}" for j in range(dim))),
        train=_split(arrays, own & ~arrays["is_test"]),
        validation=Split.empty(dim),
        test=_split(arrays, own & arrays["is_test"]),
    )


def _split(arrays: Arrays, chosen: np.ndarray) -> Split:
    x = torch.from_numpy(arrays["x"][chosen]).float()
    return Split(x, torch.from_numpy(arrays["y"][chosen]).long())
