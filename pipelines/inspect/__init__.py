"""Checks, compares and explains snapshots: verify, diff, why, rejects, forecast, bench.

In: published snapshots, or a recipe. Out: reports as lines for people and as JSON for programs.
Nothing here changes a snapshot.
"""
