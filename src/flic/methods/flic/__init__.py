"""Part 3 of the flow: the anchors, and the losses that pull embeddings to them."""
