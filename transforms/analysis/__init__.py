"""Full-pass analysis with tensorflow-transform, and the transform graph it produces.

In: the prepared records of the train split and a ``preprocessing_fn``. Out: a transform graph,
byte-identical for identical input, and the code that applies it to batches of records.
"""
