"""What holds of steps whatever the record: each is what plain Python makes of single values."""

import io
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow

import snapshard as ss
from snapshard.schemas.features import ClassLabel, Scalar, Sequence
from snapshard.transforms.prepare.engine.program import StepRunner

CLASSES = ("x", "y", "z")
FEATURES = {
    "c": ClassLabel(CLASSES, optional=True),
    "list": Sequence(Scalar("float32"), optional=True),
    "n": Scalar("int64", optional=True),
    "s": Scalar("string", optional=True),
    "x": Scalar("float32", optional=True),
}
FLOATS = st.floats(width=32, allow_subnormal=False)
# A record without lists or with an empty one is told apart; a string may hold any bytes.
ROWS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "c": st.integers(0, 2),
            "list": st.lists(FLOATS, max_size=4),
            "n": st.integers(-(2**63), 2**63 - 1),
            "s": st.binary(max_size=6),
            "x": FLOATS,
        },
    ),
    max_size=8,
)
SEVERAL = settings(max_examples=40, deadline=None)


def same(found: Any, expected: Any) -> bool:
    return np.array_equal(np.float32(found), np.float32(expected), equal_nan=True)


@pytest.fixture(scope="module")
def filled(kitchen: Any) -> Any:
    steps = [
        *(ss.tables.missing(name, f"no_{name}") for name in FEATURES),
        ss.tables.fill("n", 7),
        ss.tables.fill("s", "none"),
        ss.tables.fill("x", 0.5, nan=True),
        ss.tables.fill("c", "y"),
        ss.tables.clip("list", -1.0, 2.5),
        ss.tables.one_hot("c", dtype="int8"),
    ]
    return kitchen.menu(steps, FEATURES)


@SEVERAL
@given(rows=ROWS)
def test_what_is_missing_is_told_and_filled_and_nothing_else(filled: Any, rows: Any) -> None:
    found, done = filled.run(rows)
    assert not done.rejects
    assert len(found) == len(rows)
    for values, row in zip(found, rows, strict=True):
        assert {n: values[f"no_{n}"] for n in FEATURES} == {n: n not in row for n in FEATURES}
        assert (values["n"], values["s"]) == (row.get("n", 7), row.get("s", b"none"))
        x = row.get("x", math.nan)
        assert values["x"] == (0.5 if math.isnan(x) else x)
        assert values["c"].tolist() == [row.get("c", 1) == k for k in range(3)]
        if "list" in row:
            assert same(values["list"], np.clip(np.float32(row["list"]), -1.0, 2.5))
        else:
            assert values["list"] is None


@pytest.fixture(scope="module")
def hashed(kitchen: Any) -> Any:
    steps = [ss.tables.hash(name, 50) for name in ("n", "s")]
    return kitchen.menu([ss.tables.clip("x", -3.0, 4.0), *steps], FEATURES)


@SEVERAL
@given(rows=ROWS)
def test_equal_values_have_one_hash_and_a_clipped_one_lies_between(hashed: Any, rows: Any) -> None:
    found, done = hashed.run([*rows, *rows])
    assert not done.rejects
    again = found[len(rows) :]
    for values, twin, row in zip(found, again, rows, strict=False):
        for name in ("n", "s"):
            assert values[name] == twin[name]
            assert values[name] is None if name not in row else 0 <= values[name] < 50
        if "x" in row:
            assert same(values["x"], np.clip(np.float32(row["x"]), -3.0, 4.0))


NAMES = st.lists(st.sampled_from(sorted(FEATURES)), unique=True, min_size=1, max_size=4)


@pytest.mark.slow
@SEVERAL
@given(rows=ROWS, names=NAMES, shift=st.integers(1, 4))
def test_names_move_and_values_stay(kitchen: Any, rows: Any, names: Any, shift: int) -> None:
    given_values, _, _ = kitchen.cook([], rows, FEATURES)
    selected, _, runner = kitchen.cook([ss.records.select(names)], rows, FEATURES)
    assert list(runner.features) == [name for name in FEATURES if name in names]
    dropped, _, _ = kitchen.cook([ss.records.drop(names)], rows, FEATURES)
    # Names go round in a ring.
    ring = dict(
        zip(names, [*names[shift % len(names) :], *names[: shift % len(names)]], strict=True)
    )
    renamed, _, _ = kitchen.cook([ss.records.rename(ring)], rows, FEATURES)
    for index, values in enumerate(given_values):
        for name, value in values.items():
            part = selected if name in names else dropped
            assert repr(part[index][name]) == repr(value)
            assert repr(renamed[index][ring.get(name, name)]) == repr(value)


@pytest.fixture(scope="module")
def mapped(kitchen: Any) -> Any:
    def double(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "twice": 2 * record["n"]}

    def spell(record: dict[str, Any]) -> dict[str, Any]:
        return {"text": f"{record['n']:+d}", "half": record["n"] / 2}

    made = {"text": Scalar("string"), "half": Scalar("float64")}
    steps = [ss.records.map(double), ss.records.map_python(spell, made)]
    return kitchen.menu(steps, {"n": Scalar("int64")})


@SEVERAL
@given(numbers=st.lists(st.integers(-(2**61), 2**61), max_size=8))
def test_functions_give_what_they_give(mapped: Any, numbers: list[int]) -> None:
    found, _ = mapped.run([{"n": number} for number in numbers])
    assert found == [
        {"n": n, "twice": 2 * n, "text": f"{n:+d}".encode(), "half": n / 2} for n in numbers
    ]


@pytest.fixture(scope="module")
def decoders(pictures: Any) -> dict[str, StepRunner]:
    decode = ss.images.decode("image")
    return {
        "decode": StepRunner([decode], pictures.features),
        "resize": StepRunner([decode, ss.images.resize("image", (5, 7))], pictures.features),
        "gray": StepRunner([decode, ss.images.convert("image", "grayscale")], pictures.features),
    }


@SEVERAL
@given(
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    turned=st.integers(1, 8),
    colour=st.tuples(*[st.integers(0, 255)] * 3),
    form=st.sampled_from(["PNG", "BMP", "WEBP"]),
)
def test_pixels_are_what_was_drawn(
    pictures: Any, decoders: Any, height: int, width: int, turned: int, colour: Any, form: str
) -> None:
    noise = np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)

    def content(pixels: Any) -> bytes:
        sink, exif = io.BytesIO(), Pillow.Exif()
        exif[0x0112] = turned
        options = {"BMP": {}, "PNG": {"exif": exif}, "WEBP": {"exif": exif, "lossless": True}}
        Pillow.fromarray(pixels).save(sink, form, **options[form])
        return sink.getvalue()

    def run(name: str, pixels: Any) -> Any:
        columns = decoders[name].prepare(pictures.raw_batch([content(pixels)])).columns
        row = columns.to_pylist()[0]
        rows, columns_ = row.get("image/height", 5), row.get("image/width", 7)
        return np.frombuffer(row["image"], np.uint8).reshape(rows, columns_, -1)

    upright = noise if form == "BMP" else upright_of(noise, turned)
    np.testing.assert_array_equal(run("decode", noise), upright)
    one = np.full((height, width, 3), colour, np.uint8)
    np.testing.assert_array_equal(run("resize", one), np.full((5, 7, 3), colour, np.uint8))
    gray = np.asarray(Pillow.fromarray(np.ascontiguousarray(upright)).convert("L"))
    np.testing.assert_array_equal(run("gray", noise)[..., 0], gray)


def upright_of(pixels: Any, orientation: int) -> Any:
    """As a viewer shows it; the numbers are those of EXIF."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    flips = {2: (1,), 3: (0, 1), 4: (0,), 6: (1,), 7: (0, 1), 8: (0,)}
    return np.flip(pixels, flips.get(orientation, ()))


@pytest.fixture(scope="module")
def spectra(kitchen: Any) -> Any:
    features = {"audio": ss.Audio(rate=16_000, dtype="float32")}
    return kitchen.menu([ss.audio.mfcc("audio", 6, num_mels=20)], features)


@settings(max_examples=15, deadline=None)
@given(samples=st.integers(1, 2000), factor=st.floats(0, 1))
def test_any_sound_has_finite_coefficients(spectra: Any, samples: int, factor: float) -> None:
    noise = np.random.default_rng(samples).standard_normal(samples).astype(np.float32)
    ((values,), done) = spectra.run([{"audio": np.clip(noise * factor, -1, 1)}])
    assert not done.rejects
    assert values["audio"].shape == (1 + max(samples - 400, 0) // 160, 6)
    assert np.isfinite(values["audio"]).all()
