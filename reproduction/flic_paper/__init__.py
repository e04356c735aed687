"""Reproduction of the paper's tables and figures, from cells that are kept once done."""
