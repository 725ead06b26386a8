"""What emission writes: the snapshot's facts as harmless text, and only what it can use."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshard.pipelines import reader_facts
from snapshard.pipelines.emit import ReaderFacts, emit_reader
from snapshard.pipelines.readers import emit_numpy_reader
from snapshard.schemas.features import (
    Audio,
    BoundingBoxes,
    ClassLabel,
    Features,
    Image,
    Scalar,
    Sequence,
    Struct,
    Tensor,
    Text,
    Timestamp,
    features_from_json,
    flatten,
    tensor_form,
)

PUBLIC = {"dataset", "steps", "preprocess"}
MAX_LINES = 399
LABEL: Features = {"label": ClassLabel(names=("no", "yes"))}
ENCODED = Image(storage="encoded")

KINDS: dict[str, Features] = {
    "raw images": {"image": Image(height=64, width=64)} | LABEL,
    "raw images and an id": {"image": Image(height=64, width=64), "id": Scalar(dtype="string")},
    "raw images of unequal sizes": {"image": Image()} | LABEL,
    "encoded images": {"image": ENCODED} | LABEL,
    "encoded grey images": {"image": Image(storage="encoded", channels=1)} | LABEL,
    "encoded images with alpha": {"image": Image(storage="encoded", channels=4)} | LABEL,
    "rotated images": {"image": ENCODED, "rotated": ENCODED} | LABEL,
    "numbers": {"a": Scalar(dtype="float32"), "b": Scalar(dtype="int64")} | LABEL,
    "narrow numbers": {"a": Scalar(dtype="uint8"), "t": Tensor(dtype="bool", shape=(2,))},
    "missing numbers": {"a": Scalar(dtype="float32", optional=True)} | LABEL,
    "missing bools": {"a": Scalar(dtype="bool", optional=True)} | LABEL,
    "lists": {"a": Tensor(dtype="int32", shape=(None,), optional=True)},
    "wide numbers": {
        "a": Scalar(dtype="float64", optional=True),
        "b": Scalar(dtype="uint64", optional=True),
    },
    "packed": {"a": Tensor(dtype="uint8", shape=(3,)), "b": Scalar(dtype="float64")},
    "packed lists": {"a": Tensor(dtype="float64", shape=(None,))} | LABEL,
    "halves": {"a": Scalar(dtype="float16"), "b": Tensor(dtype="bfloat16", shape=(2, 2))},
    "boxes": {"boxes": BoundingBoxes(), "classes": Sequence(ClassLabel(names=("a", "b")))},
    "any dimensions": {"a": Tensor(dtype="uint64", shape=(None, 2, None))} | LABEL,
    "sounds": {"a": Audio(rate=8000)} | LABEL,
    "sounds of one length": {"a": Audio(rate=8000, samples=9, channels=2)} | LABEL,
    "sounds of any rate": {"a": Audio(dtype="float32")} | LABEL,
    "texts and times": {"a": Text(), "b": Timestamp(unit="ns", optional=True)} | LABEL,
    "structs": flatten({"a": Struct({"x": Text(), "y": Struct({"z": Scalar("int8")})})})[0] | LABEL,
    "everything": {
        "any": Tensor(dtype="float16", shape=(None, 2, None)),
        "box": Tensor(dtype="uint64", shape=(None, 2)),
        "double": Scalar(dtype="float64", optional=True),
        "unsigned": Scalar(dtype="uint64", optional=True),
        "sound": Audio(),
        "bool": Scalar(dtype="bool", optional=True),
        "grey": Image(storage="encoded", channels=1),
        "image": Image(height=8, width=8),
        "list": Tensor(dtype="string", shape=(None,)),
        "png": Image(storage="encoded", channels=4),
        "rotated": ENCODED,
        "scan": Image(),
    }
    | LABEL,
}


MIXED: dict[str, frozenset[str]] = {
    text: frozenset(text.split())
    for text in ("jpeg", "cmyk jpeg", "png", "jpeg png", "webp", "gif bmp jpeg", "cmyk webp")
}
DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "string"),
)
SHAPES: tuple[tuple[int | None, ...], ...] = ((), (2,), (None,), (None, 2), (2, None), (None, None))


def every_feature() -> Features:
    """Each kind of feature in each of its forms: about two hundred."""
    found: Features = {}
    for dtype in DTYPES:
        for shape in SHAPES:
            is_list = shape[:1] == (None,) and None not in shape[1:]
            for optional in (False, True) if not shape or is_list else (False,):
                form = (
                    Tensor(dtype=dtype, shape=shape, optional=optional)
                    if shape
                    else Scalar(dtype=dtype, optional=optional)
                )
                found[f"{dtype} {shape} {optional}"] = form
    for channels in (1, 3, 4):
        found[f"pixels {channels}"] = Image(height=8, width=8, channels=channels)
        found[f"scans {channels}"] = Image(channels=channels)
        found[f"files {channels}"] = Image(storage="encoded", channels=channels)
        found[f"sized {channels}"] = Image(height=8, width=8, storage="encoded", channels=channels)
    for rate in (None, 8000):
        for samples in (None, 80):
            for dtype in ("int16", "float32"):
                name = f"sound {rate} {samples} {dtype}"
                found[name] = Audio(rate=rate, samples=samples, dtype=dtype)
    some: Features = {
        "text": Text(),
        "time": Timestamp(unit="ns", optional=True),
        "boxes": BoundingBoxes(),
        "classes": Sequence(ClassLabel(names=("a", "b"))),
        "class": ClassLabel(names=tuple(map(str, range(300))), optional=True),
        "a": Struct({"x": Text(), "y": Struct({"z": Scalar("int8")})}),
    }
    return found | flatten(some)[0]


def snapshots() -> Iterator[tuple[Features, dict[str, Any]]]:
    """Features, and what else the reader is told, of all kinds of snapshots."""
    every = every_feature()
    for name, feature in every.items():
        yield {name: feature}, {}
        yield {name: feature} | LABEL, {}
    for formats in MIXED.values():
        for channels in (1, 3, 4):
            for rotated in (True, False):
                features: Features = {"a": Image(storage="encoded", channels=channels)} | LABEL
                told = {"image_formats": {"a": formats}, "serving": True}
                told["rotated_images"] = frozenset("a" if rotated else "")
                yield features, told
                yield features | {"b": Image(), "c": Image(height=8, width=8)}, told
                yield every | features, told
    thousands: Features = {"label": ClassLabel(names=tuple(map(str, range(10_000))))}
    yield thousands, {"class_counts": range(10_000)}
    yield every | thousands, {"serving": True, "rotated_images": frozenset({"files 1"})}
    yield every, {}
    yield every | LABEL, {"rotated_images": frozenset(f"files {i}" for i in (1, 3, 4))}
    many = {f"column number {i} of many": form for i, form in enumerate([*every.values()] * 6)}
    yield many, {"lengths": dict.fromkeys(many, range(10**6, 10**6 + 8))}
    for dtype in DTYPES:
        yield {f"{dtype} {i}": Scalar(dtype=dtype, optional=i % 2 > 0) for i in range(200)}, {}
    classes = {f"label {i}": ClassLabel(names=tuple(map(str, range(500)))) for i in range(40)}
    yield classes, {"label": "label 7"}
    yield LABEL, {"num_examples": {f"split_number_{i}": i for i in range(200)}}


def emitted(features: Features, **changes: Any) -> str:
    return emit_reader(facts_of(features, **changes))["reader.py"]


def facts_of(features: Features, **changes: Any) -> ReaderFacts:
    facts: dict[str, Any] = {
        "name": "made",
        "fingerprint": "0123456789abcdef",
        "features": features,
        "label": "label" if "label" in features else None,
        "compression": "none",
        "num_examples": {"train": 8, "test": 2},
        "record_bytes": 1000,
        "rotated_images": frozenset({"rotated"} & set(features)),
        "version": "1.2.3",
        "structs": tuple(
            name for name in ("a", "a.y") if any(key.startswith(f"{name}.") for key in features)
        ),
    }
    return ReaderFacts(**(facts | changes))


def constants(text: str) -> dict[str, Any]:
    """The constants of an emitted reader, evaluated without running anything else."""
    block = text[text.index("# fmt: off") : text.index("\n# fmt: on\n")]
    values: dict[str, Any] = {"Any": Any}
    exec(compile(block, "constants", "exec"), values)
    return values


@pytest.mark.parametrize("features", KINDS.values(), ids=KINDS)
class TestEveryKind:
    def test_short_complete_and_the_same_each_time(self, features: Features) -> None:
        text = emitted(features)
        assert text == emitted(dict(reversed(features.items())))
        jpeg = dict.fromkeys(features, frozenset({"jpeg"}))
        assert len(emitted(features, image_formats=jpeg).splitlines()) <= MAX_LINES
        assert len(text.splitlines()) <= MAX_LINES
        assert "# [" not in text
        tree = ast.parse(text)
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert defined <= called | PUBLIC, "no function is left that nothing calls"

    def test_needs_tensorflow_and_nothing_else(self, features: Features) -> None:
        imported = set()
        for node in ast.walk(ast.parse(emitted(features))):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                imported.add(str(node.module))
        assert {name.partition(".")[0] for name in imported} <= {
            *sys.stdlib_module_names,
            "tensorflow",
        }

    def test_states_the_features(self, features: Features) -> None:
        values = constants(emitted(features))
        assert set(values["FEATURES"]) == set(features)
        for name, feature in features.items():
            stated = values["FEATURES"][name]
            assert stated["kind"] == feature.kind
            form = tensor_form(feature)
            if form is None:
                assert features_from_json({name: stated}) == {name: feature}
                continue
            assert stated["dtype"] == form.dtype
            assert tuple(stated.get("shape", [])) == form.shape
            assert stated.get("optional", False) == form.optional
            if form.optional and not form.shape:
                assert repr(stated["default"]) == repr(form.fill)
            if isinstance(feature, ClassLabel):
                assert tuple(stated["names"]) == feature.names
        if "label" in features:
            assert values["FEATURES"]["label"]["names"] is values["CLASS_NAMES"]


SNAPSHOTS = list(snapshots())


@pytest.mark.parametrize(
    "step",
    [
        12,
        pytest.param(1, marks=pytest.mark.slow),  # writes 450 readers: 15 s
    ],
)
def test_no_reader_is_long(step: int) -> None:
    for features, told in [*SNAPSHOTS[::step], *SNAPSHOTS[-5:]]:
        files = emit_reader(facts_of(features, **told))
        num_lines = len(files["reader.py"].splitlines())
        assert num_lines <= MAX_LINES, (list(features), told)
        stated = constants(files["reader.py"])
        assert set(stated["FEATURES"]) == set(features)
        assert "# [" not in "".join(files.values())
        moved = files.get("reader_values.py", "")
        assert bool(moved) == ('_beside("reader_values")' in files["reader.py"])
        assert moved == "" or f'FINGERPRINT = "{stated["FINGERPRINT"]}"' in moved


def test_ordinary_readers_stand_alone() -> None:
    """Features on lines of their own, and nothing beside them that plain reading needs."""
    photographs: Features = {"image": ENCODED} | LABEL
    rotated, jpeg = frozenset({"image"}), {"image": frozenset({"jpeg"})}
    table: Features = {f"x{i}": Scalar(dtype=dtype) for i, dtype in enumerate(DTYPES * 2)}
    for files in (
        emit_reader(facts_of(photographs, image_formats={"image": frozenset({"jpeg", "png"})})),
        emit_reader(facts_of(photographs, rotated_images=rotated, image_formats=jpeg)),
        emit_reader(facts_of(table | LABEL)),
    ):
        assert list(files) == ["reader.py"]
        assert max(map(len, files["reader.py"].splitlines())) <= 100
    # What serving needs is not what plain reading needs.
    reader = emit_reader(facts_of(KINDS["raw images"], serving=True))["reader.py"]
    assert reader.count('_beside("reader_values")') == 1
    assert 'return _beside("reader_values")._served(' in reader


def run(tool: str, *arguments: str, folder: Path) -> None:
    """Runs a development tool as a module; warnings of its own are not ours."""
    result = subprocess.run(
        [sys.executable, "-m", tool, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture
def written(tmp_path: Path) -> Path:
    for index, features in enumerate(KINDS.values()):
        for name, text in emit_reader(facts_of(features)).items():
            (tmp_path / f"{index}_{name}").write_text(text, encoding="utf-8")
    for name, text in emit_reader(facts_of(every_feature() | LABEL)).items():
        (tmp_path / f"every_{name}").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("own", [True, False])
def test_ruff_finds_nothing(written: Path, own: bool) -> None:
    pytest.importorskip("ruff", reason="needs ruff: pip install ruff")
    settings = []
    if own:
        settings = ["--config", str(Path(__file__).parents[2] / "pyproject.toml")]
        settings += ["--ignore", "E501"]  # many features stand on long lines
    run("ruff", "check", *(settings or ["--isolated"]), ".", folder=written)
    run("ruff", "format", "--check", "--line-length=100", "--isolated", ".", folder=written)


@pytest.mark.slow  # mypy starts with an empty cache: about 10 s
def test_mypy_finds_nothing_in_strict_mode(written: Path) -> None:
    pytest.importorskip("mypy", reason="needs mypy: pip install mypy")
    run("mypy", "--strict", "--config-file=", "--cache-dir=.cache", ".", folder=written)
    shutil.rmtree(written / ".cache")


class TestNames:
    WICKED = (
        '"""',
        "'''",
        '"] ; import os #',
        "__import__('os').abort()",
        "{fingerprint}",
        "{0}",
        "%s",
        "back\\slash\\",
        "line\nbreak\r\ttab",
        "# [end]",
        "# [if image]",
        "\n# fmt: on\nraise SystemExit",
        "\u202eright to left",
        "\u2028line separator",
        "\x00",
        "Çé漢字🙂",
        "",
        "' \"",
    )

    def test_wicked_names_are_only_names(self) -> None:
        names = self.WICKED
        features: Features = {
            "label": ClassLabel(names=names),
            **{
                f"x{name}": Scalar(dtype="string", optional=True, default=name)
                for name in names
                if name.isascii() or name.isprintable()
            },
        }
        text = emitted(features, name=self.WICKED[0], num_examples=dict.fromkeys(names, 1))
        values = constants(text)
        assert tuple(values["CLASS_NAMES"]) == names
        assert tuple(values["NUM_EXAMPLES"]) == names
        assert values["NAME"] == self.WICKED[0]
        for name, value in values["FEATURES"].items():
            assert name == "label" or name == f"x{value['default']}"
        text.encode()
        assert not any(character in text for character in "\u202e\u2028\x00")

    @given(names=st.lists(st.text(), unique=True))
    def test_any_names(self, names: list[str]) -> None:
        text = emitted({"label": ClassLabel(names=tuple(names))})
        assert constants(text)["CLASS_NAMES"] == names
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        plain = [node for node in ast.walk(ast.parse(emitted(LABEL))) if isinstance(node, ast.Call)]
        assert len(calls) == len(plain), "names bring no code"

    def test_thousands_stand_on_few_lines(self) -> None:
        names = tuple(f"class {i} of many" for i in range(10_000))
        text = emitted({"label": ClassLabel(names=names)})
        assert len(text.splitlines()) < 400
        assert tuple(constants(text)["CLASS_NAMES"]) == names

    def test_few_stand_on_lines_that_can_be_read(self) -> None:
        text = emitted({"label": ClassLabel(names=tuple(f"class {i}" for i in range(50)))})
        assert max(map(len, text.splitlines())) <= 100

    @pytest.mark.parametrize(
        "changes", [{"fingerprint": '"""'}, {"fingerprint": "12"}, {"version": '1"""'}]
    )
    def test_what_enters_as_text_is_checked(self, changes: dict[str, str]) -> None:
        with pytest.raises(ValueError, match="malformed"):
            emitted(LABEL, **changes)


class TestLayout:
    @pytest.mark.parametrize(
        ("features", "names"),
        [
            ({"image": Image(height=8, width=8)} | LABEL, ["image", "label"]),
            ({"z": Image(height=8, width=8)} | LABEL, ["label", "z"]),
            (LABEL, ["label"]),
            ({"a": ClassLabel(names=tuple(map(str, range(128))))}, ["a"]),
            ({"a": ClassLabel(names=tuple(map(str, range(129))))}, []),
            ({"image": Image(height=8)} | LABEL, []),
            ({"image": ENCODED} | LABEL, []),
            ({"x": Scalar(dtype="float32")} | LABEL, ["label", "x"]),
            ({"x": Scalar(dtype="float64"), "y": Scalar(dtype="bool")}, ["x", "y"]),
            ({"x": Scalar(dtype="float32", optional=True)} | LABEL, []),
            ({"x": Tensor(dtype="int16", shape=(3, 2))} | LABEL, ["label", "x"]),
            ({"x": Tensor(dtype="int32", shape=(3, 2))} | LABEL, []),
            ({"x": Tensor(dtype="uint8", shape=(None, 2))} | LABEL, []),
            ({"x": Audio(rate=8000, samples=80)} | LABEL, ["label", "x"]),
            ({"x": Audio(samples=80)} | LABEL, []),
            ({str(i): Scalar(dtype="float32") for i in range(9)}, []),
        ],
    )
    def test_is_stated_where_all_is_of_one_length(
        self, features: Features, names: list[str]
    ) -> None:
        text = emitted(features)
        layout = constants(text).get("LAYOUT", [])
        assert [name for name, _, _ in layout] == names
        assert ("def _cut(" in text) == bool(names)

    def test_lengths_are_variable_length_numbers(self) -> None:
        assert [reader_facts._varint(n).hex() for n in (0, 127, 128, 300, 2**21)] == [
            "00",
            "7f",
            "8001",
            "ac02",
            "80808001",
        ]


FORMAT_FACTS = {"all_jpeg", "any_format", "webp", "no_webp"}
GREY = Image(storage="encoded", channels=1)
ALPHA = Image(storage="encoded", channels=4)
ALL_JPEG, ANY, NO_WEBP = {"all_jpeg", "no_webp"}, {"any_format", "webp"}, {"any_format", "no_webp"}


def formats(**by_name: str) -> dict[str, frozenset[str]]:
    return {name: frozenset(text.split()) for name, text in by_name.items()}


class TestFormats:
    @pytest.mark.parametrize(
        ("features", "known", "facts"),
        [
            ({"a": ENCODED}, formats(a="jpeg"), ALL_JPEG),
            ({"a": ENCODED}, formats(a="png"), NO_WEBP),
            ({"a": ENCODED}, formats(a="png gif bmp"), NO_WEBP),
            ({"a": ENCODED}, formats(a="webp"), ANY),
            ({"a": ENCODED}, formats(a="jpeg png"), NO_WEBP),
            ({"a": ENCODED}, formats(a="jpeg webp"), ANY),
            ({"a": ENCODED, "b": ENCODED}, formats(a="jpeg", b="png"), NO_WEBP),
            ({"a": ENCODED, "b": GREY}, formats(a="jpeg", b="jpeg"), ALL_JPEG),
            ({"a": GREY}, formats(a="jpeg"), ALL_JPEG),
            ({"a": GREY}, formats(a="cmyk jpeg"), NO_WEBP),
            ({"a": ENCODED}, formats(a="cmyk jpeg"), ALL_JPEG),
            ({"a": ALPHA}, formats(a="png"), NO_WEBP),
            ({"a": ALPHA}, formats(a="jpeg"), ALL_JPEG),
            ({"a": ENCODED}, {}, ANY),
            ({"a": ENCODED}, formats(a=""), ANY),
            ({"a": ENCODED, "b": ENCODED}, formats(a="png"), ANY),
            ({"a": Image(height=8, width=8), "b": Image()}, formats(a="jpeg"), NO_WEBP),
        ],
    )
    def test_what_has_to_be_decoded(
        self, features: Features, known: dict[str, frozenset[str]], facts: set[str]
    ) -> None:
        found = reader_facts.sections(
            features,
            label=None,
            rotated_images=frozenset(),
            image_formats=known,
            structs=(),
        )
        assert {name for name in FORMAT_FACTS if found[name]} == facts


class TestClasses:
    def test_weights_make_classes_count_alike(self) -> None:
        names = ("a", "b", "c", "d")
        counts = (7, 0, 13, 1)
        values = constants(emitted({"label": ClassLabel(names=names)}, class_counts=counts))
        weights, shares = values["CLASS_WEIGHTS"], values["CLASS_SHARES"]
        assert shares == [0.333333, 0.0, 0.619048, 0.047619]
        assert weights == [1.0, 0.0, 0.538462, 7.0]
        weighted = [weight * count for weight, count in zip(weights, counts, strict=True)]
        assert weighted == pytest.approx([7, 0, 7, 7], rel=1e-5), "together as much as 21 records"

    def test_classes_that_nobody_counted(self) -> None:
        values = constants(emitted(LABEL))
        assert values["CLASS_WEIGHTS"] == values["CLASS_SHARES"] == [0.0, 0.0]

    @pytest.mark.parametrize("label", [None, "x"])
    def test_none_where_the_label_is_no_class(self, label: str | None) -> None:
        features: Features = {"x": Scalar(dtype="int64"), "other": ClassLabel(names=("a",))}
        values = constants(emitted(features, label=label))
        assert "CLASS_WEIGHTS" not in values
        assert "CLASS_SHARES" not in values

    def test_thousands_stand_on_few_lines(self) -> None:
        names = tuple(map(str, range(5_000)))
        features: Features = {"label": ClassLabel(names=names)}
        few = emitted(LABEL, class_counts=(1, 2))
        many = emitted(features, class_counts=range(1, 5_001))
        assert len(many.splitlines()) < len(few.splitlines()) + 45
        assert len(constants(many)["CLASS_WEIGHTS"]) == 5_000


def test_both_readers_are_told_the_same() -> None:
    features: Features = {"words": Tensor(dtype="int64", shape=(None,))} | LABEL
    told = {"class_counts": (3, 1), "lengths": {"words": (2, 5)}}
    facts = facts_of(features, **told)
    of_tf, of_numpy = (
        constants(text) for text in (emit_reader(facts)["reader.py"], emit_numpy_reader(facts))
    )
    assert of_numpy["CLASS_WEIGHTS"] == of_tf["CLASS_WEIGHTS"] == [0.666667, 2.0]
    for name in ("CLASS_NAMES", "CLASS_SHARES", "LENGTHS", "FEATURES", "LABEL"):
        assert of_numpy[name] == of_tf[name]


class TestLengths:
    def test_are_told_of_what_varies(self) -> None:
        features: Features = {
            "a": Tensor(dtype="int64", shape=(None,)),
            "b": Audio(rate=8000),
            "c": Text(),
            "d": Tensor(dtype="int64", shape=(3, None)),
        }
        values = constants(emitted(features, lengths={"b": (10, 20), "a": (1,)}))
        assert values["LENGTHS"] == {"a": [1], "b": [10, 20]}
        assert constants(emitted(features))["LENGTHS"] == {"a": [], "b": []}

    def test_none_where_nothing_varies(self) -> None:
        assert "LENGTHS" not in constants(emitted({"c": Text()} | LABEL))
