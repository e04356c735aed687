"""Operation of a federation on Flower: processes, certificates, and commands over them."""
