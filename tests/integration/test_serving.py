"""The model for serving gives, of raw bytes, what the examples hold."""

import csv
import io
import json
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
