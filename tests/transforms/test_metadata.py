"""Features as TensorFlow Metadata, and back."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tensorflow_metadata.proto.v0 import schema_pb2

from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import (
    Audio,
    BoundingBoxes,
    ClassLabel,
    Features,
    Image,
    Scalar,
    Sequence,
    Tensor,
    Text,
    Timestamp,
)
from snapshard.transforms.examples.metadata import (
    as_lists,
    features_of_outputs,
    schema_of,
    schema_text,
    tensor_adapter_config,
)
from snapshard.transforms.prepare.engine.rows import encode_example
from snapshard.transforms.runs.files import wire_schema

FEATURES: Features = {
    "species": ClassLabel(("ant", "bee", "cow")),
    "mass": Scalar("float32", optional=True),
    "name": Scalar("string"),
    "age": Scalar("uint8"),
    "alive": Scalar("bool"),
    "pair": Tensor("float32", (2,)),
    "grid": Tensor("int64", (2, 3)),
    "visits": Tensor("int64", (None,)),
    "photo": Image(2, 2),
    "scan": Image(storage="encoded"),
}


def test_schema_text_is_the_schema() -> None:
    schema = text_format.Parse(schema_text(FEATURES), schema_pb2.Schema())
    assert schema == schema_of(FEATURES)
    names = [feature.name for feature in schema.feature]
    assert names == sorted(names)
    assert {"photo", "scan", "scan/height", "scan/width", "scan/orientation"} <= set(names)


def test_schema_says_what_is_known_of_values() -> None:
    found = {feature.name: feature for feature in schema_of(FEATURES).feature}
    species = found["species"].int_domain
    assert (species.min, species.max, species.is_categorical) == (0, 2, True)
    assert (found["age"].int_domain.min, found["age"].int_domain.max) == (0, 255)
    assert found["alive"].HasField("bool_domain")
    assert found["scan"].HasField("image_domain")
    assert found["species"].presence.min_fraction == 1
    assert not found["mass"].HasField("presence")
    assert (found["mass"].value_count.min, found["mass"].value_count.max) == (1, 1)
    assert [dim.size for dim in found["grid"].shape.dim] == [2, 3]
    assert found["name"].HasField("shape")
    assert not found["visits"].HasField("shape")


WIDE: Features = {
    "double": Scalar("float64", min=0, finite=True),
    "share": Scalar("float32", min=0, max=1, finite=True),
    "whole": Scalar("float32"),
    "rank": Scalar("int64", min=1),
    "digit": Scalar("uint8", values=(1, 9, 3)),
    "huge": Scalar("uint64"),
    "bounded": Scalar("uint64", max=9),
    "upper": Scalar("uint64", min=2**63),
    "word": Scalar("string", values=("b", "a"), max_length=1),
    "text": Text(max_length=9, optional=True),
    "at": Timestamp("ms"),
    "pixels": Tensor("uint8", (None, 2)),
    "deep": Tensor("float32", (None, None)),
    "pairs": Tensor("int32", (None, 2)),
    "boxes": BoundingBoxes(),
    "sound": Audio(samples=4),
    "labels": Sequence(ClassLabel(("a", "b"))),
}


def test_schema_of_wider_types() -> None:
    schema = text_format.Parse(schema_text(WIDE), schema_pb2.Schema())
    found = {feature.name: feature for feature in schema.feature}

    def tags(name: str) -> list[str]:
        return list(found[name].annotation.tag)

    assert tags("double") == ["dtype=float64", "shape=[]", "min=0", "finite"]
    share = found["share"].float_domain
    assert (share.min, share.max, share.disallow_nan, share.disallow_inf) == (0, 1, True, True)
    assert found["whole"].WhichOneof("domain_info") is None
    rank, digit = found["rank"].int_domain, found["digit"].int_domain
    assert (rank.min, rank.max) == (1, 2**63 - 1)
    assert (digit.min, digit.max) == (1, 9)
    assert tags("digit") == ["dtype=uint8", "values=[1, 9, 3]"]
    assert found["huge"].WhichOneof("domain_info") is None
    assert (found["bounded"].int_domain.min, found["bounded"].int_domain.max) == (0, 9)
    assert tags("upper") == ["dtype=uint64", f"min={2**63}"]
    assert list(found["word"].string_domain.value) == ["b", "a"]
    assert tags("word") == ["max_length=1"]
    assert found["text"].HasField("natural_language_domain")
    assert not found["text"].HasField("presence")
    assert found["at"].time_domain.integer_format == schema_pb2.TimeDomain.UNIX_MILLISECONDS
    assert tags("pixels") == ["dtype=uint8", "shape=[?, 2]"]
    assert tags("deep") == ["shape=[?, ?]"]
    assert [dim.size for dim in found["deep/shape"].shape.dim] == [2]
    assert found["sound"].HasField("audio_domain")
    assert found["sound/rate"].type == schema_pb2.INT
    assert found["labels"].int_domain.max == 1
    representations = schema.tensor_representation_group[""].tensor_representation
    for name, num_inner in (("boxes", 4), ("pairs", 2)):
        (inner,) = representations[name].ragged_tensor.partition
        assert inner.uniform_row_length == num_inner
    assert representations["pixels"].HasField("dense_tensor")


def test_schema_of_wider_types_parses_their_examples() -> None:
    import tensorflow as tf
    from tensorflow_transform.tf_metadata import schema_utils

    record = {
        "double": 0.1, "share": 1, "whole": 2, "rank": 3, "digit": 9, "huge": 2**64 - 1,
        "bounded": 9, "upper": 2**63, "word": "a", "at": 5, "pixels": [[1, 2], [3, 4]],
        "deep": [[1, 2, 3]], "pairs": [[1, 2], [3, 4]], "boxes": [[0, 0, 1, 0.5]],
        "sound": [0, 0.5, -1, 0], "sound/rate": 8000, "labels": ["b", "a", "a"],
    }  # fmt: skip
    specs = schema_utils.schema_as_feature_spec(schema_of(WIDE)).feature_spec
    parsed = tf.io.parse_example([encode_example(record, WIDE)], specs)
    assert np.frombuffer(parsed["double"].numpy()[0], "<f8").tolist() == [0.1]
    assert parsed["huge"].numpy().tolist() == [-1]
    assert parsed["pixels"].numpy().tolist() == [b"\1\2\3\4"]
    assert parsed["deep"].to_list() == [[1, 2, 3]]
    assert parsed["deep/shape"].numpy().tolist() == [[1, 3]]
    assert parsed["pairs"].to_list() == [[[1, 2], [3, 4]]]
    assert parsed["boxes"].to_list() == [[[0, 0, 1, 0.5]]]
    assert parsed["labels"].to_list() == [[1, 0, 0]]
    assert parsed["text"].values.numpy().tolist() == []


@pytest.mark.slow
def test_schema_text_does_not_depend_on_the_hash_seed_or_the_order() -> None:
    program = (
        "import sys\n"
        "from snapshard.schemas.features import *\n"
        "from snapshard.transforms.examples.metadata import schema_text\n"
        "f = {f'f{i}': Scalar('int64') for i in range(20)}\n"
        "f = dict(reversed(f.items())) if sys.argv[1] == '1' else f\n"
        "sys.stdout.buffer.write(schema_text(f))\n"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program, seed],
            env={"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_schema_gives_the_specs_that_parse_examples() -> None:
    import tensorflow as tf
    from tensorflow_transform.tf_metadata import schema_utils

    specs = schema_utils.schema_as_feature_spec(schema_of(FEATURES)).feature_spec
    assert specs["species"] == tf.io.FixedLenFeature([], tf.int64)
    assert specs["mass"] == tf.io.VarLenFeature(tf.float32)
    assert specs["grid"] == tf.io.FixedLenFeature([2, 3], tf.int64)
    assert specs["photo"] == tf.io.FixedLenFeature([], tf.string)
    assert specs["visits"].row_splits_dtype == tf.int64


def batch() -> pa.RecordBatch:
    rows = [
        {
            "species": i % 3,
            "mass": None if i == 1 else i / 2,
            "name": b"n%d" % i,
            "age": i,
            "alive": i % 2,
            "pair": [i, -i],
            "grid": list(range(i, i + 6)),
            "visits": list(range(i)),
            "photo": b"x" * 12,
            "scan": b"jpeg",
            "scan/height": 3,
            "scan/width": 4,
            "scan/orientation": 1,
        }
        for i in range(5)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=wire_schema(FEATURES))


@pytest.mark.parametrize("rows", [slice(0, 5), slice(1, 3), slice(0, 2), slice(5, 5)])
def test_a_batch_becomes_tensors(rows: slice) -> None:
    from tfx_bsl.tfxio.tensor_adapter import TensorAdapter

    adapter = TensorAdapter(tensor_adapter_config(FEATURES))
    part = batch().slice(rows.start, rows.stop - rows.start)
    tensors = adapter.ToBatchTensors(as_lists(part, FEATURES))
    numbers = list(range(5))[rows]
    assert tensors["age"].numpy().tolist() == numbers
    assert tensors["grid"].numpy().tolist() == [
        [[i, i + 1, i + 2], [i + 3, i + 4, i + 5]] for i in numbers
    ]
    assert tensors["visits"].to_list() == [list(range(i)) for i in numbers]
    assert tensors["mass"].values.numpy().tolist() == [i / 2 for i in numbers if i != 1]
    assert tensors["mass"].indices.numpy().tolist() == [
        [row, 0] for row, i in enumerate(numbers) if i != 1
    ]
    assert tensors["name"].numpy().tolist() == [b"n%d" % i for i in numbers]


def test_chosen_columns_keep_the_specs_of_all() -> None:
    config = tensor_adapter_config(FEATURES, columns=["visits", "age"])
    assert config.arrow_schema.names == ["age", "visits"]
    assert list(config.tensor_representations) == ["age", "visits"]
    assert set(config.original_type_specs) == set(wire_schema(FEATURES).names)


@given(st.lists(st.one_of(st.none(), st.lists(st.integers(0, 9), max_size=3)), max_size=6))
def test_missing_lists_become_empty(rows: list[list[int] | None]) -> None:
    column = pa.array(rows, pa.large_list(pa.int64()))
    made = as_lists(pa.record_batch({"a": column}), {"a": Tensor("int64", (None,))}).column("a")
    made.validate(full=True)
    assert made.to_pylist() == [row or [] for row in rows]
    assert made.values.offset == 0


def test_outputs_become_features() -> None:
    features: Features = {
        "dense": Scalar("float32"),
        "pair": Tensor("int64", (2,)),
        "word": Scalar("string"),
        "gaps": Scalar("int64", optional=True),
        "list": Scalar("int64", optional=True),
        "ragged": Tensor("string", (None,)),
        "label": Scalar("int64"),
        "renamed": Scalar("int64"),
    }
    found = features_of_outputs(
        schema_of(features),
        kept={"label": ClassLabel(("a", "b")), "renamed": Scalar("uint8")},
        like_input={"gaps"},
    )
    assert found == {
        "dense": Scalar("float32"),
        "pair": Tensor("int64", (2,)),
        "word": Scalar("string"),
        "gaps": Scalar("int64", optional=True),
        "list": Tensor("int64", (None,)),
        "ragged": Tensor("string", (None,)),
        "label": ClassLabel(("a", "b")),
        "renamed": Scalar("uint8"),
    }


def test_an_image_that_is_kept_keeps_its_columns() -> None:
    kept = {"scan": Image(storage="encoded")}
    found = features_of_outputs(schema_of(kept), kept=kept, like_input=())
    assert found == kept


def test_outputs_that_cannot_be_stored_are_refused() -> None:
    with pytest.raises(RecipeError, match="reserved"):
        features_of_outputs(
            schema_of({"ok": Scalar("int64")}), kept={"snapshard/x": Scalar("int64")}, like_input=()
        )


def test_numbers_are_not_copied() -> None:
    values = pa.array(np.arange(5))
    made = as_lists(pa.record_batch({"a": values}), {"a": Scalar("int64")}).column("a")
    assert made.values.buffers()[1].address == values.buffers()[1].address
