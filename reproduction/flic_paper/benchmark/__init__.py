"""Measurements of the engine against the same work in plain PyTorch."""
