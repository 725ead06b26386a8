"""Sorted runs: Arrow files of prepared records, sorted by key, and their summaries.

In: the prepared records of a block. Out: a run file that can be read by key range, with its
summary and key histogram for planning; and runs merged into the records of a shard.
"""
