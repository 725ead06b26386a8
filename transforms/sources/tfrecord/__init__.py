"""TFRecord files that others wrote, as a source.

In: files of Examples, SequenceExamples or serialized tensors. Out: the features of what they hold;
batches of wire columns, with a reject for each record that is damaged or does not fit. Read in
order: ``frames``, ``columns``, ``source``.
"""
