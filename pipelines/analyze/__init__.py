"""The third step: analyzes a ``preprocessing_fn`` on the train split.

In: the runs of the train split, or the graph of another build. Out: a transform graph.
"""
