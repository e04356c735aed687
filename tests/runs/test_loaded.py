"""Loading of a run: data are made once, by one thread."""

import pytest
import torch
from made_problems import NOISY

from flic.config import resolve
from flic.data.toy import ToyConfig
from flic.runs.loaded import Loaded, load_each
from flic.runs.run_folder import simulate

RAW = {
    "method": "lda",
    "data": NOISY,
    "training": {"rounds": 1, "participation": 1},
}


def test_runs_share_data_of_the_same_problem_and_seed():
    config = resolve(RAW)
    first = Loaded.of(config)
    others = [config.for_method(name, seed=seed) for seed in (0, 1) for name in ("lda", "local")]
    lda, local, other_lda, other_local = load_each(others, first)
    assert first.data is lda.data is local.data
    assert other_lda.data is other_local.data
    assert other_lda.data.digest == Loaded.of(others[-1]).data.digest != lda.data.digest
    assert [run.config for run in (lda, local, other_lda, other_local)] == others


class Counting(ToyConfig):
    """A problem that keeps the number of threads each time it makes data."""

    def make(self, *, seed):
        THREADS.append(torch.get_num_threads())
        return super().make(seed=seed)


THREADS: list[int] = []


@pytest.mark.usefixtures("two_threads")
def test_data_of_a_simulation_are_made_once_by_one_thread():
    THREADS.clear()
    simulate(resolve(RAW).model_copy(update={"data": Counting(**NOISY)}))
    assert THREADS == [1]
