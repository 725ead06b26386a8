"""Folders of sounds: built, verified, read back equal to the source."""

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import snapshard as ss
from snapshard.pipelines.recipe.shipping import load_recipe_file

from .built import build_all, rows_of

CLASSES = ("no", "yes")
FORMATS = (
    ("WAV", "PCM_16"),
    ("WAV", "PCM_24"),
    ("WAV", "FLOAT"),
    ("FLAC", "PCM_16"),
    ("OGG", "VORBIS"),
    ("OGG", "OPUS"),
    ("MP3", "MPEG_LAYER_III"),
)


def noise(seed: int, samples: int, channels: int = 1) -> Any:
    rng = np.random.default_rng(seed)
    return np.clip(rng.standard_normal((samples, channels)) * 0.2, -1, 1).astype(np.float32)


def encode(samples: Any, rate: int, form: str = "WAV", subtype: str = "PCM_16") -> bytes:
    sink = io.BytesIO()
    soundfile.write(sink, samples, rate, format=form, subtype=subtype)
    return sink.getvalue()


def decoded(content: bytes) -> tuple[Any, int]:
    with soundfile.SoundFile(io.BytesIO(content)) as file:
        return file.read(dtype="float32"), file.samplerate


def write(folder: Path, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        path = folder / "sounds" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return str(folder / "sounds")


@pytest.mark.slow
def test_every_format_and_rate_comes_back_equal(lab: Any, tmp_path: Path) -> None:
    """Without a step: decoded at the end, each at its own rate; names say nothing of formats."""
    files = {
        f"{CLASSES[i % 2]}/{i}.wav": encode(noise(i, 300 + i), (8000, 16_000)[i // 7], *form)
        for i, form in enumerate(FORMATS * 2)
    }
    snapshot = build_all(tmp_path, ss.AudioFolder(write(tmp_path, files)))
    rows = rows_of(lab, snapshot)
    assert rows.keys() == files.keys()
    assert snapshot.manifest.features["audio"] == ss.Audio(dtype="float32")
    for name, row in rows.items():
        samples, rate = decoded(files[name])
        np.testing.assert_array_equal(row["audio"], samples)
        assert row["audio/rate"] == rate
        assert CLASSES[row["label"]] == name.partition("/")[0]


def test_sixteen_bits_of_two_channels_come_back_to_the_bit(lab: Any, tmp_path: Path) -> None:
    files = {
        f"{CLASSES[i % 2]}/{i}": encode(noise(i, 50 + i, 2), 8000, form)
        for i, form in enumerate(["WAV", "FLAC", "WAVEX"] * 3)
    }
    snapshot = build_all(tmp_path, ss.AudioFolder(write(tmp_path, files)))
    assert snapshot.manifest.features["audio"] == ss.Audio(rate=8000, channels=2, dtype="int16")
    for name, row in rows_of(lab, snapshot).items():
        np.testing.assert_array_equal(row["audio"], decoded(files[name])[0])


@pytest.mark.slow
def test_names_and_tables_say_what_is_in_them(lab: Any, tmp_path: Path) -> None:
    files = {f"{CLASSES[i % 2]}_anna_{i}.wav": encode(noise(i, 40), 8000) for i in range(6)}
    url = write(tmp_path, files)
    source = ss.AudioFolder(url, pattern="{label}_{speaker}_{n}.wav")
    snapshot = build_all(tmp_path, source, prepare=[ss.audio.decode("audio")])
    # All files are of one length, so examples have a fixed shape.
    assert snapshot.manifest.features["audio"] == ss.Audio(rate=8000, samples=40)
    rows = rows_of(lab, snapshot)
    for name, row in rows.items():
        label, speaker, n = name.removesuffix(".wav").split("_")
        np.testing.assert_array_equal(row["audio"], decoded(files[name])[0])
        assert (CLASSES[row["label"]], row["speaker"], row["n"]) == (
            label,
            speaker.encode(),
            int(n),
        )
    lines = [f"{name},{CLASSES[i % 2]},{i * 0.5}" for i, name in enumerate(files)]
    (tmp_path / "sounds" / "table.csv").write_text("\n".join(["file,label,level", *lines]))
    table = ss.AudioFolder(url, table=str(tmp_path / "sounds" / "table.csv"))
    rows = rows_of(lab, build_all(tmp_path, table))
    assert [rows[name]["level"] for name in files] == [i * 0.5 for i in range(6)]
    assert [CLASSES[rows[name]["label"]] for name in files] == [*CLASSES] * 3


@pytest.mark.slow
def test_another_column_of_the_table_is_the_label(lab: Any, tmp_path: Path) -> None:
    files = {f"{i:02}.wav": encode(noise(i, 40), 8000) for i in range(12)}
    speakers = [("cleo", "anna", "ben")[i % 3] for i in range(12)]
    words = [("yes", "no")[i % 2] for i in range(12)]
    rows = [",".join(row) for row in zip(files, words, speakers, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["file,label,speaker", *rows]) + "\n")
    source = ss.AudioFolder(
        write(tmp_path, files), table=str(tmp_path / "table.csv"), label="speaker"
    )
    snapshot = build_all(tmp_path, source)
    reader = snapshot.reader()
    assert (reader.LABEL, reader.CLASS_NAMES) == ("speaker", ["anna", "ben", "cleo"])
    found = {
        name: (row["audio"].tolist(), row["label"], reader.CLASS_NAMES[row["speaker"]])
        for name, row in rows_of(lab, snapshot).items()
    }
    assert found == {
        name: (decoded(content)[0].tolist(), word.encode(), speaker)
        for (name, content), word, speaker in zip(files.items(), words, speakers, strict=True)
    }
    for batch, label in reader.dataset("train", 4, as_supervised=True, shuffle=False):
        assert (sorted(batch), label.dtype) == (["audio", "label"], np.int64)


def test_what_is_damaged_is_rejected_and_the_rest_is_built(lab: Any, tmp_path: Path) -> None:
    good = {f"{CLASSES[i % 2]}/{i}.wav": encode(noise(i, 60), 8000) for i in range(20)}
    flac = encode(noise(0, 3000), 8000, "FLAC")
    bad = {
        "yes/cut.wav": (good["no/0.wav"][:-9], "truncated sound"),
        "yes/cut.flac": (flac[:-40], "damaged sound"),
        "yes/empty.wav": (b"", "empty file"),
        "no/stereo.wav": (encode(noise(0, 60, 2), 8000), "other channels"),
        "no/notes.wav": (b"recorded in May", "text, not a sound"),
        "stray.wav": (good["no/0.wav"], "not in a class folder"),
    }
    url = write(tmp_path, good | {name: content for name, (content, _) in bad.items()})
    snapshot = build_all(tmp_path, ss.AudioFolder(url), max_rejects=len(bad))
    rejects = {reject["id"]: reject["reason"] for reject in lab.rejects(snapshot)}
    assert rejects == {name: reason for name, (_, reason) in bad.items()}
    rows = rows_of(lab, snapshot)
    assert rows.keys() == good.keys()
    for name, row in rows.items():
        np.testing.assert_array_equal(row["audio"], decoded(good[name])[0])


@pytest.mark.slow
def test_declared_features_are_held_to(lab: Any, tmp_path: Path) -> None:
    files = {f"{CLASSES[i % 2]}/{i}.wav": encode(noise(i, 60), 8000) for i in range(6)}
    source = ss.AudioFolder(write(tmp_path, files))
    features = build_all(tmp_path, source).manifest.features
    assert features["audio"] == ss.Audio(rate=8000, samples=60)
    write(
        tmp_path,
        {
            "yes/fast.wav": encode(noise(0, 60), 11_025),
            "yes/long.wav": encode(noise(0, 61), 8000),
            "yes/wide.wav": encode(noise(0, 60), 8000, "WAV", "FLOAT"),
            "yes/both.wav": encode(noise(0, 60, 2), 8000),
        },
    )
    snapshot = build_all(tmp_path, source, features=features, max_rejects=4)
    assert {reject["id"]: reject["reason"] for reject in lab.rejects(snapshot)} == {
        "yes/fast.wav": "other rate",
        "yes/long.wav": "other length",
        "yes/wide.wav": "more than 16 bits",
        "yes/both.wav": "other channels",
    }
    assert rows_of(lab, snapshot).keys() == files.keys()
    # Wider than any file needs.
    features = {**features, "audio": ss.Audio(rate=8000, dtype="float32")}
    snapshot = build_all(tmp_path, source, features=features, max_rejects=2)
    rows = rows_of(lab, snapshot)
    assert rows.keys() == {*files, "yes/long.wav", "yes/wide.wav"}
    exact = noise(0, 60)[:, 0]
    np.testing.assert_array_equal(rows["yes/wide.wav"]["audio"], exact)


@pytest.mark.slow
def test_the_shipped_recordings(lab: Any, tmp_path: Path, examples: Path) -> None:
    snapshot = lab.build(examples / "spoken_digits.py", tmp_path)
    assert snapshot.manifest.features["audio"] == ss.Tensor("float32", (98, 40))
    held = lab.read_back(snapshot)
    assert len(held.ids) == 60
    assert sorted(set(held.values["speaker"].tolist())) == [
        *(b"george", b"jackson", b"lucas", b"nicolas", b"theo", b"yweweler")
    ]
    # The two speakers of each digit that speak loudest here speak loudest there.
    for record_id, _, row in held.rows():
        assert record_id.startswith(f"{row['label']}_{row['speaker'].decode()}_")
        samples, rate = decoded((examples / "data/spoken_digits_sample" / record_id).read_bytes())
        assert rate == 8000
        frames = np.lib.stride_tricks.sliding_window_view(np.pad(samples, (0, 8000))[:8000], 200)
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(200) / 200)
        energy = np.abs(np.fft.rfft(frames[::80] * window, 256)) ** 2
        total, found = energy[:, 1:].sum(axis=1), np.exp(row["audio"].astype(np.float64)).sum(1)
        loud = total > 1
        # The bands overlap so that each frequency counts about once.
        np.testing.assert_array_less(np.abs(np.log(found[loud] / total[loud])), 0.5)


@pytest.mark.slow
def test_what_tensorflow_decodes_is_served_from_raw_files(
    lab: Any, tmp_path: Path, examples: Path
) -> None:
    import tensorflow as tf

    folder = examples / "data" / "spoken_digits_sample"
    source = ss.AudioFolder(str(folder), pattern="{label}_{speaker}_{n}.wav")
    steps = [
        ss.audio.decode("audio", rate=16_000, plain_wav=True),
        ss.audio.log_mel("audio", num_mels=64),
    ]
    snapshot = build_all(tmp_path, source, prepare=steps)
    rows = rows_of(lab, snapshot)
    names = list(rows)[:3]
    serve = tf.saved_model.load(f"{snapshot.path}/serving").signatures["serving_default"]
    found = serve(
        audio=tf.constant([(folder / name).read_bytes() for name in names]),
        speaker=tf.constant(["somebody"] * 3),
        n=tf.constant([0] * 3, tf.int64),
    )
    for row, name in enumerate(names):
        np.testing.assert_array_equal(found["audio"][row].numpy(), rows[name]["audio"])


@pytest.mark.slow  # builds 1,200 recordings and trains for a minute
@pytest.mark.full_data
def test_a_model_learns_the_spoken_digits(
    lab: Any, tmp_path: Path, examples: Path, full_data: Path
) -> None:
    """Plain hash splits: the voices of the test split are known from training."""
    import keras

    recipe = load_recipe_file(examples / "spoken_digits.py")
    source = dataclasses.replace(recipe.source, url=str(full_data / "spoken_digits"))
    snapshot = ss.build(dataclasses.replace(recipe, source=source), tmp_path)
    reader = snapshot.reader()
    assert sum(reader.NUM_EXAMPLES.values()) == 1200
    keras.utils.set_random_seed(0)
    layers = keras.layers
    normalise = layers.Normalization()
    sounds = [batch["audio"] for batch in reader.dataset("train", 2000)]
    normalise.adapt(sounds[0])
    model = keras.Sequential(
        [
            layers.Input((98, 40)),
            normalise,
            *(layers.Conv1D(64, 5, activation="relu"), layers.MaxPooling1D(2)),
            *(layers.Conv1D(64, 5, activation="relu"), layers.MaxPooling1D(2)),
            layers.Conv1D(64, 3, activation="relu"),
            layers.GlobalMaxPooling1D(),
            layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])

    def pairs(split: str) -> Any:
        data = reader.dataset(split, 32)
        return data.map(lambda record: (record["audio"], record["label"]))

    for _ in range(15):
        model.fit(pairs("train"), shuffle=False, verbose=0)
    accuracy = model.evaluate(pairs("test"), verbose=0, return_dict=True)["accuracy"]
    print(f"spoken digits: test accuracy {accuracy:.3f} of {reader.NUM_EXAMPLES['test']}")
    assert accuracy > 0.8
