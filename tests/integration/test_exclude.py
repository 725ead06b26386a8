"""``exclude=``: records of a list are in no file of a snapshot, and all others are as before."""

from __future__ import annotations

import functools
import json
import re
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import snapshard as ss
from snapshard.pipelines.build import run_step
from snapshard.pipelines.inspect.diff import diff
from snapshard.pipelines.inspect.verify import check_snapshot
from snapshard.pipelines.inspect.why import why
from snapshard.pipelines.inventory import hash_cache
from snapshard.pipelines.inventory import step as inventory
from snapshard.pipelines.inventory.exclusions import IdList
from snapshard.schemas.errors import DataError, RecipeError, StepOrderError
from snapshard.schemas.progress import Silent
from snapshard.transforms.sources import text
from snapshard.transforms.sources.blocks import group_blocks
from snapshard.transforms.sources.csv import source as csv_source
from snapshard.transforms.sources.folders import web_dataset
from snapshard.transforms.sources.json import source as json_source
from snapshard.transforms.sources.tfrecord import source as tfrecord_source

from .documented import HEAD, code_blocks, section

TAKEDOWN = Path(__file__).resolve().parents[2] / "docs" / "takedown.md"
SPLITS = ss.Splits(train=0.6, test=0.4)
NUM = 120
ROWS = [{"n": n, "name": f"person {n:03}", "label": "ab"[n % 2]} for n in range(NUM)]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of most sources there are several blocks."""
    for module in (inventory, hash_cache):
        monkeypatch.setattr(module, "MIN_CUT_BYTES", 1000)
    monkeypatch.setattr(inventory, "CHUNK_BYTES", 500)
    grouping = functools.partial(group_blocks, block_bytes=1000)
    monkeypatch.setattr(inventory, "group_blocks", grouping)
    for module in (text, csv_source, json_source, tfrecord_source, web_dataset):
        monkeypatch.setattr(module, "cut_spacing", lambda _: 400)


def csv_text() -> str:
    return "n,name,label\n" + "".join(f"{r['n']},{r['name']},{r['label']}\n" for r in ROWS)


def csv(folder: Path) -> Any:
    (folder / "rows.csv").write_text(csv_text())
    return ss.Csv(str(folder / "*.csv"), label="label")


def csv_recoded(folder: Path) -> Any:
    (folder / "rows.csv").write_bytes(csv_text().encode("utf-16"))
    return ss.Csv(str(folder / "rows.csv"), label="label", encoding="utf-16")


def json_lines(folder: Path) -> Any:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return ss.JsonLines(str(folder / "rows.jsonl"), label="label")


def lines(folder: Path) -> Any:
    (folder / "rows.txt").write_text("".join(f"{row['name']}, of {row}\n" for row in ROWS))
    return ss.TextFiles(str(folder / "rows.txt"), per="line")


def paragraphs(folder: Path) -> Any:
    (folder / "rows.txt").write_text("".join(f"{row['name']}\nof {row}\n\n" for row in ROWS))
    return ss.TextFiles(str(folder / "rows.txt"), per="paragraph")


def text_files(folder: Path) -> Any:
    for row in ROWS:
        (folder / f"{row['n']}.txt").write_text(f"{row['name']} of {row}")
    return ss.TextFiles(str(folder), per="file")


def parquet(folder: Path) -> Any:
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "rows.parquet", row_group_size=20)
    return ss.Parquet(str(folder / "rows.parquet"), label="label")


def arrow(folder: Path) -> Any:
    table = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_file(folder / "rows.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=20)
    return ss.Arrow(str(folder / "rows.arrow"), label="label")


def arrays(folder: Path) -> Any:
    np.save(folder / "x.npy", np.arange(NUM * 6, dtype="<f4").reshape(NUM, 6))
    return ss.Numpy(str(folder / "x.npy"), name="x")


def arrays_of_splits(folder: Path) -> Any:
    x = np.arange(NUM * 6, dtype="<f4").reshape(NUM, 6)
    np.savez(folder / "mnist.npz", x_train=x[:80], x_test=x[80:])
    return ss.Numpy(str(folder / "mnist.npz"), split_arrays=True)


def tfrecords(folder: Path) -> Any:
    features = {"n": ss.Scalar("int64"), "name": ss.Text()}
    with tf.io.TFRecordWriter(str(folder / "rows.tfrecord")) as file:
        for row in ROWS:
            file.write(ss.encode_example({"n": row["n"], "name": row["name"]}, features))
    return ss.TFRecords(str(folder))


def images(folder: Path) -> Any:
    rng = np.random.default_rng(0)
    for n in range(NUM):
        path = folder / "ab"[n % 2] / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(rng.integers(0, 256, (6, 6, 3), np.uint8)).save(path)
    return ss.ImageFolder(str(folder))


def masked(folder: Path) -> Any:
    images(folder / "images")
    for path in sorted((folder / "images").rglob("*.png")):
        mask = folder / "masks" / path.relative_to(folder / "images")
        mask.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(np.full((6, 6), int(path.stem) % 3, np.uint8)).save(mask)
    return ss.ImageFolder(str(folder), masks="masks", images="images")


def web_data(folder: Path) -> Any:
    with tarfile.open(folder / "rows.tar", "w") as tar:
        for row in ROWS:
            for suffix, content in (("json", json.dumps(row)), ("txt", row["name"])):
                member = tarfile.TarInfo(f"{row['n']:03}.{suffix}")
                member.size = len(content)
                tar.addfile(member, BytesIO(content.encode()))
    return ss.WebDataset(str(folder / "rows.tar"))


def sql(folder: Path) -> Any:
    with sqlite3.connect(folder / "rows.db") as database:
        database.execute("create table rows (id integer primary key, name text)")
        rows = [(row["n"], row["name"]) for row in ROWS]
        database.executemany("insert into rows values (?, ?)", rows)
    database.close()
    return ss.Sql(f"sqlite:///{folder}/rows.db", "select * from rows", key="id")


def table(folder: Path) -> Any:
    return ss.Table(pa.Table.from_pylist(ROWS), label="label")


def iterable(folder: Path) -> Any:
    return ss.Iterable(ROWS, key="name", label="label")


def read_lines(file: Any) -> Iterator[dict[str, Any]]:
    for line in file.read().decode().splitlines():
        yield json.loads(line)


def own_files(folder: Path) -> Any:
    json_lines(folder)
    return ss.Files(
        str(folder), read_lines, types={"n": "int64", "name": "string", "label": "string"}
    )


QUICK = [csv]
SOURCES = [
    csv, csv_recoded, json_lines, lines, paragraphs, text_files, parquet, arrow, arrays,
    arrays_of_splits, tfrecords, images, masked, web_data, sql, table, iterable, own_files,
]  # fmt: skip
ONE_BLOCK = (csv_recoded, arrays, arrays_of_splits, sql, table, iterable, own_files)
"""Sources that are not cut here, or never."""


def recipe_of(source: Any, listed: Path | None = None, **options: Any) -> ss.Recipe:
    options = {"splits": SPLITS, "shards": ss.Shards(num_shards=2), **options}
    exclude = None if listed is None else str(listed)
    return ss.Recipe(name="made", source=source, exclude=exclude, **options)


def examples_of(snapshot: ss.Snapshot) -> dict[str, tuple[str, bytes]]:
    """Record id -> its split, and its serialized example."""
    found = {}
    for split, entry in snapshot.manifest.splits.items():
        for shard in entry.shards:
            index = pq.read_table(f"{snapshot.path}/index/{shard.file}.parquet")
            stored = tf.data.TFRecordDataset(f"{snapshot.path}/{shard.file}").as_numpy_iterator()
            for record_id, example in zip(index.column("id").to_pylist(), stored, strict=True):
                found[record_id] = (split, example)
    return found


def build_facts(snapshot: ss.Snapshot) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((Path(snapshot.path) / "build.json").read_text())
    return facts


def put_list(folder: Path, ids: list[str], name: str = "ids.txt") -> Path:
    path = folder / name
    path.write_text("# asked to be removed\n\n" + "\r\n".join(ids) + "\n")
    return path


@pytest.mark.parametrize(
    "make",
    [pytest.param(make, marks=() if make in QUICK else pytest.mark.slow) for make in SOURCES],
)
def test_excluded_records_are_gone_and_the_others_as_they_were(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    source = make(data)
    first = ss.build(recipe_of(source), tmp_path / "out")
    num_blocks = build_facts(first)["blocks"]["total"]
    assert num_blocks > 2 or make in ONE_BLOCK, num_blocks
    before = examples_of(first)
    assert len(before) == NUM
    assert first.manifest.excluded is None
    of_train, of_test = (
        [record_id for record_id, (split, _) in sorted(before.items()) if split == name]
        for name in ("train", "test")
    )
    gone = [of_train[0], of_train[-1], of_test[5]]
    listed = put_list(tmp_path, [*gone, gone[0]])
    snapshot = ss.build(recipe_of(source, listed), tmp_path / "out")
    assert snapshot.path != first.path
    after = examples_of(snapshot)
    assert after == {record_id: one for record_id, one in before.items() if record_id not in gone}
    entry = snapshot.manifest.excluded
    assert entry is not None
    assert (entry.num_ids, entry.sha256) == (3, IdList(tuple(sorted(gone))).sha256)
    assert build_facts(snapshot)["excluded"] == {"ids": 3, "records": 3}
    # Proved by verify, and refuted for the snapshot before.
    ids = IdList.of(listed.read_bytes())
    report = check_snapshot(snapshot.path, progress=Silent(), absent=ids)
    assert report.exit_code == 0
    assert "the snapshot was built without them" in report.summary()
    report = check_snapshot(first.path, progress=Silent(), absent=ids)
    assert report.exit_code == 3
    assert report.absence is not None
    assert sorted(str(one.record_id) for one in report.absence.found) == sorted(gone)
    # The same bytes without the snapshot before.
    again = ss.build(recipe_of(source, listed), tmp_path / "again", workers=2 if make is csv else 1)
    manifests = [(Path(one.path) / "manifest.json").read_bytes() for one in (snapshot, again)]
    assert manifests[0] == manifests[1]


@pytest.mark.slow
@pytest.mark.parametrize("make", [csv, lines, tfrecords, images])
def test_only_the_blocks_of_excluded_records_are_prepared_again(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    source = make(data)
    first = ss.build(recipe_of(source), tmp_path / "out")
    num_blocks = build_facts(first)["blocks"]["total"]
    assert num_blocks > 2
    listed = put_list(tmp_path, [min(examples_of(first))])
    second = ss.build(recipe_of(source, listed), tmp_path / "out")
    # Each image is a block of its own here.
    assert build_facts(second)["blocks"]["prepared"] == (0 if make is images else 1)
    # An id that the source never had changes no block.
    listed.write_text(listed.read_text() + "never/there#5\n")
    third = ss.build(recipe_of(source, listed), tmp_path / "out")
    assert build_facts(third)["blocks"]["prepared"] == 0
    assert third.path != second.path
    assert build_facts(third)["excluded"] == {"ids": 2, "records": 1}


class Warned(Silent):
    """Keeps warnings."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, message: str) -> None:
        self.messages.append(message)


@pytest.mark.slow
@pytest.mark.parametrize("make", [csv, images])
def test_ids_that_name_no_record_are_counted_in_a_warning(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    source = make(data)
    wanted = "a/0.png" if make is images else "rows.csv#13"
    listed = put_list(tmp_path, [wanted, "gone", "rows.csv#1", "gone.csv#13"])
    warned = Warned()
    snapshot = ss.build(recipe_of(source, listed), tmp_path / "out", progress=warned)
    (message,) = warned.messages
    assert message.startswith("3 of 4 ids in ")
    assert "name no record" in message
    assert len(examples_of(snapshot)) == NUM - 1


def bytes_in(folder: Path, wanted: bytes) -> list[str]:
    """The files below a folder that hold some bytes."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path.relative_to(folder)) for path in paths if wanted in path.read_bytes()]


def reviews(starts: dict[int, str]) -> str:
    """10,000 rows of a table, of which some begin at a byte of their own, with a text of it."""
    lines, place, waiting = ["n,words\n"], len("n,words\n"), sorted(starts)
    for n in range(10_000):
        text = starts.get(place, f"text number {n}")
        line = f"{n},{text}\n"
        if waiting and place == waiting[0]:
            del waiting[0]
        elif waiting and place + 2 * len(line) > waiting[0]:
            line = f"{n},{text}".ljust(waiting[0] - place - 1, ".") + "\n"
        lines.append(line)
        place += len(line)
    return "".join(lines)


@pytest.mark.slow
def test_the_procedure_of_docs_takedown_leaves_no_trace(tmp_path: Path, lab: Any) -> None:
    """The page's recipe, list and commands: afterwards the words of the records are nowhere."""
    (recipe,) = code_blocks(TAKEDOWN, HEAD)
    (listed,) = code_blocks(TAKEDOWN, HEAD, "")
    (shown,) = code_blocks(TAKEDOWN, "What `verify --absent` proves", "")
    ids = re.findall(r"^reviews.csv#(\d+)$", listed, re.MULTILINE)
    assert len(ids) == 2
    words = "a sentence that only this person wrote"
    (tmp_path / "reviews.csv").write_text(reviews({int(one): f"{words} {one}" for one in ids}))
    analysed = (
        "import snapshard as ss\n\n"
        "def learn(inputs):\n"
        "    import tensorflow_transform as tft\n"
        "    return {'words': tft.compute_and_apply_vocabulary(inputs['words'])}\n\n"
        + recipe.replace("Recipe(", "Recipe(preprocessing_fn=learn, splits=ss.Splits(train=1.0),")
    )
    out, path = tmp_path / "out", tmp_path / "reviews.py"
    path.write_text(re.sub("^ *exclude=.*\n", "", analysed, flags=re.MULTILINE))
    first = lab.build(path, out)
    traces = bytes_in(out, words.encode())
    assert any(one.endswith(".arrow") for one in traces)  # a run
    assert any("transform_fn/" in one for one in traces)  # the vocabulary
    (tmp_path / "ids.txt").write_text(listed)
    path.write_text(analysed)
    _, procedure = section(TAKEDOWN, "The procedure")
    commands = re.findall("`((?:snapshard|rm -r) [^`]*)`", "\n".join(procedure))
    assert [command.split()[:2] for command in commands] == [
        ["snapshard", "build"],
        ["snapshard", "verify"],
        ["snapshard", "verify"],
        ["rm", "-r"],
        ["snapshard", "gc"],
    ]
    ended = []
    for command in commands:
        words_of = command.replace("OLD", first.manifest.fingerprint).split()
        if words_of[0] == "rm":
            shutil.rmtree(tmp_path / words_of[2])
        else:
            ended.append(lab.run_cli(*words_of[1:], cwd=tmp_path))
    built, absent, present, _ = ended
    assert [done.returncode for done in ended] == [0, 0, 3, 0]
    assert "excluded: the records of 2 ids" in built.stdout
    for one in ids:
        assert f"reviews.csv#{one}" in present.stdout + present.stderr
    # What the page shows, but for the numbers of files and bytes, and the place.
    found, expected = (
        re.sub(r"[\d,]+ (?=files|bytes)|\S*out/reviews/[0-9a-f]{16}", "…", text)
        for text in (absent.stdout, shown.partition("\n")[2])
    )
    assert found == expected
    assert bytes_in(out, words.encode()) == []


def test_an_excluded_record_that_cannot_be_read_is_no_reject(tmp_path: Path) -> None:
    text = csv_text().replace("7,person 007,b", "x,person 007,b")
    (tmp_path / "rows.csv").write_text(text)
    source = ss.Csv(str(tmp_path / "rows.csv"), types={"n": "int64"})
    recipe = recipe_of(source, max_rejects=0.1)
    assert ss.build(recipe, tmp_path / "out").manifest.num_rejects == 1
    listed = put_list(tmp_path, [f"rows.csv#{text.index('x,person 007')}"])
    snapshot = ss.build(recipe_of(source, listed), tmp_path / "out")
    assert snapshot.manifest.num_rejects == 0
    assert pq.read_table(f"{snapshot.path}/rejects.parquet").num_rows == 0
    assert build_facts(snapshot)["excluded"] == {"ids": 1, "records": 1}


def test_verify_finds_a_reject_of_the_list(tmp_path: Path) -> None:
    text = csv_text().replace("7,person 007,b", "x,person 007,b")
    (tmp_path / "rows.csv").write_text(text)
    source = ss.Csv(str(tmp_path / "rows.csv"), types={"n": "int64"})
    snapshot = ss.build(recipe_of(source, max_rejects=0.1), tmp_path / "out")
    ids = IdList.of(f"rows.csv#{text.index('x,person 007')}".encode())
    report = check_snapshot(snapshot.path, progress=Silent(), absent=ids)
    assert report.exit_code == 3
    assert "rejects.parquet: record 0 (id 'rows.csv#" in "\n".join(report.lines())


def test_excluded_records_enter_no_window(tmp_path: Path) -> None:
    """A step across records never sees them: no value of theirs is in any example."""
    (tmp_path / "rows.csv").write_text("t,v\n" + "".join(f"{t},{1000 + t}\n" for t in range(40)))
    source = ss.Csv(str(tmp_path / "rows.csv"))
    steps = [ss.series.windows("v", size=3, time="t")]
    splits = ss.Splits.by_time("t", train=0.8, test=0.2)
    offset = (tmp_path / "rows.csv").read_text().index("10,1010")
    listed = put_list(tmp_path, [f"rows.csv#{offset}"])

    def values(recipe: ss.Recipe) -> set[int]:
        snapshot = ss.build(recipe, tmp_path / "out")
        found = (
            ss.parse_example(e, snapshot.manifest.features)
            for _, e in examples_of(snapshot).values()
        )
        return {int(value) for one in found for value in np.ravel(one["v"])}

    assert 1010 in values(recipe_of(source, prepare=steps, splits=splits))
    assert 1010 not in values(recipe_of(source, listed, prepare=steps, splits=splits))


@pytest.mark.slow
@pytest.mark.parametrize("make", [csv, images])
def test_a_limit_takes_other_records_instead(make: Callable[[Path], Any], tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    source = make(data)
    first = examples_of(ss.build(recipe_of(source), tmp_path / "out", limit=40))
    listed = put_list(tmp_path, sorted(first)[:5])
    second = examples_of(ss.build(recipe_of(source, listed), tmp_path / "out", limit=40))
    assert len(second) == 40
    assert not set(second) & set(sorted(first)[:5])


@pytest.mark.slow
@pytest.mark.parametrize("make", [csv, images])
def test_nothing_is_left(make: Callable[[Path], Any], tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    source = make(data)
    listed = put_list(tmp_path, list(examples_of(ss.build(recipe_of(source), tmp_path / "out"))))
    with pytest.raises(DataError, match=r"leaves out all|excluded by the recipe: 120"):
        ss.build(recipe_of(source, listed), tmp_path / "out")


def test_diff_and_why(tmp_path: Path) -> None:
    source = csv(tmp_path)
    first = ss.build(recipe_of(source), tmp_path / "out")
    gone = min(examples_of(first))
    listed = put_list(tmp_path, [gone])
    recipe = recipe_of(source, listed)
    second = ss.build(recipe, tmp_path / "out")
    changes = why(first, second).changes
    assert [(one.part, one.thing, one.kind) for one in changes] == [
        ("exclude", "num_ids", "added"),
        ("exclude", "sha256", "added"),
    ]
    found = diff(first, second, progress=Silent())
    assert [str(one.part) for one in found.settings] == ["exclude", "exclude"]


@pytest.mark.slow
def test_single_steps_refuse_a_list_that_changed(tmp_path: Path) -> None:
    source = csv(tmp_path)
    listed = put_list(tmp_path, ["rows.csv#13"])
    out = str(tmp_path / "out")
    for name in ("inventory", "prepare", "analyze", "plan", "write", "verify", "publish"):
        run_step(recipe_of(source, listed), out, name)
    whole = ss.build(recipe_of(source, listed), tmp_path / "whole")
    stepwise = ss.Snapshot.open(f"{out}/made")
    manifests = [(Path(one.path) / "manifest.json").read_bytes() for one in (whole, stepwise)]
    assert manifests[0] == manifests[1]
    listed.write_text("rows.csv#13\nrows.csv#28\n")
    with pytest.raises(StepOrderError, match="excluded"):
        run_step(recipe_of(source, listed), out, "prepare")


def test_comments_order_and_repetitions_are_the_same_list(tmp_path: Path) -> None:
    source = csv(tmp_path)
    listed = tmp_path / "ids.txt"
    listed.write_bytes(b"\xef\xbb\xbfrows.csv#13\nrows.csv#28")
    first = ss.build(recipe_of(source, listed), tmp_path / "out")
    listed.write_bytes(b"# two\r\nrows.csv#28\r\n\r\n#\nrows.csv#13\r\nrows.csv#28\r\n")
    assert ss.build(recipe_of(source, listed), tmp_path / "out").cached
    assert first.manifest.excluded is not None
    assert first.manifest.excluded.num_ids == 2


def test_an_id_that_is_padded_with_spaces_is_not_missed(tmp_path: Path) -> None:
    """Of rows and of files, when they are excluded and when they are proven to be absent."""
    assert IdList.of(b"3/a.jpg \n\t 3/b.jpg").ids == (
        "\t 3/b.jpg",
        "3/a.jpg",
        "3/a.jpg ",
        "3/b.jpg",
    )
    built = ss.build(recipe_of(csv(tmp_path)), tmp_path / "out")
    record_id = "rows.csv#13"
    absent = IdList.of(f" {record_id} \n".encode())
    report = check_snapshot(built.path, progress=Silent(), absent=absent)
    assert report.absence is not None
    assert [finding.record_id for finding in report.absence.found] == [record_id]


@pytest.mark.parametrize("exclude", ["", 5, ["a"]])
def test_exclude_must_be_a_path(exclude: Any) -> None:
    with pytest.raises(RecipeError, match="is not the path of a text file"):
        ss.Recipe(name="made", source=ss.Csv("a.csv"), exclude=exclude)


@pytest.mark.parametrize("name", ["missing.txt", "."])
def test_the_list_must_be_a_file(tmp_path: Path, name: str) -> None:
    source = csv(tmp_path)
    with pytest.raises(RecipeError, match="exclude=: "):
        ss.build(recipe_of(source, tmp_path / name), tmp_path / "out")


def test_verify_says_what_it_cannot_know_of_a_list_that_was_not_excluded(tmp_path: Path) -> None:
    snapshot = ss.build(recipe_of(csv(tmp_path)), tmp_path / "out")
    report = check_snapshot(snapshot.path, progress=Silent(), absent=IdList(("rows.csv#1",)))
    assert report.exit_code == 0
    assert "The snapshot was not built with this list" in report.summary()


@pytest.mark.slow
def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    source = images(tmp_path / "data")
    name = b"caf\xe9.png"
    shutil.copy(tmp_path / "data/a/0.png", bytes(tmp_path / "data/a/") + b"/" + name)
    first = ss.build(recipe_of(source), tmp_path / "out")
    listed = tmp_path / "ids.txt"
    listed.write_bytes(b"a/" + name + b"\n")
    second = ss.build(recipe_of(source, listed), tmp_path / "out")
    assert [
        sum(s.num_examples for s in one.manifest.splits.values()) for one in (first, second)
    ] == [
        NUM + 1,
        NUM,
    ]
    ids = IdList.of(listed.read_bytes())
    codes = [
        check_snapshot(s.path, progress=Silent(), absent=ids).exit_code for s in (first, second)
    ]
    assert codes == [3, 0]


@pytest.mark.parametrize("declared", [False, True])
def test_a_class_that_only_an_excluded_row_has_is_inferred(tmp_path: Path, declared: bool) -> None:
    """docs/takedown.md: types and classes come from all rows of a file, unless declared."""
    text = csv_text().replace("7,person 007,b", "7,person 007,rare")
    (tmp_path / "rows.csv").write_text(text)
    listed = put_list(tmp_path, [f"rows.csv#{text.index('7,person 007')}"])
    source = ss.Csv(str(tmp_path / "rows.csv"), label="label")
    features = {"label": ss.ClassLabel(("a", "b"))} if declared else {}
    if declared:
        whole = {"n": ss.Scalar("int64"), "name": ss.Scalar("string"), **features}
        recipe = recipe_of(source, listed, features=whole)
    else:
        recipe = recipe_of(source, listed)
    snapshot = ss.build(recipe, tmp_path / "out")
    label = snapshot.manifest.features["label"]
    assert isinstance(label, ss.ClassLabel)
    assert ("rare" in label.names) == (not declared)
