"""``exclude=``: records of a list are in no file of a snapshot, and all others are as before."""

from __future__ import annotations

import dataclasses
import json
import os
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
from snapshard import cli, startup_noise
from snapshard.pipelines.build import run_step
from snapshard.pipelines.inspect.diff import diff
from snapshard.pipelines.inspect.verify import check_snapshot
from snapshard.pipelines.inspect.why import why
from snapshard.pipelines.inventory.exclusions import IdList
from snapshard.schemas.errors import DataError, RecipeError, StepOrderError
from snapshard.schemas.progress import Silent

from ..pipelines.read_records import num_to_prepare, read_blocks, read_records, survey_of
from .documented import HEAD, code_blocks, section

TAKEDOWN = Path(__file__).resolve().parents[2] / "docs" / "takedown.md"
SPLITS = ss.Splits(train=0.6, test=0.4)
NUM = 120
ROWS = [{"n": n, "name": f"person {n:03}", "label": "ab"[n % 2]} for n in range(NUM)]
LONG_ROWS = [{**row, "name": f"{row['name']} {'-' * 100_000}"} for row in ROWS]
"""Files of them are cut into several blocks."""


def csv_text(rows: list[dict[str, Any]] = ROWS) -> str:
    return "n,name,label\n" + "".join(f"{r['n']},{r['name']},{r['label']}\n" for r in rows)


def csv(folder: Path) -> Any:
    (folder / "rows.csv").write_text(csv_text(LONG_ROWS))
    return ss.Csv(str(folder / "*.csv"), label="label")


def csv_recoded(folder: Path) -> Any:
    (folder / "rows.csv").write_bytes(csv_text().encode("utf-16"))
    return ss.Csv(str(folder / "rows.csv"), label="label", encoding="utf-16")


def json_lines(folder: Path) -> Any:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in LONG_ROWS))
    return ss.JsonLines(str(folder / "rows.jsonl"), label="label")


def lines(folder: Path) -> Any:
    (folder / "rows.txt").write_text("".join(f"{row['name']}, of {row}\n" for row in LONG_ROWS))
    return ss.TextFiles(str(folder / "rows.txt"), per="line")


def paragraphs(folder: Path) -> Any:
    (folder / "rows.txt").write_text("".join(f"{row['name']}\nof {row}\n\n" for row in LONG_ROWS))
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
        for row in LONG_ROWS:
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
        for row in LONG_ROWS:
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


SOURCES = [
    csv, csv_recoded, json_lines, lines, paragraphs, text_files, parquet, arrow, arrays,
    arrays_of_splits, tfrecords, images, masked, web_data, sql, table, iterable, own_files,
]  # fmt: skip
ONE_BLOCK = (csv_recoded, parquet, arrow, arrays, arrays_of_splits, sql, table, iterable, own_files)
"""Sources that are too small to be cut here, or never are."""


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


@pytest.mark.parametrize("make", SOURCES)
def test_excluded_records_are_gone_and_the_others_as_they_were(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    source = make(data)
    survey = survey_of(recipe_of(source), tmp_path)
    assert survey.excluded is None
    assert len(survey.inventory.blocks) > 1 or make in ONE_BLOCK
    before = read_blocks(survey, tmp_path)
    ids = sorted(before.records)
    assert len(ids) == NUM
    gone = [ids[0], ids[NUM // 2], ids[-1]]
    listed = put_list(tmp_path, [*gone, gone[0]])
    after = read_records(recipe_of(source, listed), tmp_path)
    assert after.fingerprint != before.fingerprint
    assert after.records == {i: one for i, one in before.records.items() if i not in gone}
    assert (before.num_excluded, after.num_excluded) == (0, 3)


@pytest.mark.parametrize("make", [csv, lines, tfrecords, images])
def test_only_the_blocks_of_excluded_records_are_prepared_again(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    source = make(data)
    first = survey_of(recipe_of(source), tmp_path)
    ids = list(read_blocks(first, tmp_path).records)
    listed = put_list(tmp_path, [ids[0]])
    second = survey_of(recipe_of(source, listed), tmp_path)
    assert num_to_prepare(first, second) == 1
    # An id that the source never had changes no block.
    listed.write_text(listed.read_text() + "never/there#5\n")
    third = survey_of(recipe_of(source, listed), tmp_path)
    assert num_to_prepare(second, third) == 0
    assert third.fingerprint != second.fingerprint


class Warned(Silent):
    """Keeps warnings."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, message: str) -> None:
        self.messages.append(message)


@dataclasses.dataclass(frozen=True)
class Built:
    """A table's snapshots with all of its records, and without some."""

    source: Any
    whole: ss.Snapshot
    examples: dict[str, tuple[str, bytes]]
    gone: list[str]
    listed: Path
    """The ids of those that are gone, and one that names no record."""
    rest: ss.Snapshot
    warned: Warned


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("exclude")
    source = csv(folder)
    whole = ss.build(recipe_of(source), folder / "out")
    examples = examples_of(whole)
    of_train, of_test = (
        [record_id for record_id, (split, _) in sorted(examples.items()) if split == name]
        for name in ("train", "test")
    )
    gone = sorted([of_train[0], of_train[-1], of_test[5]])
    listed = put_list(folder, [*gone, "gone.csv#13", gone[0]])
    warned = Warned()
    rest = ss.build(recipe_of(source, listed), folder / "out", progress=warned)
    return Built(source, whole, examples, gone, listed, rest, warned)


def test_a_snapshot_holds_what_its_list_leaves(built: Built) -> None:
    assert examples_of(built.rest) == {
        record_id: one for record_id, one in built.examples.items() if record_id not in built.gone
    }
    ids = IdList.of(built.listed.read_bytes())
    entry = built.rest.manifest.excluded
    assert entry is not None
    assert (entry.num_ids, entry.sha256) == (4, ids.sha256)
    assert built.whole.manifest.excluded is None
    assert build_facts(built.rest)["excluded"] == {"ids": 4, "records": 3}
    total, prepared = (build_facts(built.rest)["blocks"][name] for name in ("total", "prepared"))
    assert 1 <= prepared < total
    (message,) = built.warned.messages
    assert message.startswith("1 of 4 ids in ")
    assert "name no record" in message


def test_verify_proves_that_records_are_absent_or_finds_them(built: Built) -> None:
    ids = IdList.of(built.listed.read_bytes())
    report = check_snapshot(built.rest.path, progress=Silent(), absent=ids)
    assert report.exit_code == 0
    assert "the snapshot was built without them" in report.summary()
    report = check_snapshot(built.whole.path, progress=Silent(), absent=ids)
    assert report.exit_code == 3
    assert report.absence is not None
    assert sorted(str(one.record_id) for one in report.absence.found) == built.gone
    # It cannot know of records that a step across records made of those of another list.
    report = check_snapshot(built.whole.path, progress=Silent(), absent=IdList(("rows.csv#1",)))
    assert report.exit_code == 0
    assert "The snapshot was not built with this list" in report.summary()


def test_diff_and_why(built: Built) -> None:
    changes = why(built.whole, built.rest).changes
    assert [(one.part, one.thing, one.kind) for one in changes] == [
        ("exclude", "num_ids", "added"),
        ("exclude", "sha256", "added"),
    ]
    found = diff(built.whole, built.rest, progress=Silent())
    assert [str(one.part) for one in found.settings] == ["exclude", "exclude"]


def test_an_id_that_is_padded_with_spaces_is_not_missed(built: Built) -> None:
    """Of rows and of files, when they are excluded and when they are proven to be absent."""
    assert IdList.of(b"3/a.jpg \n\t 3/b.jpg").ids == (
        "\t 3/b.jpg",
        "3/a.jpg",
        "3/a.jpg ",
        "3/b.jpg",
    )
    record_id = built.gone[0]
    absent = IdList.of(f" {record_id} \n".encode())
    report = check_snapshot(built.whole.path, progress=Silent(), absent=absent)
    assert report.absence is not None
    assert [finding.record_id for finding in report.absence.found] == [record_id]


@pytest.mark.slow
def test_single_steps_make_the_same_and_refuse_a_list_that_changed(
    built: Built, tmp_path: Path
) -> None:
    """In a workspace of their own: the same bytes without the snapshot before."""
    out = str(tmp_path / "out")
    listed = tmp_path / "ids.txt"
    shutil.copy(built.listed, listed)
    for name in ("inventory", "prepare", "analyze", "plan", "write", "verify", "publish"):
        run_step(recipe_of(built.source, listed), out, name)
    stepwise = ss.Snapshot.open(f"{out}/made")
    manifests = [(Path(one.path) / "manifest.json").read_bytes() for one in (built.rest, stepwise)]
    assert manifests[0] == manifests[1]
    listed.write_text("rows.csv#13\nrows.csv#28\n")
    with pytest.raises(StepOrderError, match="excluded"):
        run_step(recipe_of(built.source, listed), out, "prepare")


@pytest.mark.slow
def test_a_limit_takes_other_records_instead(built: Built, tmp_path: Path) -> None:
    sampled = ss.build(recipe_of(built.source), tmp_path / "out", limit=40)
    gone = sorted(examples_of(sampled))[:5]
    listed = put_list(tmp_path, gone)
    other = examples_of(ss.build(recipe_of(built.source, listed), tmp_path / "out", limit=40))
    assert len(other) == 40
    assert not set(other) & set(gone)


def test_a_limit_takes_other_files_instead(tmp_path: Path) -> None:
    source = images(tmp_path / "data")
    files = survey_of(recipe_of(source), tmp_path, limit=40).inventory.files
    gone = [file.path for file in files[:5]]
    recipe = recipe_of(source, put_list(tmp_path, gone))
    others = survey_of(recipe, tmp_path, limit=40).inventory.files
    assert len(files) == len(others) == 40
    assert not {file.path for file in others} & set(gone)


def test_files_of_any_name(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("# a.txt", "a\nb.txt", "c.txt"):
        (tmp_path / "data" / name).write_text(name)
    source = ss.TextFiles(str(tmp_path / "data"), per="file")
    listed = put_list(tmp_path, ["./# a.txt", json.dumps("a\nb.txt")])
    survey = survey_of(recipe_of(source, listed), tmp_path)
    assert [file.path for file in survey.inventory.files] == ["c.txt"]
    assert survey.num_files_excluded == 2


@pytest.mark.parametrize("kind", ["excluded", "beside", "unknown"])
def test_ids_that_were_never_seen_prove_nothing(built: Built, tmp_path: Path, kind: str) -> None:
    """Whether they name records is known from what was left out, and from snapshots beside."""
    if kind == "excluded":  # the snapshot beside it is gone
        shutil.copytree(built.rest.path, tmp_path / Path(built.rest.path).name)
        folder, listed = tmp_path, built.listed.read_bytes()
    else:
        folder = Path(built.rest.path)
        listed = f"{built.gone[0]}{',reason' * (kind == 'unknown')}\n".encode()
    report = check_snapshot(folder, progress=Silent(), absent=IdList.of(listed))
    assert report.absence is not None
    assert report.absence.is_seen == (kind != "unknown")
    first, second = report.summary().split("\n")
    if kind == "unknown":
        first, second = second, first
        assert second.startswith("not proved: none of 1 id names a record of this snapshot")
    assert first.startswith("intact: ")
    assert report.to_json()["absence"]["is_seen"] == (kind != "unknown")  # type: ignore[index]


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
def test_the_procedure_of_docs_takedown_leaves_no_trace(
    tmp_path: Path,
    lab: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
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
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(startup_noise, "tame_libraries", lambda: None)
    ended = []
    for command in commands:
        words_of = command.replace("OLD", first.manifest.fingerprint).split()
        if words_of[0] == "rm":
            shutil.rmtree(tmp_path / words_of[2])
        else:
            with pytest.raises(SystemExit) as exited:
                cli.main(words_of[1:])
            ended.append((exited.value.code, *capsys.readouterr()))
    assert [code for code, _, _ in ended] == [0, 0, 3, 0]
    (_, built, _), (_, absent, _), (_, *present), _ = ended
    assert "excluded: the records of 2 ids" in built
    for one in ids:
        assert f"reviews.csv#{one}" in "".join(present)
    # What the page shows, but for the numbers of files and bytes, and the place.
    found, expected = (
        re.sub(r"[\d,]+ (?=files|bytes)|\S*out/reviews/[0-9a-f]{16}", "…", text)
        for text in (absent, shown.partition("\n")[2])
    )
    assert found == expected
    assert bytes_in(out, words.encode()) == []


def test_an_excluded_record_that_cannot_be_read_is_no_reject(tmp_path: Path) -> None:
    text = csv_text().replace("7,person 007,b", "x,person 007,b")
    (tmp_path / "rows.csv").write_text(text)
    source = ss.Csv(str(tmp_path / "rows.csv"), types={"n": "int64"})
    record_id = f"rows.csv#{text.index('x,person 007')}"
    assert list(read_records(recipe_of(source), tmp_path).rejects) == [record_id]
    after = read_records(recipe_of(source, put_list(tmp_path, [record_id])), tmp_path)
    assert (after.rejects, after.num_excluded) == ({}, 1)
    # A snapshot that was built with it has it among its rejects.
    snapshot = ss.build(recipe_of(source, max_rejects=0.1), tmp_path / "out")
    absent = IdList.of(record_id.encode())
    report = check_snapshot(snapshot.path, progress=Silent(), absent=absent)
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

    snapshot = ss.build(recipe_of(source, listed, prepare=steps, splits=splits), tmp_path / "out")
    windows = [
        ss.parse_example(example, snapshot.manifest.features)["v"]
        for _, example in examples_of(snapshot).values()
    ]
    values = {int(value) for window in windows for value in np.ravel(window)}
    assert {1008, 1009, 1011, 1012} <= values
    assert 1010 not in values


def test_nothing_is_left(built: Built, tmp_path: Path) -> None:
    listed = put_list(tmp_path, list(built.examples))
    with pytest.raises(DataError, match=r"leaves out all 120 records"):
        ss.build(recipe_of(built.source, listed), tmp_path / "out")
    source = images(tmp_path / "data")
    listed = put_list(tmp_path, [f"{'ab'[n % 2]}/{n}.png" for n in range(NUM)])
    with pytest.raises(DataError, match=r"excluded by the recipe: 120"):
        survey_of(recipe_of(source, listed), tmp_path)


def test_comments_order_and_repetitions_are_the_same_list(tmp_path: Path) -> None:
    source = csv(tmp_path)
    listed = tmp_path / "ids.txt"
    listed.write_bytes(b"\xef\xbb\xbfrows.csv#13\nrows.csv#28")
    first = survey_of(recipe_of(source, listed), tmp_path)
    listed.write_bytes(b"# two\r\nrows.csv#28\r\n\r\n#\nrows.csv#13\r\nrows.csv#28\r\n")
    second = survey_of(recipe_of(source, listed), tmp_path)
    assert first.fingerprint == second.fingerprint
    assert first.excluded == IdList(("rows.csv#13", "rows.csv#28"))


@pytest.mark.parametrize("exclude", ["", 5, ["a"]])
def test_exclude_must_be_a_path(exclude: Any) -> None:
    with pytest.raises(RecipeError, match="is not the path of a text file"):
        ss.Recipe(name="made", source=ss.Csv("a.csv"), exclude=exclude)


@pytest.mark.parametrize("name", ["missing.txt", "."])
def test_the_list_must_be_a_file(tmp_path: Path, name: str) -> None:
    source = csv(tmp_path)
    with pytest.raises(RecipeError, match="exclude=: "):
        survey_of(recipe_of(source, tmp_path / name), tmp_path)


@pytest.mark.slow
def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    source = images(tmp_path / "data")
    name = b"caf\xe9.png"
    shutil.copy(tmp_path / "data/a/0.png", bytes(tmp_path / "data/a/") + b"/" + name)
    listed = tmp_path / "ids.txt"
    listed.write_bytes(b"a/" + name + b"\n")
    ids = IdList.of(listed.read_bytes())
    whole, rest = (ss.build(recipe_of(source, of), tmp_path / "out") for of in (None, listed))
    assert set(examples_of(whole)) - set(examples_of(rest)) == {r"a/caf\xe9.png"}
    codes = [
        check_snapshot(snapshot.path, progress=Silent(), absent=ids).exit_code
        for snapshot in (whole, rest)
    ]
    assert codes == [3, 0]


def test_an_id_as_it_is_shown(tmp_path: Path) -> None:
    """The index shows bytes that are not UTF-8 as an escape, and ids are copied from there."""
    (tmp_path / "data").mkdir()
    for number, name in enumerate((b"caf\xe9.csv", b"tea.csv")):
        path = bytes(tmp_path / "data") + b"/" + name
        Path(os.fsdecode(path)).write_text("x,y\n" + "".join(f"{number}{k},0\n" for k in range(9)))
        Path(os.fsdecode(path)).with_suffix(".txt").write_text(f"text {number}")
    source = ss.Csv(str(tmp_path / "data" / "*.csv"))
    (tmp_path / "all").mkdir()
    whole = ss.build(recipe_of(source, None), tmp_path / "all")
    gone = [one for one in examples_of(whole) if one.startswith(r"caf\xe9.csv#")][:3]
    rest = ss.build(recipe_of(source, put_list(tmp_path, gone)), tmp_path / "out")
    assert set(examples_of(whole)) - set(examples_of(rest)) == set(gone)
    files = ss.TextFiles(str(tmp_path / "data"), per="file")
    survey = survey_of(recipe_of(files, put_list(tmp_path, [r"caf\xe9.txt"])), tmp_path)
    assert [file.path for file in survey.inventory.files] == ["tea.txt"]


def test_an_id_as_it_is_shown_below_its_split(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    arrays_of_splits(tmp_path / "data")
    (tmp_path / "data" / "mnist.npz").rename(os.fsdecode(bytes(tmp_path) + b"/data/caf\xe9.npz"))
    source = ss.Numpy(str(tmp_path / "data" / "*.npz"), split_arrays=True)
    listed = put_list(tmp_path, [r"train/caf\xe9.npz#3"])
    survey = survey_of(recipe_of(source, listed), tmp_path)
    excluded = {one for block in survey.inventory.blocks for one in block.excluded}
    assert excluded == {"train/caf\udce9.npz#3"}


@pytest.mark.parametrize("declared", [False, True])
def test_a_class_that_only_an_excluded_row_has_is_inferred(tmp_path: Path, declared: bool) -> None:
    """docs/takedown.md: types and classes come from all rows of a file, unless declared."""
    text = csv_text().replace("7,person 007,b", "7,person 007,rare")
    (tmp_path / "rows.csv").write_text(text)
    listed = put_list(tmp_path, [f"rows.csv#{text.index('7,person 007')}"])
    source = ss.Csv(str(tmp_path / "rows.csv"), label="label")
    options: dict[str, Any] = {}
    if declared:
        label = ss.ClassLabel(("a", "b"))
        options["features"] = {"n": ss.Scalar("int64"), "name": ss.Scalar("string"), "label": label}
    survey = survey_of(recipe_of(source, listed, **options), tmp_path)
    label = survey.features.prepared["label"]
    assert isinstance(label, ss.ClassLabel)
    assert ("rare" in label.names) == (not declared)
