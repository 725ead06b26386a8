"""Reads files of Arrow columns: Parquet, Arrow IPC and Hugging Face datasets.

In: files, or the row groups and record batches of a range. Out: the features of their columns, and
batches of wire columns with a reject for each invalid row. ``types``, ``values`` and ``rows``
convert Arrow data from any source; ``files`` is shared by the formats.
"""
