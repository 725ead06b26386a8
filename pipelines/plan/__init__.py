"""The fourth step: the key range of each split and each shard.

In: summaries of the runs, and the key columns of a few bins. Out: the plan: the splits, the key
range and size of every shard, and the compression.
"""
