"""Personalisation rules: the shared and the personal weights of g_θi.  Paper: table:perso_algo."""

import importlib
import pkgutil

from flic.errors import ConfigError
from flic.networks.head import SplitModel as SplitModel
from flic.networks.sharing.rule import Rule as Rule


def _discover() -> dict[str, Rule]:
    """Rules by name, from every file of this package that defines `RULE`."""
    found = (
        importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)
    )
    rules = [module.RULE for module in found if hasattr(module, "RULE")]
    return {rule.name: rule for rule in rules}


RULES = _discover()


def personalisation(name: str) -> Rule:
    """The personalisation rule of that name."""
    if name not in RULES:
        raise ConfigError(
            f"personalisation is {name!r}; expected one of {', '.join(sorted(RULES))}."
        )
    return RULES[name]


__all__ = ["RULES", "Rule", "SplitModel", "personalisation"]
