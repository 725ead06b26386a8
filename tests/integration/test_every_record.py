"""Every record lies in exactly one shard of one split, or in the rejects, with its own values."""

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from PIL import Image as PillowImage
from PIL import ImageOps

import snapshard as ss
from snapshard.schemas.naming import REPORT, UNLISTED

# What every manifest has; people's own programs rely on it.
MANIFEST_HAS = {
    "compression",
    "features",
    "files",
    "fingerprint",
    "format_version",
    "name",
    "num_rejects",
    "splits",
    "versions",
}

MEASURES = ("bill_length_mm", "bill_depth_mm", "flipper_length_mm")


def shown(path: Path) -> Any:
    """An image as a person sees it, by Pillow: uint8[height, width, 3]."""
    with PillowImage.open(path) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def assert_same_pixels(found: Any, path: Path, *, size: tuple[int, int]) -> None:
    wanted = PillowImage.fromarray(shown(path))
    # Pillow's bilinear filter widens when it shrinks, as the resize step's does.
    wanted = wanted.resize(size[::-1], PillowImage.Resampling.BILINEAR)
    assert np.abs(found.astype(int) - np.asarray(wanted).astype(int)).max() <= 2, path


def assert_equal_cell(found: Any, cell: str, feature: Any) -> None:
    """Holds a value of the reader against the text of its cell."""
    if isinstance(feature, ss.ClassLabel):
        assert feature.names[int(found)] == cell
    elif not cell:
        fill = feature.fill
        if isinstance(fill, float) and math.isnan(fill):
            assert math.isnan(found)
        else:
            assert found == (fill.encode() if isinstance(fill, str) else fill)
    elif feature.dtype == "string":
        assert found == cell.encode()
    elif feature.dtype == "float32":
        assert found == np.float32(cell)
    elif feature.dtype == "float64":
        assert found == float(cell)
    elif feature.dtype == "bool":
        assert found == (cell.lower() == "true")
    else:
        assert found == int(cell)


def assert_all_images(lab: Any, snapshot: ss.Snapshot, root: Path, **options: Any) -> None:
    held = lab.read_back(snapshot, **options)
    files = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    rejected = [row["id"] for row in lab.rejects(snapshot)]
    assert Counter([*held.ids, *rejected]) == Counter(list(files))
    names = snapshot.reader().CLASS_NAMES
    for record_id, _, values in held.rows():
        assert names[values["label"]] == record_id.partition("/")[0]
        assert_same_pixels(values["image"], files[record_id], size=values["image"].shape[:2])


def assert_all_rows(lab: Any, snapshot: ss.Snapshot, table: Path) -> None:
    """Of a snapshot without a preprocessing_fn: every cell of every row."""
    held = lab.read_back(snapshot)
    rows = dict(lab.csv_rows(table))
    assert Counter(held.ids) == Counter(list(rows))
    assert snapshot.manifest.num_rejects == 0
    features = snapshot.manifest.features
    for record_id, _, values in held.rows():
        masks = {name for name in values if name.endswith("_present")}
        assert set(values) - masks == set(rows[record_id])
        for mask in masks:
            assert values[mask] == (rows[record_id][mask.removesuffix("_present")] != "")
        for name, cell in rows[record_id].items():
            assert_equal_cell(values[name], cell, features[name])


def assert_balanced(snapshot: ss.Snapshot, *, tolerance: float) -> None:
    """Shards of a split differ by at most a share of the larger, or the largest record."""
    folder = Path(snapshot.path)
    for entry in snapshot.manifest.splits.values():
        sizes = [shard.num_bytes for shard in entry.shards]
        if not sizes:
            continue
        pairs = [
            np.frombuffer((folder / "index" / f"{shard.file}.idx").read_bytes(), "<u8")
            for shard in entry.shards
        ]
        largest = max(int(pair[1::2].max()) for pair in pairs)
        assert max(sizes) - min(sizes) <= max(tolerance * max(sizes), largest)


def assert_exact_shares(lab: Any, snapshot: ss.Snapshot, feature: str) -> None:
    held = lab.read_back(snapshot)
    totals = Counter(held.values[feature].tolist())
    found = Counter(zip(held.values[feature].tolist(), held.splits, strict=True))
    fractions = {"train": 0.8, "validation": 0.1, "test": 0.1}
    for value, total in totals.items():
        for split, fraction in fractions.items():
            assert abs(found[value, split] - total * fraction) < 1, (value, split)


class TestShippedImages:
    def test_each_is_there_once(self, lab: Any, sign_digits: ss.Snapshot, examples: Path) -> None:
        assert_all_images(lab, sign_digits, examples / "data" / "sign_digits")

    def test_shares_of_each_class_are_exact(self, lab: Any, sign_digits: ss.Snapshot) -> None:
        assert_exact_shares(lab, sign_digits, "label")

    def test_label_counts(self, lab: Any, sign_digits: ss.Snapshot) -> None:
        names = sign_digits.reader().CLASS_NAMES
        held = lab.read_back(sign_digits)
        labels = [names[label] for label in held.values["label"]]
        for split, entry in sign_digits.manifest.splits.items():
            counted: Counter[str] = Counter()
            for shard in entry.shards:
                counted.update(shard.label_counts)
            assert counted == Counter(
                label for label, where in zip(labels, held.splits, strict=True) if where == split
            )

    def test_index_leads_to_each_record(self, lab: Any, sign_digits: ss.Snapshot) -> None:
        import tensorflow as tf

        held = {name: values for name, _, values in lab.read_back(sign_digits).rows()}
        folder = Path(sign_digits.path)
        for entry in sign_digits.manifest.splits.values():
            for shard in entry.shards:
                ids = lab.index_ids(sign_digits, shard.file)
                pairs = (folder / "index" / f"{shard.file}.idx").read_bytes()
                assert len(pairs) == 16 * shard.num_examples == 16 * len(ids)
                content = (folder / shard.file).read_bytes()
                for row in (0, len(ids) // 2, len(ids) - 1):
                    offset = int.from_bytes(pairs[16 * row : 16 * row + 8], "little")
                    length = int.from_bytes(pairs[16 * row + 8 : 16 * row + 16], "little")
                    example = tf.train.Example.FromString(content[offset : offset + length][12:-4])
                    (pixels,) = example.features.feature["image"].bytes_list.value
                    assert pixels == held[ids[row]]["image"].tobytes()


@pytest.mark.slow  # with a process for the analysis
class TestPenguins:
    def test_each_row_is_there_once(
        self, lab: Any, shared: Callable[[str], Path], examples: Path
    ) -> None:
        table = examples / "data" / "penguins.csv"
        recipe = shared("penguins as they are") / "recipe.py"
        recipe.write_text(
            "import snapshard as ss\n"
            f'recipe = ss.Recipe(name="plain", source=ss.Csv({str(table)!r}, label="species"))\n'
        )
        snapshot = lab.build(recipe, recipe.parent / "out")
        features = snapshot.manifest.features
        assert isinstance(features["bill_length_mm"], ss.Scalar)
        assert features["bill_length_mm"].optional
        assert_all_rows(lab, snapshot, table)

    def test_transformed_values(self, lab: Any, penguins: ss.Snapshot, examples: Path) -> None:
        """z-scores, vocabularies and buckets, computed anew from the train split alone."""
        rows = dict(lab.csv_rows(examples / "data" / "penguins.csv"))
        held = lab.read_back(penguins)
        assert Counter(held.ids) == Counter(list(rows))
        train = [
            rows[record_id]
            for record_id, split in zip(held.ids, held.splits, strict=True)
            if split == "train"
        ]
        names = penguins.reader().CLASS_NAMES
        for name in (*MEASURES, "body_mass_g"):
            output = "body_mass" if name == "body_mass_g" else name
            known = np.array([float(row[name]) for row in train if row[name]])
            for record_id, _, values in held.rows():
                cell = rows[record_id][name]
                if cell:
                    wanted = (float(cell) - known.mean()) / known.std()
                    assert values[output] == pytest.approx(wanted, abs=1e-5)
                elif output in MEASURES:
                    assert values[output] == 0
                else:
                    assert math.isnan(values[output])
        for name, empty in (("island", ""), ("sex", "unknown")):
            counts = Counter(row[name] or empty for row in train if row[name] or empty)
            words = sorted(counts, key=lambda word: (counts[word], word), reverse=True)
            assets = Path(penguins.path) / "transform_fn" / "assets" / name
            assert assets.read_text().split() == words
            for record_id, _, values in held.rows():
                word = rows[record_id][name] or empty
                assert values[name] == (words.index(word) if word in words else -1)
        buckets = Counter(
            int(values["body_mass_bucket"])
            for record_id, split, values in held.rows()
            if split == "train"
        )
        assert set(buckets) == {-1, 0, 1, 2, 3}
        assert buckets[-1] == sum(not row["body_mass_g"] for row in train)
        masses = [
            (float(rows[record_id]["body_mass_g"]), int(values["body_mass_bucket"]))
            for record_id, _, values in held.rows()
            if rows[record_id]["body_mass_g"]
        ]
        ordered = [bucket for _, bucket in sorted(masses)]
        assert ordered == sorted(ordered)
        for record_id, _, values in held.rows():
            assert names[values["species"]] == rows[record_id]["species"]

    def test_shares_of_each_species_are_exact(self, lab: Any, penguins: ss.Snapshot) -> None:
        assert_exact_shares(lab, penguins, "species")

    def test_shards_are_balanced(self, penguins: ss.Snapshot) -> None:
        assert_balanced(penguins, tolerance=0.05)


class TestImagesAsTheyAre:
    @pytest.mark.slow
    def test_bytes_are_the_files(self, lab: Any, tmp_path: Path) -> None:
        import tensorflow as tf

        snapshot = lab.build(lab.image_project(tmp_path, rest="prepare=[],"), tmp_path / "out")
        root = tmp_path / "images"
        found = {}
        for entry in snapshot.manifest.splits.values():
            for shard in entry.shards:
                records = tf.data.TFRecordDataset(str(Path(snapshot.path) / shard.file))
                ids = lab.index_ids(snapshot, shard.file)
                for record_id, record in zip(ids, records, strict=True):
                    features = tf.train.Example.FromString(record.numpy()).features.feature
                    assert record_id not in found
                    (found[record_id],) = features["image"].bytes_list.value
        assert found == {
            str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.jpg")
        }
        assert_all_images(lab, snapshot, root)


class TestSettings:
    """What a recipe asks of splits and shards."""

    def test_group_spans_no_two_splits(self, lab: Any, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        patients = rng.integers(0, 40, 500)
        lines = "".join(f"{i},p{patient}\n" for i, patient in enumerate(patients))
        (tmp_path / "visits.csv").write_text("visit,patient\n" + lines)
        (tmp_path / "recipe.py").write_text(
            "import snapshard as ss\n"
            'recipe = ss.Recipe(name="visits", source=ss.Csv("visits.csv"),\n'
            '    splits=ss.Splits(train=0.6, test=0.4, group_by="patient"))\n'
        )
        held = lab.read_back(lab.build(tmp_path / "recipe.py", tmp_path / "out"))
        assert sorted(held.values["visit"].tolist()) == list(range(500))
        pairs = {(v["patient"], split) for _, split, v in held.rows()}
        assert len(pairs) == len(set(patients.tolist()))
        assert {split for _, split in pairs} == {"train", "test"}

    @pytest.mark.slow
    def test_stratified_by_what_may_be_missing(
        self, lab: Any, tmp_path: Path, examples: Path
    ) -> None:
        table = examples / "data" / "penguins.csv"
        (tmp_path / "recipe.py").write_text(
            "import snapshard as ss\n"
            f'recipe = ss.Recipe(name="by_sex", source=ss.Csv({str(table)!r}),\n'
            '    splits=ss.Splits(train=0.8, validation=0.1, test=0.1, stratify_by="sex"))\n'
        )
        snapshot = lab.build(tmp_path / "recipe.py", tmp_path / "out")
        assert b"" in lab.read_back(snapshot).values["sex"]
        assert_exact_shares(lab, snapshot, "sex")
        assert_all_rows(lab, snapshot, table)

    @pytest.mark.slow
    def test_fewer_records_than_splits(self, lab: Any, tmp_path: Path) -> None:
        snapshot = lab.build(lab.image_project(tmp_path, num=2), tmp_path / "out")
        held = lab.read_back(snapshot)
        assert len(set(held.ids)) == 2
        empty = [name for name, split in snapshot.manifest.splits.items() if not split.shards]
        assert empty
        for name in empty:
            dataset = snapshot.reader().dataset(name, 4)
            assert dataset.cardinality().numpy() == 0
            assert list(dataset) == []

    def test_bad_cells_are_rejects(self, lab: Any, tmp_path: Path) -> None:
        cells = [str(i) for i in range(200)]
        for row in (3, 77, 150):
            cells[row] = f"about {row}"
        content = "name,size\n" + "".join(f"thing {i},{cell}\n" for i, cell in enumerate(cells))
        (tmp_path / "things.csv").write_text(content)
        text = (
            "import snapshard as ss\n"
            'recipe = ss.Recipe(name="things", source=ss.Csv("things.csv"), max_rejects=REJECTS,\n'
            '    features={"name": ss.Scalar("string"), "size": ss.Scalar("int32")})\n'
        )
        recipe = tmp_path / "recipe.py"
        recipe.write_text(text.replace("REJECTS", "None"))
        with pytest.raises(
            ss.SnapshardError, match=r"3 of 200 records were rejected \(allowed: 0\)"
        ):
            lab.build(recipe, tmp_path / "out")
        assert not list((tmp_path / "out").rglob("manifest.json"))
        recipe.write_text(text.replace("REJECTS", "3"))
        snapshot = lab.build(recipe, tmp_path / "out")
        held, rejects = lab.read_back(snapshot), lab.rejects(snapshot)
        rows = dict(lab.csv_rows(tmp_path / "things.csv"))
        assert sorted([*held.ids, *(row["id"] for row in rejects)]) == sorted(rows)
        for row in rejects:
            assert rows[row["id"]]["size"].startswith("about ")
            assert row["id"] == f"{row['source']}#{row['position']}"
            assert rows[row["id"]]["size"] in row["message"]
        for record_id, _, values in held.rows():
            assert values["size"] == int(rows[record_id]["size"])
            assert values["name"] == rows[record_id]["name"].encode()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("shards", "wanted"),
        [
            ("num_shards=5", {"train": 5, "validation": 5, "test": 5}),
            (
                'num_shards={"train": 4, "validation": 2, "test": 1}',
                {"train": 4, "validation": 2, "test": 1},
            ),
            ("min_shards=3", {"train": 3, "validation": 3, "test": 3}),
            ("num_examples=20", None),
            ('target_bytes="6kB"', None),
            ('num_shards=4, compression="gzip"', {"train": 4, "validation": 4, "test": 4}),
        ],
    )
    def test_shards(
        self,
        lab: Any,
        shared: Callable[[str], Path],
        shards: str,
        wanted: dict[str, int] | None,
    ) -> None:
        folder = shared("shard settings")
        if not (folder / "images").exists():
            lab.make_images(folder / "images", num=150)
        recipe = lab.write_recipe(folder, f"prepare=[], shards=ss.Shards({shards}),")
        snapshot = lab.build(recipe, folder / "out")
        found = {name: len(split.shards) for name, split in snapshot.manifest.splits.items()}
        splits = snapshot.manifest.splits
        assert sum(split.num_examples for split in splits.values()) == 150
        if "num_examples" in shards:
            for split in splits.values():
                counts = [shard.num_examples for shard in split.shards]
                assert counts[:-1] == [20] * (len(counts) - 1)
                assert 1 <= counts[-1] <= 20
            return
        if wanted is None:
            assert found == {
                name: math.ceil(split.num_bytes / 6000) for name, split in splits.items()
            }
        else:
            assert found == wanted
        compressed = snapshot.manifest.compression == "gzip"
        assert compressed == ("gzip" in shards)
        assert_balanced(snapshot, tolerance=0.05 if compressed else 0.01)
        if compressed:
            assert_all_images(lab, snapshot, folder / "images")


@pytest.mark.full_data
@pytest.mark.slow  # builds 2,062 images, and decodes them once more with Pillow
class TestFullData:
    def test_sign_digits(self, lab: Any, full_data: Path, tmp_path: Path) -> None:
        root = full_data / "sign_digits"
        (tmp_path / "recipe.py").write_text(
            "import snapshard as ss\n"
            f'recipe = ss.Recipe(name="signs", source=ss.ImageFolder({str(root)!r}),\n'
            '    prepare=[ss.images.decode("image"), ss.images.resize("image", (64, 64))],\n'
            '    shards=ss.Shards(target_bytes="1MB"),\n'
            '    splits=ss.Splits(train=0.8, validation=0.1, test=0.1, stratify_by="label"))\n'
        )
        snapshot = lab.build(tmp_path / "recipe.py", tmp_path / "out")
        assert len(snapshot.manifest.splits["train"].shards) > 15
        assert_balanced(snapshot, tolerance=0.01)
        assert_all_images(lab, snapshot, root)
        assert_exact_shares(lab, snapshot, "label")

    def test_images_as_they_are(self, lab: Any, full_data: Path, tmp_path: Path) -> None:
        root = full_data / "sign_digits"
        (tmp_path / "recipe.py").write_text(
            "import snapshard as ss\n"
            f'recipe = ss.Recipe(name="signs", source=ss.ImageFolder({str(root)!r}),\n'
            "    prepare=[], shards=ss.Shards(num_shards=8))\n"
        )
        snapshot = lab.build(tmp_path / "recipe.py", tmp_path / "out")
        assert_balanced(snapshot, tolerance=0.01)
        sizes = {path: shown(path).shape[:2] for path in root.rglob("*") if path.is_file()}
        assert len(set(sizes.values())) > 1, "the set is known to hold a few of another size"
        with pytest.raises(ValueError, match="image_size"):
            snapshot.reader().dataset("train", 8)
        assert_all_images(lab, snapshot, root, image_size=(100, 100))

    @pytest.mark.parametrize("name", ["titanic", "chicago_taxi", "penguins", "flights", "dowjones"])
    def test_tables(self, lab: Any, full_data: Path, tmp_path: Path, name: str) -> None:
        table = full_data / "tabular" / f"{name}.csv"
        (tmp_path / "recipe.py").write_text(
            "import snapshard as ss\n"
            f'recipe = ss.Recipe(name="table", source=ss.Csv({str(table)!r}),\n'
            "    shards=ss.Shards(num_shards=3))\n"
        )
        snapshot = lab.build(tmp_path / "recipe.py", tmp_path / "out")
        assert_balanced(snapshot, tolerance=0.01)
        assert_all_rows(lab, snapshot, table)


@pytest.mark.slow
def test_manifest_adds_up(sign_digits: ss.Snapshot, penguins: ss.Snapshot) -> None:
    schema = Path(__file__).resolve().parents[2] / "docs" / "manifest.schema.json"
    validator = jsonschema.Draft202012Validator(json.loads(schema.read_text()))
    for snapshot in (sign_digits, penguins):
        folder = Path(snapshot.path)
        manifest = json.loads((folder / "manifest.json").read_text())
        validator.validate(manifest)
        assert not MANIFEST_HAS - manifest.keys()
        there = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
        assert there | {REPORT} == {*manifest["files"], *UNLISTED}
        for name, entry in manifest["files"].items():
            assert (folder / name).stat().st_size == entry["bytes"]
        for split in manifest["splits"].values():
            assert split["num_bytes"] == sum(shard["num_bytes"] for shard in split["shards"])
            for shard in split["shards"]:
                assert manifest["files"][shard["file"]] == {
                    "bytes": shard["num_bytes"],
                    "sha256": shard["sha256"],
                }
