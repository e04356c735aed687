import sys

import pytest
import torch
from torch import Tensor

import flic.networks.sharing
from flic.errors import ConfigError
from flic.method_settings import TrainingConfig
from flic.networks.sharing import RULES, personalisation

HIDDEN = {"hidden.weight", "hidden.bias"}
HEAD = {"head.weight", "head.bias"}


def theta(value: float, names: set[str]) -> dict[str, Tensor]:
    return {name: torch.tensor([value]) for name in names}


def values(named: dict[str, Tensor]) -> dict[str, float]:
    return {name: value.item() for name, value in named.items()}


@pytest.mark.parametrize("names", [HIDDEN | HEAD, HEAD], ids=["hidden", "no hidden"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
class TestEveryRule:
    def parts(self, rule, names) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return theta(2, rule.shared_names(names)), theta(5, rule.personal_names(names))

    def test_every_weight_is_shared_or_personal(self, rule, names):
        assert rule.shared_names(names) | rule.personal_names(names) == names

    def test_the_local_model_is_whole(self, rule, names):
        assert rule.compose(*self.parts(rule, names)).keys() == names

    def test_only_the_shared_names_leave(self, rule, names):
        assert rule.upload(*self.parts(rule, names)).keys() == rule.shared_names(names)

    def test_a_visit_begins_with_the_personal_names(self, rule, names):
        assert rule.begin(*self.parts(rule, names)).keys() == rule.personal_names(names)


def test_fedrep_shares_the_hidden_layer_under_a_head_of_its_own():
    rule = personalisation("fedrep")
    assert rule.shared_names(HIDDEN | HEAD) == HIDDEN
    assert rule.personal_names(HIDDEN | HEAD) == HEAD
    shared, personal = theta(2, HIDDEN), theta(5, HEAD)
    # the private part of a client also holds φ, which is no part of θ
    composed = rule.compose(shared, {**personal, "embedding.0.bias": torch.zeros(1)})
    assert values(composed) == dict.fromkeys(HIDDEN, 2) | dict.fromkeys(HEAD, 5)
    assert rule.begin(shared, personal) == personal
    assert rule.upload(shared, personal) == shared
    assert rule.has_shared_phase


def test_fedrep_without_a_hidden_layer_shares_nothing():
    assert personalisation("fedrep").shared_names(HEAD) == set()


def test_fedavg_starts_from_the_shared_model_and_sends_what_tuning_made_of_it():
    rule = personalisation("fedavg-ft")
    shared, personal = theta(2, HEAD), theta(5, HEAD)
    assert rule.begin(shared, personal) == shared
    assert rule.compose(shared, personal) == personal
    assert rule.upload(shared, personal) == personal
    assert not rule.has_shared_phase


def test_l2gd_mixes_both_models_half_and_half():
    rule = personalisation("l2gd")
    shared, personal = theta(2, HEAD), theta(5, HEAD)
    assert values(rule.compose(shared, personal)) == dict.fromkeys(HEAD, 3.5)
    assert rule.begin(shared, personal) == personal
    assert rule.upload(shared, personal) == shared
    assert rule.has_shared_phase


def test_the_mixture_of_l2gd_is_a_setting():
    rule = personalisation("l2gd").with_settings(TrainingConfig(l2gd_mix=0.25))
    one, none = {"head.bias": torch.ones(2)}, {"head.bias": torch.zeros(2)}
    assert torch.equal(rule.compose(one, none)["head.bias"], torch.full((2,), 0.25))


def test_l2gd_trains_either_part_through_the_mixture():
    shared, personal = ({"head.bias": torch.tensor([1.0], requires_grad=True)} for _ in range(2))
    mixed = personalisation("l2gd").compose(shared, personal)["head.bias"]
    gradients = torch.autograd.grad(mixed.sum(), [shared["head.bias"], personal["head.bias"]])
    assert [g.item() for g in gradients] == [0.5, 0.5]


def test_alone_keeps_everything_at_home():
    rule = personalisation("alone")
    assert rule.shared_names(HIDDEN | HEAD) == set()
    personal = theta(5, HIDDEN | HEAD)
    assert rule.compose({}, personal) == personal
    assert not rule.has_shared_phase


def test_unknown_rules_are_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'fedsgd'.*alone, fedavg-ft, fedrep, l2gd"):
        personalisation("fedsgd")


NEW_RULE = """
from flic.networks.sharing.fedrep import FedRep

class Mine(FedRep):
    name = "mine"

RULE = Mine()
"""


def test_a_new_file_with_a_rule_is_found(tmp_path, monkeypatch):
    (tmp_path / "brand_new.py").write_text(NEW_RULE)
    (tmp_path / "no_rule.py").write_text("")
    monkeypatch.setattr(
        flic.networks.sharing, "__path__", [*flic.networks.sharing.__path__, str(tmp_path)]
    )
    found = flic.networks.sharing._discover()
    for module in ("brand_new", "no_rule"):
        sys.modules.pop(f"flic.networks.sharing.{module}")
        delattr(flic.networks.sharing, module)
    assert found.keys() == RULES.keys() | {"mine"}
