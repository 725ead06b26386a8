"""JSON Lines as a source.

In: files of text, or their ranges. Out: the features of their objects' keys; batches of wire
columns, with a reject for each line that does not fit. Read in order: ``values``, ``rows``,
``types``, ``source``.
"""
