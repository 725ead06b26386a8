"""Texts beside images and sounds: captions and transcripts, a file for each."""

import io
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image as Pillow

import snapshard as ss
from snapshard.pipelines.inspect.suggest import describe_suggestion, suggest_recipe
from snapshard.transforms.storage.opened_source import open_source

from .built import build_all

RNG = np.random.default_rng(0)
NUM = 8


def content_of(name: str) -> bytes:
    """A picture, or a sound, that differs from others."""
    buffer = io.BytesIO()
    if name.endswith(".wav"):
        soundfile.write(buffer, RNG.uniform(-1, 1, 40), 8000, format="WAV")
    else:
        Pillow.fromarray(RNG.integers(0, 256, (6, 9, 3), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def write(folder: Path, media: str, text: str, *, num: int = NUM) -> dict[str, str]:
    """Files and their texts, by patterns with the number of each; path -> text."""
    texts = {}
    for number in range(num):
        for pattern in (media, text):
            (folder / pattern.format(number)).parent.mkdir(parents=True, exist_ok=True)
        (folder / media.format(number)).write_bytes(content_of(media))
        said = f"a dog, number {number}: größer als „{number - 1}“"
        (folder / text.format(number)).write_text(said + "\n" * (number % 3), encoding="utf-8")
        texts[media.format(number)] = said
    return texts


def said_of(url: str) -> str:
    """The recipe of a folder, with its comments in one line."""
    return " ".join(describe_suggestion(url).replace("#", "").split())


LAYOUTS: dict[str, tuple[str, str, Any]] = {
    "images": ("a{}.png", "a{}.txt", ss.ImageFolder("in", label=None, texts=".txt")),
    "lines": ("{}.bin.png", "{}.bin.gt.txt", ss.ImageFolder("in", label=None, texts=".gt.txt")),
    "folders": (
        "images/a{}.png",
        "captions/a{}.txt",
        ss.ImageFolder("in", label=None, texts=".txt"),
    ),
    "sounds": ("a{}.wav", "a{}.txt", ss.AudioFolder("in", label=None, texts=".txt")),
    "sounds in folders": (
        "wav/a{}.wav",
        "txt/a{}.txt",
        ss.AudioFolder("in", label=None, texts=".txt"),
    ),
    "upper case": ("b{}.png", "b{}.TXT", ss.ImageFolder("in", label=None, texts=".txt")),
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_they_are_suggested_and_come_back_equal(lab: Any, tmp_path: Path, layout: str) -> None:
    media, text, wanted = LAYOUTS[layout]
    texts = write(tmp_path / "in", media, text)
    recipe = suggest_recipe("in")
    assert recipe.source == wanted
    suffix = wanted.texts
    assert (
        f"# A record is {'a sound' if 'wav' in media else 'an image'}, with its text, <name>"
        in (said := describe_suggestion("in"))
    )
    assert f'texts="{suffix}"' in said
    snapshot = ss.build(recipe, tmp_path / "out", workers=1)
    assert not snapshot.manifest.num_rejects
    rows = lab.stored_rows(snapshot)
    assert {path: row["text"] for path, row in rows.items()} == texts
    if media.endswith(".png"):
        (batch,) = snapshot.reader().dataset("train", 99, shuffle=False, columns=["image"])
        assert batch["image"].shape[1:] == (6, 9, 3)


def test_a_text_belongs_to_the_file_of_its_split(lab: Any, tmp_path: Path) -> None:
    texts = write(tmp_path / "in", "train/a{}.png", "train/a{}.txt")
    texts |= write(tmp_path / "in", "test/a{}.png", "test/a{}.txt", num=3)
    recipe = suggest_recipe("in")
    assert recipe.source == ss.ImageFolder("in", label=None, split_folders=True, texts=".txt")
    snapshot = ss.build(recipe, tmp_path / "out", workers=1)
    assert snapshot.manifest.splits["test"].num_examples == 3
    assert {p: row["text"] for p, row in lab.stored_rows(snapshot).items()} == texts


def test_texts_and_images_in_folders_of_splits_of_their_own(lab: Any, tmp_path: Path) -> None:
    texts = write(tmp_path / "in", "images/train/a{}.png", "captions/train/a{}.txt")
    texts |= write(tmp_path / "in", "images/val/a{}.png", "captions/val/a{}.txt", num=3)
    recipe = suggest_recipe("in")
    assert recipe.source == ss.ImageFolder(
        "in", pattern="images/{split}/*", label=None, texts=".txt"
    )
    snapshot = ss.build(recipe, tmp_path / "out", workers=1)
    found = {name: split.num_examples for name, split in snapshot.manifest.splits.items()}
    assert found == {"train": NUM, "validation": 3}
    assert {p: row["text"] for p, row in lab.stored_rows(snapshot).items()} == texts


@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        ("a0.txt", None, "image without a .txt file of its name"),
        ("a0.txt", b"caf\xe9", "not text of the encoding"),
        ("a0.txt", b"\0" * 20, "zero-filled text"),
        ("a0.png", b"nothing", "text, not an image"),
    ],
)
def test_what_does_not_fit_is_a_reject(
    lab: Any, tmp_path: Path, path: str, content: bytes | None, reason: str
) -> None:
    texts = write(tmp_path / "in", "a{}.png", "a{}.txt", num=120)
    (tmp_path / "in" / path).parent.mkdir(exist_ok=True)
    if content is None:
        (tmp_path / "in" / path).unlink()
    else:
        (tmp_path / "in" / path).write_bytes(content)
    source = suggest_recipe("in").source
    assert source == ss.ImageFolder("in", label=None, texts=".txt")
    source = ss.ImageFolder(str(tmp_path / "in"), label=None, texts=".txt")
    snapshot = build_all(tmp_path, source, max_rejects=1)
    assert [row["reason"] for row in lab.rejects(snapshot)] == [reason]
    del texts["a0.png"]
    assert {p: row["text"] for p, row in lab.stored_rows(snapshot).items()} == texts


def test_a_changed_text_changes_its_record_alone(lab: Any, tmp_path: Path) -> None:
    texts = write(tmp_path / "in", "a{}.wav", "a{}.txt")
    source = ss.AudioFolder(str(tmp_path / "in"), label=None, texts=".txt")
    first = build_all(tmp_path, source)
    (tmp_path / "in" / "a3.txt").write_bytes(b"\xef\xbb\xbfa cat\r\n")
    second = build_all(tmp_path, source)
    assert second.path != first.path
    found = {path: row["text"] for path, row in lab.stored_rows(second).items()}
    assert found == texts | {"a3.wav": "a cat"}
    assert build_all(tmp_path, source).cached


def test_a_split_without_texts_is_not_empty_in_silence(tmp_path: Path) -> None:
    write(tmp_path / "in", "train/a{}.png", "train/a{}.txt", num=400)
    write(tmp_path / "in", "test/b{}.png", "other/b{}.md", num=3)
    with pytest.raises(ss.SnapshardError, match=r"<name>\.txt\), but 3 have none"):
        suggest_recipe("in")
    source = ss.ImageFolder(str(tmp_path / "in"), label=None, split_folders=True, texts=".txt")
    splits = ss.Splits.by_folder(train="train", test="test")
    with pytest.raises(ss.SnapshardError, match=r"3 × validate: image without a \.txt file"):
        build_all(tmp_path, source, splits=splits, max_rejects=0)


def test_texts_of_some_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "in", "a{}.png", "a{}.txt")
    (tmp_path / "in" / "a0.txt").unlink()
    with pytest.raises(ss.SnapshardError, match=r"texts of their names.*but 1 have none") as error:
        suggest_recipe("in")
    assert 'texts=".txt"), max_rejects=1' in str(error.value)


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["0 0.5 0.5 0.1 0.1 0.9"], "are mostly numbers"),
        (["Car 0.00 0 -1.57 599.41 156.40"], "are mostly numbers"),
        (["10,10,20,10,20,20,10,20,word"], "are mostly numbers"),
        (["3", "1", "2"], "are mostly numbers"),
        (['{"label": "cat"}'], "are JSON or XML"),
        (["<annotation/>"], "are JSON or XML"),
        (["cat", "dog\n"], "are a few words again and again"),
        (["", "\n"], "are empty"),
        (["caf\0\0e"], "are no UTF-8"),
    ],
)
def test_texts_that_are_no_captions_are_refused(tmp_path: Path, texts: list[str], why: str) -> None:
    write(tmp_path / "in", "a{}.png", "a{}.txt")
    for number in range(NUM):
        (tmp_path / "in" / f"a{number}.txt").write_text(texts[number % len(texts)])
    with pytest.raises(ss.SnapshardError, match=rf"a\d\.txt'\), which {why}"):
        suggest_recipe("in")


def test_texts_of_sounds_in_folders_of_speakers(lab: Any, tmp_path: Path) -> None:
    """As VCTK's, whose texts are in another folder."""
    texts = {}
    for name in ("p225", "p226"):
        texts |= write(
            tmp_path / "in", f"wav48/{name}/{name}_{{}}.wav", f"txt/{name}/{name}_{{}}.txt"
        )
    assert suggest_recipe("in").source == ss.AudioFolder("in/wav48")
    note = "such as 'txt/p225/p225_0.txt': texts='.txt' in a source of the folder of both."
    assert note in said_of("in")
    source = ss.AudioFolder(
        str(tmp_path / "in"), pattern="wav48/{speaker}/*", label=None, texts=".txt"
    )
    rows = lab.stored_rows(build_all(tmp_path, source, max_rejects=0))
    assert {path: row["text"] for path, row in rows.items()} == texts
    assert {row["speaker"] for row in rows.values()} == {b"p225", b"p226"}


def test_texts_that_are_no_captions_are_not_offered(tmp_path: Path) -> None:
    write(tmp_path / "in", "images/train/a{}.png", "labels/train/a{}.txt")
    for path in (tmp_path / "in" / "labels" / "train").glob("*.txt"):
        path.write_text("Car 0.00 0 -1.57 599.41 156.40 629.75\n")
    (tmp_path / "in" / "settings.yaml").write_text("sensors: 2\n")
    with pytest.raises(ss.SnapshardError, match=r"'settings\.yaml', which may describe") as error:
        suggest_recipe("in")
    assert "texts=" not in str(error.value)


@pytest.mark.parametrize("table", ["in/labels.csv", "in/labels.jsonl", "labels.csv"])
def test_a_table_of_labels_counts_more(tmp_path: Path, table: str) -> None:
    write(tmp_path / "in", "a{}.png", "a{}.txt", num=20)
    lines = [(f"a{number}.png", "cd"[number % 2]) for number in range(20)]
    rows = ["file,label", *map(",".join, lines)]
    if table.endswith("l"):
        rows = [f'{{"file": "{name}", "label": "{label}"}}' for name, label in lines]
    (tmp_path / table).write_text("\n".join([*rows, ""]))
    assert suggest_recipe("in").source == ss.ImageFolder("in", table=table)
    assert "Each has a text, too, such as 'a0.txt': texts='.txt' in the source." in said_of("in")


def test_texts_beside_a_table_of_something_else(tmp_path: Path) -> None:
    write(tmp_path / "in", "a{}.png", "a{}.txt")
    (tmp_path / "in" / "prices.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ss.SnapshardError, match=r"and 'prices\.csv', which may describe them"):
        suggest_recipe("in")


def test_several_texts_of_a_name_and_folders_called_like_texts(lab: Any, tmp_path: Path) -> None:
    truth = write(tmp_path / "in", "a{}.png", "a{}.gt.txt")
    write(tmp_path / "other", "a{}.png", "a{}.txt")
    for path in (tmp_path / "other").glob("*.txt"):
        path.rename(tmp_path / "in" / path.name)
    recipe = suggest_recipe("in")
    assert recipe.source == ss.ImageFolder("in", label=None, texts=".gt.txt")
    snapshot = ss.build(recipe, tmp_path / "out", workers=1)
    assert {p: row["text"] for p, row in lab.stored_rows(snapshot).items()} == truth
    write(tmp_path / "two", "images/{}.png", "captions/{}.txt")
    write(tmp_path / "two", "images/{}.png", "texts/{}.txt")
    write(tmp_path / "two", "images/one{}.png", "texts/one{}.txt", num=1)
    source = ss.ImageFolder(str(tmp_path / "two"), label=None, texts=".txt")
    snapshot = build_all(tmp_path, source, max_rejects=NUM)
    assert {row["reason"] for row in lab.rejects(snapshot)} == {"several .txt files for one image"}
    classes = {}
    for name in ("image", "text", "car"):
        classes |= write(tmp_path / "classes", f"{name}/{{}}.png", f"{name}/{{}}.txt")
    source = ss.ImageFolder(str(tmp_path / "classes"), texts=".txt")
    snapshot = build_all(tmp_path, source, max_rejects=0)
    assert {p: row["text"] for p, row in lab.stored_rows(snapshot).items()} == classes


def test_texts_in_class_folders_are_named(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        write(tmp_path / "in", f"{name}/{name}x{{}}y.png", f"{name}/{name}x{{}}y.txt")
    assert suggest_recipe("in").source == ss.ImageFolder("in")
    assert "Each has a text, too, such as 'cat/catx0y.txt': texts='.txt' in the source." in said_of(
        "in"
    )
    source = ss.ImageFolder(str(tmp_path / "in"), texts=".txt")
    snapshot = build_all(tmp_path, source)
    assert list(snapshot.manifest.features) == ["image", "label", "text"]


def test_documents_and_lists_are_no_texts_of_records(tmp_path: Path) -> None:
    write(tmp_path / "in", "a{}.png", "a{}.txt")
    for name in ("README.txt", "classes.txt", "LICENSE", "notes.txt", "a99.txt"):
        (tmp_path / "in" / name).write_text("words")
    source = ss.ImageFolder(str(tmp_path / "in"), label=None, texts=".txt")
    assert not build_all(tmp_path, source, max_rejects=0).manifest.num_rejects
    assert "Skipped: .txt file without an image (4)" in describe_suggestion("in")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"texts": "txt"}, r"texts='txt': expected the suffix"),
        ({"texts": ""}, "expected the suffix"),
        ({"texts": ".txt", "masks": "masks"}, "texts= is for images without masks="),
        ({"texts": ".txt", "boxes": "voc"}, "texts= is for images without masks="),
        ({"texts": ".txt", "pair": {"a": "a", "b": "b"}}, "texts= is for images without"),
    ],
)
def test_settings_that_exclude_each_other(settings: Any, words: str) -> None:
    with pytest.raises(ss.SnapshardError, match=words):
        ss.ImageFolder("in", **settings)


def test_a_field_of_their_name(tmp_path: Path) -> None:
    write(tmp_path / "in", "x_{}.png", "x_{}.txt")
    source = ss.ImageFolder(
        str(tmp_path / "in"), pattern="{text}_{n}.png", label="text", texts=".txt"
    )
    with pytest.raises(ss.SnapshardError, match="a field or column is called 'text'"):
        build_all(tmp_path, source)


@pytest.mark.parametrize(
    ("folder", "suffix", "content", "settings"),
    [
        ("", ".txt", b"a text", {"texts": ".txt"}),
        ("labels", ".txt", b"0 0.5 0.5 0.5 0.5", {"boxes": "yolo", "names": ("cat",)}),
        ("masks", ".png", content_of("a.png"), {"masks": "masks"}),
        ("other", ".png", content_of("a.png"), {"pair": {"a": "images", "b": "other"}}),
    ],
)
def test_names_of_one_file_in_two_unicode_forms(
    tmp_path: Path, folder: str, suffix: str, content: bytes, settings: Any
) -> None:
    """As where images come from a Mac, and what is written of them from another system."""
    name = "größe"
    image = tmp_path / "in" / "images" / f"{unicodedata.normalize('NFD', name)}.png"
    other = image.parent.parent / (folder or "images") / unicodedata.normalize("NFC", name + suffix)
    for path, data in ((image, content_of("a.png")), (other, content)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    source = ss.ImageFolder(str(tmp_path / "in"), label=None, **settings)
    files = source.select(open_source(source.url, ".").list()).files
    assert sorted(bool(file.of) for file in files) == [False, True]
    assert not any(file.unpaired for file in files)
