"""Ranges in settings: a lower and an upper end, between which each client draws."""


def refuse_outside(name: str, bounds: tuple[float, float], least: float, largest: float) -> None:
    """Refuse a range that is not within [least, largest], or whose ends are in the wrong order."""
    if not least <= bounds[0] <= bounds[1] <= largest:
        raise ValueError(
            f"{name} is {list(bounds)}; expected a lower and an upper end from {least} to "
            f"{largest}, the lower one first. Change the range."
        )
