"""Steps on sounds, against libsndfile, SciPy, NumPy and ``tf.signal``."""

import dataclasses
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import Audio, Features, Scalar, Tensor
from snapshard.schemas.recipe import StepTraits
from snapshard.transforms.examples.encode import encode_examples
from snapshard.transforms.media import audio_decode
from snapshard.transforms.prepare import sounds as sound_steps
from snapshard.transforms.prepare.engine.program import StepRunner
from snapshard.transforms.prepare.engine.rows import parse_example

MONO: Features = {"audio": Audio(rate=16_000, dtype="float32")}


def run(
    sounds: Any, steps: list[Any], contents: list[bytes], **audio: Any
) -> tuple[list[dict[str, Any]], dict[str, tuple[str, str]], Features]:
    """Records as Python values, reasons and messages of rejects by id, and the features."""
    features, batch = sounds.batch(contents, **audio)
    runner = StepRunner(steps, features)
    done = runner.prepare(batch)
    again = StepRunner(steps, features).prepare(batch)
    assert encode_examples(again.columns).equals(encode_examples(done.columns))
    rows = [parse_example(row.as_py(), runner.features) for row in encode_examples(done.columns)]
    rejects = {reject.record_id: (reject.reason, reject.message) for reject in done.rejects}
    assert all(reject.stage == "prepare" for reject in done.rejects)
    return rows, rejects, runner.features


def apply(step: Any, value: Any, feature: Audio, **sides: Any) -> tuple[Any, Features]:
    """What a step makes of one record, at once, and the features after it."""
    features = {"audio": feature}
    record = {"audio": tf.constant(value, tf.float32)}
    record |= {f"audio/{name}": tf.constant(side, tf.int64) for name, side in sides.items()}
    after = step.features(features)
    found = step.apply(record, features)
    assert found.keys() == {"audio", *(["audio/rate"] if _varies(after["audio"]) else [])}
    return found["audio"].numpy(), after


def _varies(feature: object) -> bool:
    return isinstance(feature, Audio) and feature.rate is None


class TestDecode:
    @pytest.mark.slow
    def test_every_format_is_what_libsndfile_reads(self, sounds: Any) -> None:
        forms = [
            ("WAV", "PCM_16"),
            ("WAVEX", "PCM_16"),
            ("WAV", "PCM_24"),
            ("WAV", "FLOAT"),
            ("FLAC", "PCM_16"),
            ("OGG", "VORBIS"),
            ("OGG", "OPUS"),
            ("MP3", "MPEG_LAYER_III"),
        ]
        noise = sounds.noise(900, 2)
        contents = [sounds.encode(noise, 16_000, *form) for form in forms]
        rows, rejects, features = run(
            sounds, [ss.audio.decode("audio")], contents, rate=16_000, channels=2, dtype="float32"
        )
        assert not rejects
        assert features == {"audio": Audio(rate=16_000, channels=2, dtype="float32")}
        for row, content in zip(rows, contents, strict=True):
            np.testing.assert_array_equal(row["audio"], sounds.decoded(content))
        mixed, _, features = run(
            sounds, [ss.audio.decode("audio", mono=True)], contents, rate=16_000, dtype="float32"
        )
        assert features == {"audio": Audio(rate=16_000, dtype="float32")}
        for row, content in zip(mixed, contents, strict=True):
            mean = sounds.decoded(content).mean(axis=1, dtype=np.float64)
            np.testing.assert_allclose(row["audio"], mean, atol=1e-7)

    @pytest.mark.slow
    def test_sixteen_bits_stay_as_they_are(self, sounds: Any) -> None:
        pcm = np.random.default_rng(0).integers(-32_768, 32_768, (300, 1), np.int16)
        pcm[:2, 0] = -32_768, 32_767
        contents = [sounds.wav(pcm), sounds.encode(pcm, 8000, "FLAC"), sounds.wav(pcm, behind=b"x")]
        # Without a step, sounds are decoded at the end.
        for steps in ([ss.audio.decode("audio")], []):
            rows, rejects, features = run(sounds, steps, contents, rate=8000)
            assert not rejects
            assert features == {"audio": Audio(rate=8000, dtype="int16")}
            for row in rows:
                np.testing.assert_array_equal(row["audio"] * 32_768, pcm[:, 0])

    @pytest.mark.slow
    def test_rates_stand_beside_sounds_that_differ(self, sounds: Any) -> None:
        contents = [sounds.encode(sounds.noise(400), rate) for rate in (8000, 44_100, 16_000)]
        rows, _, features = run(sounds, [], contents)
        assert features == {"audio": Audio()}
        assert [row["audio/rate"] for row in rows] == [8000, 44_100, 16_000]
        rows, _, features = run(sounds, [ss.audio.decode("audio", rate=16_000)], contents)
        assert features == {"audio": Audio(rate=16_000)}
        assert [len(row["audio"]) for row in rows] == [800, 146, 400]

    def test_what_does_not_fit_is_rejected_with_its_reason(self, sounds: Any) -> None:
        good = sounds.encode(sounds.noise(400), 8000)
        flac = sounds.encode(sounds.noise(4000), 8000, "FLAC")
        infinite = sounds.noise(50)
        infinite[9] = math.inf
        contents = [
            good,
            good[:-1],
            flac[: len(flac) // 2],
            sounds.encode(sounds.noise(400, 2), 8000),
            sounds.encode(sounds.noise(400), 11_025, "FLAC"),
            sounds.encode(infinite, 8000, "WAV", "FLOAT"),
            b"no sound at all, but text",
            good,
        ]
        rows, rejects, _ = run(sounds, [], contents, rate=8000, dtype="float32")
        assert len(rows) == 2
        assert {name: reason for name, (reason, _) in rejects.items()} == {
            "sound1": "truncated sound",
            "sound2": "damaged sound",
            "sound3": "other channels",
            "sound4": "other rate",
            "sound5": "not finite",
            "sound6": "text, not a sound",
        }
        assert rejects["sound1"][1] == (
            'ss.audio.decode("audio"): the header states 800 bytes of samples, and 799 follow it'
        )
        assert "it has 2 channels, expected 1. Mix all to one: mono=True" in rejects["sound3"][1]
        assert "it has 11025 Hz, expected 8000" in rejects["sound4"][1]

    @pytest.mark.slow
    def test_plain_wav_needs_no_python(self, sounds: Any, monkeypatch: Any) -> None:
        step = ss.audio.decode("audio", plain_wav=True)
        assert StepTraits.of(step).export_obstacle == ""
        assert "decodes FLAC" in StepTraits.of(ss.audio.decode("audio")).export_obstacle
        good = sounds.encode(sounds.noise(400), 8000)
        extensible = sounds.encode(sounds.noise(400), 8000, "WAVEX")
        contents = [good, extensible, good[:-2], good[:20], b"", sounds.encode(sounds.noise(9), 8)]
        rows, rejects, _ = run(sounds, [step], [*contents[:5], good + b"LIST\1"], rate=8000)
        np.testing.assert_array_equal(rows[0]["audio"], sounds.decoded(good)[:, 0])
        assert len(rows) == 2
        assert {reason for reason, _ in rejects.values()} == {"not a plain WAV file"}
        monkeypatch.setattr(audio_decode.importlib.util, "find_spec", lambda name: None)
        assert step.features(sounds.batch([], rate=8000)[0]) == {"audio": Audio(rate=8000)}
        with pytest.raises(RecipeError, match=r'pip install "snapshard\[audio\]"'):
            ss.audio.decode("audio").features(sounds.batch([])[0])

    def test_its_dtype_may_be_chosen(self, sounds: Any) -> None:
        content = sounds.encode(sounds.noise(400), 8000, "OGG", "VORBIS")
        step = ss.audio.decode("audio", dtype="int16")
        rows, _, features = run(sounds, [step], [content], rate=8000, dtype="float32")
        assert features == {"audio": Audio(rate=8000, dtype="int16")}
        exact = sounds.decoded(content)[:, 0]
        np.testing.assert_allclose(rows[0]["audio"], exact, atol=0.5 / 32_768 + 1e-7)


class TestResample:
    @pytest.mark.parametrize("rates", [(8000, 16_000), (16_000, 8000), (44_100, 16_000), (3, 7)])
    def test_a_tone_stays_the_tone(self, sounds: Any, rates: tuple[int, int]) -> None:
        given, wanted = (rate * (1 if rate > 100 else 1000) for rate in rates)
        for share in (0.05, 0.45, 0.88):
            hertz = share * min(given, wanted) / 2
            samples = sounds.tone(hertz, given, 4000)
            found, _ = apply(ss.audio.resample("audio", wanted), samples, Audio(rate=given))
            assert len(found) == -(-4000 * wanted // given)
            expected = sounds.tone(hertz, wanted, len(found))
            edge = math.ceil(70 * max(wanted / given, 1)) + 1
            np.testing.assert_allclose(found[edge:-edge], expected[edge:-edge], atol=5e-4)

    def test_what_the_lower_rate_cannot_hold_is_left_out(self, sounds: Any) -> None:
        samples = sounds.tone(4600.0, 16_000, 8000)
        found, _ = apply(ss.audio.resample("audio", 8000), samples, Audio(rate=16_000))
        assert np.abs(found[100:-100]).max() < 5e-5

    def test_it_agrees_with_scipy(self) -> None:
        from scipy import signal  # takes a second, and only this test needs it

        noise = np.random.default_rng(3).standard_normal(6000) * 0.1
        # Below a third of the band, where SciPy's shorter filter is flat as well.
        soft = signal.filtfilt(*signal.butter(8, 0.3), noise)
        for up, down in ((2, 1), (3, 2), (160, 147)):
            wide = signal.firwin(
                2 * 64 * max(up, down) + 1, 0.94 / max(up, down), window=("kaiser", 10.0)
            )
            expected = signal.resample_poly(soft, up, down, window=wide)
            feature = Audio(rate=1000 * down, dtype="float32")
            found, _ = apply(ss.audio.resample("audio", 1000 * up), soft, feature)
            assert len(found) == len(expected)
            np.testing.assert_allclose(found[200:-200], expected[200:-200], atol=2e-5)

    @pytest.mark.slow
    @settings(max_examples=30)
    @given(
        st.integers(1, 300),
        st.integers(1, 3),
        st.sampled_from([8000, 11_025, 16_000, 22_050, 44_100]),
        st.sampled_from([8000, 16_000, 22_050]),
    )
    def test_rates_known_before_or_with_the_record_give_the_same_bytes(
        self, samples: int, channels: int, given_rate: int, wanted: int
    ) -> None:
        noise = np.random.default_rng(samples).standard_normal((samples, channels)) * 0.1
        noise = noise[:, 0] if channels == 1 else noise
        step = ss.audio.resample("audio", wanted)
        known, after = apply(step, noise, Audio(rate=given_rate, channels=channels))
        varied, varied_after = apply(step, noise, Audio(channels=channels), rate=given_rate)
        assert after == varied_after == {"audio": Audio(rate=wanted, channels=channels)}
        assert known.tobytes() == varied.tobytes()
        assert known.shape[0] == -(-samples * wanted // given_rate)
        fixed = Audio(rate=given_rate, channels=channels, samples=samples)
        assert step.features({"audio": fixed})["audio"].form.shape[0] == len(known)
        if given_rate == wanted:
            np.testing.assert_array_equal(known, noise.astype(np.float32))

    @given(st.integers(1, 4), st.integers(130, 400))
    @settings(max_examples=20)
    def test_channels_do_not_mix_and_a_constant_stays(self, channels: int, samples: int) -> None:
        levels = np.linspace(-0.8, 0.8, channels, dtype=np.float32)
        steady = np.tile(levels, (samples * 2, 1))
        feature = Audio(rate=12_000, channels=max(channels, 2))
        steady = steady if channels > 1 else np.tile(steady, (1, 2))
        found, _ = apply(ss.audio.resample("audio", 8000), steady, feature)
        np.testing.assert_allclose(found[86:-86], steady[: len(found) - 172], atol=1e-6)

    @pytest.mark.slow
    def test_odd_rates_go_another_way_to_the_same_samples(
        self, sounds: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        step = ss.audio.resample("audio", 16_000)
        for channels, rate in ((1, 8000), (2, 44_100)):
            noise = sounds.noise(700, channels)
            noise = noise[:, 0] if channels == 1 else noise
            feature = Audio(rate=rate, channels=channels)
            usual, _ = apply(step, noise, feature)
            with monkeypatch.context() as patch:
                patch.setattr(sound_steps, "_MAX_DENSE", 0)
                other, _ = apply(step, noise, feature)
                varied, _ = apply(step, noise, Audio(channels=channels), rate=rate)
            np.testing.assert_allclose(other, usual, atol=1e-7)
            np.testing.assert_array_equal(varied, other)
        found, _ = apply(step, sounds.tone(440.0, 15_991, 2000), Audio(rate=15_991))
        np.testing.assert_allclose(
            found[80:-80], sounds.tone(440.0, 16_000, len(found))[80:-80], atol=5e-4
        )

    @pytest.mark.slow
    def test_through_compiled_steps(self, kitchen: Any, sounds: Any) -> None:
        """In a batch and one by one, to the bit, stored as 16 bits and as floats."""
        rows = [
            {"audio": sounds.noise(n, seed=n)[:, 0], "audio/rate": 8000 + n} for n in (1, 90, 7)
        ]
        for dtype in ("int16", "float32"):
            features = {"audio": Audio(dtype=dtype)}
            values, done, _ = kitchen.cook([ss.audio.resample("audio", 16_000)], rows, features)
            assert not done.rejects
            assert [len(value["audio"]) for value in values] == [2, 178, 14]


class TestLength:
    @given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 3))
    def test_trim_or_pad(self, given_samples: int, wanted: int, channels: int) -> None:
        noise = np.random.default_rng(0).standard_normal((given_samples, channels))
        noise = noise[:, 0] if channels == 1 else noise
        found, after = apply(
            ss.audio.trim_or_pad("audio", wanted), noise, Audio(rate=8000, channels=channels)
        )
        expected = np.zeros((wanted, *noise.shape[1:]), np.float32)
        expected[: min(given_samples, wanted)] = noise[:wanted]
        np.testing.assert_array_equal(found, expected)
        assert after == {"audio": Audio(rate=8000, channels=channels, samples=wanted)}

    def test_it_keeps_the_rate_beside(self) -> None:
        found, after = apply(ss.audio.trim_or_pad("audio", 3), [1.0], Audio(), rate=8000)
        assert found.tolist() == [1, 0, 0]
        assert after == {"audio": Audio(samples=3)}

    @given(st.integers(1, 80), st.integers(1, 30), st.integers(1, 40))
    def test_frame(self, samples: int, length: int, step: int) -> None:
        noise = np.random.default_rng(0).standard_normal(samples).astype(np.float32)
        found, after = apply(ss.audio.frame("audio", length, step), noise, Audio(), rate=8000)
        padded = np.pad(noise, (0, max(length - samples, 0)))
        expected = np.lib.stride_tricks.sliding_window_view(padded, length)[::step]
        np.testing.assert_array_equal(found, expected)
        assert after == {"audio": Tensor("float32", (None, length))}
        fixed = ss.audio.frame("audio", length, step).features({"audio": Audio(samples=samples)})
        assert fixed == {"audio": Tensor("float32", expected.shape)}

    @given(st.integers(1, 50), st.integers(1, 8))
    def test_mono(self, samples: int, channels: int) -> None:
        noise = np.random.default_rng(0).standard_normal((samples, channels)).astype(np.float32)
        value = noise[:, 0] if channels == 1 else noise
        found, after = apply(ss.audio.mono("audio"), value, Audio(channels=channels), rate=8000)
        np.testing.assert_allclose(found, noise.mean(axis=1), atol=1e-6)
        assert after == {"audio": Audio()}


def _reference(samples: Any, *, rate: int, num_mels: int, low: float, high: float) -> Any:
    """A log-mel spectrogram of TensorFlow's own parts."""
    length, hop = round(0.025 * rate), round(0.010 * rate)
    fft_length = 1 << (length - 1).bit_length()
    spectrum = tf.signal.stft(samples, length, hop, fft_length)
    weights = tf.signal.linear_to_mel_weight_matrix(
        num_mels, fft_length // 2 + 1, rate, low, high, dtype=tf.float64
    )
    energy = tf.cast(tf.square(tf.abs(spectrum)), tf.float64)
    return tf.cast(tf.math.log(energy @ weights + 1e-6), tf.float32)


class TestSpectra:
    @pytest.mark.parametrize(
        ("rate", "num_mels", "low", "high"),
        [
            (16_000, 80, 20.0, None),
            (16_000, 64, 125.0, 7500.0),
            (8000, 40, 20.0, None),
            (44_100, 128, 0.0, 20_000.0),
        ],
    )
    def test_log_mel_is_what_tensorflow_makes(
        self, sounds: Any, rate: int, num_mels: int, low: float, high: float | None
    ) -> None:
        samples = sounds.noise(rate // 2)[:, 0] + sounds.tone(440, rate, rate // 2)
        step = ss.audio.log_mel("audio", num_mels=num_mels, low=low, high=high)
        found, after = apply(step, samples, Audio(rate=rate))
        expected = _reference(
            samples, rate=rate, num_mels=num_mels, low=low, high=high or rate / 2
        ).numpy()
        assert after == {"audio": Tensor("float32", (None, num_mels))}
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=2e-4)
        fixed = step.features({"audio": Audio(rate=rate, samples=len(samples))})
        assert fixed == {"audio": Tensor("float32", found.shape)}
        cepstrum = tf.signal.mfccs_from_log_mel_spectrograms(expected)[:, :13].numpy()
        step = ss.audio.mfcc("audio", num_mels=num_mels, low=low, high=high)
        found, after = apply(step, samples, Audio(rate=rate))
        np.testing.assert_allclose(found, cepstrum, atol=2e-3)
        assert after == {"audio": Tensor("float32", (None, 13))}

    @given(st.integers(1, 3000))
    @settings(max_examples=20)
    def test_any_length_gives_whole_frames(self, samples: int) -> None:
        noise = np.random.default_rng(samples).standard_normal(samples) * 0.1
        found, _ = apply(ss.audio.log_mel("audio", num_mels=30), noise, Audio(rate=16_000))
        assert found.shape == (1 + max(samples - 400, 0) // 160, 30)
        assert np.isfinite(found).all()

    def test_silence_is_the_offset(self) -> None:
        found, _ = apply(ss.audio.log_mel("audio", offset=0.01), np.zeros(800), Audio(rate=16_000))
        np.testing.assert_allclose(found, math.log(0.01), atol=1e-6)

    @pytest.mark.slow
    def test_through_compiled_steps(self, kitchen: Any, sounds: Any) -> None:
        rows = [{"audio": sounds.noise(n, seed=n)[:, 0]} for n in (1, 900, 2000)]
        steps = [ss.audio.trim_or_pad("audio", 1000), ss.audio.log_mel("audio", num_mels=20)]
        values, done, runner = kitchen.cook(steps, rows, MONO)
        assert not done.rejects
        assert runner.features == {"audio": Tensor("float32", (4, 20))}
        assert [value["audio"].shape for value in values] == [(4, 20)] * 3
        values, _, runner = kitchen.cook([ss.audio.mfcc("audio", 5, num_mels=20)], rows, MONO)
        assert [value["audio"].shape for value in values] == [(1, 5), (4, 5), (11, 5)]


class TestMistakes:
    @pytest.mark.parametrize(
        ("make", "feature", "says"),
        [
            (lambda: ss.audio.decode("audio"), Audio(rate=8000), "already decoded"),
            (lambda: ss.audio.decode("sound"), Audio(), "'sound' does not exist. Sounds here"),
            (lambda: ss.audio.mono("audio"), Scalar("int64"), "is a Scalar. Sounds here: none"),
            (lambda: ss.audio.mono("audio"), Audio(storage="encoded"), "still encoded"),
            (lambda: ss.audio.log_mel("audio"), Audio(), "ss.audio.resample('audio', 16000)"),
            (lambda: ss.audio.mfcc("audio"), Audio(rate=16_000, channels=2), "has 2 channels"),
            (lambda: ss.audio.log_mel("audio", num_mels=300), Audio(rate=8000), "be empty"),
            (lambda: ss.audio.log_mel("audio", high=9000), Audio(rate=16_000), "at most 8000"),
            (lambda: ss.audio.log_mel("audio", low=900, high=90), Audio(rate=16_000), "low < high"),
            (lambda: ss.audio.log_mel("audio", hop=1e-9), Audio(rate=16_000), "a hop 0"),
            (lambda: ss.audio.frame("audio", 2, 1), Audio(channels=2), "Put ss.audio.mono"),
        ],
    )
    def test_a_step_says_what_it_needs(self, make: Any, feature: Any, says: str) -> None:
        with pytest.raises(RecipeError) as caught:
            make().features({"audio": feature})
        assert says in str(caught.value)
        assert str(caught.value).startswith("prepare: ss.audio.")

    @pytest.mark.parametrize(
        "make",
        [
            lambda: ss.audio.decode("audio", rate=0),
            lambda: ss.audio.decode("audio", dtype="int8"),  # type: ignore[arg-type]
            lambda: ss.audio.resample("audio", 10**7),
            lambda: ss.audio.trim_or_pad("audio", 0),
            lambda: ss.audio.frame("audio", 4, 0),
            lambda: ss.audio.log_mel("audio", offset=0),
            lambda: ss.audio.log_mel("audio", window=math.inf),
            lambda: ss.audio.mfcc("audio", 90),
        ],
        ids=["no rate", "dtype", "rate", "no samples", "step", "offset", "window", "coefficients"],
    )
    def test_arguments_are_checked_at_once(self, make: Any) -> None:
        with pytest.raises(RecipeError):
            make()

    @pytest.mark.parametrize(
        "step",
        [
            ss.audio.decode("audio"),
            ss.audio.decode("audio", 16_000, True, dtype="int16", plain_wav=True),
            ss.audio.resample("audio", 8000),
            ss.audio.mono("audio"),
            ss.audio.trim_or_pad("audio", 16_000),
            ss.audio.frame("audio", 400, 160),
            ss.audio.log_mel("audio"),
            ss.audio.log_mel("audio", num_mels=64, hop=0.0125, low=125.0, high=7500.0),
            ss.audio.mfcc("audio", 20, offset=0.001),
        ],
    )
    def test_a_step_reads_as_it_is_written(self, step: Any) -> None:
        assert eval(repr(step), {"ss": ss}) == step
        assert step.settings()["step"] == f"audio.{repr(step).partition('(')[0].split('.')[-1]}"
        fields = {field.name for field in dataclasses.fields(step)}
        assert fields - {"step"} <= step.settings().keys() | {"length", "step"}


_THREADS = """
import hashlib, sys
import numpy as np
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
tf.config.threading.set_inter_op_parallelism_threads(int(sys.argv[1]))
import snapshard as ss
digest = hashlib.sha256()
for rate in (8000, 44100):
    feature = {"audio": ss.Audio(rate=rate)}
    for num in (100, 200_000):
        record = {"audio": tf.constant(np.random.default_rng(0).standard_normal(num), tf.float32)}
        sound = ss.audio.resample("audio", 16000).apply(record, feature)
        digest.update(sound["audio"].numpy().tobytes())
        mel = ss.audio.mfcc("audio").apply(sound, {"audio": ss.Audio(rate=16000)})
        digest.update(mel["audio"].numpy().tobytes())
print(digest.hexdigest())
"""


@pytest.mark.slow  # two processes load TensorFlow: its thread pools are set once a process
def test_one_thread_gives_the_same_bytes_as_five() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", _THREADS, threads], stdout=subprocess.PIPE, check=True, text=True
        ).stdout
        for threads in ("1", "5")
    }
    assert len(found) == 1
