"""Tables beside images and sounds: what they name, label and split, or why they are refused."""

import dataclasses
import io
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image as Pillow

import snapshard as ss
from snapshard.pipelines.inspect.suggest import describe_suggestion, suggest_recipe
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.errors import DataError
from snapshard.transforms.sources.folders.side_tables import LabelTable, csv_source
from snapshard.transforms.storage.opened_source import open_source

from ..integration.sources.built import build_all


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(*paths: str, **texts: str) -> None:
    """Writes different images, or sounds, and tables ("train__labels.csv" is in a folder)."""
    for number, name in enumerate(paths):
        path = Path("data") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        sink = io.BytesIO()
        if name.endswith(".wav"):
            soundfile.write(sink, np.full(30, number / 500), 8000, format="WAV")
        else:
            Pillow.new("RGB", (4, 3), (number % 256, number // 256, 9)).save(sink, "PNG")
        path.write_bytes(sink.getvalue())
    for name, text in texts.items():
        end = ".txt" if name.endswith("_txt") else ".csv"
        table = Path("data", *name.removesuffix("_txt").split("__")).with_suffix(end)
        table.parent.mkdir(parents=True, exist_ok=True)
        table.write_text(text)


def rows(header: str, names: Iterable[object], **values: str) -> str:
    """A table of files; a column's values are the letters of its text in turn."""
    lines = [
        ",".join([str(name), *(text.split()[i % len(text.split())] for text in values.values())])
        for i, name in enumerate(names)
    ]
    return "\n".join([header, *lines]) + "\n"


SEEN = ("well", "ill")


def refusal(url: str = "data") -> tuple[str, list[dict[str, Any]]]:
    """The message, and the arguments of recipes in its lines to copy."""
    with pytest.raises(DataError) as caught:
        suggest_recipe(url)
    message = str(caught.value)
    lines = [line.strip() for line in message.splitlines() if line.strip().startswith("source=")]
    return message, [eval(f"dict({line})", {"ss": ss}) for line in lines]


@pytest.mark.parametrize("end", ["png", "wav"])
def test_a_column_of_splits_makes_the_splits(end: str) -> None:
    names = [f"{n}.{end}" for n in range(60)]
    table = rows("path,label,Set", names, label="x y", split="TRAIN TRAIN valid TEST")
    write(*(f"all/{name}" for name in names), labels=table)
    splits = ss.Splits.by_column("Set", train="TRAIN", validation="valid", test="TEST")
    make = ss.ImageFolder if end == "png" else ss.AudioFolder
    recipe = suggest_recipe("data")
    assert recipe.source == make("data/all", table="data/labels.csv")
    assert recipe.splits == splits
    Path("recipe.py").write_text(describe_suggestion("data"))
    assert load_recipe_file(Path("recipe.py")).splits == splits


@pytest.mark.parametrize(
    ("column", "values"),
    [("split", "train outer"), ("split", "train"), ("part", "train test"), ("fold", "1 2 3")],
)
def test_other_columns_are_features(column: str, values: str) -> None:
    names = [f"{n}.png" for n in range(40)]
    write(*names, labels=rows(f"file,label,{column}", names, label="a b", column=values))
    recipe = suggest_recipe("data")
    assert recipe.splits.fractions
    assert recipe.source.label == "label"


@pytest.mark.parametrize(
    ("column", "num_different", "label"),
    [
        ("caption", 40, None),
        ("caption", 21, None),
        ("breed", 20, "breed"),
        ("label", 20, "label"),
        ("Label", 2, "Label"),
        ("label", 40, None),
    ],
)
def test_texts_that_are_mostly_different_are_no_classes(
    column: str, num_different: int, label: str | None
) -> None:
    names = [f"{n}.png" for n in range(40)]
    texts = " ".join(f"text{n}" for n in range(num_different))
    write(*names, labels=rows(f"file,{column}", names, texts=texts))
    assert suggest_recipe("data").source.label == label


@pytest.mark.parametrize(
    "table",
    [
        "file;label;note\n{};a;x\n",
        ",file,label\n0,{},a\n",
        "{},a\n",
        "image,caption\n{},one\n",
        "image,A,B\n{},0,1\n",
        "file,label,note\n{},a,\n",
    ],
)
def test_the_text_of_a_recipe_with_any_table(table: str) -> None:
    names = [f"{n}.png" for n in range(30)]
    head, row = table.splitlines()[:-1], table.splitlines()[-1]
    lines = [row.format(name).replace("a", "ab"[n % 2]) for n, name in enumerate(names)]
    if "caption" in table:
        lines = [f"{line}{n}" for n, line in enumerate(lines * 2)]
    write(*names, labels="\n".join([*head, *lines]) + "\n")
    Path("recipe.py").write_text(describe_suggestion("data"))
    assert load_recipe_file(Path("recipe.py")).source == suggest_recipe("data").source


def test_esc_50_has_labels_as_numbers_and_texts() -> None:
    names = [f"1-{n}-A-{n % 3}.wav" for n in range(30)]
    header = "filename,fold,target,category,esc10,src_file,take"
    values = {"t": "0 1 2", "category": "dog cow hen", "e": "True False", "s": "5", "take": "A B"}
    write(*(f"audio/{n}" for n in names), meta__esc50=rows(header, names, fold="1 2", **values))
    source = ss.AudioFolder("data/audio", table="data/meta/esc50.csv", label="category")
    assert suggest_recipe("data").source == source


@pytest.mark.parametrize("end", ["png", "wav"])
def test_a_table_in_a_folder_of_an_unpacked_archive(end: str) -> None:
    names = [f"1-{n}-A-{n % 3}.{end}" for n in range(30)]
    table = rows("filename,fold,category", names, fold="1 2", category="dog cow hen")
    write(*(f"x-master/audio/{name}" for name in names), **{"x-master__meta__esc": table})
    make = ss.ImageFolder if end == "png" else ss.AudioFolder
    table_url = "data/x-master/meta/esc.csv"
    source = make("data/x-master/audio", table=table_url, label="category")
    assert suggest_recipe("data").source == source


def test_files_of_one_name_in_two_splits_with_a_table_for_each(tmp_path: Path) -> None:
    train, val = ([f"{s}/{n}.png" for n in range(num)] for s, num in (("train", 20), ("val", 6)))
    ages = {"age": "old young", "kind": "a b"}
    header = "file,age,kind"
    write(
        *train, *val, label_train=rows(header, train, **ages), label_val=rows(header, val, **ages)
    )
    message, lines = refusal(str(tmp_path / "data"))
    assert "label_train.csv names 20 of them" in message
    built = build_all(tmp_path / "work", **lines[0])
    num = {name: split.num_examples for name, split in built.manifest.splits.items()}
    assert num == {"train": 20, "validation": 6, "test": 0}


def test_a_table_beside_folders_called_like_splits() -> None:
    """One such folder is no class, however few images the other has."""
    train = [f"train_images/{n}.png" for n in range(20)]
    table = rows("image_id,label", [f"{n}.png" for n in range(20)], label="0 1 2")
    write(*train, "test_images/77.png", train=table)
    message, lines = refusal()
    assert "train.csv names 20 of them" in message
    source = ss.ImageFolder("data/train_images", table="data/train.csv")
    assert lines[0]["source"] == source


@pytest.mark.parametrize(
    ("last", "label"), [("0 0 1", "label"), ("0 1 1", None), ("0 0 0.5", None)]
)
def test_one_hot_columns_are_the_label(last: str, label: str | None) -> None:
    names = [f"{n}.png" for n in range(30)]
    table = rows("image,age,MEL,NV,BCC", names, a="30 40", m="1 0 0", n="0 1 0", b=last)
    write(*names, truth=table)
    one_hot = ("MEL", "NV", "BCC") if label else ()
    source = ss.ImageFolder("data", table="data/truth.csv", label=label, one_hot=one_hot)
    recipe = suggest_recipe("data")
    assert recipe.source == source
    assert recipe.splits.stratify_by == label
    if label:
        assert 'one_hot=("MEL", "NV", "BCC")' in describe_suggestion("data")


def test_transcripts_without_a_header() -> None:
    names = [f"LJ01-{n:03}" for n in range(12)]
    table = "".join(f"{name}|The text {name}\n" for name in names)
    write(*(f"wavs/{name}.wav" for name in names), metadata=table)
    source = ss.AudioFolder("data/wavs", table="data/metadata.csv", label=None)
    assert suggest_recipe("data").source == source
    texts = [f'"Yes," said {n}.' if n % 4 == 0 else f"No {n}." for n in range(12)]
    said = [f"{name}|{text}" for name, text in zip(names, texts, strict=True)]
    Path("data/metadata.csv").write_text("\n".join(said) + "\n")
    assert suggest_recipe("data").source == source
    table = LabelTable(name="metadata.csv", data=Path("data/metadata.csv").read_bytes(), label=None)
    found = table.read(table.features()).columns["column_1"].to_pylist()
    assert found == [text.encode() for text in texts]


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("84-121123-{:04d}", ["GO", "DO YOU HEAR", "BUT IN LESS THAN FIVE MINUTES"]),
        ("BAC009S{:04d}W", ["而 对 楼市", "成交", "也 成为"]),
        ("spk1/utt{}", ['"no" he said, and', "yes;", "a|b"]),
    ],
)
def test_ids_before_words(name: str, texts: list[str]) -> None:
    """Transcripts as those of LibriSpeech in one file: only the first blank separates."""
    names = [name.format(n) for n in range(9)]
    write(*(f"wav/{name}.wav" for name in names))
    lines = [f"{name} {texts[n % 3]}" for n, name in enumerate(names)]
    Path("data/text.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    assert suggest_recipe("data").source.table == "data/text.txt"
    table = LabelTable(name="text.txt", data=Path("data/text.txt").read_bytes(), label=None)
    read = table.read(table.features())
    assert [*read.names] == names
    found = [text.decode() for text in read.columns["column_1"].to_pylist()]
    assert found == [texts[n % 3] for n in range(9)]


def test_transcripts_of_each_folder(tmp_path: Path) -> None:
    """As LibriSpeech's: a glob of tables is read as one."""
    folders = ["d/84/12", "d/84/13", "d/251/7"]
    names = [
        f"{folder.replace('d/', '').replace('/', '-')}-{n:04d}"
        for folder in folders
        for n in range(4)
    ]
    words = ["GO", "DO YOU HEAR ME", "BUT IN LESS THAN", "THE ENGLISH"]
    texts = {name: f"{words[n % 4]} {chr(65 + n)}" for n, name in enumerate(names)}
    write(*(f"d/{name.rpartition('-')[0].replace('-', '/')}/{name}.wav" for name in names))
    for folder in folders:
        start = folder.replace("d/", "").replace("/", "-")
        lines = [f"{name} {text}" for name, text in texts.items() if name.startswith(f"{start}-")]
        Path("data", folder, f"{start}.trans.txt").write_text("\n".join(lines) + "\n")
    Path("data/SPEAKERS.TXT").write_text("84 | F | Ann\n251 | M | Ben\n")
    source = ss.AudioFolder("data/d", table="data/*/*/*/*.trans.txt", label=None)
    with pytest.raises(DataError, match=re.escape(source.table or "")) as refused:
        suggest_recipe("data")
    assert refused.value.readings[1].source == source  # type: ignore[attr-defined]
    source = ss.AudioFolder(
        str(tmp_path / "data/d"), table=str(tmp_path / "data/*/*/*/*.trans.txt"), label=None
    )
    snapshot = build_all(tmp_path, source)
    (batch,) = snapshot.reader().dataset("train", 99, shuffle=False)
    assert sorted(text.decode() for text in batch["column_1"].numpy()) == sorted(texts.values())
    assert build_all(tmp_path, source).cached
    changed = Path("data/d/251/7/251-7.trans.txt")
    changed.write_text(changed.read_text().replace("GO", "WENT"))
    assert not build_all(tmp_path, source).cached


@pytest.mark.parametrize(
    "text",
    [
        "a1 dog\na2 cat\na3 dog\n",  # two columns
        "file text\na1 dog barks\na2 cat\na3 x\n",
        "1 0.5 0.5\n2 0.5\n3 0.1 0.2\n",
        "a1 dog\nb cat and\na3 x\n",
        "a1 a dog\na1 cat\na1 x\n",  # rows of one
    ],
)
def test_what_are_no_ids_before_words(text: str) -> None:
    assert csv_source("t.txt", text.encode()).delimiter != "\t"


@pytest.mark.parametrize("end", ["png", "wav"])
def test_a_table_of_some_files_is_refused(end: str) -> None:
    names = [f"{n}.{end}" for n in range(60)]
    write(*(f"all/{name}" for name in names), train=rows("file,label", names[:50], label="a b"))
    message, (line,) = refusal()
    assert "holds 60" in message
    assert f"train.csv names 50 of them, and not 'all/50.{end}'" in message
    make = ss.ImageFolder if end == "png" else ss.AudioFolder
    assert line == {"source": make("data/all", table="data/train.csv", unlisted="skip")}


def test_the_tables_of_splits_are_built_together(tmp_path: Path) -> None:
    names = [f"{n}.png" for n in range(30)]
    train = rows("file,label", names[:20], label="a b")
    write(
        *(f"all/{n}" for n in names),
        train=train,
        test=rows("file,label", names[20:25], label="b c"),
    )
    (both, *_) = refusal(str(tmp_path / "data"))[1]
    built = build_all(tmp_path / "work", **both)
    num = {name: split.num_examples for name, split in built.manifest.splits.items()}
    assert num == {"train": 20, "validation": 0, "test": 5}
    assert built.manifest.num_rejects == 0
    facts = json.loads((Path(built.path) / "build.json").read_text())
    assert facts["input"]["skipped"]["file without a row in the table"] == 10 + 25


@pytest.mark.parametrize(
    ("table", "other", "folders"),
    [("train", "test", ("all", "all")), ("train__metadata", "val__metadata", ("train", "val"))],
)
def test_a_table_for_each_split_is_refused(
    table: str, other: str, folders: tuple[str, str]
) -> None:
    first, second = range(40), range(40, 60)
    if folders[0] != folders[1]:
        second = range(20)
    write(
        *(f"{folders[0]}/{n}.png" for n in first),
        *(f"{folders[1]}/{n}.png" for n in second),
        **{table: rows("file_name,label", (f"{n}.png" for n in first), label="a b")},
        **{other: rows("file_name,label", (f"{n}.png" for n in second), label="b a")},
    )
    message, (both, one, two) = refusal()
    unlisted = "skip" if folders[0] == folders[1] else "reject"
    sources = [
        ss.ImageFolder(
            f"data/{folder}", table=f"data/{name.replace('__', '/')}.csv", unlisted=unlisted
        )
        for folder, name in zip(folders, (table, other), strict=True)
    ]
    split = "test" if other == "test" else "validation"
    assert both == {
        "source": ss.Sources(train=sources[0], **{split: sources[1]}),
        "splits": ss.Splits.by_folder(),
    }
    assert [line["source"] for line in (one, two)] == sources
    assert f"{table.replace('__', '/')}.csv names 40 of them" in message
    assert f"{other.replace('__', '/')}.csv names 20 of them" in message


def test_tables_of_splits_beside_one_of_all() -> None:
    names = [f"cv_{n}.wav" for n in range(40)]
    parts = {"train": names[:30], "dev": names[30:35], "test": names[35:]}
    tables = {split: rows("path,sentence", part, s="yes no") for split, part in parts.items()}
    write(*(f"clips/{n}" for n in names), validated=rows("path,sentence", names, s="no"), **tables)
    message, (both, single) = refusal()
    assert "validated.csv has a row for them, as have tables of splits together" in message
    assert [name for name, _ in both["source"].sources] == ["train", "validation", "test"]
    assert single["source"].table == "data/validated.csv"


@pytest.mark.parametrize("end", ["csv", "txt"])
def test_several_captions_of_a_file_are_a_list(end: str) -> None:
    names = [f"{n}.png" for n in range(20)]
    texts = " ".join(f"text{n}" for n in range(40))
    write(*(f"Images/{name}" for name in names))
    Path("data", f"captions.{end}").write_text(rows("image,caption", names * 2, t=texts))
    source = ss.ImageFolder("data/Images", table=f"data/captions.{end}", label=None, rows="list")
    assert suggest_recipe("data").source == source
    text = describe_suggestion("data")
    assert '"caption": ss.Sequence(ss.Scalar("string"))' in text


def test_several_rows_for_a_file_are_refused() -> None:
    names = [f"{n}.png" for n in range(20)]
    write(*names, votes=rows("image,label,person", names * 2, texts="cat dog cow", p="1 2"))
    message, lines = refusal()
    assert "votes.csv has several rows for 20 of 20 images (first: '0.png')" in message
    assert "'A record for each row'" in message
    source = ss.ImageFolder("data", table="data/votes.csv", rows="list")
    assert lines == [{"source": source}]
    opened = open_source("data", ".")
    label = source.infer(source.select(opened.list()).files, opened)["label"]
    assert label == ss.Sequence(ss.ClassLabel(("cat", "cow", "dog")))


@pytest.mark.parametrize("labels", ["cat dog", "mel nv"])
def test_a_table_and_folders_that_may_be_classes(labels: str) -> None:
    names = [f"{'dog' if n % 2 else 'cat'}/ISIC_{n}.png" for n in range(20)]
    ids = [f"L{n},ISIC_{n}" for n in range(20)]
    write(*names, meta=rows("lesion_id,image_id,label", ids, label=labels))
    source = ss.ImageFolder("data", table="data/meta.csv")
    if labels == "cat dog":
        assert suggest_recipe("data").source == source
        return
    message, (folders, table) = refusal()
    assert "in folders that may be classes ('cat', 'dog')" in message
    assert "meta.csv (columns 'lesion_id', 'label'), which has a row for each" in message
    assert (folders["source"], table["source"]) == (ss.ImageFolder("data"), source)


def test_a_table_whose_label_is_unknown_and_folders_that_may_be_classes() -> None:
    names = [
        f"{split}/part_{n % 2}/{split}{n}.wav" for split in ("train", "test") for n in range(9)
    ]
    stems = [name.rpartition("/")[2][:-4] for name in names]
    write(*names, meta=rows("id,dx,age", stems, dx="mel nv", age="1"))
    message, (folders, table) = refusal()
    assert "('part_0', 'part_1')" in message
    splits = ss.Splits.by_folder()
    assert folders == {"source": ss.AudioFolder("data", split_folders=True), "splits": splits}
    source = ss.AudioFolder("data", table="data/meta.csv", label=None, split_folders=True)
    assert table == {"source": source, "splits": splits}
    assert "dx" in describe_suggestion("data", label="dx")


def test_lists_of_labels_are_the_label() -> None:
    write(*(f"{n}.png" for n in range(20)))
    lines = [json.dumps({"file": f"{n}.png", "label": ["a", "bc"[n % 2]]}) for n in range(20)]
    Path("data/labels.jsonl").write_text("\n".join(lines))
    source = suggest_recipe("data").source
    assert source == ss.ImageFolder("data", table="data/labels.jsonl")


def test_ids_are_no_label() -> None:
    names = [f"{n}.png" for n in range(20)]
    write(*names, ids=rows("file,id", [f"{name},{n * 7}" for n, name in enumerate(names)]))
    assert suggest_recipe("data").source.label is None


def test_a_folder_of_test_files_without_labels() -> None:
    train, test = [f"a{n}" for n in range(30)], [f"b{n}" for n in range(20)]
    write(
        *(f"train/{name}.png" for name in train),
        *(f"test/{name}.png" for name in test),
        labels=rows("id,breed", train, breed="pug boxer"),
        sample_submission=rows("id,pug,boxer", test, pug="0.5", boxer="0.5"),
    )
    message, (labelled,) = refusal()
    source = ss.ImageFolder("data/train", table="data/labels.csv", label="breed")
    assert labelled == {"source": source}
    assert "labels.csv names 30 of them" in message


def test_tables_of_splits_beside_folders_of_people() -> None:
    train = [f"train/p{n}/a.png" for n in range(12)]
    test = [f"test/p{n}/a.png" for n in range(20, 26)]
    write(
        *train,
        *test,
        train=rows("Path,ill", [f"data/{name},{n % 2}" for n, name in enumerate(train)]),
        test=rows("Path,ill", [f"data/{name},{n % 2}" for n, name in enumerate(test)]),
    )
    message, (by_tables, by_folders) = refusal()
    parts = {
        split: ss.ImageFolder(f"data/{split}", table=f"data/{split}.csv", label="ill")
        for split in ("train", "test")
    }
    assert by_tables == {"source": ss.Sources(**parts), "splits": ss.Splits.by_folder()}
    assert by_folders["source"] == ss.ImageFolder("data", split_folders=True)
    assert "in folders that may be classes ('p0', 'p1', 'p10'" in message


def test_a_competition_of_class_folders() -> None:
    test = [f"b{n}" for n in range(5)]
    write(
        *(f"train/{name}/{n}.png" for name in ("cat", "dog") for n in range(10)),
        *(f"test/{name}.png" for name in test),
        sample_submission=rows("id,label", [f"{name},cat" for name in test]),
    )
    message, (labelled,) = refusal()
    assert labelled == {"source": ss.ImageFolder("data/train")}
    assert "those of 'test' are in no class folder" in message


def test_a_table_for_each_split_beside_class_folders() -> None:
    train = [f"Train/{n % 3}/{n}.png" for n in range(30)]
    test = [f"Test/{n}.png" for n in range(12)]
    write(
        *train,
        *test,
        *(f"Meta/{n}.png" for n in range(3)),
        Train=rows("Width,ClassId,Path", [f"4,{n % 3},{name}" for n, name in enumerate(train)]),
        Test=rows("Width,ClassId,Path", [f"4,{n % 3},{name}" for n, name in enumerate(test)]),
        Meta=rows("Path,ClassId", [f"Meta/{n}.png,{n}" for n in range(3)]),
    )
    _, (both, *_) = refusal()
    parts = {
        "train": ss.ImageFolder("data/Train", table="data/Train.csv", label="ClassId"),
        "test": ss.ImageFolder("data/Test", table="data/Test.csv", label="ClassId"),
    }
    assert both == {"source": ss.Sources(**parts), "splits": ss.Splits.by_folder()}


@pytest.mark.parametrize("folder", ["", "/images"])
@pytest.mark.parametrize("end", ["png", "wav"])
def test_lists_of_the_files_of_splits(folder: str, end: str) -> None:
    names = [f"{'cat' if n % 2 else 'dog'}/{n:03}" for n in range(40)]
    lists = {"train": names[:30], "validation": names[30:35], "test": names[35:]}
    write(
        *(f"{folder[1:]}/{name}.{end}".lstrip("/") for name in names),
        **{f"meta__{split}_txt": "\n".join(listed) for split, listed in lists.items()},
    )
    make = ss.ImageFolder if end == "png" else ss.AudioFolder
    urls: dict[str, str | None] = {split: f"data/meta/{split}.txt" for split in lists}
    of_split = {split: split for split in lists}
    recipe = suggest_recipe("data")
    assert recipe.source == make(f"data{folder}", lists=urls)
    assert recipe.splits == ss.Splits.by_column("split", **of_split)
    Path("data/meta/train.txt").unlink()  # all other files are for training
    recipe = suggest_recipe("data")
    assert recipe.source == make(f"data{folder}", lists=urls | {"train": None})
    assert recipe.splits == ss.Splits.by_column("split", **of_split)
    Path("recipe.py").write_text(describe_suggestion("data"))
    assert load_recipe_file(Path("recipe.py")).source == recipe.source
    write(f"{folder[1:]}/unlabelled/1.{end}".lstrip("/"))
    _, lines = refusal()
    assert [line["source"].url for line in lines] == [f"data{folder}/[cd]*/*", f"data{folder}"]
    assert {tuple(line["source"].lists) for line in lines} == {tuple(urls)}


@pytest.mark.parametrize(
    ("train", "test", "words", "num_lines"),
    [
        (range(10), range(10, 18), ["list 18 of 40 files", "not 'cat/20.png'"], 2),
        (range(30), range(29, 40), ["have 1 files in common", "'cat/29.png'"], 1),
        (range(30), range(30, 50), ["test.txt lists 10 files that are not there", "cat/40"], 2),
        (
            range(50, 60),
            range(60, 90),
            ["and train.txt", "do not name one of the"],
            1,
        ),
    ],
)
def test_incomplete_lists_of_splits(
    train: range, test: range, words: list[str], num_lines: int
) -> None:
    def name(number: int) -> str:
        return f"{'dog' if number < 20 else 'cat'}/{number}"

    write(
        *(f"{name(n)}.png" for n in range(40)),
        train_txt="\n".join(map(name, train)),
        test_txt="\n".join(map(name, test)),
    )
    message, lines = refusal()
    assert all(word in message for word in words), message
    lists = {"train": "data/train.txt", "test": "data/test.txt"}
    sources = [ss.ImageFolder("data", lists=lists), ss.ImageFolder("data")]
    assert [line["source"] for line in lines] == sources[2 - num_lines :]


def test_lists_with_other_columns_beside_labels_in_names() -> None:
    names = [f"{c}_{n}" for c in ("Sphynx", "american_bulldog") for n in range(8)]
    columns = [f"{name} {number % 2} 1 2" for number, name in enumerate(names)]
    write(
        *(f"images/{name}.png" for name in names),
        annotations__trainval_txt="\n".join(columns[:12]),
        annotations__test_txt="\n".join(columns[12:]),
    )
    lists = {"train": "data/annotations/trainval.txt", "test": "data/annotations/test.txt"}
    source = ss.ImageFolder("data/images", pattern="{label}_{n:d}.png", lists=lists)
    assert suggest_recipe("data").source == source


def test_lists_of_splits_of_images_without_labels_and_with_masks() -> None:
    write(*(f"photos/a{n}.png" for n in range(20)))
    Path("data/train.txt").write_text("\n".join(f"a{n}" for n in range(15)))
    Path("data/val.txt").write_text("\n".join(f"a{n}.png" for n in range(15, 20)))
    lists = {"train": "data/train.txt", "validation": "data/val.txt"}
    assert suggest_recipe("data").source == ss.ImageFolder("data/photos", label=None, lists=lists)
    write(*(f"masks/a{n}.png" for n in range(20)))
    Path("data/photos").rename("data/images")
    assert suggest_recipe("data").source == ss.ImageFolder("data", masks="masks", lists=lists)


def test_texts_and_lists_that_are_not_about_files_are_not_in_the_way() -> None:
    names = [f"{'cat' if n % 2 else 'dog'}/{n}.png" for n in range(40)]
    about = "These images show cats and dogs.\nNo label is wrong.\n"
    write(*names, README_txt=about, classes_txt="cat\ndog\n", test_txt="nothing here\n")
    assert suggest_recipe("data").source == ss.ImageFolder("data")


def test_texts_of_boxes_are_no_tables() -> None:
    write(
        *(f"{folder}/{n}.png" for folder in ("cat", "dog") for n in range(20)),
        **{f"labels__{n}_txt": f"{n} 0.5 0.5 0.25 0.5\n" for n in range(15)},
    )
    assert suggest_recipe("data").source == ss.ImageFolder("data")


def test_a_text_of_names_and_labels() -> None:
    names = [f"{n}.png" for n in range(40)]
    table = "".join(f"{name} {'cat' if n % 2 else 'dog'}\n" for n, name in enumerate(names))
    write(*names, labels_txt=table)
    source = ss.ImageFolder("data", table="data/labels.txt", label="column_1")
    assert suggest_recipe("data").source == source


def test_two_tables_without_a_label_are_refused() -> None:
    names = [f"{n}.png" for n in range(20)]
    attributes = rows("image_id,Bald,Male", names, bald="1 -1", male="-1")
    write(*names, attributes=attributes, points=rows("image_id,x,y", names, x="1 2", y="3"))
    message, lines = refusal()
    assert [line["source"].label for line in lines] == [None, None]
    assert "attributes.csv and points.csv each have a row" in message
    write(partition=rows("image_id,partition", names, part="0 1"))
    message, lines = refusal()
    assert "the numbers in partition.csv ('0', '1') may be their splits" in message
    assert [line["source"].table for line in lines] == ["data/attributes.csv", "data/points.csv"]


ATTRIBUTES = "60\nOld Young \n" + "".join(f"{n:06}.png  1 -1\n" for n in range(60))


@pytest.mark.parametrize("name", ["partition", "eval_split"])
def test_numbers_of_splits_are_no_label(name: str) -> None:
    numbers = "".join(f"{n:06}.png {n % 3}\n" for n in range(60))
    write(*(f"all/{n:06}.png" for n in range(60)), **{f"{name}_txt": numbers})
    message, lines = refusal()
    assert f"the numbers in {name}.txt ('0', '1', '2') may be their splits" in message
    assert "If 0 is train, 1 is validation and 2 is test:" in message
    (line,) = lines
    assert line["source"].label is None
    places = {"url": os.path.abspath("data/all"), "table": os.path.abspath(f"data/{name}.txt")}
    source = dataclasses.replace(line["source"], **places)
    recipe = ss.Recipe(name="x", source=source, splits=line["splits"])
    assert ss.build(recipe, "out").manifest.splits["test"].num_examples == 20
    Path("data", "attributes.txt").write_text(ATTRIBUTES)
    message, lines = refusal()
    assert "No source joins them with the labels in attributes.txt" in message
    assert "This divides them by chance:" in message
    assert lines == [
        {"source": ss.ImageFolder("data/all", table="data/attributes.txt", label=None)}
    ]


def test_numbers_of_splits_beside_class_folders() -> None:
    names = [f"{'cat' if n % 2 else 'dog'}/{n}.png" for n in range(40)]
    write(*names, folds=rows("file,fold", names, fold="1 2 3"))
    message, lines = refusal()
    assert "the numbers in folds.csv ('1', '2', '3') may be their splits" in message
    assert "No source joins them with the folders" in message
    assert lines == [{"source": ss.ImageFolder("data")}]


@pytest.mark.parametrize("end", ["txt", "csv"])
def test_a_table_in_blanks_after_the_number_of_its_rows(end: str) -> None:
    write(*(f"all/{n:06}.png" for n in range(60)))
    Path("data", f"attributes.{end}").write_text(ATTRIBUTES)
    recipe = suggest_recipe("data")
    assert recipe.source == ss.ImageFolder("data/all", table=f"data/attributes.{end}", label=None)
    source: Any = recipe.source
    opened = open_source("data/all", ".")
    features = source.infer(source.select(opened.list()).files, opened)
    assert {name: features[name] for name in ("Old", "Young")} == {
        "Old": ss.Scalar("int64"),
        "Young": ss.Scalar("int64"),
    }


def test_two_tables_are_refused() -> None:
    names = [f"{n}.png" for n in range(20)]
    table = rows("file,label", names, label="a b")
    write(*names, first=table, second=table)
    message, lines = refusal()
    assert "first.csv and second.csv each have a row for them" in message
    tables = [line["source"].table for line in lines]
    assert tables == ["data/first.csv", "data/second.csv"]


@pytest.mark.parametrize("name", ["1.png", "cat/1.png"])
def test_a_table_of_something_else_is_not_in_the_way(name: str) -> None:
    paths = [f"{'cat' if n % 2 else 'dog'}/{n}.png" for n in range(20)]
    write(
        *paths, prices=rows("item,price", ["pen", "cup", *([name] if "/" in name else [])], p="1")
    )
    assert suggest_recipe("data").source == ss.ImageFolder("data")


def test_files_that_are_skipped_say_nothing_of_the_steps() -> None:
    for n in range(30):
        write(f"all/{n}.png")
        if n >= 20:
            Pillow.fromarray(np.zeros((9, 5, 3), np.uint8)).save(f"data/all/{n}.png")
    Path("data/train.csv").write_text(rows("file,label", range(20), label="a b"))
    text = describe_suggestion("data", reading=1)
    assert 'unlisted="skip"' in text
    assert "prepare=[]," in text
    assert "(10)" in text  # skipped


def test_lists_of_splits_in_a_format_that_is_not_read() -> None:
    write(*(f"Images/{'cat' if n % 2 else 'dog'}/{n}.png" for n in range(20)))
    for name in ("train_list", "test_list", "file_list"):
        Path(f"data/{name}.mat").write_bytes(b"MATLAB 5.0 MAT-file")
    message, (line,) = refusal()
    assert "test_list.mat and train_list.mat may list the files of splits" in message
    assert line["source"] == ss.ImageFolder("data/Images")


def test_texts_with_more_than_names_label_the_folders_of_their_splits() -> None:
    """As in COVIDx: folders say the split, and ``train.txt`` beside ``train/`` who is ill."""
    train, test = [f"{n}.png" for n in range(12)], [f"t{n}.png" for n in range(6)]
    write(
        *(f"train/{name}" for name in train),
        *(f"test/{name}" for name in test),
        train_txt="\n".join(f"p{n} {name} {SEEN[n % 2]}" for n, name in enumerate(train)),
        test_txt="\n".join(f"q{n} {name} {SEEN[n % 2]}" for n, name in enumerate(test)),
    )
    message, _ = refusal()
    first = next(line for line in message.splitlines() if "source=" in line)
    assert 'train=ss.ImageFolder("data/train", table="data/train.txt", label=None)' in first
    assert 'test=ss.ImageFolder("data/test", table="data/test.txt", label=None)' in first
    assert first.endswith("splits=ss.Splits.by_folder()")
