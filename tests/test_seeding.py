from itertools import product

import torch

from flic.seeding import derive_seed, generator


def test_seeds_are_the_same_on_every_machine_and_in_every_version():
    assert derive_seed(0) == 4761921975702974394
    assert derive_seed(42, "update", 3, "client-007") == 2815296096406722290


def test_distinct_paths_give_distinct_seeds():
    paths = list(product(("prepare", "update"), range(20), (f"client-{i}" for i in range(50))))
    seeds = {derive_seed(seed, *path) for seed in range(2) for path in paths}
    assert len(seeds) == 2 * len(paths)


def test_a_path_is_more_than_its_letters():
    paths = [("ab", "c"), ("a", "bc"), ("abc",), ("c", "ab"), ("a", "b", "c"), ("abc", "")]
    assert len({derive_seed(0, *path) for path in paths}) == len(paths)
    assert derive_seed(1, 2) != derive_seed(12)
    assert derive_seed(1, 23) != derive_seed(12, 3)


def test_seeds_fill_63_bits():
    seeds = [derive_seed(0, i) for i in range(200)]
    assert 2**62 < max(seeds) < 2**63
    assert min(seeds) >= 0


def test_generators_of_one_node_agree_and_of_two_nodes_do_not():
    first, again, other = (torch.rand(5, generator=generator(0, p)) for p in ("a", "a", "b"))
    assert torch.equal(first, again)
    assert not torch.isclose(first, other).any()


def test_generators_leave_the_global_one_alone():
    before = torch.get_rng_state()
    torch.rand(3, generator=generator(0, "a"))
    assert torch.equal(torch.get_rng_state(), before)
