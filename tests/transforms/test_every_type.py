"""Every feature type there and back: text of a recipe, Example, steps' tensors, to the bit."""

import dataclasses
import math
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.blocks import RawBatch
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import (
    Dtype,
    Feature,
    Features,
    features_from_json,
    features_to_json,
    flatten,
    nest,
    presence_name,
    side_names,
    tensor_form,
    wire_columns,
    written,
)
from snapshard.transforms.examples.dtypes import numpy_dtype
from snapshard.transforms.examples.encode import encode_examples
from snapshard.transforms.examples.row_values import to_array, to_lists
from snapshard.transforms.prepare.engine.program import StepRunner
from snapshard.transforms.prepare.engine.rows import encode_example, parse_example
from snapshard.transforms.prepare.engine.validate import Validator
from snapshard.transforms.runs.files import wire_schema

DTYPES = get_args(Dtype)
NUMBERS = [dtype for dtype in DTYPES if dtype not in ("bool", "string")]
FLOATS = ("float16", "bfloat16", "float32", "float64")

names = st.text(min_size=1, max_size=8).filter(lambda name: name.isprintable() and "/" not in name)
dims = st.one_of(st.none(), st.integers(1, 3))


@st.composite
def tensors(draw: st.DrawFn) -> ss.Tensor:
    shape = tuple(draw(st.lists(dims, max_size=3)))
    optional = shape[:1] == (None,) and None not in shape[1:] and draw(st.booleans())
    return ss.Tensor(draw(st.sampled_from(DTYPES)), shape, optional=optional)


@st.composite
def scalars(draw: st.DrawFn) -> ss.Scalar:
    dtype = draw(st.sampled_from(DTYPES))
    default: Any = None
    if draw(st.booleans()):
        default = {"bool": True, "string": 'it\'s "so"\n'}.get(
            dtype, 0.25 if dtype in FLOATS else 7
        )
    return ss.Scalar(dtype, optional=draw(st.booleans()), default=default)


labels = st.builds(
    ss.ClassLabel,
    st.lists(names, min_size=1, max_size=4, unique=True).map(tuple),
    optional=st.booleans(),
)
texts = st.builds(ss.Text, optional=st.booleans())
times = st.builds(ss.Timestamp, st.sampled_from(["s", "ms", "us", "ns"]), optional=st.booleans())
vectors = tensors().filter(lambda tensor: None not in tensor.shape)
items = st.one_of(scalars(), labels, texts, times).map(
    lambda item: dataclasses.replace(item, optional=False)
)
leaves: st.SearchStrategy[Any] = st.one_of(
    scalars(),
    tensors(),
    labels,
    texts,
    times,
    st.builds(ss.Sequence, st.one_of(items, vectors), optional=st.booleans()),
    st.builds(ss.BoundingBoxes),
    st.builds(
        ss.Audio,
        rate=st.sampled_from([None, 8000]),
        channels=st.integers(1, 2),
        samples=st.sampled_from([None, 3]),
        dtype=st.sampled_from(["int16", "float32"]),
    ),
    st.builds(
        ss.Image,
        dims,
        dims,
        channels=st.sampled_from([1, 3, 4]),
        dtype=st.sampled_from(["uint8", "uint16"]),
    ),
    st.builds(ss.Mask, dims, dims, image=st.just("other"), ignore=st.sampled_from([None, 255])),
)
structs: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda inner: st.builds(ss.Struct, st.dictionaries(names, inner, min_size=1, max_size=3)),
)


@given(leaves)
def test_a_feature_is_what_its_text_and_its_json_make(feature: Feature) -> None:
    assert eval(written(feature), {"ss": ss}) == feature
    assert features_from_json(features_to_json({"x": feature})) == {"x": feature}


@pytest.mark.parametrize(
    "feature",
    [
        ss.Scalar("float64", min=-1.5, max=math.inf, finite=True),
        ss.Scalar("string", values=("a", 'b"', "c'\n"), max_length=3),
        ss.Scalar("bool", values=(True,)),
        ss.Tensor("uint8", (None, None), values=(1, 2)),
        ss.Sequence(ss.Tensor("float32", (3,), min=0)),
        ss.Text(max_length=5, optional=True),
        ss.Audio(16000, samples=3, storage="encoded"),
        ss.BoundingBoxes(image="photo", labels="kinds"),
        ss.Mask(2, 3, image="photo", names=("a", "b"), ignore=255, storage="encoded"),
    ],
)
def test_limits_are_written_too(feature: Feature) -> None:
    assert eval(written(feature), {"ss": ss}) == feature


@given(st.dictionaries(names.filter(lambda name: "." not in name), structs, max_size=3))
def test_structs_are_nested_again(features: dict[str, Any]) -> None:
    flat, structs = flatten(features)
    assert flatten(nest(flat, structs)) == (flat, structs)
    assert eval(written(nest(flat, structs)), {"ss": ss}) == nest(flat, structs)


def any_array(draw: st.DrawFn, dtype: str, shape: tuple[int, ...]) -> Any:
    """Any bits there are: extremes, subnormals and every NaN among them."""
    size = math.prod(shape)
    if dtype == "bool":
        bits = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        return np.array(bits, bool).reshape(shape)
    kind = numpy_dtype(dtype)
    count = size * kind.itemsize
    edges = st.sampled_from([b"\0", b"\xff", b"\x01", b"\x80", b"\x7f"]).map(lambda b: b * count)
    content = draw(st.one_of(st.binary(min_size=count, max_size=count), edges))
    return np.frombuffer(content[:count], kind).reshape(shape)


@st.composite
def values(draw: st.DrawFn, feature: Any) -> Any:
    """A value of a feature, as a person gives it."""
    form = tensor_form(feature)
    if isinstance(feature, ss.Image):
        shape = [
            feature.height or draw(st.integers(1, 3)),
            feature.width or draw(st.integers(1, 3)),
        ]
        return any_array(draw, feature.dtype, (*shape, feature.channels))
    assert form is not None
    if form.optional and draw(st.booleans()):
        return None
    shape = tuple(draw(st.integers(0, 3)) if dim is None else dim for dim in form.shape)
    item = feature.of if isinstance(feature, ss.Sequence) else feature
    size = math.prod(shape)
    if isinstance(item, ss.ClassLabel):
        index = st.integers(0, len(item.names) - 1)
        found = np.array(draw(st.lists(index, min_size=size, max_size=size)), np.int64)
    elif isinstance(feature, ss.BoundingBoxes):
        box = st.lists(st.floats(0, 1, width=32), min_size=2, max_size=2).map(sorted)
        pairs = draw(st.lists(st.tuples(box, box), min_size=shape[0], max_size=shape[0]))
        found = np.array([(y[0], x[0], y[1], x[1]) for y, x in pairs], np.float32)
    elif form.dtype == "string":
        text = st.text(max_size=4) if isinstance(item, ss.Text) else st.binary(max_size=4)
        found = np.empty(size, object)
        found[:] = draw(st.lists(text, min_size=size, max_size=size))
    else:
        return any_array(draw, form.dtype, shape) if shape else any_array(draw, form.dtype, ())[()]
    return found.reshape(shape) if shape or form.shape else found[0]


def same(found: Any, given_value: Any, feature: Feature) -> bool:
    """Equal, and to the bit where it is an array; which NaN a single float is, Python loses."""
    if given_value is None:
        return found is None
    if isinstance(feature, ss.Audio):
        stored = given_value / np.float32(32768) if feature.dtype == "int16" else given_value
        return found.dtype == np.float32 and found.tobytes() == stored.tobytes()
    if isinstance(found, np.ndarray):
        fits = (found.shape, found.dtype) == (given_value.shape, given_value.dtype)
        return fits and (
            found.tolist() == given_value.tolist()
            if found.dtype == object
            else found.tobytes() == given_value.tobytes()
        )
    plain = given_value.item() if hasattr(given_value, "item") else given_value
    return found == plain or (found != found and plain != plain)


@settings(max_examples=300)
@given(st.data())
def test_any_value_comes_back_from_an_example(data: st.DataObject) -> None:
    feature = data.draw(leaves)
    features: Features = {"x": feature}
    record: dict[str, Any] = {"x": data.draw(values(feature))}
    if isinstance(feature, ss.Audio) and feature.rate is None:
        record["x/rate"] = 11025
    serialized = encode_example(record, features)
    found = parse_example(serialized, features)
    assert found.keys() == record.keys()
    assert same(found["x"], record["x"], feature)
    is_nan = isinstance(found["x"], float) and math.isnan(found["x"])
    if not is_nan and (not isinstance(feature, ss.Audio) or feature.dtype == "int16"):
        assert encode_example(found, features) == serialized


@settings(max_examples=100)
@given(st.data())
def test_protobuf_finds_the_wire_columns(data: st.DataObject) -> None:
    import tensorflow as tf

    feature = data.draw(leaves)
    record = {"x": data.draw(values(feature)), "x/rate": 1}
    sided = isinstance(feature, ss.Audio) and feature.rate is None
    serialized = encode_example(record if sided else {"x": record["x"]}, {"x": feature})
    found = tf.train.Example.FromString(serialized).features.feature
    kinds = {"bytes": "bytes_list", "int64": "int64_list", "float32": "float_list"}
    for column in feature.wire_columns("x"):
        if record["x"] is None:
            assert column.name not in found
            continue
        stored = found[column.name]
        assert stored.WhichOneof("kind") == kinds[column.kind]
        if column.length is not None:
            assert len(getattr(stored, kinds[column.kind]).value) == column.length
    assert set(found) <= {column.name for column in wire_columns({"x": feature})}


def every_kind() -> dict[str, Any]:
    """Each dtype in each form."""
    made: dict[str, Any] = {}
    for dtype in DTYPES:
        made[f"{dtype} one"] = ss.Scalar(dtype)
        made[f"{dtype} maybe"] = ss.Scalar(dtype, optional=True)
        for shape in ((2, 2), (None,), (None, 2), (2, None), (None, None)):
            made[f"{dtype} {shape}"] = ss.Tensor(dtype, shape)
        made[f"{dtype} list"] = ss.Sequence(ss.Scalar(dtype), optional=True)
    return made | {
        "label": ss.ClassLabel(("a", "b"), optional=True),
        "text": ss.Text(),
        "at": ss.Timestamp("ns", optional=True),
        "boxes": ss.BoundingBoxes(),
        "sound": ss.Audio(8000),
        "stereo": ss.Audio(8000, channels=2, samples=2, dtype="float32"),
        "pixels": ss.Image(2, 2),
        "labels": ss.Sequence(ss.ClassLabel(("a", "b"))),
    }


@dataclasses.dataclass(frozen=True)
class Touch:
    """Leaves all as it is, and has TensorFlow compute it."""

    batched: bool

    def settings(self) -> dict[str, object]:
        return {}

    def features(self, features: Features) -> Features:
        return features

    def apply(self, record: dict[str, Any]) -> dict[str, Any]:
        import tensorflow as tf

        return {name: tf.identity(value) for name, value in record.items()}


EVERY = every_kind()


def rows_of(records: list[dict[str, Any]], features: Features) -> pa.RecordBatch:
    """Records in wire form, to the bit: through no float of Python."""
    parts: dict[str, list[pa.Array]] = {name: [] for name in wire_schema(features).names}
    for record in records:
        for name, feature in features.items():
            value, form = record[name], tensor_form(feature)
            if value is None or form is None:
                lists = {name: None if value is None else [value.tobytes()]}
            else:
                lists = to_lists(name, form, to_array(name, feature, value))
            for column in feature.wire_columns(name):
                kind = wire_schema(features).field(column.name).type
                flat = lists[column.name]
                if flat is None:
                    parts[column.name].append(pa.nulls(1, kind))
                elif column.length == 1:
                    parts[column.name].append(pa.array(flat, kind))
                else:
                    inner = pa.array(flat, kind.value_type)
                    ends = pa.array([0, len(inner)], pa.int64())
                    whole = pa.LargeListArray.from_arrays(ends, inner)
                    if column.length is not None:
                        whole = pa.FixedSizeListArray.from_arrays(inner, column.length)
                    parts[column.name].append(whole)
    arrays = [pa.concat_arrays(parts[name]) for name in parts]
    return pa.RecordBatch.from_arrays(arrays, schema=wire_schema(features))


@pytest.fixture(scope="module", params=[False, True], ids=["looped", "batched"])
def runner(request: pytest.FixtureRequest) -> StepRunner:
    return StepRunner([Touch(request.param)], EVERY)


@pytest.mark.slow  # a graph for each example
def test_any_value_comes_back_from_the_steps(runner: StepRunner) -> None:
    # One batch, not many: of so many features each run takes a second.
    records = [
        {name: seeded(feature, seed, name) for name, feature in EVERY.items()} for seed in range(40)
    ]
    batch = rows_of(records, EVERY)
    assert not Validator(EVERY).problems(batch)
    made = runner.prepare(RawBatch(ids=[str(i) for i in range(len(records))], columns=batch))
    assert not made.rejects
    for name in batch.schema.names:
        before, after = (
            encode_examples(pa.record_batch({name: columns.column(name)})).to_pylist()
            for columns in (batch, made.columns)
        )
        assert before == after, name


def seeded(feature: Any, seed: int, name: str) -> Any:
    """A value of random bits, faster than hypothesis draws one."""
    rng = np.random.default_rng([seed, *name.encode()])
    form = tensor_form(feature)
    if form is None:
        return rng.integers(0, 256, (2, 2, 3), np.uint8)
    if form.optional and rng.random() < 0.4:
        return None
    shape = tuple(int(rng.integers(0, 3)) if dim is None else dim for dim in form.shape)
    item = feature.of if isinstance(feature, ss.Sequence) else feature
    size = math.prod(shape)
    if isinstance(item, ss.ClassLabel):
        return rng.integers(0, 2, shape)
    if isinstance(feature, ss.BoundingBoxes):
        return np.sort(rng.random((*shape[:1], 2, 2), np.float32), axis=1).reshape(-1, 4)
    if form.dtype == "string":
        made = np.empty(size, object)
        made[:] = [
            b"x" * int(rng.integers(0, 3)) if isinstance(item, ss.Text) else rng.bytes(3)
            for _ in range(size)
        ]
        return made.reshape(shape) if shape else made[0]
    if form.dtype == "bool":
        return rng.random(shape) < 0.5
    kind = numpy_dtype(form.dtype)
    edge = bytes([int(rng.choice([0, 1, 127, 128, 255]))]) * kind.itemsize * size
    content = edge if rng.random() < 0.3 else rng.bytes(kind.itemsize * size)
    array = np.frombuffer(content, kind).reshape(shape)
    # A cast of TensorFlow's does not say which NaN comes of one.
    canonical = form.dtype in ("float16", "bfloat16") and not shape and math.isnan(array)
    return kind.type(math.nan) if canonical else array[()]


def test_missing_values_have_their_presence_beside_them() -> None:
    assert side_names("x", ss.Text(optional=True)) == (presence_name("x"),)


@pytest.mark.parametrize("dtype", ["complex64", np.complex128])
def test_complex_numbers_are_refused_with_the_reason(dtype: Any) -> None:
    with pytest.raises(RecipeError, match=r"has no complex numbers.*two float features"):
        ss.Scalar(dtype)
    with pytest.raises(RecipeError, match="has no complex numbers"):
        ss.Tensor(dtype, (None,))
