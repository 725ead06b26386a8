"""What emission writes: the snapshot's facts as harmless text, and the package as it is."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from snapshard.pipelines.reader import emit
from snapshard.pipelines.reader.emit import ReaderFacts, emit_reader, facts_text
from snapshard.pipelines.reader.runtime import images
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

FACTS = "reader/facts.py"
RUNTIME = Path(emit.__file__).with_name("runtime")
MAX_LINES = 399
LABEL: Features = {"label": ClassLabel(names=("no", "yes"))}
SERVED = {"a b": {"input": "a_b", "dtype": "int64", "optional": True}, "c": {}}
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
                told = {"image_formats": {"a": formats}, "serving_inputs": SERVED}
                told["rotated_images"] = frozenset("a" if rotated else "")
                yield features, told
                yield features | {"b": Image(), "c": Image(height=8, width=8)}, told
    yield every | features, told
    thousands: Features = {"label": ClassLabel(names=tuple(map(str, range(10_000))))}
    yield thousands, {"class_counts": range(10_000)}
    yield every | thousands, {"serving_inputs": SERVED, "rotated_images": frozenset({"files 1"})}
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
    """``facts.py`` of a snapshot."""
    return facts_text(facts_of(features, **changes))


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
    """What ``facts.py`` says; it has constants and nothing else."""
    docstring, future, any_, *assignments = ast.parse(text).body
    assert isinstance(docstring, ast.Expr)
    assert isinstance(future, ast.ImportFrom)
    assert isinstance(any_, ast.ImportFrom)
    assert (future.module, any_.module) == ("__future__", "typing")
    for node in assignments:
        assert isinstance(node, ast.Assign | ast.AnnAssign)
        assert not any(isinstance(one, ast.Lambda) for one in ast.walk(node))
        calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
        assert {ast.unparse(one.func) for one in calls} <= {"float"}  # float("nan")
    values: dict[str, Any] = {}
    exec(compile(text, "facts", "exec"), values)
    return values


@pytest.mark.parametrize("features", KINDS.values(), ids=KINDS)
class TestEveryKind:
    def test_short_and_the_same_each_time(self, features: Features) -> None:
        text = emitted(features)
        assert text == emitted(dict(reversed(features.items())))
        assert len(text.splitlines()) <= MAX_LINES

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
        pytest.param(1, marks=pytest.mark.slow),  # 400 kinds
    ],
)
def test_facts_are_never_long(step: int) -> None:
    for features, told in [*SNAPSHOTS[::step], *SNAPSHOTS[-5:]]:
        text = emitted(features, **told)
        assert len(text.splitlines()) <= MAX_LINES, (list(features), told)
        assert set(constants(text)["FEATURES"]) == set(features)


def test_all_but_the_facts_is_copied() -> None:
    """Every snapshot has every module of the package, in the form in which it is tested."""
    files = emit_reader(facts_of(KINDS["everything"]))
    assert files.keys() == {f"reader/{path.name}" for path in RUNTIME.glob("*.py")}
    for name, text in files.items():
        if name != FACTS:
            assert text == (RUNTIME / Path(name).name).read_text(encoding="utf-8"), name
    other = emit_reader(facts_of(KINDS["numbers"], fingerprint="f" * 16))
    assert {name for name in files if files[name] != other[name]} == {FACTS}


def test_the_facts_of_a_snapshot_are_those_that_the_package_is_tested_with() -> None:
    """The made-up ``facts.py`` beside the modules has the same names, with the same types."""

    def names(text: str) -> dict[str, str]:
        found = {}
        for node in ast.parse(text).body:
            if isinstance(node, ast.AnnAssign):
                found[ast.unparse(node.target)] = ast.unparse(node.annotation)
            elif isinstance(node, ast.Assign):
                found[ast.unparse(node.targets[0])] = type(ast.literal_eval(node.value)).__name__
        return found

    assert names(emitted(KINDS["everything"])) == names((RUNTIME / "facts.py").read_text())


def test_it_needs_tensorflow_and_nothing_else() -> None:
    """At its start; fsspec, Grain and others are imported where they are asked for."""
    for name, text in emit_reader(facts_of(LABEL)).items():
        imported = set()
        for node in ast.parse(text).body:
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level < 2
                imported |= set() if node.level else {str(node.module)}
        assert {one.partition(".")[0] for one in imported} <= {
            *sys.stdlib_module_names,
            "numpy",
            "tensorflow",
        }, name


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
        (tmp_path / f"facts_{index}.py").write_text(emitted(features), encoding="utf-8")
    for name, text in emit_reader(facts_of(every_feature() | LABEL)).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
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

    @pytest.mark.slow
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
        assert [name for name, _, _ in constants(text)["LAYOUT"]] == names


class TestFormats:
    def ops(self, channels: int, formats: str) -> set[str]:
        """The operations that decode files of these formats."""

        def decode(content: Any) -> Any:
            return images.decode(content, channels, formats.split())

        spec = tf.TensorSpec([], tf.string)
        graph = tf.function(decode, autograph=False).get_concrete_function(spec).graph
        definition = graph.as_graph_def()
        nodes = [*definition.node]
        for function in definition.library.function:
            nodes += function.node_def
        return {node.op for node in nodes if node.op.startswith("Decode")}

    @pytest.mark.parametrize("channels", [1, 3, 4])
    @pytest.mark.parametrize("formats", ["jpeg", "png", "png gif bmp", "webp", "jpeg webp", "cmyk"])
    def test_what_has_to_be_decoded(self, channels: int, formats: str) -> None:
        found = self.ops(channels, formats)
        assert ("DecodeWebP" in found) == ("webp" in formats)
        if formats == "jpeg" or (formats == "cmyk" and channels != 1):
            assert found == {"DecodeJpeg"}
        else:
            assert "DecodeImage" in found

    @pytest.mark.parametrize(
        ("features", "known", "stated"),
        [
            ({"a": ENCODED}, {"a": "jpeg"}, {"a": ["jpeg"]}),
            ({"a": ENCODED, "b": ENCODED}, {"a": "png jpeg"}, {"a": ["jpeg", "png"]}),
            ({"a": ENCODED}, {"a": ""}, {}),
            ({"a": Image(height=8, width=8), "b": Image()}, {"a": "jpeg", "b": "png"}, {}),
        ],
    )
    def test_are_stated_where_they_are_known(
        self, features: Features, known: dict[str, str], stated: dict[str, list[str]]
    ) -> None:
        formats = {name: frozenset(text.split()) for name, text in known.items()}
        assert constants(emitted(features, image_formats=formats))["IMAGE_FORMATS"] == stated


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

    @pytest.mark.parametrize(
        ("label", "labels", "expected"),
        [
            (None, "kinds", ["cat", "dog"]),
            (None, ("crowd", "kinds"), ["cat", "dog"]),
            ("kinds", "kinds", ["cat", "dog"]),
            ("scene", "kinds", ["day", "night"]),
            (None, ("kinds", "parts"), None),
            (None, "crowd", None),
            (None, None, None),
        ],
    )
    def test_of_boxes_where_no_label_has_them(
        self, label: str | None, labels: Any, expected: Any
    ) -> None:
        features: Features = {
            "boxes": BoundingBoxes(labels=labels),
            "kinds": Sequence(ClassLabel(("cat", "dog"))),
            "crowd": Sequence(Scalar("bool")),
            "parts": Sequence(ClassLabel(("head",))),
            "scene": ClassLabel(("day", "night")),
        }
        values = constants(emitted(features, label=label))
        assert (values["LABEL"], values["CLASS_NAMES"]) == (label, expected)
        assert values["FEATURES"]["kinds"]["names"] == ["cat", "dog"]
        if label != "scene":
            assert values["CLASS_WEIGHTS"] == values["CLASS_SHARES"] == []

    @pytest.mark.parametrize("label", [None, "x"])
    def test_none_where_the_label_is_no_class(self, label: str | None) -> None:
        features: Features = {"x": Scalar(dtype="int64"), "other": ClassLabel(names=("a",))}
        values = constants(emitted(features, label=label))
        assert values["CLASS_NAMES"] is None
        assert values["CLASS_WEIGHTS"] == values["CLASS_SHARES"] == []

    def test_thousands_stand_on_few_lines(self) -> None:
        names = tuple(map(str, range(5_000)))
        features: Features = {"label": ClassLabel(names=names)}
        few = emitted(LABEL, class_counts=(1, 2))
        many = emitted(features, class_counts=range(1, 5_001))
        assert len(many.splitlines()) < len(few.splitlines()) + 45
        assert len(constants(many)["CLASS_WEIGHTS"]) == 5_000


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
        assert constants(emitted({"c": Text()} | LABEL))["LENGTHS"] == {}
