"""A split with a fraction and without records is refused, before anything is published."""

import struct
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.cli import main
from snapshard.pipelines.inspect.forecast import forecast
from snapshard.pipelines.prepare import split_ends
from snapshard.schemas.progress import Silent

SHARES = {"train": 0.7, "validation": 0.15, "test": 0.15}


def _write(folder: Path, rows: list[tuple[Any, ...]]) -> ss.Csv:
    text = "".join(",".join(map(str, row)) + "\n" for row in [("x", "g", "t"), *rows])
    (folder / "t.csv").write_text(text)
    return ss.Csv(str(folder / "t.csv"), types={"g": "string"})


def _speakers(numbers: dict[str, int], *, step: int = 1) -> list[tuple[Any, ...]]:
    rows = [(i, name, i) for name, number in numbers.items() for i in range(number)]
    return rows[::step]


SIX = dict.fromkeys("abcdef", 10)
KINDS: dict[str, tuple[list[tuple[Any, ...]], dict[str, Any], str]] = {
    "hash": ([(0, "a", 0), (1, "b", 1)], {}, "there are 2 records"),
    "grouped": (_speakers(SIX), {"group_by": "g"}, "'g' keeps together in 6 groups"),
    "stratified": ([(0, "a", 0), (1, "b", 1)], {"stratify_by": "g"}, "each value of 'g'"),
    "balanced": (
        _speakers({"a": 3, "b": 2}),
        {"group_by": "g", "assign": "balanced"},
        "'g' keeps together in 2 groups",
    ),
    "time": ([(i, "a", 7) for i in range(20)], {"feature": "t"}, "the time 't'"),
}


def _splits(given: dict[str, Any], **more: Any) -> ss.Splits:
    if "feature" in given:
        return ss.Splits.by_time(given["feature"], **SHARES, **more)
    return ss.Splits(**SHARES, **given, **more)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_empty_splits_are_refused_and_may_be_allowed(tmp_path: Path, kind: str) -> None:
    rows, given, said = KINDS[kind]
    source = _write(tmp_path, rows)
    recipe = ss.Recipe(name="x", source=source, splits=_splits(given))
    for attempt in (
        lambda: forecast(recipe, progress=Silent()),
        lambda: ss.build(recipe, tmp_path / "out"),
    ):
        with pytest.raises(ss.SnapshardError, match="would be empty") as raised:
            attempt()
        told = str(raised.value)
        assert raised.value.exit_code == 2
        assert said in told
        assert "other fractions" in told
        assert "allow_empty=True" in told
        assert ('assign="balanced"' in told) == (kind == "grouped")
    assert not list((tmp_path / "out" / "x").glob("*/manifest.json"))
    allowed = ss.Recipe(name="x", source=source, splits=_splits(given, allow_empty=True))
    assert any("will be empty" in one for one in forecast(allowed, progress=Silent()).warnings)
    snapshot = ss.build(allowed, tmp_path / "out")
    counts = [split.num_examples for split in snapshot.manifest.splits.values()]
    assert 0 in counts
    assert sum(counts) == len(rows)
    with pytest.raises(ss.SnapshardError, match="would be empty"):
        ss.build(recipe, tmp_path / "out")  # though it is published
    assert ss.build(recipe, tmp_path / "out", limit=2).manifest.splits  # a dry run


def test_splits_that_the_data_names_have_no_fraction(tmp_path: Path) -> None:
    source = _write(tmp_path, [(i, "train" if i % 2 else "test", i) for i in range(10)])
    recipe = ss.Recipe(name="x", source=source, splits=ss.Splits.by_column("g"))
    splits = ss.build(recipe, tmp_path / "out").manifest.splits
    assert splits["validation"].num_examples == 0


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [1, 3, 8, 30])
def test_raw_data_and_what_init_prints_build_however_few_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], num_rows: int
) -> None:
    """Where one of the usual splits would be empty, there is one split. A recipe is refused."""

    def call(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        found = capsys.readouterr()
        return ended.value.code, found.out, found.err

    source = _write(tmp_path, [(i, "ab"[i % 2], i) for i in range(num_rows)])
    data, out, recipe = str(tmp_path / "t.csv"), str(tmp_path / "out"), str(tmp_path / "r.py")
    few = num_rows < 30
    for arguments in (["plan", data], ["build", data, "--out", out]):
        code, _, told = call(*arguments)
        assert code == 0
        assert ("splits=ss.Splits(train=1.0)" in told) == few
    if few:
        with pytest.raises(ss.SnapshardError, match="would be empty"):
            ss.build(ss.Recipe(name="x", source=source), out)
    code, text, _ = call("init", data)
    assert code == 0
    assert ("splits=ss.Splits(train=1.0)," in text) == few
    (tmp_path / "r.py").write_text(text)
    assert call("plan", recipe)[0] == 0
    assert call("build", recipe, "--out", out)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 4, 20])
def test_the_table_and_the_warning_of_a_plan_count_alike(tmp_path: Path, limit: int | None) -> None:
    for num_rows in range(1, 13):
        source = _write(tmp_path, [(i, "a", i) for i in range(num_rows)])
        splits = ss.Splits(**SHARES, allow_empty=True)
        recipe = ss.Recipe(name="x", source=source, splits=splits)
        found = forecast(recipe, progress=Silent(), limit=limit)
        counts = {split.name: split.num_examples for split in found.splits}
        assert sum(counts.values()) == min(num_rows, limit or num_rows)
        empty = [name for name, count in counts.items() if not count]
        (told,) = [one for one in found.warnings if "be empty" in one] or [""]
        assert told == (f"these splits will be empty: {', '.join(empty)}" if empty else "")
    built = ss.build(recipe, tmp_path / "out", limit=limit).manifest.splits
    assert {name: split.num_examples for name, split in built.items()} == counts


@pytest.mark.slow
def test_six_speakers_are_balanced(tmp_path: Path) -> None:
    splits = ss.Splits(**SHARES, group_by="g", assign="balanced")
    found = []
    for step in (1, -1):
        source = _write(tmp_path, _speakers(SIX, step=step))
        snapshot = ss.build(ss.Recipe(name="x", source=source, splits=splits), tmp_path / "out")
        assert {n: s.num_examples for n, s in snapshot.manifest.splits.items()} == {
            "train": 40,
            "validation": 10,
            "test": 10,
        }
        found.append(_groups(snapshot))
        assert sorted(len(names) for names in found[-1].values()) == [1, 1, 4]
    assert found[0] == found[1]
    # Another speaker, far longer than the others: wanted are 112, 24 and 24.
    source = _write(tmp_path, _speakers({**SIX, "g": 100}))
    recipe = ss.Recipe(name="x", source=source, splits=splits)
    snapshot = ss.build(recipe, tmp_path / "out")
    assert {n: s.num_examples for n, s in snapshot.manifest.splits.items()} == {
        "train": 110,
        "validation": 30,
        "test": 20,
    }
    alone = ss.build(recipe, tmp_path / "alone").manifest
    assert alone.files == snapshot.manifest.files


def _groups(snapshot: ss.Snapshot) -> dict[str, set[bytes]]:
    features = snapshot.manifest.features
    found: dict[str, set[bytes]] = {}
    for name, split in snapshot.manifest.splits.items():
        groups = found.setdefault(name, set())
        for shard in split.shards:
            content, at = (Path(snapshot.path) / shard.file).read_bytes(), 0
            while at < len(content):
                (length,) = struct.unpack_from("<Q", content, at)
                groups.add(ss.parse_example(content[at + 12 : at + 12 + length], features)["g"])
                at += length + 16
    return found


def test_records_without_a_group_are_rejects(tmp_path: Path) -> None:
    source = _write(tmp_path, [*_speakers(SIX), (1, "", 1)])
    splits = ss.Splits(**SHARES, group_by="g", assign="balanced")
    recipe = ss.Recipe(name="x", source=source, splits=splits, max_rejects=1)
    snapshot = ss.build(recipe, tmp_path / "out")
    assert snapshot.manifest.num_rejects == 1
    assert sum(split.num_examples for split in snapshot.manifest.splits.values()) == 60


def test_too_many_groups_to_balance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_ends, "MAX_GROUPS", 5)
    splits = ss.Splits(**SHARES, group_by="g", assign="balanced")
    recipe = ss.Recipe(name="x", source=_write(tmp_path, _speakers(SIX)), splits=splits)
    with pytest.raises(ss.SnapshardError, match="supports up to 5 groups, but 'g' has more"):
        ss.build(recipe, tmp_path / "out")


@pytest.mark.slow  # builds with worker processes
def test_balanced_groups_come_out_alike_with_any_workers(tmp_path: Path) -> None:
    sizes = {f"s{i}": 20 + 37 * i % 50 for i in range(40)}
    source = _write(tmp_path, _speakers(sizes))
    splits = ss.Splits(**SHARES, group_by="g", assign="balanced")
    recipe = ss.Recipe(
        name="x", source=source, splits=splits, prepare=[ss.records.drop_duplicates("x", "g")]
    )
    one = ss.build(recipe, tmp_path / "one").manifest
    two = ss.build(recipe, tmp_path / "two", workers=2).manifest
    assert one.files == two.files
    total = sum(sizes.values())
    for name, share in SHARES.items():
        assert abs(one.splits[name].num_examples - share * total) <= 2


def test_rejects_are_told_where_a_split_would_be_empty(tmp_path: Path) -> None:
    source = _write(tmp_path, [(0, "a", 0), (1, "", 1)])
    recipe = ss.Recipe(
        name="x", source=source, splits=ss.Splits(**SHARES, group_by="g"), max_rejects=1
    )
    with pytest.raises(ss.SnapshardError, match=r"there is 1 record,.* in 1 group; 1 was reject"):
        ss.build(recipe, tmp_path / "out")
