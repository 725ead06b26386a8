"""Measurements of three species of penguins: z-scores, buckets, vocabularies, missing values.

Build it: `snapshard build examples/penguins.py --out out`
"""

from typing import Any

import snapshard as ss

MEASURES = ("bill_length_mm", "bill_depth_mm", "flipper_length_mm")


def fill(column: Any, default: Any) -> Any:
    """Converts a column with missing values to a dense tensor: [batch]."""
    import tensorflow as tf

    shape = [column.dense_shape[0], 1]
    dense = tf.sparse.to_dense(tf.SparseTensor(column.indices, column.values, shape), default)
    return tf.squeeze(dense, axis=1)


def preprocessing_fn(inputs: dict[str, Any]) -> dict[str, Any]:
    """Learns means, quantiles and vocabularies from the train split; applies them to every row."""
    # Imported here, so loading the recipe is quick and `snapshard plan` needs no TensorFlow.
    import tensorflow_transform as tft

    # A missing measurement becomes 0, the mean.
    outputs = {name: fill(tft.scale_to_z_score(inputs[name]), 0.0) for name in MEASURES}
    # A value that stays missing is absent from the example; the reader returns NaN.
    outputs["body_mass"] = tft.scale_to_z_score(inputs["body_mass_g"])
    outputs["body_mass_bucket"] = fill(tft.bucketize(inputs["body_mass_g"], num_buckets=4), -1)
    outputs["island"] = tft.compute_and_apply_vocabulary(inputs["island"], vocab_filename="island")
    outputs["sex"] = tft.compute_and_apply_vocabulary(
        fill(inputs["sex"], "unknown"), vocab_filename="sex"
    )
    # Returned unchanged, the label keeps its class names.
    outputs["species"] = inputs["species"]
    return outputs


recipe = ss.Recipe(
    name="penguins",
    source=ss.Csv("data/penguins.csv", label="species"),
    preprocessing_fn=preprocessing_fn,
    splits=ss.Splits(train=0.8, validation=0.1, test=0.1, stratify_by="species"),
)
