"""A fit that was interrupted goes on: with its own work, whole, and with nobody else's."""

from dataclasses import replace

import pytest
from wards import NETWORK, wards

from flic.errors import RunFolderError
from flic.silos import folder as folders
from flic.silos.fit_cache import FitCache, key_of
from flic.silos.fit_settings import FitSettings
from flic.silos.fitting import fit
from flic.silos.splits import outer_splits
from flic.tables import Declared, tables_from_frames

SETTINGS = FitSettings(
    repeats=2, folds=2, scheme="splits", network=NETWORK, candidates=("lda", "flic")
)
CALLS = 2 * 3 + 2  # of two splits, two folds each and the split itself; and two folds of all rows


class Stopped(Exception):
    pass


def tables(change=lambda frames: None, **options):
    frames = wards()
    change(frames)
    return tables_from_frames(frames, label="ill", **options)


def stop_after_a_split(done, total, what):
    if done == 1:
        raise Stopped


def results(fitted):
    states = {name: tensor.tolist() for name, tensor in fitted.shared.items()}
    kept = {name: client.candidate for name, client in fitted.clients.items()}
    return fitted.verdict, fitted.temperatures, fitted.known, fitted.weights, states, kept


@pytest.mark.slow
def test_an_interrupted_fit_goes_on_and_ends_the_same(modes, tmp_path):
    whole = fit(tables(), SETTINGS)
    folder = folders.unfinished(tmp_path / "fitted")
    cache = FitCache.of(folder, tables(), SETTINGS)
    assert not cache.is_begun
    with pytest.raises(Stopped):
        fit(tables(), SETTINGS, cache=cache, on_step=stop_after_a_split)
    assert modes(folder) == {"folder 700", "file 600"}
    flipped, cut, *sound = sorted(folder.rglob("*.safetensors"))
    assert len(sound) == 2 * 3 - 2
    flipped.write_bytes(flipped.read_bytes()[:-1] + b"?")
    cut.write_bytes(cut.read_bytes()[:-8])
    before = [path.stat().st_mtime_ns for path in sound]
    again = FitCache.of(folder, tables(), SETTINGS)
    assert again.is_begun
    fitted = fit(tables(), SETTINGS, cache=again)
    assert results(fitted) == results(whole)
    assert len(list(folder.rglob("*.safetensors"))) == 2 * CALLS
    assert [path.stat().st_mtime_ns for path in sound] == before  # taken, not made again
    folders.save(fitted, tmp_path / "fitted")
    assert [path.name for path in tmp_path.iterdir()] == ["fitted"]


@pytest.mark.slow
def test_steps_that_are_kept_count_from_the_start(tmp_path):
    settings = SETTINGS.model_copy(update={"candidates": ("lda",)})
    cache, told = FitCache.of(tmp_path, tables(), settings), []

    def stop_at(number):
        told.clear()

        def on_step(done, total, what):
            told.append((done, total))
            if len(told) == number:
                raise Stopped

        return on_step

    for stop, steps in [(2, [0, 1]), (3, [1, 1, 2]), (4, [2, 2, 2, 3])]:
        with pytest.raises(Stopped):
            fit(tables(), settings, cache=cache, on_step=stop_at(stop))
        assert told == [(done, 4) for done in steps]
    fit(tables(), settings, cache=cache, on_step=stop_at(None))
    assert [done for done, _ in told] == [3, 3, 3, 3, 4]


def set_cell(column, value):
    def change(frames):
        frames["north"].loc[3, column] = value

    return change


OTHERS = {
    "a number": lambda: tables(set_cell("age", 61.5)),
    "a missing number": lambda: tables(set_cell("dose", None)),
    "a category": lambda: tables(set_cell("blood", "0")),
    "a date": lambda: tables(set_cell("seen", "2025-02-03")),
    "a label": lambda: tables(
        lambda frames: frames["east"].update({"ill": 1 - frames["east"].ill})
    ),
    "a row less": lambda: tables(lambda frames: frames.update(east=frames["east"].drop(index=5))),
    "a name": lambda: tables(lambda frames: frames.update(west=frames.pop("east"))),
    "a column's meaning": lambda: tables(declared=Declared(unlinked=("age",))),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_other_tables_take_nothing(tmp_path, other):
    own, others = (FitCache.of(tmp_path, t, SETTINGS) for t in (tables(), other()))
    assert own == FitCache.of(tmp_path, tables(), SETTINGS)
    assert own != others


@pytest.mark.parametrize("change", [{"seed": 1}, {"test_share": 0.3}, {"network": {}}])
def test_other_settings_take_nothing(tmp_path, change):
    other = SETTINGS.model_copy(update=change)
    assert FitCache.of(tmp_path, tables(), SETTINGS) != FitCache.of(tmp_path, tables(), other)


def test_every_part_of_a_fit_has_a_key_of_its_own():
    first, second = outer_splits(tables().tables, SETTINGS)
    keys = [
        key_of("lda", first, seed=0),
        key_of("flic", first, seed=0),
        key_of("lda", second, seed=0),
        key_of("lda", first, seed=1),
        key_of("lda", {client: (test, train) for client, (train, test) in first.items()}, seed=0),
    ]
    assert len({*keys}) == len(keys)


def test_two_fits_into_one_place_are_refused(tmp_path):
    cache = FitCache.of(tmp_path, tables(), SETTINGS)
    other = replace(cache, folder=tmp_path / "of other settings")
    with cache.alone(), pytest.raises(RunFolderError, match="worked on by another process"):
        fit(tables(), SETTINGS, cache=other)


def test_what_cannot_be_fitted_leaves_nothing_behind(flic_here, tmp_path):
    for name, frame in wards().items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    clients = "".join(f'[[clients]]\nname = "{n}"\ndata = "{n}.csv"\n' for n in wards())
    (tmp_path / "federation.toml").write_text(f'label = "ill"\n{clients}')
    before = sorted(tmp_path.rglob("*"))
    command = ("fit", "federation.toml", "--out", "new/fitted", "--set", 'candidates=["oracle"]')
    assert flic_here(*command).code == 2
    assert sorted(tmp_path.rglob("*")) == before
