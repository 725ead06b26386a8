"""Reads TFRecord files written by other programs.

In: files of Examples, SequenceExamples or serialized tensors. Out: the features of their records,
and batches of wire columns with a reject for each damaged or invalid record. Reading order:
``columns``, ``source``.
"""
