"""The model for serving gives, of raw bytes, what the examples hold."""

import csv
import io
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.transforms.prepare.engine.serving import argument_names


def _model(snapshot: ss.Snapshot) -> Any:
    return snapshot.reader().preprocess()


@pytest.mark.slow
def test_images_with_orientation(tmp_path: Path, lab: Any) -> None:
    rng = np.random.default_rng(0)
    contents = {}
    for index in range(16):
        exif = PillowImage.Exif()
        if index % 2:
            exif[0x0112] = index // 2 + 1
        buffer = io.BytesIO()
        pixels = rng.integers(0, 256, (10 + index, 20, 3), np.uint8)
        kind = "PNG" if index % 5 == 0 else "JPEG"
        image = PillowImage.fromarray(pixels)
        image.save(buffer, kind, **({"exif": exif} if kind == "JPEG" else {}))
        path = tmp_path / "in" / "ab"[index % 2] / f"{index}.img"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(buffer.getvalue())
        contents[f"{'ab'[index % 2]}/{index}.img"] = buffer.getvalue()
    recipe = ss.Recipe(
        name="x",
        source=ss.ImageFolder(str(tmp_path / "in")),
        prepare=[ss.images.decode("image"), ss.images.resize("image", (8, 8))],
    )
    snapshot = ss.build(recipe, tmp_path / "out")
    serving = snapshot.manifest.serving
    assert serving is not None
    assert (serving.inputs, serving.left_out) == (["image"], [])
    held = lab.read_back(snapshot)
    served = _model(snapshot)(image=tf.constant([contents[key] for key in held.ids]))
    assert set(served) == {"image"}
    np.testing.assert_array_equal(served["image"].numpy(), held.values["image"])


def _scale(inputs: dict[str, Any]) -> dict[str, Any]:
    import tensorflow_transform as tft

    age = inputs["age"]
    age = tf.SparseTensor(age.indices, age.values, [age.dense_shape[0], 1])
    age = tf.sparse.to_dense(age, default_value=-1.0)
    return {
        "age": tft.scale_to_z_score(tf.squeeze(age, 1)),
        "town": tft.compute_and_apply_vocabulary(inputs["town"]),
        "double": inputs["double"],
        "rooms": tf.SparseTensor(
            inputs["rooms"].indices, 2 * inputs["rooms"].values, inputs["rooms"].dense_shape
        ),
        "same": inputs["rooms"],
        "label": inputs["label"],
    }


@pytest.mark.slow  # an analysis and a model
def test_tables_with_a_preprocessing_fn(tmp_path: Path, lab: Any) -> None:
    rng = np.random.default_rng(0)
    rows: dict[str, Any] = {
        "age": [None if index % 7 == 0 else float(index) for index in range(60)],
        "town": [f"t{index % 5}" for index in range(60)],
        "rooms": [None if index % 5 == 0 else index % 3 for index in range(60)],
        "double": [round(float(value), 6) for value in rng.normal(size=60)],
        "label": [index % 2 for index in range(60)],
    }
    with open(tmp_path / "t.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(rows)
        writer.writerows(
            ["" if value is None else value for value in row]
            for row in zip(*rows.values(), strict=True)
        )
    recipe = ss.Recipe(
        name="x",
        source=ss.Csv(str(tmp_path / "t.csv"), label="label", types={"double": "float64"}),
        prepare=[ss.tables.clip("age", max=50.0)],
        preprocessing_fn=_scale,
    )
    snapshot = ss.build(recipe, tmp_path / "out")
    serving = snapshot.manifest.serving
    assert serving is not None
    assert (serving.inputs, serving.left_out) == (["age", "double", "rooms", "town"], [])
    assert serving.optional_inputs == ["age", "rooms"]
    held = lab.read_back(snapshot)
    with open(tmp_path / "t.csv", newline="") as file:
        content = file.read()
    order = [content[: int(key.partition("#")[2])].count("\n") - 1 for key in held.ids]
    served = _model(snapshot)(
        age=tf.constant([np.nan if (v := rows["age"][row]) is None else v for row in order]),
        rooms=[np.nan if (v := rows["rooms"][row]) is None else v for row in order],
        town=tf.constant([rows["town"][row] for row in order]),
        double=tf.constant([rows["double"][row] for row in order], tf.float64),
    )
    masks = {"rooms_present", "same_present"}
    assert set(served) == {"age", "town", "double", "rooms", "same", *masks}
    assert set(served["rooms_present"].numpy()) == {True, False}
    for name, values in served.items():
        np.testing.assert_array_equal(values.numpy(), held.values[name], err_msg=name)
    # Without the key, missing in every row.
    (age,) = _model(snapshot)(town=["t1"], double=[0.5])["age"].numpy()
    assert age in held.values["age"][[rows["age"][row] is None for row in order]]


@pytest.mark.slow
def test_what_cannot_be_exported_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("x,text\n" + "".join(f"{i},Wort {i}\n" for i in range(30)))

    def half(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "x": tf.cast(record["x"], tf.float32) / 2}

    step = ss.records.map_python(
        lambda record: {"x": record["x"], "text": record["text"].upper()},
        features={"x": ss.Scalar("int64"), "text": ss.Scalar("string")},
    )
    source = ss.Csv(str(tmp_path / "t.csv"), types={"text": "string"})
    recipe = ss.Recipe(name="x", source=source, prepare=[step, half])
    snapshot = ss.build(recipe, tmp_path / "out")
    serving = snapshot.manifest.serving
    assert serving is not None
    assert serving.inputs == ["text", "x"]
    (left_out,) = serving.left_out
    assert "map_python" in left_out
    assert "Python" in left_out
    served = _model(snapshot)(x=tf.constant([3], tf.int64), text=tf.constant(["A"]))
    assert served["x"].numpy().tolist() == [1.5]
    plain = ss.build(ss.Recipe(name="y", source=source), tmp_path / "out")
    assert plain.manifest.serving is None


@pytest.mark.slow
def test_names_that_differ_in_case_or_signs_alone(tmp_path: Path) -> None:
    names = ["A B", "a b", "a_b", "A_b", "self", "Self", "Class", "class", "True", "1", "ä", "Ä"]
    lines = [{name: i + 100 * at for at, name in enumerate(names)} for i in range(30)]
    (tmp_path / "t.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    recipe = ss.Recipe(
        name="x",
        source=ss.JsonLines(str(tmp_path / "t.jsonl")),
        prepare=[ss.tables.clip(name, min=5) for name in names],
    )
    snapshot = ss.build(recipe, tmp_path / "out")
    serving = snapshot.manifest.serving
    assert serving is not None
    assert len(serving.inputs) == len({name.lower() for name in serving.inputs}) == len(names)
    given = {name: at for at, name in enumerate(serving.inputs)}
    served = _model(snapshot)(**{k: tf.constant([v], tf.int64) for k, v in given.items()})
    arguments = argument_names(snapshot.manifest.features)
    assert {name: value.numpy().tolist() for name, value in served.items()} == {
        name: [max(5, given[arguments[name]])] for name in names
    }


def test_tokens_that_are_looked_up_in_the_only_step(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("s\nx\ny z\n" * 5)
    (tmp_path / "words.txt").write_text("x\ny\n")
    step = ss.text.tokenize("s", vocabulary=str(tmp_path / "words.txt"))
    source = ss.Csv(str(tmp_path / "s.csv"), types={"s": "string"})
    recipe = ss.Recipe(name="x", source=source, prepare=[step], splits=ss.Splits(train=1.0))
    snapshot = ss.build(recipe, tmp_path / "out")
    served = _model(snapshot)(s=tf.constant(["x", "y z"]))
    assert served["s"].to_list() == [[0], [1, 2]]


ROUNDED = ["exp", "log", "pow", "rsqrt", "sigmoid", "sin", "unit"]
"""Outputs whose last bits depend on a value's place in its batch: TensorFlow computes vectors."""
MAX_ULPS = 4
"""docs/reading.md states it."""


def _of_all_kinds(inputs: dict[str, Any]) -> dict[str, Any]:
    import tensorflow_transform as tft

    tokens = tf.strings.split(inputs["text"])
    words = tft.compute_and_apply_vocabulary(tokens.to_sparse(), top_k=20, num_oov_buckets=1)
    distinct, weights = tft.tfidf(words, 21)
    tf.debugging.assert_positive(inputs["checked"])
    x = inputs["x"]
    return {
        "tokens": tokens,
        "words": distinct,
        "weights": weights,
        **{name: inputs[name] for name in ("class", "lot.size", "rooms", "sure")},
        "exp": tf.math.exp(x / 50),
        "log": tf.math.log(x),
        "pow": tf.math.pow(x, 1.3),
        "rsqrt": tf.math.rsqrt(x),
        "sigmoid": tf.math.sigmoid(x / 50),
        "sin": tf.math.sin(x),
        "unit": tf.math.l2_normalize(tf.stack([x, x + 1, x + 2], axis=1), axis=1),
    }


Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def of_all_kinds(tmp_path_factory: pytest.TempPathFactory) -> tuple[ss.Snapshot, Rows]:
    """A snapshot, and its raw rows in the order of its only split."""
    rng = np.random.default_rng(0)
    rows: Rows = [
        {
            "x": float(np.float32(rng.uniform(1, 100))),
            "text": " ".join(f"w{word}" for word in rng.integers(0, 30, index % 5)),
            "class": index % 3,
            "lot": {"size": index, "unused": "far"},
            "rooms": None if index % 5 == 0 else index % 4,
            "sure": index % 2 > 0,
            "checked": index + 1,
            "unused": index,
        }
        for index in range(203)
    ]
    folder = tmp_path_factory.mktemp("kinds")
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "t.jsonl").write_text("".join(lines))
    recipe = ss.Recipe(
        name="x",
        source=ss.JsonLines(str(folder / "t.jsonl"), types={"x": "float32", "text": "string"}),
        splits=ss.Splits(train=1.0),
        prepare=[ss.tables.clip("class", max=5)],
        preprocessing_fn=_of_all_kinds,
    )
    snapshot = ss.build(recipe, folder / "out")
    begins = np.cumsum([0, *map(len, lines)]).tolist()
    (batch,) = snapshot.reader().dataset("train", 203, shuffle=False, with_id=True)
    ids = [record_id.decode() for record_id in batch["record_id"].numpy()]
    return snapshot, [rows[begins.index(int(id_.partition("#")[2]))] for id_ in ids]


def _values(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch as plain values, by name; lists where it is ragged."""
    flat = {k: v for k, v in batch.items() if not isinstance(v, dict)}
    inner = {f"{k}.{n}": v for k, d in batch.items() if isinstance(d, dict) for n, v in d.items()}
    return {
        name: value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy()
        for name, value in (flat | inner).items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 203])
def test_every_kind_of_output_is_what_the_reader_gives(
    of_all_kinds: tuple[ss.Snapshot, Rows], size: int
) -> None:
    snapshot, rows = of_all_kinds
    serve = _model(snapshot)
    (batch,) = snapshot.reader().dataset("train", 203, shuffle=False)
    read = _values(batch)
    assert isinstance(read["words"], list)
    for start in [*range(0, 203, size)][:30]:
        part = rows[start : start + size]
        columns: dict[str, Any] = {name: [row[name] for row in part] for name in part[0]}
        columns["rooms"] = [np.nan if rooms is None else rooms for rooms in columns["rooms"]]
        columns["lot"] = {"size": [row["lot"]["size"] for row in part]}
        for served in (serve(part), serve(**columns)):
            assert {k: type(v) for k, v in served.items()} == {k: type(batch[k]) for k in batch}
            for name, values in _values(served).items():
                expected = read[name][start : start + size]
                if name in ROUNDED:
                    np.testing.assert_array_max_ulp(values, expected, MAX_ULPS)
                elif isinstance(values, list):
                    assert values == expected, name
                else:
                    np.testing.assert_array_equal(values, expected, err_msg=name)
    assert _values(serve([])).keys() == read.keys()


@pytest.mark.slow
def test_inputs_are_what_outputs_need(of_all_kinds: tuple[ss.Snapshot, Rows]) -> None:
    snapshot, rows = of_all_kinds
    serving = snapshot.manifest.serving
    assert serving is not None
    # A check of the preprocessing_fn reads "checked".
    assert serving.inputs == ["checked", "class_", "lot_size", "rooms", "sure", "text", "x"]
    assert serving.optional_inputs == ["rooms"]
    serve = _model(snapshot)
    wanted = _values(serve(rows[:3]))
    flat = [row | {"class_": row["class"], "lot.size": row["lot"]["size"]} for row in rows[:3]]
    needed = ["x", "text", "rooms", "sure", "checked"]
    for names in (["class", "lot.size"], ["class_", "lot.size"], ["class", "lot"]):
        served = _values(serve([{name: row[name] for name in (*needed, *names)} for row in flat]))
        assert str(served) == str(wanted)
    with pytest.raises(ValueError, match=r"^Missing inputs in row 1: 'class', 'text'\."):
        serve([rows[0], {"x": 1.0, "lot.size": 1, "sure": True, "checked": 1}])
    with pytest.raises(tf.errors.InvalidArgumentError, match="x > 0 did not hold"):
        serve([rows[0] | {"checked": 0}])
    with pytest.raises(ValueError, match=r"^Missing inputs: 'checked', 'class', 'lot.size', "):
        serve(x=[1.0])
    with pytest.raises(ValueError, match="'class' and 'class_' are the same input"):
        serve(flat)
    with pytest.raises(ValueError, match=r"^There is no input 'clas', only 'checked', 'class', "):
        serve([rows[0] | {"clas": 1}])


NOT_ROWS = [
    ({"x": 1.0}, "a dict: pass a list of rows, "),
    ("x", "a str: pass a list of rows, "),
    ([{"x": 1.0}, 1.0], "a list of float: pass a list of rows, "),
]


@pytest.mark.slow
def test_requests_of_another_form_are_refused(of_all_kinds: tuple[ss.Snapshot, Rows]) -> None:
    snapshot, rows = of_all_kinds
    serve = _model(snapshot)
    for given, message in NOT_ROWS:
        with pytest.raises(ValueError, match=message):
            serve(given)
    with pytest.raises(ValueError, match="either rows or batches by name"):
        serve(rows[:1], x=[1.0])
    bools: list[Any] = [True, np.True_, np.array([True]), np.array([True], object), [True, 2]]
    for name in ("x", "class", "rooms", "checked"):
        for value in bools[:2]:
            with pytest.raises(ValueError, match=f"^{name}=.*True.* is not .*: a bool is not"):
                serve([rows[0] | {name: value}])
        for value in bools[2:]:
            with pytest.raises(ValueError, match=f"(?s)^{name}=.*True.* is not .*: a bool is not"):
                serve(**{name: value})
    assert serve([rows[0] | {"sure": np.True_}])["sure"].numpy().item() == 1


@pytest.mark.slow
def test_sounds_of_several_rates(tmp_path: Path) -> None:
    contents = {}
    for index in range(8):
        name = f"{'ab'[index % 2]}/{index}.wav"
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(tmp_path / "in" / name), "wb") as file:
            file.setparams((1, 2, 8000 * (1 + index % 2), 0, "NONE", ""))
            file.writeframes(np.arange(100 + index, dtype=np.int16).tobytes())
        contents[name] = (tmp_path / "in" / name).read_bytes()
    recipe = ss.Recipe(
        name="x",
        source=ss.AudioFolder(str(tmp_path / "in")),
        prepare=[ss.audio.decode("audio", plain_wav=True)],
        preprocessing_fn=dict,
        splits=ss.Splits(train=1.0),
    )
    reader = ss.build(recipe, tmp_path / "out").reader()
    (batch,) = reader.dataset("train", 8, shuffle=False, with_id=True)
    ids = [record_id.decode() for record_id in batch.pop("record_id").numpy()]
    del batch["label"]
    served = reader.preprocess()([{"audio": contents[name]} for name in ids])
    assert str(_values(served)) == str(_values({name: batch[name] for name in served}))
    assert served.keys() == batch.keys()
