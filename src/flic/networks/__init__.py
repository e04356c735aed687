"""Networks: embeddings φ_i into the common latent space, and models g_θ on it."""
