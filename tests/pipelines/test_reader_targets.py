"""What ``as_supervised`` yields: which features are inputs, which targets, tensors or dicts."""

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from snapshard.schemas.features import (
    Audio,
    ClassLabel,
    Features,
    Image,
    Scalar,
    Sequence,
    Struct,
    Tensor,
    flatten,
)
from snapshard.transforms.prepare.engine.rows import encode_example

from .made_snapshots import list_files, put_index

WriteSnapshot = Callable[..., types.ModuleType]

NUM = 40
DECLARED = {
    "image": Image(height=4, width=4),
    "mask": Image(height=4, width=4, channels=1),
    "age": Scalar("float32"),
    "rooms": Scalar("int64", optional=True),
    "label": ClassLabel(("no", "yes")),
    "tags": Tensor("float32", (3,)),
    "words": Sequence(Scalar("int64")),
    "codes": Sequence(Scalar("int64")),
    "sound": Audio(rate=None, channels=1, samples=None),
    "at": Struct({"x": Scalar("float32"), "y": Scalar("float32")}),
}
FEATURES, STRUCTS = flatten(DECLARED)
ALL = {"image", "mask", "age", "rooms", "label", "tags", "words", "codes", "sound", "at"}
ALSO = {"rooms_present", "sound/rate"}


def record(n: int) -> dict[str, Any]:
    return {
        "image": np.full((4, 4, 3), n, np.uint8),
        "mask": np.full((4, 4, 1), n % 2, np.uint8),
        "age": float(n),
        "rooms": None if n % 5 == 0 else n,
        "label": n % 2,
        "tags": [n, n + 1, n + 2],
        "words": list(range(n % 4 + 2)),
        "codes": list(range(n % 4 + 2)),
        "sound": np.zeros(n % 3 + 1, np.float32),
        "sound/rate": 8000,
        "at": {"x": float(n), "y": float(-n)},
    }


@pytest.fixture(scope="module")
def reader(
    tmp_path_factory: pytest.TempPathFactory, write_snapshot: WriteSnapshot
) -> types.ModuleType:
    folder = tmp_path_factory.mktemp("targets")
    encoded = [encode_example(record(n), DECLARED) for n in range(NUM)]
    reader = write_snapshot(
        folder,
        FEATURES,
        {"train": [encoded]},
        structs=STRUCTS,
        num_missing={"rooms": NUM // 5, "words": 0},
    )
    put_index(folder, "none", [n % 2 for n in range(NUM)])
    list_files(folder)
    return reader


def shape_of(value: Any) -> Any:
    """The names in dicts; None for a tensor."""
    if not isinstance(value, dict):
        return None
    return {*value}


EVERYTHING = ALL | ALSO
WEIGHTED = ("image", "label", "age")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "sides"),
    [
        # Nothing that was not asked for enters the inputs.
        (True, [ALL - {"label"}, None]),
        ("tags", [ALL - {"tags"}, None]),
        ("sound", [ALL - {"sound"}, None]),
        ("at.x", [ALL, None]),
        (("image", "mask"), [None, None]),
        (["image", "age"], [None, None]),
        (("image", "image"), [None, None]),
        (("image", ("label", "mask")), [None, {"label", "mask"}]),
        ((("image", "age"), ("label", "mask")), [{"image", "age"}, {"label", "mask"}]),
        ((["image", "age"], ["label"]), [{"image", "age"}, {"label"}]),
        ((("image",), "label"), [{"image"}, None]),
        (("rooms", "label"), [None, None]),
        (("at.x", "label"), [None, None]),
        ((("at.x", "at.y"), "age"), [{"at"}, None]),
        (("age", ("at.x", "at.y")), [None, {"at"}]),
        # What belongs to a feature is asked for by its name.
        ((("rooms", "rooms_present"), "label"), [{"rooms", "rooms_present"}, None]),
        ((("sound", "sound/rate"), "label"), [{"sound", "sound/rate"}, None]),
        ((("words", "words_length"), "label"), [{"words", "words_length"}, None]),
        (("words_length", "rooms_present"), [None, None]),
        # Weights are a third.
        (WEIGHTED, [None, None, None]),
        ((("image", "rooms"), "label", "rooms_present"), [{"image", "rooms"}, None, None]),
        (("image", ("label", "tags"), ("age", "at.x")), [None, {"label", "tags"}, {"age", "at"}]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_comes_as_what(reader: types.ModuleType, asked: Any, sides: list[Any]) -> None:
    batches = reader.dataset("train", 7, shuffle=False, as_supervised=asked, masks=False)
    assert [shape_of(side) for side in batches.element_spec] == sides
    plain = reader.dataset("train", 7, shuffle=False)
    assert shape_of(plain.element_spec) == EVERYTHING
    records = reader.arrays.Records("train", as_supervised=asked, masks=False)
    assert [shape_of(side) for side in records[0]] == sides

    def flat(value: Any, name: str, of: dict[str, Any]) -> None:
        for key, one in value.items() if isinstance(value, dict) else [(name, value)]:
            if isinstance(one, dict):
                assert {*one} <= {*of[key]}
                for field, leaf in one.items():
                    assert listed(leaf) == listed(of[key][field])
            else:
                first, _, field = key.partition(".")
                wanted = of[first][field] if field else of[key]
                assert listed(one) == listed(wanted), key

    names = asked if isinstance(asked, list | tuple) else ("", asked)
    names = ["label" if name is True else name for name in names]
    for number, (batch, whole) in enumerate(zip(batches, plain, strict=True)):
        whole["words_length"] = whole["words"].row_lengths()
        for side, name in zip(batch, names, strict=True):
            flat(side, name, whole)
        first = tf.nest.map_structure(lambda value: value[0], (batch, whole))
        for side, name in zip(records[7 * number], names, strict=True):
            flat(side, name, first[1])


def listed(value: Any) -> Any:
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    return np.asarray(value).tolist()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, EVERYTHING),
        ({"masks": False}, EVERYTHING - {"rooms_present"}),
        ({"columns": ["rooms", "sound"], "masks": False}, {"rooms", "sound"}),
        ({"columns": ["rooms", "sound"], "masks": True}, {"rooms", "rooms_present", "sound"}),
        ({"columns": ["at", "sound/rate"]}, {"at", "sound/rate"}),
        ({"columns": ["at.x", "words_length"]}, {"at", "words_length"}),
        ({"as_supervised": True, "masks": True}, (ALL | {"rooms_present"}) - {"label"}),
        ({"as_supervised": ("rooms", "label"), "masks": True}, {"rooms", "rooms_present"}),
        ({"columns": ["rooms"], "as_supervised": True, "masks": False}, None),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_masks_come_on_request(
    reader: types.ModuleType, options: dict[str, Any], names: set[str] | None
) -> None:
    spec = reader.dataset("train", 7, **options).element_spec
    assert shape_of(spec[0] if "as_supervised" in options else spec) == names
    assert "rooms" not in (names or ()) or len(spec) > 0
    for kind in (reader.arrays.Records, reader.arrays.Stream):
        record = next(iter(kind("train", **options)))
        assert shape_of(record[0] if "as_supervised" in options else record) == names


@pytest.mark.parametrize("options", [{"columns": ["rooms"]}, {"as_supervised": True}], ids=str)
def test_a_missing_value_without_its_mask_is_said(
    reader: types.ModuleType, options: dict[str, Any]
) -> None:
    for read in (lambda **asked: reader.dataset("train", 7, **asked), reader.arrays.Records):
        arguments = {} if read is not reader.arrays.Records else {"split": "train"}
        with pytest.warns(UserWarning, match="8 examples have no 'rooms' and give 0. masks=True"):
            read(**arguments, **options)
        for masks in (True, False):  # raises if there is a warning
            read(**arguments, **options, masks=masks)


def test_scalars_are_columns_on_request(reader: types.ModuleType) -> None:
    options: dict[str, Any] = {"expand_scalars": True, "masks": True}
    spec = reader.dataset("train", 7, **options).element_spec
    assert {spec[name].shape.as_list()[1] for name in ("age", "rooms", "rooms_present")} == {1}
    assert spec["at"]["x"].shape.as_list() == [None, 1]
    assert (spec["tags"].shape.as_list(), spec["words"].shape.as_list()) == (
        [None, 3],
        [None, None],
    )
    inputs = ("age", "words_length")
    x, y, weight = reader.dataset(
        "train", 7, as_supervised=(inputs, "label", "age"), **options
    ).element_spec
    assert [x[name].shape.as_list() for name in inputs] == [[None, 1], [None, 1]]
    assert [y.shape.as_list(), weight.shape.as_list()] == [[None], [None]]
    (one,) = reader.dataset("train[:1]", None, columns=["age"], expand_scalars=True)
    assert one["age"].shape == (1,)


def test_columns_are_the_other_inputs(reader: types.ModuleType) -> None:
    x, y = reader.dataset("train", 4, columns=["image", "tags"], as_supervised="tags").element_spec
    assert x.shape.as_list() == [None, 4, 4, 3]
    assert y.shape.as_list() == [None, 3]
    x, y = reader.dataset("train", 4, columns=["image", "age"], as_supervised="tags").element_spec
    assert set(x) == {"image", "age"}


@pytest.mark.parametrize("asked", ["rooms", ("age", "rooms"), ("age", ("rooms", "label"))])
def test_a_target_that_some_examples_lack_is_refused(reader: types.ModuleType, asked: Any) -> None:
    with pytest.raises(ValueError, match=r"8 examples have no 'rooms'. Use the dict"):
        reader.dataset("train", 4, as_supervised=asked)


def test_a_target_that_no_example_lacks_has_no_mask(
    tmp_path: Path, write_snapshot: WriteSnapshot
) -> None:
    features: Features = {"age": Scalar("int64"), "rooms": Scalar("int64", optional=True)}
    encoded = [encode_example({"age": n, "rooms": n}, features) for n in range(4)]
    reader = write_snapshot(tmp_path, features, {"train": [encoded]}, label=None)
    for asked in ("rooms", ("age", "rooms")):
        ((age, rooms),) = reader.dataset("train", 4, shuffle=False, as_supervised=asked)
        assert age.numpy().tolist() == rooms.numpy().tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"needs a label, and made has none: .* name the target"):
        reader.dataset("train", 4, as_supervised=True)


SEVERAL = (("image", "age", "words"), ("tags", "codes"), "words_length")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"balance": "uniform", "seed": 1},
        {"bucket": "words"},
        {"cache": "memory"},
        {"cache": "decoded"},
        {"shard": (0, 2), "equal_steps": True},
        {"seed": 1, "start_step": 2},
        {"augment": lambda example, seed: example},
        {"augment_batch": lambda batch, seeds: batch},
        {"scale": 1 / 255},
        {"epochs": 2, "drop_remainder": True},
    ],
    ids=lambda options: ",".join(
        f"{k}={v}" if isinstance(v, str) else k for k, v in options.items()
    ),
)
def test_it_goes_with_every_option(reader: types.ModuleType, options: dict[str, Any]) -> None:
    num = 0
    for x, y, weights in reader.dataset("train", 4, as_supervised=SEVERAL, **options):
        assert {*x} == {"image", "age", "words"}
        assert {*y} == {"tags", "codes"}
        ages = x["age"].numpy()
        assert y["tags"].numpy().tolist() == [[n, n + 1, n + 2] for n in ages]
        assert y["codes"].to_list() == [list(range(int(n) % 4 + 2)) for n in ages]
        assert weights.numpy().tolist() == [int(n) % 4 + 2 for n in ages]
        num += len(ages)
    assert num >= NUM // 2
    assert reader.steps("train", 4, as_supervised=SEVERAL, **options) == reader.steps(
        "train", 4, **options
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [True, "codes", ("words", "codes"), ("age", "codes"), ("words", ("codes", "age"), "age")],
)
def test_lists_are_padded_on_both_sides(reader: types.ModuleType, asked: Any) -> None:
    columns = None if isinstance(asked, tuple) else ["words", "codes"]
    for options in ({}, {"bucket": "words"}):
        pairs = reader.dataset(
            "train", 4, columns=columns, as_supervised=asked, pad=True, **options
        )
        for pair in pairs:
            leaves = tf.nest.flatten(pair)
            assert all(isinstance(leaf, tf.Tensor) for leaf in leaves)


def test_windows_of_inputs_and_targets(reader: types.ModuleType) -> None:
    asked = (("words", "age"), ("codes", "label"))
    num = 0
    for x, y in reader.dataset("train", 4, as_supervised=asked, windows=(2, 1)):
        assert np.array_equal(x["words"], y["codes"])
        assert np.array_equal(x["age"].numpy() % 2, y["label"])
        num += len(x["age"])
    assert num == sum(n % 4 + 1 for n in range(NUM))


def test_parse_yields_the_same(reader: types.ModuleType) -> None:
    serialized = tf.data.TFRecordDataset(reader.files("train")).batch(7)
    asked = ("image", ("label", "age"))
    parsed = serialized.map(lambda one: reader.parse(one, as_supervised=asked))
    for (x, y), (a, b) in zip(
        parsed, reader.dataset("train", 7, shuffle=False, as_supervised=asked), strict=True
    ):
        assert np.array_equal(x, a)
        assert {name: v.numpy().tolist() for name, v in y.items()} == {
            name: v.numpy().tolist() for name, v in b.items()
        }


@pytest.mark.slow
def test_keras_fits_several_targets(reader: types.ModuleType) -> None:
    import keras

    image = keras.Input((4, 4, 3), name="image")
    age = keras.Input((1,), name="age")
    flat = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(image))
    joint = keras.layers.Concatenate()([flat, age])
    outputs = {
        "label": keras.layers.Dense(2, name="label")(joint),
        "tags": keras.layers.Dense(3, name="tags")(joint),
    }
    model = keras.Model({"image": image, "age": age}, outputs)
    loss = {"label": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "tags": "mse"}
    model.compile(loss=loss)
    asked = (("image", "age"), ("label", "tags"))
    model.fit(reader.dataset("train", 8, as_supervised=asked), shuffle=False, verbose=0)


@pytest.mark.slow
def test_keras_gives_each_input_what_has_its_name(reader: types.ModuleType) -> None:
    """A functional model takes a dict's values by sorted name: a mask would move the tags."""
    import keras

    inputs = {"rooms": keras.Input((1,), name="rooms"), "tags": keras.Input((3,), name="tags")}
    model = keras.Model(inputs, keras.layers.Identity()(inputs["tags"]))
    options = {"columns": ["rooms", "tags"], "masks": False, "shuffle": False}
    plain = reader.dataset("train", 8, **options)
    expected = np.concatenate([batch["tags"] for batch in plain])
    supervised = reader.dataset(
        "train", 8, **options | {"columns": ["label", *options["columns"]]}, as_supervised=True
    )
    for batches in (plain, supervised):
        assert np.array_equal(model.predict(batches, verbose=0), expected)


@pytest.mark.slow
def test_keras_weighs_examples(reader: types.ModuleType) -> None:
    """By a feature, or by a mask: where there is no value, the loss is 0."""
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(loss="mse")
    for weight in ("age", "rooms_present"):
        batches = reader.dataset("train", NUM, as_supervised=("rooms", "age", weight), masks=False)
        ((x, y, weights),) = batches
        errors = (x.numpy() - y.numpy()) ** 2 * weights.numpy()
        assert model.evaluate(batches, verbose=0) == pytest.approx(errors.mean(), rel=1e-5)


def test_a_time_is_an_input_only_if_it_is_named(
    tmp_path: Path, write_snapshot: WriteSnapshot
) -> None:
    features: Features = {"x": Tensor("float32", (3,)), "t": Scalar("int64"), "y": Scalar("int64")}
    encoded = [encode_example({"x": [n, n, n], "t": n, "y": n}, features) for n in range(NUM)]
    reader = write_snapshot(tmp_path, features, {"train": [encoded]}, label="y", times=("t",))

    def inputs(**options: Any) -> Any:
        found = reader.dataset("train", 8, **options).element_spec[0]
        return {*found} if isinstance(found, dict) else found.shape.as_list()

    assert inputs(as_supervised=True) == inputs(as_supervised="y") == [None, 3]
    assert inputs(as_supervised=True, columns=["x", "t", "y"]) == {"x", "t"}
    assert inputs(as_supervised=(("x", "t"), "y")) == {"x", "t"}
    assert {*reader.dataset("train", 8).element_spec} == {"x", "t", "y"}
