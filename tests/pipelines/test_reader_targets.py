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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "inputs", "targets"),
    [
        (True, (ALL | ALSO) - {"label"}, None),
        ("tags", (ALL | ALSO) - {"tags"}, None),
        ("sound", (ALL | ALSO) - {"sound", "sound/rate"}, {"sound", "sound/rate"}),
        ("at.x", ALL | ALSO, None),
        (("image", "mask"), None, None),
        (["image", "age"], None, None),
        (("image", "image"), None, None),
        (("image", ("label", "mask")), None, {"label", "mask"}),
        ((("image", "age"), ("label", "mask")), {"image", "age"}, {"label", "mask"}),
        ((["image", "age"], ["label"]), {"image", "age"}, {"label"}),
        ((("image",), "label"), {"image"}, None),
        (("rooms", "label"), {"rooms", "rooms_present"}, None),
        (("at.x", "label"), None, None),
        ((("at.x", "at.y"), "age"), {"at"}, None),
        (("age", ("at.x", "at.y")), None, {"at"}),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)
def test_what_comes_as_what(
    reader: types.ModuleType, asked: Any, inputs: Any, targets: Any
) -> None:
    batches = reader.dataset("train", 7, shuffle=False, as_supervised=asked)
    assert [shape_of(one) for one in batches.element_spec] == [inputs, targets]
    plain = reader.dataset("train", 7, shuffle=False)

    def flat(value: Any, name: str, of: dict[str, Any]) -> None:
        for key, one in value.items() if isinstance(value, dict) else [(name, value)]:
            if isinstance(one, dict):
                assert {*one} <= {*of[key]}
                for field, leaf in one.items():
                    assert leaf.numpy().tolist() == of[key][field].numpy().tolist()
            else:
                first, _, field = key.partition(".")
                wanted = of[first][field] if field else of[key]
                found, wanted = (
                    x.to_list() if isinstance(x, tf.RaggedTensor) else x.numpy().tolist()
                    for x in (one, wanted)
                )
                assert found == wanted, key

    for (x, y), whole in zip(batches, plain, strict=True):
        names = asked if isinstance(asked, list | tuple) else ("", asked)
        flat(x, names[0], whole)
        flat(y, "label" if names[1] is True else names[1], whole)


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


SEVERAL = (("image", "age", "words"), ("tags", "codes"))


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
    for x, y in reader.dataset("train", 4, as_supervised=SEVERAL, **options):
        assert {*x} == {"image", "age", "words"}
        assert {*y} == {"tags", "codes"}
        ages = x["age"].numpy()
        assert y["tags"].numpy().tolist() == [[n, n + 1, n + 2] for n in ages]
        assert y["codes"].to_list() == [list(range(int(n) % 4 + 2)) for n in ages]
        num += len(ages)
    assert num >= NUM // 2
    assert reader.steps("train", 4, as_supervised=SEVERAL, **options) == reader.steps(
        "train", 4, **options
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked", [True, "codes", ("words", "codes"), ("age", "codes"), ("words", ("codes", "age"))]
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
