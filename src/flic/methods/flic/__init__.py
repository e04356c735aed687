"""FLIC: the anchors, and the losses that pull embeddings to them."""
