def bench() -> None:
    """Placeholder"""
