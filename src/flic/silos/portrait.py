"""What the report shows of a fit beyond its verdict: rows seen through φ, and alignment.

Taken from flic on the first split, so that rows it has not trained on can be seen too. Places of
rows in the plane are kept with the fit, rows themselves are not.
"""

from dataclasses import asdict
from typing import Any

from flic.algorithms.network import NetworkMethod
from flic.data.task import Classification
from flic.report.page.through_phi import alignment, latent, read
from flic.silos.candidate import STACK_WIDTH
from flic.silos.candidates import FlicNetwork
from flic.silos.evaluation import Bench
from flic.silos.splits import Rows


def portrait(bench: Bench, rows: Rows) -> dict[str, Any]:
    """Plain values for the report; empty where flic is not among the candidates."""
    candidate = bench.offered.get(FlicNetwork.name)
    if FlicNetwork.name not in bench.served or not isinstance(candidate, FlicNetwork):
        return {}
    encoded = bench.encode(rows)
    ran = candidate.simulate(encoded, bench.settings, seed=bench.settings.seed)
    assert isinstance(ran.algorithm, NetworkMethod)
    seen = read(ran.roster, ran.algorithm, ran.journal, stack_width=STACK_WIDTH)
    found = {
        "latent": asdict(latent(seen, seed=bench.settings.seed)),
        "alignment": [asdict(cell) for cell in alignment(seen)],
        "never_left": list(seen.kept),
    }
    return _with_names(found, bench) if isinstance(seen.task, Classification) else found


def _with_names(found: dict[str, Any], bench: Bench) -> dict[str, Any]:
    """Classes by their names instead of their positions."""
    names = {str(i): name for i, name in enumerate(bench.federation.labels)}
    cells = (*found["latent"]["points"], *found["latent"]["anchors"], *found["alignment"])
    for cell in cells:
        cell["label"] = names.get(cell["label"], cell["label"])
    return found
