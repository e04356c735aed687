"""Every data source is documented, and every experiment describes one."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic_core import PydanticUndefined

from flic.config import load_config
from flic.data.source import DataConfig

ROOT = Path(__file__).parents[2]
MODELS = get_args(get_args(DataConfig)[0])


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_setting_and_its_default_is_documented(model: Any) -> None:
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    section = page.partition("## `[data]`")[2].partition("\n## ")[0]
    tables = re.split(r"\n(?=For `|`eeg`)", section)
    problems = get_args(model.model_fields["problem"].annotation)
    [table] = [t for t in tables if f"`{problems[0]}`" in t.partition("|")[0]]
    shown = {
        key: default.strip("` ")
        for keys, default in re.findall(r"^\| (`.+?`) \| (.*?)\|", table, flags=re.MULTILINE)
        for key in re.findall(r"`(.+?)`", keys)
    }
    fields = {name: field for name, field in model.model_fields.items() if name != "problem"}
    assert set(shown) == set(fields)
    for name, field in fields.items():
        if field.default not in (None, PydanticUndefined):  # None is explained in words
            default = list(field.default) if isinstance(field.default, tuple) else field.default
            assert shown[name] == str(default), name


@pytest.mark.parametrize(
    "path", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda p: p.stem
)
def test_every_experiment_can_be_read(path: Path) -> None:
    assert load_config(path).data is not None


@pytest.mark.parametrize(("num_clients", "classes"), [(100, 2), (100, 3), (200, 2), (200, 3)])
def test_modalities_experiments_have_the_papers_settings(num_clients: int, classes: int) -> None:
    config = load_config(ROOT / "experiments" / f"modalities-{num_clients}x{classes}.toml")
    assert (config.data.num_clients, config.data.classes_per_client) == (num_clients, classes)
    assert (config.training.rounds, config.training.participation) == (50, 0.1)
    assert (config.training.local.epochs, config.training.batch_size) == (10, 100)
    assert (config.pretraining.epochs, config.pretraining.batch_size) == (100, 10)
