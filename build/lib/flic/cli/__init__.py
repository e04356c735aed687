"""Door one: the command line."""
