"""Clips: folders of frames become records, and the reader decodes them and cuts windows."""

import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Pillow

import snapshard as ss
from snapshard.pipelines.inspect.suggest import describe_suggestion
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.pipelines.recognize.media_folders import UnclearError
from snapshard.schemas.errors import DataError, RecipeError
from snapshard.transforms.sources.folders.clips import holds_clips

from ...file_bytes import write
from ...pipelines.read_records import ReadRecords, read_blocks, read_records, survey_of
from .built import build, build_all, rows_of

Pixels = npt.NDArray[np.uint8]
RNG = np.random.default_rng(0)


def pixels(height: int = 8, width: int = 6) -> Pixels:
    return RNG.integers(0, 256, (height, width, 3), np.uint8)


def encoded(image: Pixels, form: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Pillow.fromarray(image).save(buffer, form, **options)
    return buffer.getvalue()


LENGTHS = {"run/a": 12, "run/b": 1, "walk/a": 5, "walk/c 2": 3}
CLIPS = {name: [pixels() for _ in range(length)] for name, length in LENGTHS.items()}


def frames_of(clips: dict[str, list[Pixels]], digits: int = 0) -> dict[str, bytes]:
    """The files of clips; frames are numbered from 1, by default without leading zeros."""
    return {
        f"{name}/{number:0{digits}}.png": encoded(frame)
        for name, frames in clips.items()
        for number, frame in enumerate(frames, 1)
    }


def in_folder(folder: Path, files: dict[str, bytes]) -> str:
    return write(folder / "clips", files)


def read(snapshot: ss.Snapshot, batch_size: int = 4, **options: Any) -> list[Any]:
    options = {"shuffle": False, "epochs": 1, **options}
    return list(snapshot.reader().dataset("train", batch_size, **options))


def read_clips(folder: Path, source: Any, **settings: Any) -> ReadRecords:
    """The prepared records and rejects of a source, without a build."""
    return read_records(ss.Recipe(name="made", source=source, **settings), folder)


def windows_of(length: int, step: int) -> dict[bytes, Pixels]:
    """Each window, by its own bytes."""
    found = (
        np.stack(frames[start : start + length])
        for frames in CLIPS.values()
        for start in range(0, len(frames) - length + 1, step)
    )
    return {window.tobytes(): window for window in found}


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> ss.Snapshot:
    """The clips, in one split."""
    folder = tmp_path_factory.mktemp("several")
    return build_all(folder, ss.ClipFolder(in_folder(folder, frames_of(CLIPS))))


def test_clips_come_back_equal(lab: Any, several: ss.Snapshot) -> None:
    frames = ss.Sequence(ss.Image(8, 6, storage="encoded"))
    assert several.manifest.features["frames"] == frames
    rows = rows_of(lab, several)
    assert {name: len(row["frames"]) for name, row in rows.items()} == LENGTHS
    for name, row in rows.items():
        np.testing.assert_array_equal(row["frames"], np.stack(CLIPS[name]))
        assert row["label"] == ["run", "walk"].index(name.partition("/")[0])


@pytest.mark.parametrize("digits", [4, 0])
def test_frames_are_in_the_order_of_their_numbers(tmp_path: Path, digits: int) -> None:
    source = ss.ClipFolder(in_folder(tmp_path, frames_of(CLIPS, digits)))
    read = read_clips(tmp_path, source, splits=ss.Splits(train=1.0))
    assert not read.rejects
    for name, frames in CLIPS.items():
        record = read.records[name]
        assert record["frames"] == [encoded(frame) for frame in frames]
        assert record["label"] == ["run", "walk"].index(name.partition("/")[0])


@pytest.mark.parametrize(
    ("length", "step", "options"),
    [
        (4, 2, {}),
        (4, 2, {"as_supervised": True}),
        (4, 2, {"as_supervised": True, "with_id": True}),
        (4, 2, {"shuffle": True, "seed": 3}),
        (4, 2, {"columns": ["frames"]}),
        (4, 2, {"drop_remainder": True, "batch_size": 3}),
        (3, 3, {}),
        (1, 1, {"shuffle": True, "seed": 3}),
    ],
)
def test_windows_of_clips(
    several: ss.Snapshot, length: int, step: int, options: dict[str, Any]
) -> None:
    expected, found = windows_of(length, step), list[bytes]()
    for batch in read(several, **{"windows": (length, step), **options}):
        clips = batch["frames"] if isinstance(batch, dict) else batch[0]
        assert clips.dtype == np.uint8
        assert clips.shape[1:] == (length, 8, 6, 3)
        found += [window.tobytes() for window in clips.numpy()]
    num = len(expected)
    num -= num % 3 if options.get("drop_remainder") else 0
    assert len(found) == len(set(found)) == num
    assert set(found) <= set(expected)


@pytest.mark.slow
def test_the_windows_of_a_clip_are_in_its_split(lab: Any, tmp_path: Path) -> None:
    clips = {f"{label}/{n}": [pixels() for _ in range(6)] for label in "ab" for n in range(20)}
    source = ss.ClipFolder(in_folder(tmp_path, frames_of(clips)))
    snapshot = build(tmp_path, source, splits=ss.Splits(train=0.5, test=0.5))
    seen = {}
    for split in ("train", "test"):
        options: Any = {"epochs": 1, "shuffle": False, "windows": (2, 1), "with_id": True}
        batches = snapshot.reader().dataset(split, 8, **options)
        seen[split] = [name for batch in batches for name in batch["record_id"].numpy().tolist()]
        assert len(seen[split]) == 5 * len(set(seen[split])) > 0
    assert not set(seen["train"]) & set(seen["test"])
    assert set(seen["train"]) | set(seen["test"]) == {name.encode() for name in clips}


def of_sizes(*sizes: tuple[int, int], length: int = 3) -> dict[str, list[Pixels]]:
    return {f"a/{n}": [pixels(*size) for _ in range(length)] for n, size in enumerate(sizes)}


@pytest.mark.slow
def test_clips_of_several_sizes_are_resized(tmp_path: Path) -> None:
    clips = of_sizes((8, 6), (16, 12))
    snapshot = build_all(tmp_path, ss.ClipFolder(in_folder(tmp_path, frames_of(clips))))
    assert snapshot.manifest.features["frames"] == ss.Sequence(ss.Image(storage="encoded"))
    with pytest.raises(ValueError, match=r"'frames' may differ in size: pass image_size"):
        read(snapshot)
    for options in ({}, {"windows": (2, 1)}, {"pad": True}, {"bucket": "frames"}):
        (batch,) = read(snapshot, 8, image_size=(4, 4), scale=1 / 255, **options)
        assert batch["frames"].dtype == np.float32
        assert batch["frames"].shape[-3:] == (4, 4, 3)
        values = batch["frames"].to_tensor() if hasattr(batch["frames"], "to_tensor") else 0
        values = batch["frames"] if isinstance(values, int) else values
        assert 0 < np.max(values) <= 1


def test_padding_of_clips(several: ss.Snapshot) -> None:
    (batch,) = read(several, pad=True, with_id=True)
    assert batch["frames"].shape == (4, 12, 8, 6, 3)
    for name, clip in zip(batch["record_id"].numpy(), batch["frames"].numpy(), strict=True):
        frames = CLIPS[name.decode()]
        np.testing.assert_array_equal(clip[: len(frames)], np.stack(frames))
        assert not clip[len(frames) :].any()


def test_clips_are_read_without_tensorflow(several: ss.Snapshot) -> None:
    arrays = several.reader().arrays
    as_files = list(arrays.Records("train"))
    decoded = list(arrays.Records("train", decode=arrays.decode_image))
    for one, other in zip(as_files, decoded, strict=True):
        np.testing.assert_array_equal(
            np.stack(other["frames"]), [np.array(Pillow.open(io.BytesIO(f))) for f in one["frames"]]
        )


GOOD = {"a/1": [pixels() for _ in range(3)], "b/1": [pixels() for _ in range(3)]}
JPEG = encoded(np.kron(pixels(4, 4), np.ones((16, 16, 1), np.uint8)), "JPEG")
EXIF = Pillow.Exif()
EXIF[0x0112] = 6


BAD: list[tuple[dict[str, bytes], str, str]] = [
    ({"2.png": b"no image"}, "text, not an image", "@2.png: "),
    ({"2.png": b""}, "empty file", "@2.png: "),
    ({"2.png": encoded(pixels())[:20]}, "truncated image", "@2.png: "),
    ({"2.png": encoded(pixels())[:-40]}, "truncated image", "frame 1 of 3: "),
    (
        {f"{n}.jpg": JPEG if n < 3 else JPEG[:-100] for n in range(1, 4)},
        "truncated image",
        "frame 2 of 3: ",
    ),
    (
        {"2.png": encoded(pixels(8, 7))},
        "frames differ in size",
        "@2.png: its height × width is 8×7, that of @1.png 8×6. Resize",
    ),
    (
        {"2.png": encoded(pixels(6, 8), "JPEG", exif=EXIF)},
        "rotated frame",
        "@2.png: it has the EXIF orientation 6",
    ),
    (
        {"02.png": encoded(pixels())},
        "several files for one frame",
        "such as 02.png and 2.png",
    ),
    (
        {"2.jpg": encoded(pixels(), "JPEG")},
        "several files for one frame",
        "such as 2.jpg and 2.png",
    ),
]
"""Files of a clip besides 1.png to 3.png, the reason of its reject, and part of the message."""


def test_a_bad_frame_rejects_its_clip(tmp_path: Path) -> None:
    files = frames_of(GOOD)
    for number, (given, _, _) in enumerate(BAD):
        frames = {} if "1.jpg" in given else {f"{n}.png": encoded(pixels()) for n in (1, 2, 3)}
        files |= {f"a/bad{number}/{name}": data for name, data in (frames | given).items()}
    source = ss.ClipFolder(in_folder(tmp_path, files))
    read = read_clips(tmp_path, source)
    assert set(read.records) == set(GOOD)
    assert len(read.rejects) == len(BAD)
    for number, (_, reason, message) in enumerate(BAD):
        reject = read.rejects[f"a/bad{number}"]
        assert reject.reason == reason
        assert message.replace("@", f"a/bad{number}/") in reject.message


def ids_of(lab: Any, snapshot: ss.Snapshot) -> set[str]:
    return set(lab.stored_rows(snapshot))


PLAIN = {name: CLIPS[name] for name in ("run/a", "run/b", "walk/a")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "names", "expected"),
    [
        ({"label": None}, ["x", "y/z"], {}),
        (
            {"pattern": "{label}_{n}"},
            ["run_1", "deep/walk_22"],
            {"label": ["run", "walk"], "n": [1, 22]},
        ),
        (
            {"table": "t.csv", "label": "kind"},
            ["a", "b"],
            {"kind": ["in", "out"], "score": [0.5, 0.25]},
        ),
        ({"split_folders": True}, ["train/run/1", "test/walk/2"], {"label": ["run", "walk"]}),
    ],
)
def test_labels_of_clips(
    lab: Any,
    tmp_path: Path,
    settings: dict[str, Any],
    names: list[str],
    expected: dict[str, list[Any]],
) -> None:
    table = {"t.csv": b"clip,kind,score\na,in,0.5\nb,out,0.25\nc,in,1\n"}
    if "table" in settings:
        settings = settings | {"table": str(Path(write(tmp_path, table)) / "t.csv")}
    files = frames_of({name: CLIPS["walk/a"] for name in names})
    source = ss.ClipFolder(in_folder(tmp_path, files), **settings)
    snapshot = build_all(tmp_path, source, max_rejects=0)
    assert set(snapshot.manifest.features) == {"frames", *expected}
    rows = lab.stored_rows(snapshot)
    assert set(rows) == set(names)
    for name, values in expected.items():
        found = [rows[one][name] for one in names]
        feature = snapshot.manifest.features[name]
        is_class = isinstance(feature, ss.ClassLabel)
        assert [feature.names[one] for one in found] if is_class else found == values


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        (["1.png"], {}, "none of the 1 images is in a folder of its clip"),
        (["a/1.png"], {}, r"none of the 1 clips is in a class folder .*<class>/<clip>.*label=None"),
        (["train/a/1.png", "test/b/1.png"], {}, r"write ClipFolder\(…, split_folders=True\)"),
        (["a/notes.txt"], {}, "not an image, by its suffix"),
        (["a/1.png"], {"pattern": "{label}_{n}"}, "matches none of the 1 clips"),
    ],
)
def test_folders_that_hold_no_clips(
    tmp_path: Path, names: list[str], settings: dict[str, Any], message: str
) -> None:
    files = {name: encoded(pixels()) for name in names}
    source = ss.ClipFolder(in_folder(tmp_path, files), **settings)
    with pytest.raises((DataError, RecipeError), match=message):
        build_all(tmp_path, source)


def test_files_that_are_no_frames(tmp_path: Path) -> None:
    others = {"walk/a/boxes.json": b"{}", "walk/a/Thumbs.db": b"", "walk/a/.x.png": b""}
    outside = {"cover.png": encoded(pixels()), "run/poster.png": encoded(pixels())}
    source = ss.ClipFolder(in_folder(tmp_path, frames_of(PLAIN) | others | outside))
    read = read_clips(tmp_path, source)
    assert set(read.records) == set(PLAIN)
    assert {record_id: reject.reason for record_id, reject in read.rejects.items()} == {
        "cover.png": "not in a folder of a clip",
        "run": "not in a class folder",
    }


def test_a_clip_is_excluded_and_limited_as_one_record(tmp_path: Path) -> None:
    url = in_folder(tmp_path, frames_of(CLIPS))
    ids = tmp_path / "ids.txt"
    ids.write_text("walk/c 2\n")

    def surveyed(limit: int | None = None, **settings: Any) -> set[str]:
        recipe = ss.Recipe(name="made", source=ss.ClipFolder(url), **settings)
        files = survey_of(recipe, tmp_path, limit=limit).inventory.files
        return {file.record_id for file in files}

    assert surveyed(exclude=str(ids)) == set(PLAIN)
    for number in (1, 2, 3):
        assert len(surveyed(limit=number)) == number


def test_a_clip_beyond_the_limit_is_a_reject(tmp_path: Path) -> None:
    url = in_folder(tmp_path, frames_of(CLIPS))
    files = Path(url, "run/a").iterdir()
    limits = ss.Limits(max_record_bytes=sum(file.stat().st_size for file in files) - 1)
    read = read_clips(tmp_path, ss.ClipFolder(url), limits=limits)
    (reject,) = read.rejects.values()
    reason = f"clip of more than {limits.max_record_bytes:,} bytes"
    assert (reject.record_id, reject.reason) == ("run/a", reason)
    assert set(read.records) == set(CLIPS) - {"run/a"}


@pytest.mark.slow
def test_clips_of_many_blocks(tmp_path: Path) -> None:
    clips = {f"{n % 3}/{n}": [pixels(64, 64) for _ in range(9)] for n in range(40)}
    source = ss.ClipFolder(in_folder(tmp_path, frames_of(clips)))
    survey = survey_of(ss.Recipe(name="made", source=source), tmp_path)
    assert len(survey.inventory.blocks) > 4
    records = read_blocks(survey, tmp_path).records
    assert {name: record["frames"] for name, record in records.items()} == {
        name: [encoded(frame) for frame in frames] for name, frames in clips.items()
    }


@pytest.mark.slow
def test_clips_of_several_sources(lab: Any, tmp_path: Path) -> None:
    first = ss.ClipFolder(in_folder(tmp_path / "1", frames_of({"run/a": CLIPS["run/a"]})))
    second = ss.ClipFolder(in_folder(tmp_path / "2", frames_of({"walk/a": CLIPS["walk/a"]})))
    snapshot = build_all(tmp_path, ss.Sources(old=first, new=second), max_rejects=0)
    rows = rows_of(lab, snapshot)
    assert set(rows) == {"old/run/a", "new/walk/a"}
    np.testing.assert_array_equal(rows["old/run/a"]["frames"], np.stack(CLIPS["run/a"]))


def every_second(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "frames": record["frames"][::2]}


def first_byte(record: dict[str, Any]) -> dict[str, Any]:
    import tensorflow as tf

    return {**record, "frames": tf.strings.substr(record["frames"], 0, 30)}


@pytest.mark.slow
def test_a_function_chooses_frames(lab: Any, tmp_path: Path) -> None:
    source = ss.ClipFolder(in_folder(tmp_path, frames_of(CLIPS)))
    snapshot = build_all(tmp_path, source, prepare=[every_second], max_rejects=0)
    for name, row in rows_of(lab, snapshot).items():
        np.testing.assert_array_equal(row["frames"], np.stack(CLIPS[name][::2]))


def test_what_a_function_makes_of_frames_is_checked(lab: Any, tmp_path: Path) -> None:
    source = ss.ClipFolder(in_folder(tmp_path, frames_of(CLIPS)))
    with pytest.raises(DataError, match="reject"):
        build_all(tmp_path, source, prepare=[first_byte])


def test_a_declared_size_is_enforced(lab: Any, tmp_path: Path) -> None:
    clips = of_sizes((8, 6), (16, 12))
    source = ss.ClipFolder(in_folder(tmp_path, frames_of(clips)), label=None)
    features = {"frames": ss.Sequence(ss.Image(8, 6, storage="encoded"))}
    snapshot = build_all(tmp_path, source, features=features, max_rejects=1)
    assert ids_of(lab, snapshot) == {"a/0"}
    (reject,) = lab.rejects(snapshot)
    assert (reject["id"], reject["reason"]) == ("a/1", "wrong size")
    assert snapshot.manifest.features == features


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "splits"), [("{:04}.png", False), ("{}.png", True), ("frame_{}.png", False)]
)
def test_the_suggested_recipe_reads_clips(
    lab: Any, tmp_path: Path, name: str, splits: bool
) -> None:
    outer = [f"{split}/" for split in ("train", "test")] if splits else [""]
    clips = [f"{one}{label}/{n}" for one in outer for label in ("run", "walk") for n in range(2)]
    files = {
        f"{clip}/{name.format(number)}": encoded(pixels())
        for clip in clips
        for number in range(8, 12)
    }
    url = in_folder(tmp_path, files)
    with pytest.raises(UnclearError, match=r"(?s)2 levels of folders.*source=ss\.ClipFolder\("):
        describe_suggestion(url)
    text = describe_suggestion(url, reading=3)
    assert '"frames": ss.Sequence(ss.Image(storage="encoded")),' in text
    recipe = tmp_path / "recipe.py"
    recipe.write_text(text)
    snapshot = ss.build(load_recipe_file(recipe), tmp_path / "out")
    ids = {one for one in clips if not splits or one.startswith("train")}
    found = set(rows_of(lab, snapshot))
    assert found == set(clips) or ids <= found


@pytest.mark.parametrize(
    "paths",
    [
        ["run/1/1.jpg", "run/1/2.jpg", "walk/1/1.jpg", "walk/1/2.jpg", "walk/2/1.jpg"],
        [f"{label}/{n}.jpg" for label in "ab" for n in range(9)],
        [f"{label}/{clip}/{n * n}.jpg" for label in "ab" for clip in "cd" for n in range(9)],
        [f"{label}/{clip}/{clip}{n}.jpg" for label in "a" for clip in "cd" for n in range(9)],
        [f"{label}/{clip}/{n}x.jpg" for label in "ab" for clip in "cd" for n in range(9)],
    ],
)
def test_other_folders_of_images_are_not_taken_for_clips(paths: list[str]) -> None:
    assert not holds_clips(paths)


@pytest.mark.slow
@pytest.mark.parametrize("keep_ratio", [False, True, "crop"])
def test_frames_are_resized_one_by_one(tmp_path: Path, keep_ratio: Any) -> None:
    clips = of_sizes((8, 6), (16, 12), (9, 21), length=4)
    url = in_folder(tmp_path, frames_of(clips))
    step = ss.images.resize("frames", (4, 5), keep_ratio=keep_ratio)
    found = read_clips(tmp_path, ss.ClipFolder(url), prepare=[step])
    each = [ss.images.decode("image"), ss.images.resize("image", (4, 5), keep_ratio=keep_ratio)]
    images = read_clips(tmp_path, ss.ImageFolder(url), prepare=each).records
    assert found.records.keys() == clips.keys()
    for name, record in found.records.items():
        frames = [images[f"{name}/{number}.png"]["image"] for number in range(1, 5)]
        assert record["frames"] == b"".join(frames)


@pytest.mark.slow
def test_windows_of_resized_frames(tmp_path: Path) -> None:
    clips = of_sizes((8, 6), (16, 12), (9, 21), length=4)
    source = ss.ClipFolder(in_folder(tmp_path, frames_of(clips)))
    step = ss.images.resize("frames", (4, 5))
    snapshot = build_all(tmp_path, source, prepare=[step], max_rejects=0)
    assert snapshot.manifest.features["frames"] == ss.Tensor("uint8", (None, 4, 5, 3))
    windows = [batch["frames"] for batch in read(snapshot, windows=(2, 2))]
    assert sum(len(batch) for batch in windows) == 6
    assert {tuple(batch.shape[1:]) for batch in windows} == {(2, 4, 5, 3)}


def test_a_frame_that_cannot_be_resized_rejects_its_clip(tmp_path: Path) -> None:
    files = frames_of(GOOD) | {"a/1/2.png": encoded(pixels())[:-40]}
    source = ss.ClipFolder(in_folder(tmp_path, files))
    step = ss.images.resize("frames", (4, 4))
    (reject,) = read_clips(tmp_path, source, prepare=[step]).rejects.values()
    assert (reject.record_id, reject.reason) == ("a/1", "truncated image")
    assert "frame 1 of 3" in reject.message


@pytest.mark.parametrize(
    "step", [ss.images.decode("frames"), ss.images.center_crop("frames", (2, 2))]
)
def test_other_steps_on_clips_name_the_one_that_works(tmp_path: Path, step: Any) -> None:
    source = ss.ClipFolder(in_folder(tmp_path, frames_of(GOOD)))
    with pytest.raises(RecipeError, match=r'ss.images.resize\("frames", \(height, width\)\)'):
        build_all(tmp_path, source, prepare=[step])


OF_BYTES = {
    "good": [encoded(pixels()) for _ in range(3)],
    "jpeg": [encoded(pixels(), "JPEG") for _ in range(2)],
    "tiff": [encoded(pixels(), "TIFF") for _ in range(2)],
    "none": [],
    "other size": [encoded(pixels()), encoded(pixels(8, 7))],
    "other size of a JPEG": [encoded(pixels(), "JPEG"), encoded(pixels(8, 7), "JPEG")],
    "rotated": [encoded(pixels(), "JPEG", exif=EXIF) for _ in range(2)],
    "rotated PNG": [encoded(pixels()), encoded(pixels(), exif=EXIF)],
    "not an image": [encoded(pixels()), b"x"],
    "cut off": [JPEG, JPEG[:-100]],
}
CLIP = ss.Sequence(ss.Image(storage="encoded"))


def in_parquet(folder: Path) -> Any:
    columns = {"id": list(OF_BYTES), "clip": pa.array(OF_BYTES.values(), pa.list_(pa.binary()))}
    pq.write_table(pa.table(columns), folder / "t.parquet")
    return ss.Parquet(str(folder / "t.parquet"), types={"clip": CLIP})


def in_iterable(folder: Path) -> Any:
    del folder
    rows = [{"id": name, "clip": clip} for name, clip in OF_BYTES.items()]
    return ss.Iterable(lambda: iter(rows), types={"clip": CLIP})


@pytest.mark.parametrize("source", [in_parquet, in_iterable])
def test_lists_of_bytes_are_declared_to_be_clips(lab: Any, tmp_path: Path, source: Any) -> None:
    snapshot = build_all(tmp_path, source(tmp_path), max_rejects=6)
    rows = {row["id"].decode(): row["clip"] for row in rows_of(lab, snapshot).values()}
    assert set(rows) == {"good", "jpeg", "tiff", "none"}
    assert rows["none"].shape == (0, 8, 6, 3)
    for name in ("good", "tiff"):
        frames = [np.array(Pillow.open(io.BytesIO(frame))) for frame in OF_BYTES[name]]
        np.testing.assert_array_equal(rows[name], np.stack(frames))
    rejects = lab.rejects(snapshot)
    assert Counter(one["reason"] for one in rejects) == {
        "frames differ in size": 2,
        "rotated frame": 2,
        "text, not an image": 1,
        "truncated image": 1,
    }
    (unknown,) = (one["message"] for one in rejects if one["reason"] == "text, not an image")
    assert "column 'clip': frame 1 of 2: " in unknown


@pytest.mark.parametrize(
    ("steps", "size"), [([], (8, None)), ([lambda record: {"clip": record["clip"][1:]}], (8, 6))]
)
def test_frames_of_another_size_than_declared_are_rejects(
    tmp_path: Path, steps: Any, size: Any
) -> None:
    clips = [
        [encoded(pixels(height), form) for _ in range(2)]
        for form in ("PNG", "JPEG")
        for height in (8, 9, 8)
    ]
    clip = ss.Sequence(ss.Image(*size, storage="encoded"))
    source = ss.Iterable([{"clip": frames} for frames in clips], types={"clip": CLIP})
    read = read_clips(tmp_path, source, prepare=steps, features={"clip": clip})
    assert set(read.records) == {f"iterable#{number}" for number in (0, 2, 3, 5)}
    assert set(read.rejects) == {"iterable#1", "iterable#4"}
    for reject in read.rejects.values():
        assert reject.reason == "wrong size"
        assert "'clip' have height × width 9×6, expected 8×" in reject.message


def test_jpegs_pass_the_quick_check(tmp_path: Path) -> None:
    files = {f"a/{clip}/{n}.jpg": JPEG for clip in "bc" for n in range(4)}
    snapshot = build_all(tmp_path, ss.ClipFolder(in_folder(tmp_path, files)), max_rejects=0)
    (batch,) = read(snapshot)
    assert batch["frames"].shape.as_list() == [2, None, 64, 64, 3]


STEPS = ("inventory", "prepare", "plan", "write", "verify", "publish")


@pytest.mark.slow
def test_steps_one_by_one_give_the_same_snapshot(lab: Any, tmp_path: Path) -> None:
    source = ss.ClipFolder(in_folder(tmp_path, frames_of(CLIPS)))
    recipe = ss.Recipe(name="made", source=source, splits=ss.Splits(train=0.5, test=0.5))
    for step in STEPS:
        ss.run_step(recipe, tmp_path / "steps", step, limit=3)
    stepped = ss.load(next((tmp_path / "steps" / "made").glob("*/manifest.json")).parent)
    snapshot = ss.build(recipe, tmp_path / "out", limit=3)
    assert lab.hashes(stepped) == lab.hashes(snapshot)
