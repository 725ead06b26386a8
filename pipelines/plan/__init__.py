"""The fourth step: where each split and each shard begins and ends in the space of keys.

In: summaries of the runs. Out: sizes, compression, and the key range of every shard.
"""
