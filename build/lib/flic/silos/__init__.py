"""Silos with their own tables: what a client could do, what it should do, and the model it keeps.

Built on the engine below it. Data flow: encoding → candidates → evaluation → choice → verdict →
fitted federation.
"""
