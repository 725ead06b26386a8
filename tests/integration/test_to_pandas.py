"""A snapshot as a table: what pandas shows is what the source has."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import snapshard as ss
from snapshard.schemas.errors import RecipeError


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Rows of every kind, with gaps."""
    rng = np.random.default_rng(0)
    num = 60
    gaps = rng.random(num) < 0.3
    return pd.DataFrame(
        {
            "id": [f"r{k}" for k in range(num)],
            "price": rng.normal(size=num).astype("float32"),
            "rooms": pd.array([None if gap else int(k) for k, gap in enumerate(gaps)], "Int64"),
            "kind": rng.choice(["flat", "house", "hut"], num),
            "text": [None if gap else f"Text no. {k} ü" for k, gap in enumerate(gaps)],
            "sold": pd.to_datetime(rng.integers(1, 10**9, num), unit="s", utc=True),
            "is_new": rng.random(num) < 0.5,
            "sizes": [list(map(float, range(k % 4))) for k in range(num)],
        }
    )


@pytest.fixture(scope="module")
def snapshot(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> ss.Snapshot:
    folder = tmp_path_factory.mktemp("pandas")
    table.to_parquet(folder / "homes.parquet", index=False)
    features = {
        "price": ss.Scalar("float32"),
        "rooms": ss.Scalar("int64", optional=True),
        "kind": ss.ClassLabel(("flat", "house", "hut")),
        "text": ss.Text(optional=True),
        "sold": ss.Timestamp("s"),
        "is_new": ss.Scalar("bool"),
        "sizes": ss.Sequence(ss.Scalar("float32")),
        "id": ss.Text(),
    }
    recipe = ss.Recipe(
        name="homes",
        source=ss.Parquet(str(folder / "homes.parquet")),
        features=features,
        splits=ss.Splits(train=0.8, test=0.2),
    )
    return ss.build(recipe, folder / "out")


def test_every_value_is_that_of_the_source(table: pd.DataFrame, snapshot: ss.Snapshot) -> None:
    frames = [snapshot.to_pandas(split) for split in ("train", "test")]
    read = pd.concat(frames).sort_values("id", key=lambda ids: ids.str[1:].astype(int))
    assert len(read) == len(table)
    rows = [int(record_id.rpartition("#")[2]) for record_id in read.index]
    assert rows == list(range(len(table)))
    read = read.reset_index(drop=True)
    for name in ("id", "price", "is_new"):
        assert read[name].tolist() == table[name].tolist(), name
    assert read["kind"].astype(str).tolist() == table["kind"].tolist()
    assert list(read["kind"].cat.categories) == ["flat", "house", "hut"]
    for name in ("rooms", "text"):
        assert read[name].isna().tolist() == table[name].isna().tolist(), name
        assert read[name].dropna().tolist() == table[name].dropna().tolist(), name
    assert (read["sold"] == table["sold"]).all()
    assert [list(sizes) for sizes in read["sizes"]] == table["sizes"].tolist()


def test_parts_of_splits_and_numbers_of_records(snapshot: ss.Snapshot) -> None:
    whole = snapshot.to_pandas()
    assert len(whole) == snapshot.manifest.splits["train"].num_examples
    assert snapshot.to_pandas(num=7).equals(whole[:7])
    assert snapshot.to_pandas("train[10:]", num=5).equals(whole[10:15])
    assert snapshot.to_pandas("train[-3:]").equals(whole[-3:])
    assert snapshot.to_pandas(num=0).columns.tolist() == whole.columns.tolist()
    with pytest.raises(RecipeError, match="has no split 'nothing', only"):
        snapshot.to_pandas("nothing")


@pytest.mark.parametrize(
    ("dtype", "shown"),
    [
        *(
            (f"{sign}{bits}", f"{sign}{bits}")
            for sign in ("int", "uint")
            for bits in (8, 16, 32, 64)
        ),
        *[("bool", "boolean"), ("float32", "float32"), ("float64", "float64")],
    ],
)
def test_gaps_of_every_type(tmp_path: Path, dtype: Any, shown: str) -> None:
    (tmp_path / "t.csv").write_text("x,y\n1,a\n,b\n0,c\n")
    recipe = ss.Recipe(
        name="gaps",
        source=ss.Csv(str(tmp_path / "t.csv")),
        features={"x": ss.Scalar(dtype, optional=True), "y": ss.Text()},
        splits=ss.Splits(train=1.0),
    )
    column = ss.build(recipe, tmp_path / "out").to_pandas().sort_values("y")["x"]
    assert column.isna().tolist() == [False, True, False]
    assert column.dropna().tolist() == [1, 0]
    assert column.dtype.name.lower() == shown


@pytest.mark.parametrize("num", [-1, 2.5, True, "3"])
def test_an_odd_number_of_records_is_refused(snapshot: ss.Snapshot, num: Any) -> None:
    with pytest.raises(RecipeError, match=r"num=.*expected a number of records"):
        snapshot.to_pandas(num=num)


def test_no_tensorflow_is_loaded(snapshot: ss.Snapshot) -> None:
    code = (
        "import sys, snapshard as ss\n"
        f"print(len(ss.load({snapshot.path!r}).to_pandas()), 'tensorflow' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(len(snapshot.to_pandas())), "False"]


def test_images_are_arrays_or_files(tmp_path: Path) -> None:
    from PIL import Image

    for number, side in enumerate((4, 4, 6, 6)):
        path = tmp_path / "in" / f"c{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((side, side, 3), number, np.uint8)).save(path)
    splits = ss.Splits(train=1.0)
    steps = [ss.images.decode("image")]
    for name, prepare in (("files", []), ("pixels", steps)):
        recipe = ss.Recipe(
            name=name, source=ss.ImageFolder(str(tmp_path / "in")), prepare=prepare, splits=splits
        )
        frame = ss.build(recipe, tmp_path / "out").to_pandas()
        assert sorted(frame.index) == ["c0/0.png", "c0/2.png", "c1/1.png", "c1/3.png"]
        image = frame["image"]["c0/2.png"]
        if name == "files":
            assert image == (tmp_path / "in" / "c0" / "2.png").read_bytes()
        else:
            assert (image == np.full((6, 6, 3), 2)).all()
        assert frame["label"]["c1/3.png"] == "c1"


def test_a_negative_number_of_records_is_refused(snapshot: ss.Snapshot) -> None:
    for read in (snapshot.records, snapshot.show, snapshot.to_pandas):
        with pytest.raises(RecipeError, match=r"num=-1, expected a number"):
            read("train", num=-1)


def test_a_snapshot_in_a_store_is_read_from_there(tmp_path: Path) -> None:
    import fsspec

    (tmp_path / "a.csv").write_text("a\n1\n2\n3\n")
    recipe = ss.Recipe(
        name="far", source=ss.Csv(str(tmp_path / "a.csv")), splits=ss.Splits(train=1.0)
    )
    snapshot = ss.build(recipe, "memory://to_pandas")
    assert sorted(snapshot.to_pandas()["a"]) == [1, 2, 3]
    assert [record.record_id for record in snapshot.records(num=1)] == snapshot.to_pandas(
        num=1
    ).index.tolist()
    fsspec.filesystem("memory").rm("/to_pandas", recursive=True)
