"""Runs: their folders, scores, comparisons and views of the latent space."""
