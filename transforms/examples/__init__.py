"""Converts Arrow columns to serialized ``tf.train.Example`` in TFRecord files, and back.

In: Arrow columns of features. Out: shards with their index files and ``schema.pbtxt``. In the
other direction: the records of a shard, or a report of what is damaged in it.
"""
