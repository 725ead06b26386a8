"""The second step: each block becomes one sorted run of prepared records.

In: the survey. Out: a run for each block, with its rejects and what planning has to know, stage
after stage where steps look across records.
"""
