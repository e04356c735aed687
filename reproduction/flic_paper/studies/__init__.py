"""Studies of every table and figure of the paper, one per file, chosen by name."""

import importlib
import pkgutil

from flic_paper.study import Study as Study


def _discover() -> dict[str, Study]:
    """Studies by name, from every file of this package that defines `STUDY`."""
    found = (
        importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)
    )
    studies = [module.STUDY for module in found if hasattr(module, "STUDY")]
    return {study.name: study for study in sorted(studies, key=lambda study: study.name)}


STUDIES = _discover()

__all__ = ["STUDIES", "Study"]
