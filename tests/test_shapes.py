"""Values picked by the beginning of their names."""

from flic.shapes import stripped, under

NAMED = {"head.weight": 1, "head.head.bias": 2, "header": 3, "hidden.bias": 4, "head.": 5}


def test_under_takes_the_names_below_a_prefix():
    assert under("head.", NAMED) == {"head.weight": 1, "head.head.bias": 2, "head.": 5}
    assert under("", NAMED) == NAMED


def test_stripped_cuts_the_prefix_off_once():
    assert stripped("head.", NAMED) == {"weight": 1, "head.bias": 2, "": 5}
    again = {f"head.{name}": value for name, value in stripped("head.", NAMED).items()}
    assert again == under("head.", NAMED)
