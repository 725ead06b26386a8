"""The snapshot's reader: the values that it gives, for every kind of feature."""

import functools
import io
import math
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import tensorflow as tf

from snapshard.pipelines.reader.emit import ReaderFacts, emit_reader
from snapshard.schemas.features import ClassLabel, Features, Image, Scalar, Tensor, Text
from snapshard.transforms.prepare.engine.rows import encode_example
from snapshard.transforms.prepare.images import decode_pixels

from ..integration import documented
from .conftest import part
from .made_snapshots import put_index

ROOT = Path(__file__).resolve().parents[2]
WriteSnapshot = Callable[..., types.ModuleType]
Serialize = Callable[[Features, Mapping[str, Any]], bytes]


class TestValues:
    @pytest.mark.parametrize("compression", ["none", "gzip"])
    def test_scalars_and_tensors(
        self, tmp_path: Path, compression: str, write_snapshot: WriteSnapshot
    ) -> None:
        features: Features = {
            "bool": Scalar(dtype="bool"),
            "byte": Scalar(dtype="uint8"),
            "int8": Scalar(dtype="int8"),
            "large": Scalar(dtype="uint32"),
            "long": Scalar(dtype="int64"),
            "real": Scalar(dtype="float32"),
            "text": Scalar(dtype="string"),
            "matrix": Tensor(dtype="float32", shape=(2, 3)),
            "flags": Tensor(dtype="bool", shape=(2,)),
            "words": Tensor(dtype="string", shape=(None,)),
            "steps": Tensor(dtype="int16", shape=(None,), optional=True),
            "bits": Tensor(dtype="bool", shape=(None,)),
        }
        row = {
            "bool": 1,
            "byte": 255,
            "int8": -128,
            "large": 2**32 - 1,
            "long": -(2**63),
            "real": 0.1,
            "text": "é".encode(),
            "matrix": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
            "flags": [1, 0],
            "words": [b"a", b"", b"c"],
            "steps": np.array([-5, 6], np.int16),
            "bits": [1],
        }
        second = row | {"words": [], "steps": None, "bits": [], "bool": 0}
        reader = write_snapshot(
            tmp_path,
            features,
            {"train": [[row, second]]},
            label=None,
            compression=compression,
        )
        batch = next(iter(reader.dataset("train", 2, shuffle=False)))
        assert batch.pop("steps_present").numpy().tolist() == [True, False]
        assert set(batch) == set(features)
        types_ = {name: value.dtype for name, value in batch.items()}
        assert types_ == {name: tf.as_dtype(f.dtype) for name, f in features.items()}  # type: ignore[union-attr]
        assert batch["bool"].numpy().tolist() == [True, False]
        assert batch["byte"].numpy().tolist() == [255, 255]
        assert batch["int8"].numpy().tolist() == [-128, -128]
        assert batch["large"].numpy().tolist() == [2**32 - 1] * 2
        assert batch["long"].numpy().tolist() == [-(2**63)] * 2
        assert batch["text"].numpy().tolist() == ["é".encode()] * 2
        assert batch["matrix"].numpy().tolist() == [[[0, 1, 2], [3, 4, 5]]] * 2
        assert batch["flags"].numpy().tolist() == [[True, False]] * 2
        assert isinstance(batch["words"], tf.RaggedTensor)
        assert batch["words"].to_list() == [[b"a", b"", b"c"], []]
        assert batch["steps"].to_list() == [[-5, 6], []]
        assert batch["bits"].to_list() == [[True], []]

    def test_missing_scalars_take_the_default_that_features_states(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        features: Features = {
            "real": Scalar(dtype="float32", optional=True),
            "given": Scalar(dtype="float32", optional=True, default=-1.5),
            "whole": Scalar(dtype="int32", optional=True),
            "seven": Scalar(dtype="int64", optional=True, default=7),
            "yes": Scalar(dtype="bool", optional=True, default=True),
            "no": Scalar(dtype="bool", optional=True),
            "text": Scalar(dtype="string", optional=True),
            "word": Scalar(dtype="string", optional=True, default="none"),
            "there": Scalar(dtype="int64"),
        }
        reader = write_snapshot(
            tmp_path, features, {"train": [[{"there": 1}, {"there": 2, "seven": 9}]]}, label=None
        )
        batch = next(iter(reader.dataset("train", 2, shuffle=False)))
        found = {name: value.numpy().tolist() for name, value in batch.items()}
        assert all(map(math.isnan, found.pop("real")))
        assert found == {
            "given": [-1.5] * 2,
            "whole": [0, 0],
            "seven": [7, 9],
            "yes": [True] * 2,
            "no": [False] * 2,
            "text": [b""] * 2,
            "word": [b"none"] * 2,
            "there": [1, 2],
            "whole_present": [False] * 2,
            "no_present": [False] * 2,
            "text_present": [False] * 2,
        }
        assert {name: feature.get("default") for name, feature in reader.FEATURES.items()} == {
            "real": pytest.approx(math.nan, nan_ok=True),
            "given": -1.5,
            "whole": 0,
            "seven": 7,
            "yes": True,
            "no": False,
            "text": "",
            "word": "none",
            "there": None,
        }

    def test_a_required_value_that_is_missing_raises(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        reader = write_snapshot(
            tmp_path, {"id": Scalar(dtype="int64")}, {"train": [[{}]]}, label=None
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match="id"):
            next(iter(reader.dataset("train", 2)))

    def test_wide_classes_and_odd_names(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        names = tuple(f'class "{i}" {{\n}}' for i in range(300))
        features: Features = {"a/b c'\"é": Scalar(dtype="string"), "y": ClassLabel(names=names)}
        records = [{"a/b c'\"é": b"x", "y": i} for i in range(300)]
        reader = write_snapshot(tmp_path, features, {"train": [records]}, label="y")
        assert list(names) == reader.CLASS_NAMES
        labels = [y for batch in reader.dataset("train", 64, shuffle=False) for y in batch["y"]]
        assert labels == list(range(300))
        batch = next(iter(reader.dataset("train", 64)))
        assert batch["a/b c'\"é"].numpy().tolist() == [b"x"] * 64


def gradient(height: int, width: int, channels: int = 3) -> Any:
    """An image that looks different from every side."""
    y, x, c = np.mgrid[:height, :width, :channels]
    return ((y * 37 + x * 11 + c * 83 + y * x) % 256).astype(np.uint8)


def saved(image: PIL.Image.Image, form: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def encode(image: Any, form: str, **options: Any) -> bytes:
    return saved(PIL.Image.fromarray(image.squeeze()), form, **options)


def shallow_pngs() -> list[bytes]:
    """PNGs of 1, 2 and 4 bits a pixel: grey, of a palette, and of one with a clear colour."""
    made = [encode(gradient(16, 16, 1) > 99, "PNG")]
    for colours in (2, 4, 16):
        image = PIL.Image.fromarray(gradient(16, 16)).quantize(colours)
        made += [saved(image, "PNG", **options) for options in ({}, {"transparency": 1})]
    assert {content[24] for content in made} == {1, 2, 4}
    return made


def deep_pngs() -> list[bytes]:
    """PNGs of 16 bits: grey, with alpha, coloured, both, and grey with a clear colour."""
    deep = np.random.default_rng(0).integers(0, 2**16, (16, 16, 4), np.uint16)
    made = [bytes(tf.io.encode_png(deep[..., :channels]).numpy()) for channels in (1, 2, 3, 4)]
    grey = PIL.Image.fromarray(deep[..., 0])
    return [*made, saved(grey, "PNG", transparency=int(deep[3, 3, 0]))]


def transparent_files() -> list[bytes]:
    """Images of 8 bits with an alpha, or a clear colour, that are not RGBA of PNG or WebP."""
    grey, colour = (PIL.Image.fromarray(gradient(16, 16, n).squeeze()) for n in (1, 3))
    return [
        bytes(tf.io.encode_png(gradient(16, 16, 2)).numpy()),
        saved(grey, "PNG", transparency=grey.getpixel((3, 3))),
        saved(colour, "PNG", transparency=colour.getpixel((3, 3))),
        saved(colour.quantize(200), "PNG", transparency=5),
        encode(gradient(16, 16, 4), "BMP"),
    ]


def transparent_gif() -> bytes:
    return saved(PIL.Image.fromarray(gradient(16, 16)).quantize(200), "GIF", transparency=5)


class TestRawImages:
    @pytest.fixture(params=["alone", "beside", "many"])
    def made(
        self, request: pytest.FixtureRequest, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> tuple[types.ModuleType, list[Any]]:
        """A snapshot that is all of one layout, one that is not, and one of too many classes."""
        names = tuple(map(str, range(200 if request.param == "many" else 128)))
        features: Features = {
            "image": Image(height=6, width=5, channels=3),
            "label": ClassLabel(names=names),
        }
        if request.param == "beside":
            features = {**features, "id": Scalar(dtype="string")}
        images = [np.roll(gradient(6, 5), i) for i in range(128)]
        records = [
            {"image": image.tobytes(), "label": i, "id": b"x" * i} for i, image in enumerate(images)
        ]
        reader = write_snapshot(tmp_path, features, {"train": [records[:60], records[60:]]})
        assert bool(part(reader, "facts").LAYOUT) == (request.param == "alone")
        return reader, images

    @pytest.mark.parametrize("drop_remainder", [False, True])
    def test_pixels_and_labels(
        self, made: tuple[types.ModuleType, list[Any]], drop_remainder: bool
    ) -> None:
        reader, images = made
        dataset = reader.dataset("train", 50, seed=1, drop_remainder=drop_remainder)
        spec = dataset.element_spec["image"]
        assert spec.shape.as_list() == [50 if drop_remainder else None, 6, 5, 3]
        count = 0
        for batch in dataset:
            assert batch["image"].dtype == tf.uint8
            assert batch["label"].dtype == tf.int64
            for image, label in zip(batch["image"].numpy(), batch["label"].numpy(), strict=True):
                assert (image == images[label]).all()
                count += 1
        assert count == (100 if drop_remainder else 128)

    def test_image_size_resizes(self, made: tuple[types.ModuleType, list[Any]]) -> None:
        reader, images = made
        dataset = reader.dataset("train", 128, shuffle=False, image_size=[3, 4])
        assert dataset.element_spec["image"].shape.as_list() == [None, 3, 4, 3]
        found = next(iter(dataset))["image"].numpy()
        wanted = tf.image.resize(np.stack(images), (3, 4), antialias=True)
        assert found.dtype == np.uint8
        assert (found == np.round(wanted)).all()

    def test_what_is_laid_out_in_another_way_raises(
        self, tmp_path: Path, write_snapshot: WriteSnapshot, serialize: Serialize
    ) -> None:
        features: Features = {
            "image": Image(height=2, width=2, channels=1),
            "label": ClassLabel(names=("a", "b")),
        }
        reader = write_snapshot(tmp_path, features, {"train": [[]]})
        assert part(reader, "facts").LAYOUT
        good = serialize(features, {"image": b"1234", "label": 1})
        wider = serialize(features, {"image": b"5678", "label": 1000})
        short = serialize(features, {"image": b"123", "label": 1})
        parse = functools.partial(reader.parse, as_supervised=True)
        image, label = parse(tf.constant([good, good]))
        assert (image.numpy().tobytes(), label.numpy().tolist()) == (b"12341234", [1, 1])
        for rows in ([good, wider], [short], [short, short], [good, short], [good[:-1]], [b""]):
            with pytest.raises(
                tf.errors.InvalidArgumentError, match="an example does not belong to made"
            ):
                parse(tf.constant(rows))

    def test_images_alone_and_twice(self, tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
        features: Features = {
            "a": Image(height=70, width=80, channels=3),
            "b": Image(height=1, width=2, channels=4),
        }
        left, right = gradient(70, 80), gradient(1, 2, 4)
        records = [{"a": left.tobytes(), "b": right.tobytes()}] * 3
        reader = write_snapshot(tmp_path, features, {"train": [records]}, label=None)
        assert part(reader, "facts").LAYOUT
        batch = next(iter(reader.dataset("train", 8)))
        assert (batch["a"].numpy() == left).all()
        assert (batch["b"].numpy() == right).all()

    def test_images_of_unequal_sizes(self, tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
        features: Features = {"image": Image(channels=1), "label": ClassLabel(names=("a",))}
        images = [gradient(4, 5, 1), gradient(8, 3, 1), gradient(6, 6, 1)]
        records = [
            {
                "image": image.tobytes(),
                "image/height": image.shape[0],
                "image/width": image.shape[1],
                "label": 0,
            }
            for image in images
        ]
        reader = write_snapshot(tmp_path, features, {"train": [records]})
        with pytest.raises(ValueError, match=r"'image' may differ in size: pass image_size="):
            reader.dataset("train", 2)
        dataset = reader.dataset("train", 3, shuffle=False, image_size=(6, 6))
        assert dataset.element_spec["image"].shape.as_list() == [None, 6, 6, 1]
        found = next(iter(dataset))["image"].numpy()
        for image, pixels in zip(images, found, strict=True):
            wanted = np.round(tf.image.resize(image, (6, 6), antialias=True))
            assert (pixels == wanted).all()
        assert (found[2] == images[2]).all()


class TestEncodedImages:
    FEATURES: ClassVar[Features] = {
        "image": Image(storage="encoded"),
        "label": ClassLabel(names=("a", "b")),
    }

    def record(self, content: bytes, orientation: int = 1) -> Mapping[str, Any]:
        return {
            "image": content,
            "image/height": 1,
            "image/width": 1,
            "image/orientation": orientation,
            "label": 1,
        }

    @pytest.mark.parametrize("channels", [1, 3, 4])
    def test_every_format_as_the_builder_decodes_it(
        self, tmp_path: Path, channels: int, write_snapshot: WriteSnapshot
    ) -> None:
        """By the build, by TensorFlow in batches, and by Pillow without TensorFlow."""
        colour, grey = gradient(16, 16), gradient(16, 16, 1)
        contents = [
            encode(colour, "JPEG"),
            encode(grey, "JPEG"),
            saved(PIL.Image.fromarray(colour).convert("CMYK"), "JPEG"),
            encode(colour, "PNG"),
            encode(grey, "PNG"),
            encode(gradient(16, 16, 4), "PNG"),
            encode(grey.astype(np.uint16) * 257, "PNG"),
            encode(colour, "GIF"),
            encode(colour, "GIF", save_all=True, append_images=[PIL.Image.fromarray(colour[::-1])]),
            encode(colour, "BMP"),
            encode(colour, "WEBP"),
            encode(gradient(16, 16, 4), "WEBP", lossless=True),
            *shallow_pngs(),
            *deep_pngs(),
            *transparent_files(),
            *([] if channels == 4 else [transparent_gif()]),  # a build refuses its alpha
        ]
        features = {**self.FEATURES, "image": Image(channels=channels, storage="encoded")}
        records = [self.record(content) for content in contents]
        reader = write_snapshot(tmp_path, features, {"train": [records]})
        with pytest.raises(ValueError, match="pass image_size="):
            reader.dataset("train", 2)
        dataset = reader.dataset("train", len(contents), shuffle=False, image_size=(16, 16))
        found = next(iter(dataset))["image"].numpy()
        assert found.shape == (len(contents), 16, 16, channels)
        decode_image = part(reader, "arrays").decode_image
        for number, (content, pixels) in enumerate(zip(contents, found, strict=True)):
            assert (pixels == decode_pixels(tf.constant(content), channels).numpy()).all(), number
            assert (pixels == decode_image(content, channels)).all(), number

    @pytest.mark.parametrize("formats", [["jpeg", "webp"], ["jpeg"], []])
    def test_a_tensorflow_without_webp(
        self,
        tmp_path: Path,
        formats: list[str],
        write_snapshot: WriteSnapshot,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """As TensorFlow 2.16 and 2.18, on which unknown formats must not need the operation."""
        monkeypatch.delattr(tf.image, "decode_webp")
        record = self.record(encode(gradient(16, 16), "JPEG"))
        told = {"image_formats": {"image": frozenset(formats)}}
        reader = write_snapshot(tmp_path, self.FEATURES, {"train": [[record]]}, **told)
        if "webp" in formats:
            with pytest.raises(
                ValueError, match=r"'image' has WebP.*install TensorFlow 2\.21, pass"
            ):
                reader.dataset("train", 1, image_size=(16, 16))
            found = next(iter(reader.dataset("train", 1, decode=False)))
            assert found["image"].numpy()[0] == record["image"]
            labels = reader.dataset("train", 1, columns=["label"])
            assert next(iter(labels))["label"].numpy() == 1
        else:
            found = next(iter(reader.dataset("train", 1, image_size=(16, 16))))
            assert found["image"].shape == (1, 16, 16, 3)

    @pytest.mark.slow
    @pytest.mark.parametrize("size", [None, (10, 12)])
    def test_images_of_one_size_need_no_image_size(
        self, tmp_path: Path, size: tuple[int, int] | None, write_snapshot: WriteSnapshot
    ) -> None:
        features = {**self.FEATURES, "image": Image(height=20, width=24, storage="encoded")}
        content = encode(gradient(20, 24), "PNG")
        reader = write_snapshot(tmp_path, features, {"train": [[self.record(content)] * 5]})
        dataset = reader.dataset("train", 3, image_size=size, drop_remainder=True)
        height, width = size or (20, 24)
        assert dataset.element_spec["image"].shape.as_list() == [3, height, width, 3]
        image, label = next(iter(dataset.map(lambda batch: (batch["image"], batch["label"]))))
        wanted = np.round(tf.image.resize(gradient(20, 24), (height, width), antialias=True))
        assert (image.numpy() == wanted).all()
        assert label.numpy().tolist() == [1, 1, 1]

    def test_all_orientations(self, tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
        image = gradient(6, 4)
        records = [self.record(encode(image, "PNG"), turn) for turn in range(1, 9)]
        reader = write_snapshot(
            tmp_path, self.FEATURES, {"train": [records]}, rotated=frozenset({"image"})
        )
        dataset = reader.dataset("train", 8, shuffle=False, image_size=(6, 4))
        found = next(iter(dataset))["image"].numpy()
        for turn, pixels in enumerate(found, start=1):
            original = PIL.Image.fromarray(image)
            original.getexif()[0x0112] = turn
            stream = io.BytesIO()
            original.save(stream, "PNG", exif=original.getexif())
            upright = PIL.ImageOps.exif_transpose(PIL.Image.open(stream))
            wanted = np.asarray(upright)
            if turn < 5:
                assert (pixels == wanted).all(), turn
            else:
                assert wanted.shape == (4, 6, 3)
                resized = np.round(tf.image.resize(wanted, (6, 4), antialias=True))
                assert (pixels == resized).all(), turn

    @pytest.mark.parametrize("cache", [None, "decoded"])
    def test_files_are_cropped_before_they_are_resized(
        self, tmp_path: Path, write_snapshot: WriteSnapshot, cache: str | None
    ) -> None:
        """Images of any size, as files; the same crops with the same seed, others in each epoch."""
        contents = [encode(gradient(20 + i, 30 - i), "JPEG", quality=95) for i in range(8)]
        records = [self.record(content, 1 + i) for i, content in enumerate(contents)]
        reader = write_snapshot(
            tmp_path, self.FEATURES, {"train": [records]}, rotated=frozenset({"image"})
        )
        options: dict[str, Any] = {"decode": False, "as_supervised": ("image", "image/orientation")}
        options |= {"cache": cache, "seed": 1}
        ((files, turns),) = reader.dataset("train", 8, **options)
        assert [contents[turn - 1] for turn in turns] == files.numpy().tolist()
        put_index(tmp_path, "none", [1] * 8)
        rows = reader.arrays.Records("train", as_supervised=options["as_supervised"])
        assert [*rows] == [(content, 1 + i) for i, content in enumerate(contents)]
        example = documented.examples(ROOT / "docs" / "reading.md", "Random crops")
        names: dict[str, Any] = {
            "tf": tf,
            "reader": types.SimpleNamespace(dataset=lambda *a, **k: 0),
        }
        exec(example, names)
        found = [
            [*reader.dataset("train", 8, epochs=2, augment=names["crop"], **options)]
            for _ in range(2)
        ]
        for (images, labels), (again, _) in zip(*found, strict=True):
            assert images.shape == (8, 32, 32, 3)
            assert sorted(labels.numpy()) == [*range(1, 9)]
            assert (images.numpy() == again.numpy()).all()
        (first, _), (second, _) = found[0]
        assert not (np.sort(first, axis=0) == np.sort(second, axis=0)).all()

    def test_an_image_that_does_not_decode_raises(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        records = [self.record(b"\xff\xd8\xff nothing")]
        reader = write_snapshot(tmp_path, self.FEATURES, {"train": [records]})
        with pytest.raises(tf.errors.InvalidArgumentError):
            next(iter(reader.dataset("train", 2, image_size=(8, 8))))


def test_the_layout_is_what_the_encoder_writes() -> None:
    features: Features = {
        "image": Image(height=64, width=64, channels=3),
        "label": ClassLabel(names=("a", "b")),
    }
    pixels = np.zeros((64, 64, 3), np.uint8)
    example = encode_example({"image": pixels, "label": 1}, features)
    text = emit_reader(
        ReaderFacts(
            name="n",
            fingerprint="0" * 16,
            features=features,
            label="label",
            compression="none",
            num_examples={"train": 1},
            record_bytes=1,
            rotated_images=frozenset(),
            version="1",
        )
    )["reader/facts.py"]
    values: dict[str, Any] = {}
    exec(text, values)
    (_, first, size), (_, second, _) = values["LAYOUT"]
    assert example == first + bytes(size) + second + b"\x01"


MASKED: Features = {
    "id": Scalar("int64"),
    "label": ClassLabel(("a", "b", "c")),
    "rooms": Scalar("int64", optional=True),
    "name": Text(optional=True),
    "steps": Tensor("int64", (None,), optional=True),
    "bits": Tensor("uint8", (None,), optional=True),
}


def masked_rows(num: int) -> list[dict[str, Any]]:
    rows = []
    for i in range(num):
        row: dict[str, Any] = {"id": i, "label": i % 3, "name": None, "rooms": None}
        row |= {"rooms": i % 2 and 0} if i % 3 else {}
        row |= {"name": b""} if i % 5 else {}
        row["steps"] = None if i % 4 == 0 else [7] * (i % 6)
        row["bits"] = None if i % 7 == 0 else np.zeros(i % 2, np.uint8)
        rows.append(row)
    return rows


MASK_NAMES = {"rooms_present", "name_present", "steps_present", "bits_present"}


class TestMasks:
    """The reader says where values are missing, whatever options it is read with."""

    @pytest.fixture
    def reader(self, tmp_path: Path, write_snapshot: WriteSnapshot) -> types.ModuleType:
        rows = masked_rows(48)
        encoded = [encode_example(row, MASKED) for row in rows]
        return write_snapshot(tmp_path, MASKED, {"train": [encoded[:20], encoded[20:]]})

    def check(self, batches: Any, *, names: set[str] = MASK_NAMES) -> int:
        rows, num = masked_rows(48), 0
        for batch in batches:
            features = batch[0] if isinstance(batch, tuple) else batch
            for name in names:
                there = [rows[i][name.removesuffix("_present")] is not None for i in features["id"]]
                assert features[name].dtype == tf.bool
                assert features[name].numpy().tolist() == there, name
            num += len(features["id"])
        return num

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"seed": 3},
            {"as_supervised": True, "masks": True},
            {"pad": True},
            {"bucket": "steps", "pad": True},
            {"bucket": "bits", "seed": 1},
            {"cache": "memory"},
            {"cache": "decoded"},
            {"shard": (0, 1)},
            {"augment_batch": lambda batch, seeds: batch},
            {"augment": lambda example, seed: example},
        ],
        ids=lambda options: ",".join(
            f"{name}={value}" if isinstance(value, str) else name for name, value in options.items()
        ),
    )
    def test_they_come_with_every_option(
        self, reader: types.ModuleType, options: dict[str, Any]
    ) -> None:
        assert self.check(reader.dataset("train", 7, **options)) == 48

    def test_they_have_static_shapes(self, reader: types.ModuleType) -> None:
        spec = reader.dataset("train", 6, drop_remainder=True).element_spec
        assert all(spec[name] == tf.TensorSpec([6], tf.bool) for name in MASK_NAMES)
        assert spec["rooms"] == tf.TensorSpec([6], tf.int64)

    @pytest.mark.slow
    def test_they_come_with_their_features(self, reader: types.ModuleType) -> None:
        for column in ("rooms", "steps", "bits"):
            batches = reader.dataset("train", 5, columns=["id", column], masks=True)
            assert set(batches.element_spec) == {"id", column, f"{column}_present"}
            assert self.check(batches, names={f"{column}_present"}) == 48
        assert set(reader.dataset("train", 5, columns=["id"]).element_spec) == {"id"}
        features, _ = reader.dataset("train", 5, columns=["id"], as_supervised=True).element_spec
        assert isinstance(features, tf.TensorSpec)
        options = {"columns": ["rooms"], "as_supervised": True, "masks": True}
        features, _ = reader.dataset("train", 5, **options).element_spec
        assert set(features) == {"rooms", "rooms_present"}
        batches = reader.dataset("train", 5, columns=["id", "steps_present"])
        assert set(batches.element_spec) == {"id", "steps_present"}
        assert self.check(batches, names={"steps_present"}) == 48

    @pytest.mark.slow
    def test_windows_and_packed_rows(self, reader: types.ModuleType) -> None:
        columns = ["id", "rooms", "steps"]
        batches = reader.dataset("train", 5, columns=columns, windows=(2, 1), masks=True)
        names = {"rooms_present", "steps_present"}
        assert self.check(batches, names=names) > 0
        assert all(batch["steps_present"].numpy().all() for batch in batches)
        packed = reader.dataset("train", 2, columns=["steps"], pack=8)
        assert set(packed.element_spec) == {"steps", "steps_segments", "steps_positions"}

    def test_all_of_a_batch_is_missing(self, tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
        features: Features = {"steps": MASKED["steps"]}
        encoded = [encode_example({"steps": None}, features)] * 3
        reader = write_snapshot(tmp_path, features, {"train": [encoded]}, label=None)
        (batch,) = reader.dataset("train", 4)
        assert batch["steps_present"].numpy().tolist() == [False] * 3
        assert batch["steps"].to_list() == [[]] * 3

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "label",
        [
            ClassLabel(("a", "b"), optional=True),
            Scalar("int64", optional=True),
            Scalar("bool", optional=True),
            Text(optional=True),
        ],
        ids=["class", "int64", "bool", "text"],
    )
    def test_a_missing_label_is_not_learned(
        self, tmp_path: Path, label: Any, write_snapshot: WriteSnapshot
    ) -> None:
        features = {"id": Scalar("int64"), "y": label}
        value: Any = "" if isinstance(label, Text) else 0
        value = False if label == Scalar("bool", optional=True) else value
        encoded = [encode_example({"id": i, "y": value}, features) for i in range(3)]
        lacking = encode_example({"id": 3, "y": None}, features)
        splits = {"train": [[*encoded, lacking]]}
        reader = write_snapshot(tmp_path / "a", features, splits, label="y", num_missing={"y": 1})
        with pytest.raises(ValueError, match="1 examples have no 'y'"):
            reader.dataset("train", 4, as_supervised=True)
        (batch,) = reader.dataset("train", 4, shuffle=False)
        assert batch["y_present"].numpy().tolist() == [True] * 3 + [False]
        reader = write_snapshot(tmp_path / "b", features, {"train": [encoded]}, label="y")
        ((found, y),) = reader.dataset("train", 4, as_supervised=True)
        assert found.shape == y.shape == (3,)
