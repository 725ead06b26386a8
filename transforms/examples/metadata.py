"""Features as TensorFlow Metadata: the snapshot's ``schema.pbtxt``, and what tf.transform reads.

How a feature becomes a tensor, in a ``preprocessing_fn``, and (but for packed columns, which are
one string there) in ``schema.pbtxt``:

================================== ================ =======================================
feature                            dtype            tensor
================================== ================ =======================================
Scalar, ClassLabel, Text,          int64, float32,  dense, ``[batch]``
Timestamp                          string
the same, optional                 the same         sparse, ``[batch, 1]`` at most
Tensor of fixed shape              the same         dense, ``[batch, *shape]``
Tensor ``(None, *fixed)``,         the same         ragged, ``[batch, None, *fixed]``; a
Sequence, BoundingBoxes                             missing one is an empty row
Tensor where a later dimension     the same         ragged, ``[batch, None]``: all values,
varies                                              row-major; ``<name>/shape``, dense, where
                                                    two and more dimensions vary
Audio                              float32          as the Tensor of its shape; ``<name>/rate``,
                                                    dense int64, where rates vary
Image                              string           dense, ``[batch]``: pixels or file; its
                                                    columns of sizes are dense int64
================================== ================ =======================================

All integers and bools are int64 there (a uint64 by its bits), all floats float32: these are the
types that tensorflow-transform computes in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ...schemas.errors import RecipeError
from ...schemas.features import (
    Dtype,
    Feature,
    Features,
    Scalar,
    Tensor,
    WireColumn,
    check_masks,
    tensor_form,
    wire_columns,
)
from ..analysis.computed import ARROW_VALUES, computed_column
from .schema_domains import describe_values

_TENSORS = ""
"""Name of the group of tensor representations that TFX libraries look at."""


def schema_of(features: Features, *, computed: bool = False) -> Any:
    """The ``tensorflow_metadata.proto.v0.schema_pb2.Schema`` of features.

    Args:
        features: The features.
        computed: Describe what tensorflow-transform is given instead of what is stored.
    """
    from tensorflow_metadata.proto.v0 import schema_pb2

    schema = schema_pb2.Schema()
    owners = {
        column.name: (name, feature)
        for name, feature in features.items()
        for column in feature.wire_columns(name)
    }
    for stored in wire_columns(features):
        name, feature = owners[stored.name]
        column = computed_column(stored, feature) if computed else stored
        added = schema.feature.add(name=column.name)
        added.type = {
            "bytes": schema_pb2.BYTES,
            "int64": schema_pb2.INT,
            "float32": schema_pb2.FLOAT,
        }[column.kind]
        if not column.optional:
            added.presence.min_fraction = 1.0
            added.presence.min_count = 1
        shape = _shape(column, feature, is_main=column.name == name)
        _set_shape(added, column, shape)
        if column.name == name:
            describe_values(added, column, feature)
        representation = schema.tensor_representation_group[_TENSORS].tensor_representation
        representation[column.name].CopyFrom(_representation(column, shape))
    return schema


def schema_text(features: Features, *, computed: bool = False) -> bytes:
    """The text of ``schema.pbtxt``: the same bytes for the same features; see ``schema_of``."""
    from google.protobuf import text_format

    # The text format sorts the keys of maps, and repeated fields are in the order of names.
    text: str = text_format.MessageToString(schema_of(features, computed=computed), as_utf8=True)
    return text.encode()


def tensor_adapter_config(features: Features, *, columns: Iterable[str] | None = None) -> Any:
    """How tfx_bsl turns what ``computed.as_lists`` gives into tensors: a TensorAdapterConfig.

    Args:
        features: All features that a ``preprocessing_fn`` may ask for.
        columns: The wire columns that are there; all by default.
    """
    from tfx_bsl.tfxio import tensor_adapter

    seen = [
        computed_column(column, feature)
        for name, feature in features.items()
        for column in feature.wire_columns(name)
    ]
    seen.sort(key=lambda column: column.name.encode())
    representations = schema_of(features, computed=True).tensor_representation_group[_TENSORS]

    # A protobuf map has no order, and the order of inputs enters the graph.
    def config(chosen: Sequence[WireColumn], specs: Any = None) -> Any:
        return tensor_adapter.TensorAdapterConfig(
            _list_schema(chosen),
            {c.name: representations.tensor_representation[c.name] for c in chosen},
            original_type_specs=specs,
        )

    whole = config(seen)
    if columns is None:
        return whole
    wanted = set(columns)
    specs = tensor_adapter.TensorAdapter(whole).TypeSpecs()
    return config([column for column in seen if column.name in wanted], specs)


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
        elif isinstance(spec, tf.io.RaggedFeature) and all(
            isinstance(part, tf.io.RaggedFeature.UniformRowLength) for part in spec.partitions
        ):
            features[name] = Tensor(dtype, (None, *(part.length for part in spec.partitions)))
        else:
            raise RecipeError(
                f"preprocessing_fn returns {name!r} as {spec}; expected a dense tensor, or a "
                "sparse or ragged one of two dimensions. Flatten it, or return its parts."
            )
    wire_columns(features)
    check_masks(features)
    return features


def _dtype(name: str) -> Dtype:
    if name == "string":
        return "string"
    return "int64" if name == "int64" else "float32"


def _shape(column: WireColumn, feature: Feature, *, is_main: bool) -> tuple[int | None, ...]:
    """The shape of a column's values in one record; ``(None,)`` where a list is all one can say."""
    form = tensor_form(feature)
    if column.packed is not None or form is None or not is_main:
        return () if column.length == 1 else (column.length,)
    return (None,) if None in form.shape[1:] else form.shape


def _set_shape(added: Any, column: WireColumn, shape: tuple[int | None, ...]) -> None:
    if None in shape:
        return
    if column.optional:
        added.value_count.min = 1
        added.value_count.max = 1
        return
    added.shape.SetInParent()
    for size in shape:
        added.shape.dim.add(size=size)


def _representation(column: WireColumn, shape: tuple[int | None, ...]) -> Any:
    from tensorflow_metadata.proto.v0 import schema_pb2

    made = schema_pb2.TensorRepresentation()
    if None in shape:
        made.ragged_tensor.feature_path.step.append(column.name)
        made.ragged_tensor.row_partition_dtype = schema_pb2.TensorRepresentation.INT64
        for size in shape[1:]:
            made.ragged_tensor.partition.add(uniform_row_length=size)
    elif column.optional:
        made.varlen_sparse_tensor.column_name = column.name
    else:
        made.dense_tensor.column_name = column.name
        made.dense_tensor.shape.SetInParent()
        for size in shape:
            made.dense_tensor.shape.dim.add(size=size)
    return made


def _list_schema(columns: Iterable[WireColumn]) -> pa.Schema:
    return pa.schema([(c.name, pa.large_list(ARROW_VALUES[c.kind])) for c in columns])
