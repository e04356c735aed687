"""Linked features: sums of what clients have in common, in closed form."""
