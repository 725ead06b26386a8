"""Runs prepare steps: traces them, compiles them into graphs and validates the results.

In: the steps of a recipe and batches of records as Arrow columns. Out: batches of prepared records,
rejects, and the same steps as one SavedModel for serving.
"""
