"""Features as TensorFlow Metadata: the snapshot's ``schema.pbtxt``, and what tf.transform reads.

How a stored feature becomes a tensor, in ``schema.pbtxt`` and in a ``preprocessing_fn``:

============================== ================ ===========================================
feature                        dtype            tensor
============================== ================ ===========================================
Scalar, ClassLabel             int64, float32,  dense, ``[batch]``
                               string
Scalar, optional               the same         sparse, ``[batch, 1]`` at most
Tensor of fixed shape          the same         dense, ``[batch, *shape]``
Tensor of shape ``(None,)``    the same         ragged, ``[batch, None]``
Image                          string           dense, ``[batch]``: pixels or file; its
                                                columns of sizes are dense int64
============================== ================ ===========================================

All integers and bools are int64 there, as they are in a ``tf.train.Example``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..schemas.errors import RecipeError
from ..schemas.features import (
    ClassLabel,
    Dtype,
    Feature,
    Features,
    Image,
    Scalar,
    Tensor,
    WireColumn,
    wire_columns,
)

_TENSORS = ""
"""Name of the group of tensor representations that TFX libraries look at."""


def schema_of(features: Features) -> Any:
    """The ``tensorflow_metadata.proto.v0.schema_pb2.Schema`` of stored features."""
    from tensorflow_metadata.proto.v0 import schema_pb2

    schema = schema_pb2.Schema()
    owners = {
        column.name: (feature, feature.wire_columns(name)[0].name == column.name)
        for name, feature in features.items()
        for column in feature.wire_columns(name)
    }
    for column in wire_columns(features):
        feature, is_main = owners[column.name]
        added = schema.feature.add(name=column.name)
        added.type = {
            "bytes": schema_pb2.BYTES,
            "int64": schema_pb2.INT,
            "float32": schema_pb2.FLOAT,
        }[column.kind]
        if not column.optional:
            added.presence.min_fraction = 1.0
            added.presence.min_count = 1
        _set_shape(added, column, feature)
        if is_main:
            _set_domain(added, feature)
        representation = schema.tensor_representation_group[_TENSORS].tensor_representation
        representation[column.name].CopyFrom(_representation(column, feature))
    return schema


def schema_text(features: Features) -> bytes:
    """The text of ``schema.pbtxt``: the same bytes for the same features."""
    from google.protobuf import text_format

    # The text format sorts the keys of maps, and repeated fields are in the order of names.
    text: str = text_format.MessageToString(schema_of(features), as_utf8=True)
    return text.encode()


def tensor_adapter_config(features: Features, *, columns: Iterable[str] | None = None) -> Any:
    """How tfx_bsl turns the output of :func:`as_lists` into tensors: a TensorAdapterConfig.

    Args:
        features: All features that a ``preprocessing_fn`` may ask for.
        columns: The wire columns that are there; all by default.
    """
    from tfx_bsl.tfxio import tensor_adapter

    stored = wire_columns(features)
    representations = schema_of(features).tensor_representation_group[_TENSORS]

    # A protobuf map has no order, and the order of inputs enters the graph.
    def config(chosen: Sequence[WireColumn], specs: Any = None) -> Any:
        return tensor_adapter.TensorAdapterConfig(
            _list_schema(chosen),
            {c.name: representations.tensor_representation[c.name] for c in chosen},
            original_type_specs=specs,
        )

    whole = config(stored)
    if columns is None:
        return whole
    wanted = set(columns)
    specs = tensor_adapter.TensorAdapter(whole).TypeSpecs()
    return config([column for column in stored if column.name in wanted], specs)


def as_lists(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch in wire form as tfx_bsl wants it: each column a ``large_list``.

    A missing value is an empty list.
    """
    return pa.RecordBatch.from_arrays(
        [_as_list(column) for column in batch.columns], names=batch.schema.names
    )


def features_of_outputs(
    schema: Any, *, kept: Mapping[str, Feature], like_input: Iterable[str]
) -> dict[str, Feature]:
    """The features that the outputs of a ``preprocessing_fn`` are stored as.

    Args:
        schema: Its transformed metadata's Schema.
        kept: Inputs that it returns unchanged under some name: those keep their type.
        like_input: Outputs that are missing exactly where an optional scalar is missing: those
            are optional scalars too. Other sparse outputs are lists.

    Raises:
        RecipeError: if an output has a shape that cannot be stored.
    """
    import tensorflow as tf
    from tensorflow_transform.tf_metadata import schema_utils

    optional = set(like_input)
    features: dict[str, Feature] = dict(kept)
    held = {column.name for name, f in kept.items() for column in f.wire_columns(name)}
    for name, spec in schema_utils.schema_as_feature_spec(schema).feature_spec.items():
        if name in held:
            continue
        dtype = _dtype(spec.dtype.name)
        if isinstance(spec, tf.io.FixedLenFeature):
            shape = tuple(spec.shape)
            features[name] = Tensor(dtype, shape) if shape else Scalar(dtype)
        elif isinstance(spec, tf.io.VarLenFeature) and name in optional:
            features[name] = Scalar(dtype, optional=True)
        elif isinstance(spec, tf.io.VarLenFeature) or (
            isinstance(spec, tf.io.RaggedFeature) and not spec.partitions
        ):
            features[name] = Tensor(dtype, (None,))
        else:
            raise RecipeError(
                f"preprocessing_fn returns {name!r} as {spec}; expected a dense tensor, or a "
                "sparse or ragged one of two dimensions. Flatten it, or return its parts."
            )
    wire_columns(features)
    return features


def _dtype(name: str) -> Dtype:
    if name == "string":
        return "string"
    return "int64" if name == "int64" else "float32"


def _is_list(column: WireColumn) -> bool:
    return column.length is None


def _shape(column: WireColumn, feature: Feature) -> tuple[int, ...]:
    if isinstance(feature, Tensor):
        return tuple(dim for dim in feature.shape if dim is not None)
    return () if column.length == 1 else (column.length or 0,)


def _set_shape(added: Any, column: WireColumn, feature: Feature) -> None:
    if _is_list(column):
        return
    if column.optional:
        added.value_count.min = 1
        added.value_count.max = 1
        return
    added.shape.SetInParent()
    for size in _shape(column, feature):
        added.shape.dim.add(size=size)


def _set_domain(added: Any, feature: Feature) -> None:
    """Says what more is known of the values."""
    if isinstance(feature, ClassLabel):
        added.int_domain.min = 0
        added.int_domain.max = len(feature.names) - 1
        added.int_domain.is_categorical = True
    elif isinstance(feature, Image):
        if feature.storage == "encoded":
            added.image_domain.SetInParent()
    elif feature.dtype == "bool":
        added.bool_domain.SetInParent()
    elif feature.dtype not in ("int64", "float32", "string"):
        info = np.iinfo(feature.dtype)
        added.int_domain.min = int(info.min)
        added.int_domain.max = int(info.max)


def _representation(column: WireColumn, feature: Feature) -> Any:
    from tensorflow_metadata.proto.v0 import schema_pb2

    made = schema_pb2.TensorRepresentation()
    if _is_list(column):
        made.ragged_tensor.feature_path.step.append(column.name)
        made.ragged_tensor.row_partition_dtype = schema_pb2.TensorRepresentation.INT64
    elif column.optional:
        made.varlen_sparse_tensor.column_name = column.name
    else:
        made.dense_tensor.column_name = column.name
        made.dense_tensor.shape.SetInParent()
        for size in _shape(column, feature):
            made.dense_tensor.shape.dim.add(size=size)
    return made


def _list_schema(columns: Iterable[WireColumn]) -> pa.Schema:
    values = {"bytes": pa.large_binary(), "int64": pa.int64(), "float32": pa.float32()}
    return pa.schema([(column.name, pa.large_list(values[column.kind])) for column in columns])


def _as_list(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_large_list(kind):
        # Copied: tfx_bsl takes no slice of a longer column here.
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        values = column.flatten()
        if values.offset:
            values = pa.concat_arrays([values, values.slice(0, 0)])
        return pa.LargeListArray.from_arrays(pa.array(offsets), values)
    if pa.types.is_fixed_size_list(kind):
        offsets = np.arange(len(column) + 1, dtype=np.int64) * kind.list_size
        return pa.LargeListArray.from_arrays(pa.array(offsets), column.flatten())
    if column.null_count == 0:
        offsets = np.arange(len(column) + 1, dtype=np.int64)
        return pa.LargeListArray.from_arrays(pa.array(offsets), column)
    offsets = np.zeros(len(column) + 1, np.int64)
    np.cumsum(column.is_valid().to_numpy(zero_copy_only=False), out=offsets[1:])
    return pa.LargeListArray.from_arrays(pa.array(offsets), column.drop_null())
