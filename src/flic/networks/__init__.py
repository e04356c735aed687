"""Part 2 of the flow: φ_i, from a client's own features into the common latent space."""
