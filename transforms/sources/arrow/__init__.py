"""Files of Arrow columns as sources: Parquet, Arrow IPC, and datasets of Hugging Face.

In: files, or the row groups and record batches of a range. Out: the features of their columns;
batches of wire columns, with a reject for each row that does not fit. ``types``, ``values`` and
``rows`` convert Arrow data of any origin, ``files`` is what the formats share.
"""
