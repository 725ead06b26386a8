"""Sorted runs: prepared records in Arrow files, by key, with what planning knows of them.

In: prepared records of a block. Out: a run file that is read by key range, its summary and
histogram; runs merge into the records of a shard.
"""
