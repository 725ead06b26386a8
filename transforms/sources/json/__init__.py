"""Reads JSON Lines files.

In: text files, or ranges of them. Out: the features of their objects, and batches of wire columns
with a reject for each invalid line. Reading order: ``values``, ``rows``, ``types``, ``source``.
"""
