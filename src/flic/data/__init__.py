"""Data of clients: raw rows as ClientData."""
