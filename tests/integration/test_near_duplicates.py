"""Images and texts that are almost the same in several splits are counted, with examples."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import snapshard as ss
from snapshard.pipelines.plan import near_duplicates
from snapshard.schemas.errors import RecipeError
from snapshard.transforms.examples import similarity

from ..small_blocks import small_blocks
from .documented import run_examples

PAGE = Path(__file__).resolve().parents[2] / "docs" / "duplicates.md"
SPLITS = ss.Splits(train=0.5, test=0.5)
NUM = 40


def picture(seed: int, size: int = 96) -> Image.Image:
    """A smooth image, unlike those of other seeds."""
    coarse = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), np.uint8)
    return Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)


def saved(image: Image.Image, file_format: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, file_format, **options)
    return out.getvalue()


ALTERED: dict[str, Callable[[Image.Image], bytes]] = {
    "saved again": lambda image: saved(image, quality=35),
    "as PNG": lambda image: saved(image, "PNG"),
    "smaller": lambda image: saved(image.resize((60, 60))),
    "larger": lambda image: saved(image.resize((200, 200))),
    "cropped": lambda image: saved(image.crop((1, 1, 95, 95))),
    "darker": lambda image: saved(image.point(lambda value: int(value * 0.85))),
    "grey": lambda image: saved(image.convert("L")),
    "grey of 16 bits": lambda image: saved(
        Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257), "PNG"
    ),
}


def likeness_of(one: bytes, other: bytes) -> float:
    found = [similarity.image_sketch(similarity.encoded_image(data)) for data in (one, other)]
    sketches = np.array(found, similarity.IMAGE_SKETCH)
    return float(similarity.image_likeness(sketches, np.array([0]), np.array([1]))[0])


@pytest.mark.parametrize("change", ALTERED)
def test_an_altered_image_is_alike(change: str) -> None:
    alike = [
        likeness_of(saved(picture(seed), quality=95), ALTERED[change](picture(seed)))
        for seed in range(50)
    ]
    assert np.count_nonzero(alike) >= 48


def test_other_images_are_not_alike() -> None:
    for seed in range(200):
        assert not likeness_of(saved(picture(seed)), saved(picture(seed + 1000)))


@pytest.mark.parametrize("value", [0, 128, 255])
def test_images_without_content_are_not_compared(value: int) -> None:
    flat = Image.new("RGB", (50, 50), (value, value, value))
    assert similarity.image_sketch(similarity.encoded_image(saved(flat))) is None


@pytest.mark.parametrize(
    "data", [b"", b"no image", saved(picture(1))[:-300], saved(Image.new("1", (9000, 9000)), "PNG")]
)
def test_a_damaged_or_huge_image_is_not_compared(data: bytes) -> None:
    assert similarity.image_sketch(similarity.encoded_image(data)) is None


def words(seed: int, num: int = 120) -> list[str]:
    rng = np.random.default_rng(seed)
    return [f"w{n}" for n in rng.integers(0, 3000, num)]


def text_likeness(one: str, other: str) -> float:
    found = [similarity.text_sketch(text.encode()) for text in (one, other)]
    sketches = np.array(found, similarity.TEXT_SKETCH)
    return float(similarity.text_likeness(sketches, np.array([0]), np.array([1]))[0])


def test_likeness_of_texts_is_the_share_of_common_shingles() -> None:
    for seed in range(50):
        one = words(seed)
        other = [*one[:-4], "these", "are", "others", "now"]
        pairs = [{tuple(text[n : n + 3]) for n in range(len(text) - 2)} for text in (one, other)]
        jaccard = len(pairs[0] & pairs[1]) / len(pairs[0] | pairs[1])
        assert jaccard > 0.9
        assert text_likeness(" ".join(one), " ".join(other)) == pytest.approx(jaccard, abs=0.1)
        assert not text_likeness(" ".join(one), " ".join(words(seed + 1000)))


def test_case_and_punctuation_do_not_count() -> None:
    one = " ".join(words(0, 20))
    assert text_likeness(one, one.upper().replace(" ", ", ") + "!") == 1


def test_scripts_without_spaces_count_by_character() -> None:
    text = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
    assert text_likeness(text * 2, text * 2 + "終") > 0.9


@pytest.mark.parametrize("text", [b"", b"too short", b"\xff" * 50])
def test_short_texts_and_other_bytes_are_not_compared(text: bytes) -> None:
    assert similarity.text_sketch(text) is None


def image_files(folder: Path) -> Any:
    for n in range(NUM):
        (folder / "ab"[n % 2]).mkdir(exist_ok=True)
        (folder / "ab"[n % 2] / f"{n}.jpg").write_bytes(saved(picture(n), quality=95))
        (folder / "ab"[n % 2] / f"{n}_copy.jpg").write_bytes(saved(picture(n), quality=40))
    return ss.ImageFolder(str(folder))


def texts() -> list[str]:
    lines = []
    for n in range(NUM):
        lines += [" ".join(words(n)), " ".join([*words(n)[:-1], "changed"])]
    return lines


def text_files(folder: Path) -> Any:
    for n, text in enumerate(texts()):
        (folder / f"{n // 2}{'_copy' * (n % 2)}.txt").write_text(text)
    return ss.TextFiles(str(folder), per="file")


def cells(folder: Path) -> Any:
    with open(folder / "rows.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows(
            [
                ("n", "name", "label"),
                *((n // 2, text, "ab"[n % 2]) for n, text in enumerate(texts())),
            ]
        )
    return ss.Csv(str(folder / "rows.csv"), label="label", types={"name": "string"})


DECODED = [ss.images.decode("image"), ss.images.resize("image", (48, 40))]
RECIPES: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "images": (image_files, {}),
    "pixels": (image_files, {"prepare": DECODED}),
    "pixels of any size": (image_files, {"prepare": DECODED[:1]}),
    "texts": (text_files, {}),
    "cells": (cells, {}),
    "stratified": (cells, {"splits": ss.Splits(train=0.5, test=0.5, stratify_by="label")}),
    "folds": (image_files, {"splits": ss.Splits(a=0.3, b=0.3, c=0.4)}),
}


def build(
    folder: Path, name: str, out: str = "out", workers: int = 1, **options: Any
) -> ss.Snapshot:
    make, chosen = RECIPES[name]
    data = folder / "data"
    if not data.exists():
        data.mkdir()
    recipe = {"splits": SPLITS, **chosen, **options}
    return ss.build(
        ss.Recipe(name="made", source=make(data), **recipe), folder / out, workers=workers
    )


def facts_of(snapshot: ss.Snapshot) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((Path(snapshot.path) / "build.json").read_text())
    return dict(facts["near_duplicates"])


def splits_of(snapshot: ss.Snapshot) -> dict[str, str]:
    """Record id -> split."""
    return {
        record_id: split
        for split, entry in snapshot.manifest.splits.items()
        for shard in entry.shards
        for record_id in pq.read_table(f"{snapshot.path}/index/{shard.file}.parquet")
        .column("id")
        .to_pylist()
    }


def expected(snapshot: ss.Snapshot) -> dict[str, int]:
    """Each original and its copy, if they are in different splits, in the order of the splits."""
    of, order = splits_of(snapshot), ["train", "test", "a", "b", "c"]
    ids = sorted(of)
    if ids[0].startswith("rows.csv"):
        ids.sort(key=lambda one: int(one.partition("#")[2]))
        pairs = list(zip(ids[::2], ids[1::2], strict=True))
    else:
        pairs = [(i, i.replace(".", "_copy.")) for i in ids if "_copy" not in i]
    counts: dict[str, int] = {}
    for pair in pairs:
        first, second = sorted((of[one] for one in pair), key=order.index)
        if first != second:
            counts[f"{first}, {second}"] = counts.get(f"{first}, {second}", 0) + 1
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_copies_with_changes_are_counted(name: str, tmp_path: Path) -> None:
    snapshot = build(tmp_path, name)
    found = facts_of(snapshot)
    assert found["counts"] == expected(snapshot)
    assert sum(found["counts"].values()) > 8
    of = splits_of(snapshot)
    for pair in found["pairs"]:
        assert [of[one] for one in pair["ids"]] == pair["splits"]
        assert 0.8 <= pair["likeness"] <= 1
    assert (
        max(sum(p["splits"] == s["splits"] for p in found["pairs"]) for s in found["pairs"]) <= 10
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "workers"), [("images", 1), ("texts", 2)])
def test_neither_workers_nor_blocks_count(
    name: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(tmp_path, name)
    small_blocks(monkeypatch, 20_000)
    second = build(tmp_path, name, "again", workers=workers)
    assert facts_of(first) == facts_of(second)
    assert (Path(first.path) / "manifest.json").read_bytes() == (
        Path(second.path) / "manifest.json"
    ).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "limit"), [("MAX_RECORDS", 2 * NUM - 1), ("MAX_BYTES", 10_000)]
)
def test_above_a_size_only_on_request(
    setting: str, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/duplicates.md: on for 50,000 records and 128 MiB; never a part of the fingerprint."""
    assert (near_duplicates.MAX_RECORDS, near_duplicates.MAX_BYTES) == (50_000, 128 << 20)
    monkeypatch.setattr(near_duplicates, setting, limit)
    snapshot = build(tmp_path, "texts")
    assert "near_duplicates=True counts them" in facts_of(snapshot)["not_counted"]
    wanted = build(tmp_path, "texts", "wanted", near_duplicates=True)
    assert facts_of(wanted)["counts"] == expected(wanted)
    unwanted = build(tmp_path, "texts", "unwanted", near_duplicates=False)
    assert facts_of(unwanted) == {"not_counted": "near_duplicates=False"}
    manifests = [
        (Path(s.path) / "manifest.json").read_bytes() for s in (snapshot, wanted, unwanted)
    ]
    assert manifests[0] == manifests[1] == manifests[2]


def test_equal_contents_are_counted_by_themselves(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for n in range(NUM):
        for copy in range(2):
            (data / f"{n}-{copy}.txt").write_text(" ".join(words(n)))
    recipe = ss.Recipe(name="made", source=ss.TextFiles(str(data), per="file"), splits=SPLITS)
    snapshot = ss.build(recipe, tmp_path / "out")
    assert snapshot.manifest.shared_contents["train, test"] > 8
    assert facts_of(snapshot)["counts"] == {}


def test_one_split_and_numbers_have_none(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("v\n" + "".join(f"{n}\n" for n in range(NUM)))
    numbers = ss.Recipe(name="numbers", source=ss.Csv(str(tmp_path / "rows.csv")), splits=SPLITS)
    snapshot = ss.build(numbers, tmp_path / "out")
    assert facts_of(snapshot) == {"not_counted": "there are no images or texts"}
    snapshot = build(tmp_path, "texts", splits=ss.Splits(train=1.0))
    assert facts_of(snapshot) == {"not_counted": "there is one split"}


def test_clips_are_not_compared(tmp_path: Path) -> None:
    for n in range(16):
        clip = tmp_path / "clips" / "ab"[n % 2] / f"{n}"
        clip.mkdir(parents=True)
        for frame in range(2):
            (clip / f"{frame}.jpg").write_bytes(saved(picture(frame), quality=90 - n))
    recipe = ss.Recipe(
        name="clips",
        source=ss.ClipFolder(str(tmp_path / "clips")),
        splits=SPLITS,
        near_duplicates=True,
    )
    snapshot = ss.build(recipe, tmp_path / "out")
    assert facts_of(snapshot) == {"not_counted": "there are no images or texts"}


def test_only_records_of_a_limit_count(tmp_path: Path) -> None:
    make, _ = RECIPES["cells"]
    (tmp_path / "data").mkdir()
    recipe = ss.Recipe(name="made", source=make(tmp_path / "data"), splits=SPLITS)
    for limit in (10, 30, 60):
        snapshot = ss.build(recipe, tmp_path / "out", limit=limit)
        kept = splits_of(snapshot)
        pairs = facts_of(snapshot)["pairs"]
        assert {one for pair in pairs for one in pair["ids"]} <= kept.keys()


@pytest.mark.slow
@pytest.mark.parametrize("limit", [3, 10, 40])
def test_equal_contents_beyond_a_limit_are_not_counted(tmp_path: Path, limit: int) -> None:
    (tmp_path / "rows.csv").write_text("v\n" + "".join(f"{n % 5}\n" for n in range(100)))
    splits = ss.Splits(train=0.5, test=0.5, allow_empty=True)
    recipe = ss.Recipe(name="made", source=ss.Csv(str(tmp_path / "rows.csv")), splits=splits)
    snapshot = ss.build(recipe, tmp_path / "out", limit=limit)
    of = splits_of(snapshot)
    assert len(of) == limit
    values = {
        split: {int(i.partition("#")[2]) // 2 % 5 for i, s in of.items() if s == split}
        for split in ("train", "test")
    }
    both = len(values["train"] & values["test"])
    assert snapshot.manifest.shared_contents == ({"train, test": both} if both else {})


@pytest.mark.slow
def test_the_command_line_warns_with_an_example(tmp_path: Path, lab: Any) -> None:
    """docs/duplicates.md: the warning names a pair; inspect repeats it."""
    (tmp_path / "data").mkdir()
    image_files(tmp_path / "data")
    (tmp_path / "recipe.py").write_text(
        "import snapshard as ss\n"
        "recipe = ss.Recipe(name='made', source=ss.ImageFolder('data'),\n"
        "    splits=ss.Splits(train=0.5, test=0.5))\n"
    )
    done = lab.run_cli("build", tmp_path / "recipe.py", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    snapshot = ss.Snapshot.open(str(tmp_path / "out" / "made"))
    number = expected(snapshot)["train, test"]
    assert f"{number} records of test resemble records of train, such as " in done.stderr
    for command in (
        ["inspect", snapshot.path],
        ["build", tmp_path / "recipe.py", "--out", tmp_path / "out"],
    ):
        again = lab.run_cli(*command)
        assert f"{number} records of test resemble" in again.stderr


@pytest.mark.parametrize("value", [1, 0, "yes", 0.5])
def test_only_true_false_or_none(value: Any) -> None:
    with pytest.raises(RecipeError, match="expected True, False or None"):
        ss.Recipe(name="made", source=ss.Csv("a.csv"), near_duplicates=value)


@pytest.mark.slow
def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for n in range(80):
        for number, quality in ((1, 95), (2, 40)):
            name = f"{('cat', 'dog')[n % 2]}_{n:02}_{number}.jpg"
            (tmp_path / "photos" / name).write_bytes(saved(picture(n), quality=quality))
    rows = [f"{' '.join(words(n // 2, 12))},{n // 2 % 5}" for n in range(60)]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,stars", *rows]) + "\n")
    assert run_examples(PAGE, tmp_path) == 5
    found = [ss.Snapshot.open(path.parent) for path in Path("out/photos").glob("*/manifest.json")]
    for snapshot in found:
        of = splits_of(snapshot)
        divided = [one for one in of if of[one] != of[one.replace("_2.jpg", "_1.jpg")]]
        counts = facts_of(snapshot)["counts"]
        assert counts == ({"train, test": len(divided)} if divided else {})
    assert len(found) == 2
