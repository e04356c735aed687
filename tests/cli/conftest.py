"""`flic` as a user types it, on a configuration that takes a moment."""

from pathlib import Path

import pytest

CONFIG = """
method = "flic-hl"

[data]
problem = "noisy-features"
num_clients = 6
num_classes = 8
classes_per_client = 2
train_rows_per_class = 40
test_rows_per_class = 10

[training]
rounds = 3
participation = 0.5
local = "2 epochs"
batch_size = 8

[embedding]
latent_dim = 8
hidden = [8]

[model]
hidden_dim = 8

[alignment]
anchor_samples = 5

[pretraining]
epochs = 1
"""


@pytest.fixture
def config(tmp_path) -> Path:
    """The tiny configuration as a file."""
    path = tmp_path / "tiny.toml"
    path.write_text(CONFIG)
    return path
