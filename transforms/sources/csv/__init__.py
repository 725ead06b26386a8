"""Reads CSV and TSV files.

In: text files, or ranges of them. Out: the features of their columns, and batches of wire columns
with a reject for each invalid row. Reading order: ``rows``, ``dialect``, ``types``, ``cells``,
``source``.
"""
