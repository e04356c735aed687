"""Operation of a federation on Flower: processes, keys, certificates, and commands over them."""
