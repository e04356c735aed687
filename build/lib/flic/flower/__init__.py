"""A real federation: the same algorithm between machines, on Flower; a thin adapter."""
