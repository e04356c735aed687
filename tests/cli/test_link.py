"""`flic link` as a user types it."""

import json

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def wards(tmp_path):
    rng = np.random.default_rng(0)
    ill = np.arange(30) % 2
    north = pd.DataFrame({"weight": rng.normal(75, 9, 30), "ill": ill})
    south = pd.DataFrame({"weight_lb": rng.normal(75, 9, 30) / 0.45359, "ill": ill})
    text = 'label = "ill"\n'
    for name, frame in {"north": north, "south": south}.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        text += f'[[clients]]\nname = "{name}"\ndata = "{name}.csv"\n'
    (tmp_path / "federation.toml").write_text(text)
    return tmp_path / "federation.toml"


def test_a_link_is_proposed_and_how_to_confirm_it(flic, wards):
    done = flic("link", str(wards))
    assert done.code == 0
    assert "south: weight_lb" in done.out
    assert 'links = { "weight_lb" = { name = "weight", factor = 0.45359 } }' in done.out
    assert "links" not in wards.read_text()


def test_proposals_for_programs(flic_here, wards):
    told = json.loads(flic_here("link", str(wards), "--format", "json").out)
    [found] = told["proposed"]
    assert found["link"]["factor"] == pytest.approx(0.45359)
    assert told["doubtful"] == []


def test_a_link_by_name_in_another_unit_is_said_and_how_to_mend_it(flic_here, wards):
    south = wards.parent / "south.csv"
    south.write_text(south.read_text().replace("weight_lb", "weight"))
    done = flic_here("link", str(wards))
    assert "Doubtful links" in done.out
    line = 'links = { "weight" = { name = "weight", factor = 0.45359 } }'
    assert f"add a line to client south in the file, for example:\n{line}" in done.out
    wards.write_text(wards.read_text() + line + "\n")
    assert "Doubtful" not in flic_here("link", str(wards)).out


def test_numbers_that_never_meet_are_said(flic_here, wards):
    south = wards.parent / "south.csv"
    frame = pd.read_csv(south)
    frame.assign(weight=-frame["weight_lb"]).drop(columns="weight_lb").to_csv(south, index=False)
    done = flic_here("link", str(wards))
    assert "ranges overlap by 0%" in done.out
    assert 'unlinked = ["weight"]' in done.out
