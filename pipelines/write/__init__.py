"""The fifth step: the shards, by merging ranges of the runs or by the runner's shuffle.

In: the plan and the runs. Out: TFRecord shards with their indexes.
"""
