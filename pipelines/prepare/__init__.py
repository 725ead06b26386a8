"""The second step: each block becomes one sorted run of prepared records.

In: the survey. Out: a run for each block, with its rejects, and a summary of the runs for
planning; one stage after another if steps work across records.
"""
