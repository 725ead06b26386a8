"""What a folder of sounds suggests."""

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

import snapshard as ss
from snapshard.pipelines.inspect.suggest import describe_suggestion, suggest_recipe
from snapshard.pipelines.recipe.shipping import load_recipe_file


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(folder: Path, names: list[str], rate: int = 8000, channels: int = 1) -> str:
    sink = io.BytesIO()
    soundfile.write(sink, np.zeros((30, channels)), rate, format="WAV")
    for name in names:
        path = folder / "sounds" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sink.getvalue())
    return "sounds"


def test_class_folders(tmp_path: Path) -> None:
    url = write(tmp_path, ["yes/1.wav", "yes/2.wav", "no/1.wav"])
    recipe = suggest_recipe(url)
    assert recipe.source == ss.AudioFolder(url)
    assert recipe.prepare == (ss.audio.decode("audio"),)
    (tmp_path / "recipe.py").write_text(describe_suggestion(url))
    written = load_recipe_file(tmp_path / "recipe.py")
    assert (written.source, written.prepare) == (recipe.source, recipe.prepare)
    assert written.features == {
        "audio": ss.Audio(rate=8000, samples=30),
        "label": ss.ClassLabel(("no", "yes")),
    }


def test_folders_of_splits(tmp_path: Path) -> None:
    url = write(tmp_path, ["train/yes/1.wav", "train/no/2.wav", "test/no/1.wav"])
    recipe = suggest_recipe(url)
    assert recipe.source == ss.AudioFolder(url, split_folders=True)
    assert recipe.splits == ss.Splits.by_folder(train="train", test="test")


def test_names_that_are_made_alike(examples: Path) -> None:
    recipe = suggest_recipe(str(examples / "data" / "spoken_digits_sample"))
    source = recipe.source
    assert isinstance(source, ss.AudioFolder)
    assert source.pattern == "{label}_{field2}_{n}.wav"


def test_several_rates_and_channels(tmp_path: Path) -> None:
    write(tmp_path, ["a/1.wav", "b/2.wav"])
    url = write(tmp_path, ["a/3.wav"], rate=44_100, channels=2)
    assert suggest_recipe(url).prepare == (ss.audio.decode("audio", 8000, mono=True),)
    write(tmp_path, ["a/4.wav"], rate=48_000)
    assert suggest_recipe(url).prepare == (ss.audio.decode("audio", 16_000, mono=True),)


def test_sounds_without_labels_are_not_guessed_at(tmp_path: Path) -> None:
    url = write(tmp_path, ["first.wav", "second one.wav"])
    assert suggest_recipe(url).source == ss.AudioFolder(url, label=None)


def test_transcripts_with_quotes_that_are_text(tmp_path: Path) -> None:
    """As LJSpeech's: ids, bars and sentences, whose commas and quotes differ from line to line."""
    texts = ["Printing, in the only sense,", '"Yes," he said, "it is."', 'He died; "not guilty']
    lines = [f"LJ1-{i:04d}|{texts[i % 3]}|{texts[i % 3]}" for i in range(9)]
    url = f"{write(tmp_path, [f'wavs/LJ1-{i:04d}.wav' for i in range(9)])}"
    (tmp_path / url / "metadata.csv").write_text("\n".join([*lines, ""]))
    recipe = suggest_recipe(url)
    assert recipe.source == ss.AudioFolder(
        f"{url}/wavs", table=f"{url}/metadata.csv", label=None, unlisted="reject"
    )
    snapshot = ss.build(recipe, tmp_path / "out", workers=1)
    (split,) = {"train"} & snapshot.manifest.splits.keys()
    for batch in snapshot.reader().dataset(split, 9, shuffle=False):
        assert {text.decode() for text in batch["column_1"].numpy()} <= {*texts}
    assert sum(each.num_examples for each in snapshot.manifest.splits.values()) == 9
