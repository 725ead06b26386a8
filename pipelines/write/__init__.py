"""The fifth step: writes the shards, from merged ranges of the runs or by the engine's shuffle.

In: the plan and the runs. Out: TFRecord shards with their indexes.
"""
