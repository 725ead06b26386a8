"""The columns of the benchmark's tables, and the ``preprocessing_fn`` that both contenders run."""

from typing import Any

import tensorflow as tf
import tensorflow_transform as tft

INT, FLOAT, WORD = tf.int64, tf.float32, tf.string

# Column -> (dtype, may be missing)
COLUMNS: dict[str, dict[str, tuple[Any, bool]]] = {
    "taxi": {
        "pickup_community_area": (INT, True),
        "fare": (FLOAT, False),
        "trip_start_month": (INT, False),
        "trip_start_hour": (INT, False),
        "trip_start_day": (INT, False),
        "trip_start_timestamp": (INT, False),
        "pickup_latitude": (FLOAT, True),
        "pickup_longitude": (FLOAT, True),
        "dropoff_latitude": (FLOAT, True),
        "dropoff_longitude": (FLOAT, True),
        "trip_miles": (FLOAT, False),
        "pickup_census_tract": (INT, True),
        "dropoff_census_tract": (INT, True),
        "payment_type": (WORD, False),
        "company": (WORD, True),
        "trip_seconds": (INT, True),
        "dropoff_community_area": (INT, True),
        "tips": (FLOAT, False),
    },
    "plain": {f"x{i}": (FLOAT, False) for i in range(7)}
    | {f"w{i}": (WORD, False) for i in range(3)},
}


def _filled(value: Any, default: Any) -> Any:
    """A dense column: what is missing becomes the default."""
    if not isinstance(value, tf.SparseTensor):
        return value
    shape = [value.dense_shape[0], 1]
    sparse = tf.SparseTensor(value.indices, value.values, shape)
    return tf.squeeze(tf.sparse.to_dense(sparse, default), 1)


def taxi(inputs: dict[str, Any]) -> dict[str, Any]:
    """As the example of TFX for these trips does."""
    outputs = {}
    for name in ("trip_miles", "fare", "trip_seconds"):
        value = tf.cast(_filled(inputs[name], 0), tf.float32)
        outputs[name] = tft.scale_to_z_score(value)
    for name in ("payment_type", "company"):
        value = _filled(inputs[name], "")
        outputs[name] = tft.compute_and_apply_vocabulary(value, top_k=1000, num_oov_buckets=10)
    for name in ("pickup", "dropoff"):
        for axis in ("latitude", "longitude"):
            value = _filled(inputs[f"{name}_{axis}"], 0.0)
            outputs[f"{name}_{axis}"] = tft.bucketize(value, 10)
    for name in ("trip_start_hour", "trip_start_day", "trip_start_month"):
        outputs[name] = inputs[name]
    for name in ("pickup_census_tract", "dropoff_census_tract"):
        outputs[name] = _filled(inputs[name], 0)
    for name in ("pickup_community_area", "dropoff_community_area"):
        outputs[name] = _filled(inputs[name], 0)
    outputs["tips"] = tf.cast(inputs["tips"] > inputs["fare"] * 0.2, tf.int64)
    return outputs


def plain(inputs: dict[str, Any]) -> dict[str, Any]:
    """Z-scores of the numbers, vocabularies of the words."""
    outputs = {f"x{i}": tft.scale_to_z_score(inputs[f"x{i}"]) for i in range(7)}
    for i in range(3):
        outputs[f"w{i}"] = tft.compute_and_apply_vocabulary(inputs[f"w{i}"])
    return outputs
