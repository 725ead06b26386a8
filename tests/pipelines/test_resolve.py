"""Declared features held against inferred ones and against what the steps give."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

import snapshard as ss
from snapshard.pipelines.survey.inference_cache import Inferred
from snapshard.pipelines.survey.resolve import ResolvedFeatures, resolve_features
from snapshard.schemas.blocks import Block, RawBatch, Selection, SourceFile
from snapshard.schemas.errors import RecipeError, SchemaError
from snapshard.schemas.features import Feature, Features, flatten
from snapshard.schemas.recipe import OpenSource
from snapshard.transforms.prepare.engine.program import StepRunner
from snapshard.transforms.prepare.engine.validate import Validator
from snapshard.transforms.runs.files import wire_schema


@dataclasses.dataclass(frozen=True)
class Given:
    """A source of which nothing but its features is asked."""

    inferred: Mapping[str, Any]
    url: str = "nowhere"
    label: str | None = None
    media: bool = False
    numbered: bool = True
    side_urls: tuple[str, ...] = ()

    def settings(self) -> dict[str, object]:
        raise AssertionError

    def select(self, files: Sequence[SourceFile]) -> Selection:
        raise AssertionError

    def cuts(self, file: SourceFile, opened: OpenSource, *, every: int) -> tuple[int, ...]:
        raise AssertionError

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        return self.inferred

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        raise AssertionError


@dataclasses.dataclass(frozen=True)
class Becomes:
    """A step that makes a feature another one; of others it knows nothing."""

    name: str
    feature: Feature

    def settings(self) -> dict[str, object]:
        return {}

    def features(self, features: Features) -> Features:
        return {**features, self.name: self.feature}

    def apply(self, record: dict[str, Any]) -> dict[str, Any]:
        return record


def resolved(
    inferred: Mapping[str, Any], declared: Mapping[str, Any] | None, *steps: Any
) -> ResolvedFeatures:
    recipe = ss.Recipe(name="x", source=Given(inferred), features=declared, prepare=steps)
    return resolve_features(recipe, Inferred(*flatten(inferred)))


OTHER = Becomes("other", ss.Scalar("int64"))


@pytest.mark.parametrize(
    ("declared", "steps", "undeclared"),
    [
        (None, [], ()),
        (None, [OTHER], ()),
        ({"x": ss.Scalar("int64")}, [], ("y",)),
        ({"x": ss.Scalar("int64")}, [OTHER], ("y", "other")),
        ({"other": ss.Scalar("int64")}, [OTHER, ss.records.drop(["x"])], ("y",)),
        ({name: ss.Scalar("int64") for name in "xy"}, [], ()),
    ],
)
def test_features_that_a_declaration_leaves_out_are_known(
    declared: Any, steps: list[Any], undeclared: tuple[str, ...]
) -> None:
    found = resolved({name: ss.Scalar("int64") for name in "xy"}, declared, *steps)
    assert found.undeclared == undeclared


@pytest.mark.parametrize(
    ("inferred", "declared"),
    [
        (ss.Scalar("float32"), ss.Scalar("float32", min=0, max=1, finite=True)),
        (ss.Scalar("float32"), ss.Scalar("float64")),
        (ss.Scalar("int64", optional=True), ss.Scalar("uint8", values=(1, 2))),
        (ss.Scalar("string"), ss.Text(max_length=3)),
        (ss.Scalar("string"), ss.ClassLabel(("a", "b"))),
        (ss.ClassLabel(("a",)), ss.ClassLabel(("a", "b"))),
        (ss.Timestamp("us"), ss.Timestamp("s", optional=True)),
        (ss.Tensor("float32", (None,)), ss.Tensor("float32", (3,))),
        (ss.Tensor("int64", (None,)), ss.Sequence(ss.Scalar("uint8", max=9))),
        (ss.Scalar("string"), ss.Image(storage="encoded")),
    ],
)
def test_what_a_source_may_convert(inferred: Feature, declared: Feature) -> None:
    alone = resolved({"x": inferred}, {"x": declared})
    assert alone.raw == alone.prepared == {"x": declared}
    # Beside a step on something else it converts as well.
    beside = resolved({"x": inferred}, {"x": declared}, OTHER)
    assert beside.prepared == {"x": declared}
    assert type(beside.raw["x"]) in (type(inferred), type(declared))


@pytest.mark.parametrize(
    ("inferred", "declared", "message"),
    [
        (ss.Scalar("int64"), ss.Tensor("int64", (2,)), r"the source has ss.Scalar\(\"int64\"\)"),
        (ss.Tensor("int64", (None,)), ss.Scalar("int64"), "which it cannot read so"),
        (ss.Scalar("int64"), ss.Image(2, 2), r"as ss.Image\(height=2, width=2\)"),
        (ss.Image(storage="encoded"), ss.Scalar("string"), "cannot read so"),
    ],
)
def test_what_no_source_can_convert_is_refused(
    inferred: Feature, declared: Feature, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        resolved({"x": inferred}, {"x": declared})


def test_a_feature_that_is_not_there_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"has no feature 'y'; it has 'x'"):
        resolved({"x": ss.Text()}, {"y": ss.Text()})
    with pytest.raises(RecipeError, match="declares 'y', and the prepare steps give only 'x', 'o"):
        resolved({"x": ss.Text()}, {"y": ss.Text()}, OTHER)


@pytest.mark.parametrize(
    ("made", "declared"),
    [
        (ss.Scalar("float32"), ss.Scalar("float32", min=0, finite=True, optional=True)),
        (ss.Scalar("float32", min=0, max=1), ss.Scalar("float32", max=0.5)),
        (ss.Scalar("int64", optional=True), ss.Scalar("int64")),
        (ss.Scalar("int64"), ss.ClassLabel(("a", "b"))),
        (ss.Scalar("int64"), ss.Timestamp("s")),
        (ss.Scalar("string"), ss.Text(max_length=4)),
        (ss.Tensor("int64", (None,)), ss.Sequence(ss.Scalar("int64", max=3), optional=True)),
        (ss.Tensor("float32", (None, 4)), ss.BoundingBoxes()),
        (ss.Sequence(ss.Scalar("float32")), ss.Tensor("float32", (None,), min=0)),
        (ss.Sequence(ss.Text()), ss.Sequence(ss.Text(max_length=2))),
        (ss.Image(storage="encoded"), ss.Image(2, 2, channels=1, storage="encoded")),
        (ss.Image(), ss.Image(2, 2)),
    ],
)
def test_what_steps_give_may_be_declared_tighter_or_more_telling(
    made: Feature, declared: Feature
) -> None:
    found = resolved({"x": ss.Scalar("string")}, {"x": declared}, Becomes("x", made))
    assert found.prepared == {"x": declared}


@pytest.mark.parametrize(
    ("made", "declared", "message"),
    [
        (ss.Scalar("float32"), ss.Scalar("float64"), r'add ss.tables.cast\("x", "float64"\)'),
        (ss.Scalar("int64"), ss.Scalar("int8", min=0), r"steps give ss.Scalar\(\"int64\"\)"),
        (ss.Timestamp("s"), ss.Timestamp("ms"), "Correct one of them"),
        (ss.ClassLabel(("a", "b")), ss.ClassLabel(("b", "a")), "ClassLabel"),
        (ss.Tensor("int64", (2,)), ss.Tensor("int64", (3,)), "Correct one"),
        (ss.Tensor("int16", (None,)), ss.Audio(rate=8000), "Correct one"),
        (ss.Image(2, 2), ss.Image(3, 3), "Correct one"),
        (ss.Image(2, 2), ss.Image(2, 2, channels=1), "Correct one"),
        (ss.Image(2, 2), ss.Tensor("uint8", (2, 2, 3)), "Correct one"),
        (ss.Audio(rate=8000), ss.Audio(rate=16000), "Correct one"),
    ],
)
def test_what_steps_do_not_give_is_refused(made: Feature, declared: Feature, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        resolved({"x": ss.Scalar("string")}, {"x": declared}, Becomes("x", made))


def test_what_may_be_missing_is_read_as_missing() -> None:
    inferred = {"x": ss.Scalar("int64"), "y": ss.Scalar("int64", optional=True)}
    declared = {"x": ss.Scalar("int64", optional=True, default=5), "y": ss.Scalar("int64", min=1)}
    found = resolved(inferred, declared, OTHER)
    assert found.raw["x"] == ss.Scalar("int64", optional=True, default=5)
    # A step may yet fill it; what is still missing behind the steps is rejected there.
    assert found.raw["y"] == ss.Scalar("int64", optional=True)
    assert found.prepared == declared


@pytest.mark.parametrize("touch", [False, True])
def test_what_steps_leave_missing_is_rejected_and_not_filled(touch: bool) -> None:
    def function(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "z": record["x"] + 1} if touch else record

    raw: Features = {"x": ss.Scalar("int64", optional=True)}
    prepared: Features = {"x": ss.Scalar("int64", min=0)}
    batch = pa.RecordBatch.from_pydict({"x": [1, None, -1]}, schema=wire_schema(raw))
    made = StepRunner([function], raw, prepared).prepare(
        RawBatch(ids=["a#0", "a#1", "a#2"], columns=batch)
    )
    kept = Validator(prepared).validate(made, numbered=True)
    assert kept.columns.to_pydict() == {"x": [1]}
    assert [(r.record_id, r.reason) for r in kept.rejects] == [
        ("a#1", "missing value"),
        ("a#2", "out of limits"),
    ]


def test_structs_are_named() -> None:
    at = ss.Struct({"x": ss.Scalar("float32"), "of": ss.Struct({"y": ss.Text()})})
    found = resolved({"at": at, "b.c": ss.Scalar("int64")}, None)
    assert list(found.prepared) == ["at.x", "at.of.y", "b.c"]
    assert found.structs == ("at", "at.of")
    declared = resolved({"at": at}, {"at": ss.Struct({"x": ss.Scalar("float32", min=0)})})
    assert declared.structs == ("at",)
    assert declared.prepared == {"at.x": ss.Scalar("float32", min=0)}


GAPS: dict[str, Any] = {
    "n": ss.Scalar("int64", optional=True),
    "t": ss.Text(optional=True),
    "l": ss.Sequence(ss.Scalar("float32"), optional=True),
    "f": ss.Scalar("float32", optional=True),
    "c": ss.ClassLabel(("a", "b"), optional=True),
    "at": ss.Timestamp("s", optional=True),
    "there": ss.Scalar("int64"),
}


def reading(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    import tensorflow as tf

    return lambda record: {
        **record,
        "made": tf.size(tf.identity(record[name])),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", GAPS)
@pytest.mark.parametrize("kind", ["function", "map", "filter"])
def test_no_function_takes_a_missing_value_for_a_real_one(name: str, kind: str) -> None:
    function: Any = reading(name)
    step: Any = {
        "function": function,
        "map": ss.records.map(function),
        "filter": ss.records.filter(lambda record: function(record)["made"] > 0),
    }[kind]
    if name in ("n", "t", "l"):
        with pytest.raises(RecipeError, match=f"reads '{name}', which may be missing, and gets "):
            resolved(GAPS, None, step)
    else:
        resolved(GAPS, None, step)
    # It can tell.
    resolved(GAPS, None, ss.tables.missing(name, "gone"), step)
    renamed = ss.records.rename({name: "new"})
    if name != "there":
        resolved(GAPS, None, ss.tables.missing(name, "gone"), renamed, reading("new"))
    stated = {"n": 0, "t": "", "l": (), "f": 0.0, "c": -1, "at": 0, "there": 0}
    feature = dataclasses.replace(GAPS[name], default=stated[name])
    resolved(GAPS | {name: feature}, None, step)
    if name in ("n", "t"):
        resolved(GAPS, None, ss.tables.fill(name, stated[name]), step)
    # A record without a value is rejected.
    required = dataclasses.replace(GAPS[name], optional=False)
    if kind == "filter":
        resolved(GAPS, {name: required}, step)


@pytest.mark.parametrize("name", GAPS)
def test_no_preprocessing_fn_takes_a_missing_value_for_a_real_one(name: str) -> None:
    """Single values are sparse there; of a list a missing one would be an empty row."""
    import tensorflow as tf

    def computing(inputs: dict[str, Any]) -> dict[str, Any]:
        value = inputs[name]
        if isinstance(value, tf.RaggedTensor):
            return {"made": value.row_lengths()}
        if isinstance(value, tf.SparseTensor):
            return {"made": tf.sparse.reset_shape(value)}
        return {"made": value + 1}

    def resolve(found: Mapping[str, Any], *steps: Any, **more: Any) -> None:
        given = {"preprocessing_fn": computing, "prepare": steps} | more
        recipe = ss.Recipe(name="x", source=Given(found), **given)
        resolve_features(recipe, Inferred(*flatten(found)))

    if name == "l":
        with pytest.raises(RecipeError, match="preprocessing_fn reads 'l', which may be missing"):
            resolve(GAPS)
    else:
        resolve(GAPS)
    resolve(GAPS, ss.tables.missing(name, "gone"))
    resolve(GAPS, preprocessing_fn=lambda inputs: {"same": inputs[name], "n": inputs["n"]})
    resolve(GAPS | {"l": dataclasses.replace(GAPS["l"], default=())})
    required = {key: dataclasses.replace(feature, optional=False) for key, feature in GAPS.items()}
    resolve(GAPS, features=required)
