"""Ranges that settings give: a lower and an upper end, from which each client draws."""


def refuse_outside(name: str, bounds: tuple[float, float], least: float, largest: float) -> None:
    """Refuse a range that leaves [least, largest] or is upside down."""
    if not least <= bounds[0] <= bounds[1] <= largest:
        raise ValueError(
            f"{name} is {list(bounds)}; expected a lower and an upper end from {least} to "
            f"{largest}, the lower one first. Change the range."
        )
