"""Checks, compares, shows and explains: verify, diff, drift, why, rejects, show; forecast, suggest.

In: published snapshots, a recipe, or a folder of raw data. Out: reports as lines for people and as
JSON for programs. Nothing here changes a snapshot; `pin` writes
a lock beside a recipe.
"""
