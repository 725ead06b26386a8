"""The fifth step: writes the shards, from merged ranges of the runs or by the engine's shuffle.

In: the runs, the layout and the graph. Out: TFRecord shards with their indexes, each verified.
"""
