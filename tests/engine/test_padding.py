"""Padded widths of a federation, and padding that can be undone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flic.data.schema import FeatureSchema
from flic.engine.clients import (
    CHEAP_WIDTH,
    SUMMED_AT_ONCE,
    pad_features,
    stack_widths,
    trim_features,
)
from flic.networks.mlp import FIRST_LAYER


def widths_of(dims: list[int]) -> dict[int, int]:
    return stack_widths([FeatureSchema("s", tuple(f"x{j}" for j in range(dim))) for dim in dims])


many_dims = st.lists(st.integers(1, 1500), min_size=1, max_size=12)
lawful = settings(deadline=None, derandomize=True, database=None)


@pytest.mark.slow
@lawful
@given(many_dims)
def test_every_number_of_features_has_a_width_it_fits(dims):
    widths = widths_of(dims)
    assert widths.keys() == set(dims)
    assert all(dim <= width for dim, width in widths.items())


@lawful
@given(many_dims)
def test_padding_at_most_doubles_what_is_not_cheap(dims):
    assert all(width <= max(2 * dim, CHEAP_WIDTH) for dim, width in widths_of(dims).items())


@lawful
@given(many_dims)
def test_more_features_never_get_less_width(dims):
    widths = widths_of(dims)
    in_order = [widths[dim] for dim in sorted(widths)]
    assert in_order == sorted(in_order)


@lawful
@given(many_dims, st.randoms())
def test_widths_depend_on_the_set_of_dimensions_alone(dims, random):
    again = dims * 2
    random.shuffle(again)
    assert widths_of(again) == widths_of(dims)


def test_widths_are_few():
    assert len(set(widths_of(list(range(1, 257))).values())) == 2
    assert set(widths_of(list(range(5, 51))).values()) == {64}
    assert widths_of([784, 400, 256, 60, 3]) == {784: 784, 400: 400, 256: 256, 60: 64, 3: 64}


@pytest.mark.slow
@lawful
@given(many_dims)
def test_a_wide_client_is_padded_as_if_it_were_alone(dims):
    wide = [dim for dim in dims if dim > SUMMED_AT_ONCE]
    assert [widths_of(dims)[dim] for dim in wide] == [widths_of([dim])[dim] for dim in wide]


def test_padding_and_trimming_undo_each_other():
    own = {FIRST_LAYER: torch.rand(3, 4), "embedding.0.bias": torch.rand(4)}
    padded = pad_features(own, 16)
    assert padded[FIRST_LAYER].shape == (16, 4)
    assert not padded[FIRST_LAYER][3:].any()
    back = trim_features(padded, 3)
    assert back.keys() == own.keys()
    assert all(torch.equal(back[name], value) for name, value in own.items())


def test_parameters_without_an_embedding_are_not_padded():
    own = {"head.bias": torch.rand(4)}
    assert pad_features(own, 16) == trim_features(own, 1) == own


def test_images_are_never_padded_to_the_width_of_vectors():
    image, vector = FeatureSchema.of_images("i", 4, 4), FeatureSchema("v", ("a", "b"))
    assert stack_widths([image, vector]) == {2: 16}
