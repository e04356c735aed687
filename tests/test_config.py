"""Configurations: presets, overrides, and what is said of a bad one."""

import json
import math
from pathlib import Path

import pytest

from flic.config import EvaluationConfig, load_config, resolve, validate
from flic.errors import ConfigError
from flic.flower.federation_settings import FederationSettings
from flic.method_settings import Duration
from flic.methods import METHODS
from flic.settings import merge, parse_assignment, validated

DATA = {"problem": "noisy-features", "num_clients": 5}
EXPERIMENTS = sorted((Path(__file__).parents[1] / "experiments").glob("*.toml"))


def refusal(**raw):
    with pytest.raises(ConfigError) as error:
        resolve({"data": DATA, **raw}, source="run.toml")
    return str(error.value)


# ---- merging and presets ---------------------------------------------------------------------


def test_merge_goes_section_by_section():
    base = {"a": {"x": 1, "y": {"z": 2}}, "b": 3}
    merged = merge(base, {"a": {"y": {"w": 4}}, "b": {"c": 5}})
    assert merged == {"a": {"x": 1, "y": {"z": 2, "w": 4}}, "b": {"c": 5}}
    assert base == {"a": {"x": 1, "y": {"z": 2}}, "b": 3}


def test_merge_shares_no_memory():
    override = {"a": {"list": [1]}}
    merged = merge({}, override)
    merged["a"]["list"].append(2)
    assert override == {"a": {"list": [1]}}


def test_paper_is_the_default_preset():
    assert resolve({"data": DATA}) == resolve({"data": DATA, "preset": "paper"})
    assert resolve({"data": DATA}).training.local == Duration(epochs=100)


def test_presets_fill_and_the_file_overrides():
    config = resolve(
        {"data": DATA, "preset": "authors", "anchors": {"scale": 2.0}, "training": {"rounds": 7}}
    )
    assert (config.anchors.scale, config.anchors.average_over) == (2.0, "participants")
    assert config.anchors.variance == math.e
    assert (config.training.rounds, config.training.shared_schedule) == (7, "last")
    assert config.model.hidden_dim == 100


def test_recommended_preset():
    config = resolve({"data": DATA, "preset": "recommended"})
    assert config.model.predict_by == "nearest-anchor"
    assert config.embedding.dropout == 0.2


# ---- assignments -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("training.rounds=10", {"training": {"rounds": 10}}),
        ("seed = 3", {"seed": 3}),
        ("training.local=5 epochs", {"training": {"local": "5 epochs"}}),
        ('training.local="5 epochs"', {"training": {"local": "5 epochs"}}),
        ("embedding.hidden=[8, 4]", {"embedding": {"hidden": [8, 4]}}),
        ("training.final_round=false", {"training": {"final_round": False}}),
        ("training.optimiser.learning_rate=1e-2", {
            "training": {"optimiser": {"learning_rate": 0.01}}
        }),
        ("method=flic-hl", {"method": "flic-hl"}),
        ("method=a=b", {"method": "a=b"}),
    ],
)  # fmt: skip
def test_assignments(text, expected):
    assert parse_assignment(text) == expected


@pytest.mark.parametrize("text", ["training.rounds", "=3", "training..rounds=3", ""])
def test_bad_assignments_are_refused(text):
    with pytest.raises(ConfigError) as error:
        parse_assignment(text)
    assert f"--set {text!r}: expected key=value with a dotted key" in str(error.value)


def test_assignments_win_over_the_file_and_the_last_one_wins(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[data]\nproblem = "noisy-features"\n[training]\nrounds = 3\nbatch_size = 7\n')
    config = load_config(path, ["training.rounds=4", "training.rounds=5"])
    assert (config.training.rounds, config.training.batch_size) == (5, 7)


# ---- one method of a comparison --------------------------------------------------------------


def test_settings_of_a_single_method():
    methods = {"local": {"model": {"hidden_layer": False}, "training": {"local": "2 epochs"}}}
    config = resolve({"data": DATA, "methods": methods, "training": {"rounds": 9}})
    local, other = config.for_method("local", seed=4), config.for_method("flic-hl", seed=4)
    assert (local.method, local.seed, local.model.hidden_layer) == ("local", 4, False)
    assert (local.training.rounds, local.training.local) == (9, Duration(epochs=2))
    assert (other.method, other.model.hidden_layer) == ("flic-hl", True)


def test_a_bad_setting_of_a_single_method_is_named():
    with pytest.raises(ConfigError, match=r"\[methods.local\]:\n  model.hiden: unknown key"):
        resolve({"data": DATA, "methods": {"local": {"model": {"hiden": 1}}}})


def test_settings_of_a_single_method_follow_a_changed_copy():
    config = resolve({"data": DATA, "methods": {"local": {"training": {"local": "2 epochs"}}}})
    other = config.model_copy(update={"evaluation": EvaluationConfig(every=7)})
    assert [own.for_method("local", seed=0).evaluation.every for own in (config, other)] == [1, 7]
    assert other.for_method("local", seed=0).training.local == Duration(epochs=2)


def test_an_unknown_method_is_refused_of_a_known_run():
    with pytest.raises(ConfigError, match='method: got "flick"; expected one of local'):
        resolve({"data": DATA}).for_method("flick", seed=0)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_taken_as_it_is(method):
    config = resolve({"data": DATA, "preset": "authors"})
    assert config.for_method(method, seed=0) == config.model_copy(update={"method": method})


# ---- round trip ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_experiments_survive_the_run_folder(path):
    config = load_config(path)
    assert validate(config.model_dump(mode="json"), source="config.json") == config


@pytest.mark.parametrize("length", ["3 epochs", "1 epoch", "25 steps", "0 steps"])
def test_lengths_survive_the_run_folder(length):
    config = resolve({"data": DATA, "training": {"local": length, "shared": length}})
    assert validate(config.model_dump(mode="json"), source="config.json") == config


def test_experiments_are_there():
    assert len(EXPERIMENTS) >= 3


# ---- refusals --------------------------------------------------------------------------------


def test_every_problem_is_listed_with_key_value_and_expectation():
    said = refusal(
        training={"rounds": -1, "local": "soon", "participation": 2},
        embedding={"laten_dim": 3},
        seed="many",
    )
    lines = said.splitlines()
    assert lines[0] == "run.toml:"
    assert len(lines) == 6
    assert "  training.rounds: got -1; expected 0 or more" in lines
    assert (
        '  training.local: got "soon"; expected a length such as "10 epochs" or "25 steps"' in lines
    )
    assert "  training.participation: got 2; expected 1 or less" in lines
    known = "latent_dim, hidden, dropout, drops, activation, frozen"
    assert f"  embedding.laten_dim: unknown key; expected one of {known}" in lines
    assert any(line.startswith('  seed: got "many"; expected a whole number') for line in lines)


WRONG = {
    "true or false": {"training": {"final_round": "yes"}},
    "a whole number": {"training": {"rounds": 1.5}},
    "a number": {"alignment": {"weight": "much"}},
    "a finite number": {"training": {"participation": math.nan}},
    "less than 1": {"embedding": {"dropout": 1}},
    "more than 0": {"training": {"optimiser": {"learning_rate": 0}}},
    "a list": {"embedding": {"hidden": 64}},
    "a text": {"method": 7},
    "another entry": {"data": {"problem": "digits", "rows_per_class": [1]}},
    "2 or fewer entries": {"data": {"problem": "digits", "rows_per_class": [1, 2, 3]}},
}


@pytest.mark.parametrize("expected", WRONG)
def test_expectations_are_in_plain_words(expected):
    [_, said] = refusal(**WRONG[expected]).splitlines()
    assert said.endswith(f"; expected {expected}")


def test_a_problem_of_all_settings_has_no_key_before_it():
    with pytest.raises(
        ConfigError, match=r"^federation.json:\n  classes are \['a'\]; expected two"
    ):
        validated(FederationSettings, {"classes": ["a"]}, source="federation.json")


def test_choices_are_spelt_out():
    assert "engine.dtype: got \"float16\"; expected 'float32' or 'float64'" in refusal(
        engine={"dtype": "float16"}
    )
    assert "preset: got \"best\"; expected 'paper', 'authors' or 'recommended'" in refusal(
        preset="best"
    )


def test_unknown_methods_and_rules_are_answered_with_the_known_ones():
    for said in (refusal(method="flick"), refusal(methods={"flick": {}})):
        assert "flick" in said
        assert all(name in said for name in METHODS)
    said = refusal(training={"personalisation": "fedprox"})
    assert "training.personalisation: got 'fedprox'; expected one of alone, fedavg-ft" in said


def test_a_section_that_is_no_section():
    assert "training: got 5; expected a table of settings" in refusal(training=5)


def test_data_are_needed_and_checked():
    with pytest.raises(ConfigError, match="data: missing; this key is needed"):
        resolve({})
    assert "data.num_clients: got 0; expected 1 or more" in refusal(
        data={"problem": "digits", "num_clients": 0}
    )
    assert 'data.problem: got "mnist"; expected one of noisy' in refusal(data={"problem": "mnist"})
    assert "data.problem: missing; expected one of noisy" in refusal(data={"num_clients": 3})
    assert "classes_per_client is 1; expected from 2 to num_classes" in refusal(
        data={**DATA, "classes_per_client": 1}
    )


def test_an_unknown_data_key_is_named_without_pydantic_s_tag():
    said = refusal(data={**DATA, "clients": 3})
    assert "  data.clients: unknown key" in said


@pytest.mark.parametrize("key", ["alignment.weight", "training.optimiser.learning_rate"])
@pytest.mark.parametrize("value", ["nan", "-1.0"])
def test_numbers_that_are_none(key, value):
    with pytest.raises(ConfigError, match=key):
        resolve(merge({"data": DATA}, parse_assignment(f"{key}={value}")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[training\n", "not valid TOML"),
        (b"\xff\xfe", "cannot be read as UTF-8"),
        (b"seed = 1\nseed = 2\n", "not valid TOML"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, content, message):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as error:
        load_config(path)
    assert str(path) in str(error.value)


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(ConfigError, match=r"run.toml: no such file"):
        load_config(tmp_path / "run.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


def test_both_lengths_have_one_unit():
    said = refusal(training={"local": "25 steps", "shared": "1 epoch"})
    assert "training: local is '25 steps' and shared is '1 epochs'" in said
    assert "both in epochs, or both in steps" in said


@pytest.mark.parametrize(
    ("setting", "value"), [("rounds", True), ("batch_size", "20"), ("final_round", 1)]
)
def test_a_value_of_another_type_is_refused(setting, value):
    assert f"training.{setting}: got {json.dumps(value)}; " in refusal(training={setting: value})


def test_infinite_weights_are_refused():
    assert "alignment.weight: got" in refusal(alignment={"weight": float("inf")})


def test_an_unknown_key_of_the_data_names_those_there_are():
    said = refusal(data={"problem": "digits", "foo": 1})
    assert "data.foo: unknown key; expected one of problem, num_clients" in said


@pytest.mark.parametrize("key", ["data", "preset", "seed"])
def test_what_methods_are_compared_on_cannot_differ(key):
    with pytest.raises(ConfigError, match=rf"\[methods.local\]: got {key}; all methods"):
        resolve({"data": DATA, "methods": {"local": {key: 1}}})


def test_the_name_that_a_key_had_before_still_works():
    old = resolve({"data": DATA, "linked": {"told_per_value": 0.25}})
    assert old.linked.max_numbers_per_value == 0.25
    assert resolve(old.model_dump(mode="json")) == old
