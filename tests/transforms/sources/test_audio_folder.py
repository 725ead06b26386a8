"""Folders of sounds: what is inferred, what is read, what is rejected and why."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from snapshard.schemas.blocks import RawBatch, SourceFile
from snapshard.schemas.errors import DataError, RecipeError
from snapshard.schemas.features import Audio, ClassLabel, Features, Scalar
from snapshard.schemas.recipe import Source
from snapshard.transforms.runs.files import wire_schema
from snapshard.transforms.sources.folders import audio as audio_folder
from snapshard.transforms.sources.folders.audio import AudioFolder
from snapshard.transforms.storage.opened_source import open_source

from ...file_bytes import write
from .conftest import make_block


def read_all(
    source: AudioFolder, *, features: Features | None = None
) -> tuple[list[RawBatch], Features]:
    opened = open_source(source.url, "/")
    files = source.select(opened.list()).files
    block = make_block(files, opened)
    features = features or source.infer(files, opened)
    ordered = range(len(files))
    return list(source.read(block, features=features, opened=opened, ordered=ordered)), features


def reasons(batches: list[RawBatch]) -> dict[str, str]:
    return {reject.record_id: reject.reason for batch in batches for reject in batch.rejects}


def ids(batches: list[RawBatch]) -> list[str]:
    return [record_id for batch in batches for record_id in batch.ids]


def test_it_is_a_source() -> None:
    source = AudioFolder("somewhere")
    assert isinstance(source, Source)
    found = (source.url, source.label, source.media, source.numbered, source.side_urls)
    assert found == ("somewhere", "label", True, False, ())
    settings = source.settings()
    assert settings.pop("soundfile")
    assert settings == {"source": "audio_folder", "max_samples": 100_000_000}
    with pytest.raises(RecipeError, match="max_samples"):
        AudioFolder("somewhere", max_samples=0)
    with pytest.raises(RecipeError, match="mutually exclusive"):
        AudioFolder("somewhere", pattern="{label}.wav", table="labels.csv")


def test_what_nobody_means_is_skipped_and_counted() -> None:
    names = ["yes/1.wav", "yes/2", "no/a.bak", "no/.DS_Store", "no/._1.wav", "labels.csv"]
    names += ["no/notes.txt", "no/cover.jpg", "other.csv"]
    files = [SourceFile(path=name, num_bytes=1, stamp="") for name in names]
    selection = AudioFolder("x", table="labels.csv").select(files)
    assert [file.path for file in selection.files] == names[:3]
    skipped = {".DS_Store": 1, "hidden file": 1, "label table": 1}
    kinds = {".txt file": 1, ".jpg file": 1, ".csv file": 1}
    assert selection.num_skipped == skipped | kinds


class TestInfer:
    def infer(self, folder: Path, files: dict[str, bytes], **settings: Any) -> Any:
        write(folder, files)
        source = AudioFolder(str(folder), **settings)
        opened = open_source(source.url, "/")
        return source.infer(source.select(opened.list()).files, opened)

    def test_one_rate_and_one_length(self, sounds: Any, tmp_path: Path) -> None:
        files = {
            "yes/1.wav": sounds.encode(sounds.noise(40), 8000),
            "no/2.flac": sounds.encode(sounds.noise(40), 8000, "FLAC"),
            "no/notes.txt": b"not counted",
        }
        assert self.infer(tmp_path, files) == {
            "audio": Audio(storage="encoded", rate=8000, samples=40),
            "label": ClassLabel(("no", "yes")),
        }

    def test_what_differs(self, sounds: Any, tmp_path: Path) -> None:
        files = {
            "yes_ann_1.wav": sounds.encode(sounds.noise(40, 2), 8000),
            "no_bob_2.wav": sounds.encode(sounds.noise(41, 2), 8000),
            "no_bob_3.wav": sounds.encode(sounds.noise(41, 1), 8000),
        }
        found = self.infer(tmp_path, files, pattern="{label}_{speaker}_{n}.wav")
        assert found == {
            "audio": Audio(storage="encoded", rate=8000, channels=2),
            "label": ClassLabel(("no", "yes")),
            "speaker": Scalar("string"),
            "n": Scalar("int64"),
        }
        files = {"no_eve_4.wav": sounds.encode(sounds.noise(40, 2), 48_000, "OGG", "VORBIS")}
        found = self.infer(tmp_path, files, pattern="{label}_{speaker}_{n}.wav")
        assert found["audio"] == Audio(storage="encoded", channels=2, dtype="float32")

    @pytest.mark.parametrize("samples", [50, 60_000])
    def test_headers_far_behind_the_beginning(
        self, sounds: Any, tmp_path: Path, samples: int
    ) -> None:
        """Long metadata before the samples, and files longer than what is read of them."""
        pcm = (sounds.noise(samples) * 32_768).astype("<i2")
        long = sounds.chunk(b"junk", bytes(70_001))
        files = {"a/1": sounds.wav(pcm), "a/2": sounds.wav(pcm, before=long)}
        files["a/3"] = sounds.wav(pcm, behind=long, data_size=0)[: 44 + 2 * samples]
        assert self.infer(tmp_path, files)["audio"] == Audio(
            storage="encoded", rate=8000, samples=samples
        )

    def test_nothing_to_tell_it_from(self, tmp_path: Path) -> None:
        found = self.infer(tmp_path, {"a/1": b"", "a/2": b"text"})
        assert found["audio"] == Audio(storage="encoded")
        with pytest.raises(DataError, match="none of the 1 files is in a class folder"):
            self.infer(tmp_path / "flat", {"1.wav": b""})


class TestRead:
    def test_bytes_and_labels_in_the_given_order(self, sounds: Any, tmp_path: Path) -> None:
        files = {f"{'yn'[i % 2]}/{i}": sounds.encode(sounds.noise(9 + i), 8000) for i in range(5)}
        write(tmp_path, files)
        source = AudioFolder(str(tmp_path))
        opened = open_source(source.url, "/")
        listed = source.select(opened.list()).files
        features = source.infer(listed, opened)
        block = make_block(listed, opened)
        order = [3, 0, 4, 1, 2]
        (batch,) = source.read(block, features=features, opened=opened, ordered=order)
        assert batch.ids == [listed[i].path for i in order]
        assert batch.columns.schema == wire_schema(features)
        assert batch.columns.column("audio").to_pylist() == [files[name] for name in batch.ids]
        assert batch.columns.column("label").to_pylist() == ["ny".index(n[0]) for n in batch.ids]

    def test_batches_are_bounded_by_what_they_decode_to(
        self, sounds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        silence = sounds.encode(sounds.noise(3000) * 0, 8000, "FLAC")
        write(tmp_path, {f"a/{i}": silence for i in range(7)})
        monkeypatch.setattr(audio_folder, "BATCH_SAMPLES", 7000)
        batches, _ = read_all(AudioFolder(str(tmp_path)))
        assert [len(batch.ids) for batch in batches] == [2, 2, 2, 1]
        # An MP3 states its length in frames.
        music = sounds.encode(sounds.noise(30_000), 8000, "MP3", "MPEG_LAYER_III")
        write(tmp_path, {f"a/{i}": music for i in range(7)})
        monkeypatch.setattr(audio_folder, "BATCH_SAMPLES", 70_000)
        batches, _ = read_all(AudioFolder(str(tmp_path)))
        assert [len(batch.ids) for batch in batches] == [2, 2, 2, 1]


class TestMalformed:
    def test_each_odd_file_is_a_reject_with_its_reason(
        self, sounds: Any, tmp_path: Path, capfd: Any
    ) -> None:
        pcm = (sounds.noise(40) * 32_768).astype("<i2")
        good = sounds.wav(pcm)
        flac = sounds.encode(sounds.noise(40), 8000, "FLAC")
        ogg = sounds.encode(sounds.noise(900), 8000, "OGG", "VORBIS")
        mp3 = sounds.encode(sounds.noise(9000), 8000, "MP3", "MPEG_LAYER_III")
        odd = {
            "a/empty.wav": (b"", "empty file"),
            "a/zeros.wav": (bytes(500), "zero-filled file"),
            "a/text.wav": (b"yes, no, yes", "text, not a sound"),
            "a/table.au": (b"file,label\n1,2\n", "text, not a sound"),
            "a/photo.wav": (b"\xff\xd8\xff\xe0\0\x10JFIF", "not a sound"),
            "a/noise.mp3": (bytes(range(1, 200)), "not a sound"),
            "a/song.m4a": (b"\0\0\0\x20ftypM4A " + bytes(90), "unsupported sound format"),
            "a/song.aiff": (b"FORM\0\0\0\x20AIFFCOMM" + bytes(40), "unsupported sound format"),
            "a/film.wav": (b"RIFF\x20\0\0\0AVI LIST" + bytes(40), "unsupported sound format"),
            "a/header.wav": (good[:44], "truncated sound"),
            "a/half.wav": (good[:80], "truncated sound"),
            "a/one less.wav": (good[:-1], "truncated sound"),
            "a/silent.wav": (sounds.wav(pcm[:0]), "no samples"),
            "a/slow.wav": (good[:24] + bytes(4) + good[28:], "absurd rate"),
            "a/codec.wav": (good[:20] + b"\x55\0" + good[22:], "unsupported codec"),
            "a/chunks.wav": (good[:12] + good[36:] + good[12:36], "damaged sound"),
            "a/short.flac": (flac[:30], "truncated sound"),
            "a/short.ogg": (ogg[:-30], "truncated sound"),
            "a/page.ogg": (ogg[:900] + b"\0\0" + ogg[902:], "damaged sound"),
            "a/short.mp3": (mp3[:-200], "truncated sound"),
            "stray.wav": (good, "not in a class folder"),
        }
        write(tmp_path, {"a/good.wav": good, "a/streamed.wav": sounds.wav(pcm, data_size=0)})
        write(tmp_path, {name: content for name, (content, _) in odd.items()})
        (tmp_path / "a" / "link.wav").symlink_to(tmp_path / "nowhere")
        batches, features = read_all(AudioFolder(str(tmp_path)))
        expected = {name: reason for name, (_, reason) in odd.items()}
        assert reasons(batches) == expected | {"a/link.wav": "dangling symbolic link"}
        assert sorted(ids(batches)) == ["a/good.wav", "a/streamed.wav"]
        # What is no sound says nothing of the others.
        assert features["audio"] == Audio(storage="encoded", rate=8000, samples=40)
        for batch in batches:
            for reject in batch.rejects:
                assert reject.message
                assert reject.source == reject.record_id
                stage = "validate" if reject.record_id == "stray.wav" else "read"
                assert reject.stage == ("inventory" if "link" in reject.record_id else stage)
        assert capfd.readouterr().err == ""

    def test_a_wav_cut_off_anywhere(self, sounds: Any, tmp_path: Path) -> None:
        content = sounds.wav((sounds.noise(20) * 32_768).astype("<i2"))
        write(tmp_path, {f"a/{stop:03d}": content[:stop] for stop in range(len(content))})
        write(tmp_path, {"a/whole": content})
        batches, features = read_all(AudioFolder(str(tmp_path)))
        assert ids(batches) == ["a/whole"]
        found = reasons(batches)
        assert len(found) == len(content)
        assert set(found.values()) == {"empty file", "text, not a sound", "truncated sound"}
        assert [name for name in found if found[name].startswith("text")] == [
            f"a/{stop:03d}" for stop in range(1, 4)
        ]
        assert features["audio"] == Audio(storage="encoded", rate=8000, samples=20)

    @pytest.mark.parametrize(
        ("expected", "reason"),
        [
            (Audio(storage="encoded", rate=16_000), "other rate"),
            (Audio(storage="encoded", rate=8000), None),
            (Audio(storage="encoded"), None),
        ],
        ids=["16 kHz", "8 kHz", "any"],
    )
    def test_what_is_declared(
        self, sounds: Any, tmp_path: Path, expected: Audio, reason: str | None
    ) -> None:
        write(tmp_path, {"a/1": sounds.encode(sounds.noise(9), 8000)})
        features = {"audio": expected, "label": ClassLabel(("a",))}
        batches, _ = read_all(AudioFolder(str(tmp_path)), features=features)
        assert reasons(batches) == ({} if reason is None else {"a/1": reason})
        write(tmp_path, {"a/1": sounds.encode(sounds.noise(9), 16_000, "WAV", "PCM_24")})
        batches, _ = read_all(AudioFolder(str(tmp_path)), features=features)
        assert reasons(batches)["a/1"] in ("more than 16 bits", "other rate")
        wide = {**features, "audio": dataclasses.replace(expected, rate=None, dtype="float32")}
        batches, _ = read_all(AudioFolder(str(tmp_path)), features=wide)
        assert reasons(batches) == {}

    def test_too_long_a_sound(self, sounds: Any, tmp_path: Path) -> None:
        write(tmp_path, {"a/1": sounds.encode(sounds.noise(90) * 0, 8000, "FLAC")})
        batches, _ = read_all(AudioFolder(str(tmp_path), max_samples=89))
        assert reasons(batches) == {"a/1": "too many samples"}
        batches, _ = read_all(AudioFolder(str(tmp_path), max_samples=90))
        assert ids(batches) == ["a/1"]
