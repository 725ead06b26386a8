"""Columns of records to serialized ``tf.train.Example`` in TFRecord files, and back.

In: Arrow columns of features. Out: shards with their index, ``schema.pbtxt``; and from a shard its
records, or what is damaged in it.
"""
