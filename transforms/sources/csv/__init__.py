"""CSV and TSV files as a source.

In: files of text, or their ranges. Out: the features of their columns; batches of wire columns,
with a reject for each row that does not fit. Read in order: ``rows``, ``types``, ``cells``,
``files``, ``source``.
"""
