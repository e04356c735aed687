"""Silos with their own tables: candidate models, the choice among them, and the fitted result.

Built on the engine below it. Data flow: encoding → candidates → evaluation → choice → verdict →
fitted federation.
"""
