"""The third step: a ``preprocessing_fn`` is analyzed on the train split.

In: the runs of the train split. Out: a transform graph, or one that another snapshot has.
"""
