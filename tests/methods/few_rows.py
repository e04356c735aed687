"""The plain version of the search for relations: every set of few rows is looked at."""

from itertools import combinations

import numpy as np
from torch import Tensor


def shows_few_rows(matrix: Tensor, least: int) -> bool:
    """True if some weighing of the columns is 0 for all but fewer than `least` rows."""
    rows = matrix.numpy()
    rank = np.linalg.matrix_rank(rows)
    return any(
        np.linalg.matrix_rank(np.delete(rows, few, axis=0)) < rank
        for size in range(1, least)
        for few in combinations(range(len(rows)), size)
    )
