"""Hashes of user code and values, which enter the fingerprint of a snapshot.

In: a function, a value or a source of the recipe. Out: one digest of what it does, made of named
parts, so a difference can be reported by name. Files that the code opens undeclared are refused.
Reading order: `user_code`, `values`, `digest`, `dependencies`.
"""
