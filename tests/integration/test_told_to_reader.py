"""What a build measures for the reader: class weights, lengths of lists, formats of images."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.pipelines.publish import step as publish
from snapshard.pipelines.reader.emit import ReaderFacts
from snapshard.transforms.examples.sizing import length_boundaries

PREPROCESSED = """
import snapshard as ss

def preprocessing_fn(inputs):
    import tensorflow as tf

    twice = tf.concat([inputs["a"], inputs["a"]], axis=1)
    return {"twice": twice, "kept": inputs["a"], "y": inputs["y"]}

types = {"a": ss.Tensor("int64", (None,)), "y": ss.ClassLabel(("yes", "no"))}
recipe = ss.Recipe(
    name="made",
    source=ss.JsonLines("rows.jsonl", label="y", types=types),
    preprocessing_fn=preprocessing_fn,
    shards=ss.Shards(compression="gzip"),
)
"""


def write_recipe(folder: Path, source: str, rest: str = "") -> Path:
    path = folder / "recipe.py"
    path.write_text(
        f"import snapshard as ss\nrecipe = ss.Recipe(name='made', source={source}, {rest})\n"
    )
    return path


def class_facts(snapshot: ss.Snapshot) -> tuple[Any, Any]:
    """Shares and weights of classes, as the reader tells them."""
    reader = snapshot.reader()
    return np.array(reader.CLASS_SHARES), np.array(reader.CLASS_WEIGHTS)


class TestClasses:
    def test_shares_are_those_of_train(self, lab: Any, sign_digits: ss.Snapshot) -> None:
        shares, weights = class_facts(sign_digits)
        held = lab.read_back(sign_digits)
        train = [split == "train" for split in held.splits]
        counts = np.bincount(held.values["label"][train], minlength=10)
        assert shares == pytest.approx(counts / counts.sum(), rel=1e-5)
        assert weights == pytest.approx(counts.sum() / (10 * counts), rel=1e-5)

    def test_more_classes_than_the_manifest_counts(self, lab: Any, tmp_path: Path) -> None:
        rows = [f"{i},c{i % 1100}\n" for i in range(3300)]
        (tmp_path / "table.csv").write_text("x,y\n" + "".join(rows))
        splits = "splits=ss.Splits(more=0.9, fewer=0.1), shards=ss.Shards(num_shards=2)"
        classes = '{"y": ss.ClassLabel(tuple(f"c{i}" for i in range(1100)))}'
        source = f'ss.Csv("table.csv", label="y", types={classes})'
        recipe = write_recipe(tmp_path, source, splits)
        snapshot = lab.build(recipe, tmp_path / "out")
        shares, weights = class_facts(snapshot)
        held = lab.read_back(snapshot)
        more = [split == "more" for split in held.splits]
        counts = np.bincount(held.values["y"][more], minlength=1100)
        assert np.count_nonzero(counts) > 1000
        assert all(
            len(shard.label_counts) <= 1000
            for split in snapshot.manifest.splits.values()
            for shard in split.shards
        )
        assert shares == pytest.approx(counts / counts.sum(), rel=1e-5)
        present = counts > 0
        assert (weights[~present] == 0).all()
        expected = counts.sum() / (present.sum() * counts[present])
        assert weights[present] == pytest.approx(expected, rel=1e-5)


class TestLengths:
    def test_of_the_first_records_of_each_shard(
        self, lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("snapshard.transforms.examples.shards.LENGTH_RECORDS", 40)
        rng = np.random.default_rng(3)
        rows = [
            {"a": rng.integers(0, 9, rng.integers(0, 30)).tolist(), "b": ["w"] * int(i % 7), "c": i}
            for i in range(400)
        ]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        shards = "shards=ss.Shards(num_shards=3)"
        recipe = write_recipe(tmp_path, 'ss.JsonLines("rows.jsonl")', shards)
        snapshot = lab.build(recipe, tmp_path / "out")
        (train,) = (s for name, s in snapshot.manifest.splits.items() if name == "train")
        assert len(train.shards) == 3
        stored = list(lab.rows_back(snapshot).values())
        firsts, begin = [], 0
        for shard in train.shards:
            firsts += stored[begin : begin + 14]  # a third of 40, rounded up
            begin += shard.num_examples
        expected = {
            name: length_boundaries(len(row[name]) for row in firsts) for name in ("a", "b")
        }
        assert expected["b"][-1] == 6
        told = snapshot.reader().LENGTHS
        assert told == expected

    @pytest.mark.slow  # loads tensorflow-transform, in worker processes too
    def test_of_what_preprocessing_makes(self, lab: Any, tmp_path: Path) -> None:
        rows = [{"a": list(range(i % 5)), "y": "no" if i % 4 else "yes"} for i in range(200)]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        recipe = tmp_path / "recipe.py"
        recipe.write_text(PREPROCESSED)
        snapshot = lab.build(recipe, tmp_path / "out", workers=2)
        told = snapshot.reader().LENGTHS
        assert told == {"kept": [0, 1, 2, 3, 4], "twice": [0, 2, 4, 6, 8]}
        held = lab.read_back(snapshot)
        train = [split == "train" for split in held.splits]
        counts = np.bincount(held.values["y"][train], minlength=2)
        shares, _ = class_facts(snapshot)
        assert shares == pytest.approx(counts / counts.sum(), rel=1e-5)
        (index,) = (Path(snapshot.path) / "index").glob("train-*.tfrecord.gz.labels")
        codes = np.frombuffer(index.read_bytes(), "<i4")
        assert codes.tolist() == held.values["y"][train].tolist()

    def test_none_of_classes_and_pixels(self, sign_digits: ss.Snapshot) -> None:
        assert sign_digits.reader().LENGTHS == {}


class TestFormats:
    @pytest.mark.slow  # a build for each format
    @pytest.mark.parametrize(
        ("channels", "kinds", "expected"),
        [
            (3, ("JPEG RGB", "JPEG L", "JPEG CMYK"), {"jpeg"}),
            (3, ("JPEG RGB", "PNG RGB", "WEBP RGB", "GIF P", "BMP RGB"), None),
            (1, ("JPEG L", "JPEG CMYK"), {"jpeg", "cmyk"}),
            (1, ("JPEG L", "JPEG RGB"), {"jpeg"}),
        ],
    )
    def test_content_decides(
        self,
        lab: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        channels: int,
        kinds: tuple[str, ...],
        expected: set[str] | None,
    ) -> None:
        told: list[ReaderFacts] = []
        emit = publish.emit_reader

        def noting(facts: ReaderFacts) -> dict[str, str]:
            told.append(facts)
            return emit(facts)

        monkeypatch.setattr(publish, "emit_reader", noting)
        rng = np.random.default_rng(5)
        for index in range(30):
            name, mode = kinds[index % len(kinds)].split()
            path = tmp_path / "images" / "ab"[index % 2] / f"{index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (12, 8, 3), np.uint8)
            PillowImage.fromarray(pixels).convert(mode).save(path, name)
        features = f"features={{'image': ss.Image(storage='encoded', channels={channels})}}"
        recipe = write_recipe(tmp_path, "ss.ImageFolder('images')", features)
        snapshot = lab.build(recipe, tmp_path / "out")
        assert told[0].image_formats == {"image": expected or {"jpeg", "png", "webp", "gif", "bmp"}}
        facts = Path(snapshot.path) / "reader" / "facts.py"
        assert "reader/facts.py" in snapshot.manifest.files
        # Of other formats the reader has no operation: TensorFlow 2.16 has none for WebP.
        stated: dict[str, Any] = {}
        exec(facts.read_text(), stated)
        formats = expected or {"jpeg", "png", "webp", "gif", "bmp"}
        assert stated["IMAGE_FORMATS"] == {"image": sorted(formats)}
        values = lab.read_back(snapshot, image_size=(12, 8)).values["image"]
        assert Counter(image.shape for image in values) == {(12, 8, channels): 30}
