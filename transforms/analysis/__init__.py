"""Full-pass analysis with tensorflow-transform, and the graph that it leads to.

In: prepared records of the train split and a ``preprocessing_fn``. Out: a transform graph, equal
byte for byte for equal input, applied to batches of records.
"""
