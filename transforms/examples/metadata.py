"""Features as TensorFlow Metadata: the snapshot's ``schema.pbtxt``, and the input of tf.transform.

How a feature becomes a tensor in a ``preprocessing_fn`` and in ``schema.pbtxt`` (where packed
columns are one string):

================================== ================ =======================================
feature                            dtype            tensor
================================== ================ =======================================
Scalar, ClassLabel, Text,          int64, float32,  dense, ``[batch]``
Timestamp                          string
the same, optional                 the same         sparse, at most ``[batch, 1]``
Tensor of fixed shape              the same         dense, ``[batch, *shape]``
Tensor ``(None, *fixed)``,         the same         ragged, ``[batch, None, *fixed]``; a
Sequence, BoundingBoxes                             missing one is an empty row
Tensor where a later dimension     the same         ragged, ``[batch, None]``: all values,
varies                                              row-major; ``<name>/shape``, dense, where
                                                    two or more dimensions vary
Audio                              float32          as the Tensor of its shape; ``<name>/rate``,
                                                    dense int64, where rates vary
Image                              string           dense, ``[batch]``: pixels or file; its
                                                    columns of sizes are dense int64
================================== ================ =======================================

There, all integers and bools are int64 (a uint64 keeps its bits), all floats float32 (a float64 is
rounded), audio samples float32 in [-1, 1]: tensorflow-transform computes only in these types.
:func:`as_lists` converts batches in wire form to them, and unpacks packed columns.

A domain describes the lists of an Example. What it cannot express becomes a tag: ``dtype=``,
``shape=``, ``max_length=``, ``values=``, and the limits of packed values.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Many
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.errors import RecipeError
from ...schemas.features import (
    Audio,
    ClassLabel,
    Domain,
    Dtype,
    Feature,
    Features,
    Image,
    ListKind,
    Scalar,
    Sequence,
    Tensor,
    TensorForm,
    Text,
    Timestamp,
    WireColumn,
    check_masks,
    domain_of,
    tensor_form,
    wire_columns,
)
from ...schemas.wire import FLOATS, ITEM_BYTES
from .dtypes import joined_bytes, unpacked
from .encode import offsets_of
from .row_values import PCM

_TENSORS = ""
"""Name of the group of tensor representations that TFX libraries read."""

_PLAIN = ("bool", "int64", "float32", "string")
_TIMES = {"s": "SECONDS", "ms": "MILLISECONDS", "us": "MICROSECONDS", "ns": "NANOSECONDS"}

ARROW_VALUES = {"bytes": pa.large_binary(), "int64": pa.int64(), "float32": pa.float32()}


def schema_of(features: Features, *, computed: bool = False) -> Any:
    """The ``tensorflow_metadata.proto.v0.schema_pb2.Schema`` of features.

    Args:
        features: The features.
        computed: Describe the input of tensorflow-transform instead of what is stored.
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
    """The content of ``schema.pbtxt``: the same bytes for the same features; see ``schema_of``."""
    from google.protobuf import text_format

    # The text format sorts map keys; repeated fields are sorted by name.
    text: str = text_format.MessageToString(schema_of(features, computed=computed), as_utf8=True)
    return text.encode()


def tensor_adapter_config(features: Features, *, columns: Iterable[str] | None = None) -> Any:
    """The TensorAdapterConfig by which tfx_bsl turns output of :func:`as_lists` into tensors.

    Args:
        features: All features that a ``preprocessing_fn`` may use.
        columns: The available wire columns; all by default.
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
    def config(chosen: Many[WireColumn], specs: Any = None) -> Any:
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
    """The features as which the outputs of a ``preprocessing_fn`` are stored.

    Args:
        schema: The Schema of its transformed metadata.
        kept: Inputs that it returns unchanged under some name: they keep their type.
        like_input: Outputs that are missing exactly where an optional scalar is missing: they
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
    """The shape of a column's values in one record; ``(None,)`` if only a list is known."""
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


def describe_values(added: Any, column: WireColumn, feature: Feature) -> None:
    """Describes the values of a feature in a ``schema_pb2.Feature``.

    Args:
        added: The Schema's entry for the feature's main column.
        column: That column: as stored, or as tensorflow-transform sees it.
        feature: The feature.
    """
    if isinstance(feature, Image):
        _describe_image(added, feature)
        return
    if isinstance(feature, Audio):
        added.audio_domain.SetInParent()
    form = tensor_form(feature)
    if form is None:
        return
    if form.dtype not in _PLAIN:
        added.annotation.tag.append(f"dtype={form.dtype}")
    if column.packed is not None or None in form.shape:
        added.annotation.tag.append(f"shape={_shape_text(form.shape)}")
    domain = domain_of(feature)
    if column.packed is not None:
        _tag_limits(added, domain, ("min", "max", "values"))
        if domain.finite:
            added.annotation.tag.append("finite")
        return
    item = feature.of if isinstance(feature, Sequence) else feature
    if isinstance(item, ClassLabel):
        added.int_domain.min = 0
        added.int_domain.max = len(item.names) - 1
        added.int_domain.is_categorical = True
    elif isinstance(item, Timestamp):
        formats = type(added.time_domain).IntegerTimeFormat
        added.time_domain.integer_format = formats.Value(f"UNIX_{_TIMES[item.unit]}")
    elif isinstance(item, Text):
        added.natural_language_domain.SetInParent()
    elif form.dtype == "bool":
        added.bool_domain.SetInParent()
    elif column.kind == "int64":
        _describe_integers(added, form, domain)
    elif column.kind == "float32":
        _describe_floats(added, domain)
    elif domain.values is not None:
        added.string_domain.value.extend(map(str, domain.values))
    _tag_limits(added, domain, ("max_length",) if column.kind == "bytes" else ("values",))


def _describe_image(added: Any, image: Image) -> None:
    if image.storage == "encoded":
        added.image_domain.SetInParent()
    else:
        shape = (image.height, image.width, image.channels)
        added.annotation.tag.extend([f"dtype={image.dtype}", f"shape={_shape_text(shape)}"])


def _describe_integers(added: Any, form: TensorForm, domain: Domain) -> None:
    """Adds the range, if there is one; a uint64's only if it is below 2**63."""
    info = np.iinfo(form.dtype)
    allowed = [int(value) for value in domain.values or ()]
    low, high = int(info.min), int(info.max)
    low = max([low, *([int(np.ceil(domain.min))] if domain.min is not None else [])])
    high = min([high, *([int(np.floor(domain.max))] if domain.max is not None else [])])
    if allowed:
        low, high = max(low, min(allowed)), min(high, max(allowed))
    if form.dtype == "int64" and (low, high) == (info.min, info.max):
        return
    if high >= 2**63:
        _tag_limits(added, domain, ("min", "max"))
        return
    added.int_domain.min, added.int_domain.max = low, high


def _describe_floats(added: Any, domain: Domain) -> None:
    if domain.min is not None:
        added.float_domain.min = domain.min
    if domain.max is not None:
        added.float_domain.max = domain.max
    if domain.finite:
        added.float_domain.disallow_nan = True
        added.float_domain.disallow_inf = True


def _tag_limits(added: Any, domain: Domain, names: tuple[str, ...]) -> None:
    for name in names:
        limit = getattr(domain, name)
        if limit is not None:
            shown = list(limit) if isinstance(limit, tuple) else limit
            added.annotation.tag.append(f"{name}={shown}")


def _shape_text(shape: tuple[int | None, ...]) -> str:
    return str(list(shape)).replace("None", "?")


def computed_column(column: WireColumn, feature: Feature) -> WireColumn:
    """The column that tensorflow-transform sees in place of a feature's stored column."""
    form = tensor_form(feature)
    if column.packed is None or form is None:
        return column
    length = None if None in form.shape else math.prod(dim or 1 for dim in form.shape)
    kind: ListKind = "float32" if isinstance(feature, Audio) or column.packed in FLOATS else "int64"
    return dataclasses.replace(column, kind=kind, length=length, packed=None)


def as_lists(batch: pa.RecordBatch, features: Features) -> pa.RecordBatch:
    """Converts a batch in wire form for tfx_bsl: every column becomes a ``large_list``.

    A missing value becomes an empty list.

    Args:
        batch: Some wire columns of the features.
        features: The features.
    """
    stored = {
        column.name: (column, feature)
        for name, feature in features.items()
        for column in feature.wire_columns(name)
    }
    columns = []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        column, feature = stored[name]
        packed = column.packed
        columns.append(_as_list(array) if packed is None else _unpacked(array, packed, feature))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _unpacked(array: pa.Array, dtype: Dtype, feature: Feature) -> pa.Array:
    lengths = pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    stored = unpacked(joined_bytes(array.drop_null()), dtype)
    if isinstance(feature, Audio):
        values = stored.astype(np.float32) / np.float32(PCM)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            values = stored.astype(np.float32 if dtype in FLOATS else np.int64)
    return _list(lengths // ITEM_BYTES[dtype], pa.array(values))


def _as_list(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_large_list(kind):
        # Copied: tfx_bsl does not accept a slice of a longer column here.
        values = array.flatten()
        if values.offset:
            values = pa.concat_arrays([values, values.slice(0, 0)])
        lengths = pc.list_value_length(array).fill_null(0)
        return _list(lengths.to_numpy(zero_copy_only=False), values)
    if pa.types.is_fixed_size_list(kind):
        return _list(np.full(len(array), kind.list_size), array.flatten())
    if array.null_count == 0:
        return _list(np.ones(len(array), np.int64), array)
    return _list(array.is_valid().to_numpy(zero_copy_only=False), array.drop_null())


def _list(lengths: npt.NDArray[np.integer], values: pa.Array) -> pa.Array:
    return pa.LargeListArray.from_arrays(pa.array(offsets_of(lengths)), values)
