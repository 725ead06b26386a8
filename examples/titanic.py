"""Passengers of the Titanic: strings and missing values; z-scores, vocabularies, buckets, PCA.

Build it: `snapshard build examples/titanic.py --out out`
"""

from typing import Any

import snapshard as ss

NUMBERS = ("age", "fare", "sibsp", "parch")


def fill(column: Any, default: Any) -> Any:
    """Converts a column that may have missing values to a dense tensor: [batch]."""
    import tensorflow as tf

    if not isinstance(column, tf.SparseTensor):
        return column
    shape = [column.dense_shape[0], 1]
    dense = tf.sparse.to_dense(tf.SparseTensor(column.indices, column.values, shape), default)
    return tf.squeeze(dense, axis=1)


def preprocessing_fn(inputs: dict[str, Any]) -> dict[str, Any]:
    """Learns statistics and vocabularies from the train split; applies them to every row."""
    # Imported here, so loading the recipe is quick and `snapshard plan` needs no TensorFlow.
    import tensorflow as tf
    import tensorflow_transform as tft

    scaled = {
        name: fill(tft.scale_to_z_score(tf.cast(inputs[name], tf.float32)), 0.0) for name in NUMBERS
    }
    outputs = dict(scaled)
    outputs["fare_bucket"] = tft.bucketize(inputs["fare"], num_buckets=5)
    for name in ("sex", "embark_town", "deck", "who"):
        outputs[name] = tft.compute_and_apply_vocabulary(
            fill(inputs[name], "unknown"), vocab_filename=name
        )
    # The two directions in which the four numbers vary most.
    numbers = tf.stack(list(scaled.values()), axis=1)  # float32[batch, 4]
    outputs["components"] = tf.matmul(numbers, tft.pca(numbers, 2, tf.float32))
    # Returned unchanged, features keep their type and bytes.
    outputs["no_age"] = inputs["no_age"]
    outputs["survived"] = inputs["survived"]
    return outputs


recipe = ss.Recipe(
    name="titanic",
    source=ss.Csv("data/titanic.csv", label="survived"),
    prepare=[ss.tables.missing("age", "no_age")],
    preprocessing_fn=preprocessing_fn,
    splits=ss.Splits(train=0.8, validation=0.1, test=0.1, stratify_by="survived"),
)
