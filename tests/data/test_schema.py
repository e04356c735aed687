"""Features that clients of a space have in common."""

from flic.data.schema import FeatureSchema, SharedFeatures


def test_where_all_have_all_features_their_own_order_is_kept() -> None:
    shared = SharedFeatures.of([FeatureSchema("s", ("b", "c", "a"))] * 3)
    assert shared.names == ("b", "c", "a")
    assert shared.block == (0, 0, 0)


def test_where_features_differ_the_order_is_nobody_s() -> None:
    first, second = FeatureSchema("s", ("b", "c", "a")), FeatureSchema("s", ("a", "d", "b"))
    both, turned = SharedFeatures.of([first, second]), SharedFeatures.of([second, first])
    assert both.names == turned.names == ("a", "b")
    assert SharedFeatures.of([first]).names == ()


def test_features_of_the_same_holders_are_a_block() -> None:
    schemas = [
        FeatureSchema("s", names) for names in (("a", "b", "c"), ("a", "b"), ("b", "a", "c"))
    ]
    shared = SharedFeatures.of(schemas)
    place = dict(zip(shared.names, shared.block, strict=True))
    assert place["a"] == place["b"] != place["c"]
