"""Hashes of user code and values, which enter the fingerprint of a snapshot.

In: a function, a value or a source of the recipe. Out: one digest of what it does, part by part, so
that a difference can be named; files that the code opens without declaring them are refused.
"""
