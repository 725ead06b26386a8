"""The prepare steps of a recipe as one function of a record, and the features it produces.

Built-in steps declare their effect on features. A user's function is called once with symbolic
tensors, and its features are inferred from the result.

Files that steps need (vocabularies, tokenizers) are read and hashed here: only their content enters
the fingerprint, not their path. The recipe carries the contents to its workers.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ....schemas.errors import RecipeError
from ....schemas.features import (
    RESERVED_PREFIX,
    Feature,
    Features,
    Image,
    Mask,
    Tensor,
    frames_of,
    is_encoded,
    side_names,
    tensor_form,
)
from ....schemas.recipe import PrepareStep, Recipe, RecordFn, StepTraits
from ...code.dependencies import running
from ...code.digest import CodeHashes
from ...code.graph_operations import refuse_python, refuse_random, refuse_writes
from ...code.user_code import is_users_class
from ...storage.opened_source import open_source
from ..audio import Decode as DecodeSound
from ..images import Check
from ..images import Decode as DecodeImage
from ..images import Encode as EncodeImage
from ..values import Tables, holding_tables
from .resources import refuse_unowned, refusing_variables, runs_users_code
from .user_functions import describe as describe
from .user_functions import note_file_reads, result_of, where_of

Step = PrepareStep | RecordFn
KEEP = f"{RESERVED_PREFIX}keep"
"""Name of the bool scalar in a record that a filter sets: whether to keep the record."""

_Step = TypeVar("_Step")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TracedRecord:
    """The result of running the steps on one symbolic record."""

    features: dict[str, Feature]
    record: dict[str, Any]
    """The features' tensors, with their side tensors."""
    read: frozenset[str]
    """Names of the input's wire columns that any step reads."""
    copied: Mapping[str, str]
    """Names in ``record`` that are unchanged from the input -> their names in the input."""
    after: tuple[dict[str, Feature], ...]
    """The features after each step."""
    filters: bool
    """Whether a step filters records, by setting ``record[KEEP]``."""


def is_builtin(step: Step) -> bool:
    """Whether a step declares its own features, so that it need not be traced."""
    return isinstance(step, PrepareStep)


def closing_steps(features: Features, wanted: Features | None = None) -> tuple[Step, ...]:
    """The steps appended to those of a recipe, for media that are still encoded.

    An image is checked by decoding it, and so are the frames of a clip; a mask becomes a grey PNG
    of 8 bits; a sound is decoded, unless it is ``wanted`` encoded.

    Args:
        features: The features after the recipe's own steps.
        wanted: The features to keep; None for all, with sounds decoded.
    """
    steps: list[Step] = []
    for name, feature in sorted(features.items()):
        if is_encoded(feature) and isinstance(feature, Mask):
            steps += [DecodeImage(name), EncodeImage(name, "png")]
        elif (is_encoded(feature) and isinstance(feature, Image)) or frames_of(feature) is not None:
            steps.append(Check(name))
        elif is_encoded(feature):
            kept = feature if wanted is None else wanted.get(name)
            if kept is not None and (wanted is None or not is_encoded(kept)):
                steps.append(DecodeSound(name))
    return tuple(steps)


def stored_features(features: Features) -> dict[str, Feature]:
    """The stored form of the features after a recipe's last step: sounds are decoded.

    Raises:
        RecipeError: if a sound is still encoded and the decoder is not installed.
    """
    return output_features(closing_steps(features), features)


def output_features(steps: Sequence[Step], features: Features) -> dict[str, Feature]:
    """The features of records after the steps.

    Loads TensorFlow only if one of the steps is a user's function.

    Raises:
        RecipeError: if a step does not accept its input, or returns what cannot be stored.
    """
    if all(is_builtin(step) for step in steps):
        result: Features = features
        for step in steps:
            result = step.features(result)  # type: ignore[union-attr]
        return dict(result)
    return trace(steps, features).features


def trace(steps: Sequence[Step], features: Features, *, first: int = 0) -> TracedRecord:
    """Runs the steps on one symbolic record; ``first`` is the number of the first step.

    Raises:
        RecipeError: as :func:`output_features`, and if a step draws random numbers.
    """
    traits = [StepTraits.of(step) for step in steps]
    if all(trait.moves_only or trait.on_columns for trait in traits):
        return _trace_moves(steps, features)
    import tensorflow as tf

    from .tensors import record_specs, to_record

    traced: list[TracedRecord] = []

    def run(wire: dict[str, Any]) -> Any:
        given = to_record(wire, features)
        record, after = apply_steps(steps, given, features, first=first)
        last = after[-1] if after else dict(features)
        if KEEP in record and record[KEEP].shape.rank != 0:
            raise RecipeError(
                f"prepare: {describe(steps[-1])} returned bools of shape {record[KEEP].shape} for "
                "a record, expected one bool. Combine them with tf.reduce_all or tf.reduce_any."
            )
        read: set[str] = set()
        for name, feature in features.items():
            seen = {part for part in record_names(name, feature) if given[part].consumers()}
            read |= seen if is_encoded(feature) else columns_of(name, feature) if seen else set()
        traced.append(
            TracedRecord(
                features=last,
                record=record,
                read=frozenset(read),
                copied=_copied(record, last, given=given, features=features),
                after=tuple(after),
                filters=KEEP in record,
            )
        )
        return tf.constant(0)

    function = tf.function(run, autograph=False)
    tables: Tables = {}
    with tf.device("/CPU:0"), holding_tables(tables), refusing_variables():
        concrete = function.get_concrete_function(record_specs(features))
    refuse_random(concrete.graph, "prepare: a step")
    refuse_writes(concrete.graph, "prepare: a step")
    for number, step in enumerate(steps, first):
        if runs_users_code(step) and not StepTraits.of(step).export_obstacle:
            refuse_python(
                concrete.graph,
                f"prepare: {describe(step)}",
                scope=f"step{number}/",
                instead="Use ss.records.map_python, which calls Python on records.",
            )
    refuse_unowned(concrete.graph, steps, tables.values())
    note_file_reads(concrete.graph, [step for step in steps if runs_users_code(step)])
    return traced[-1]


def _trace_moves(steps: Sequence[Step], features: Features) -> TracedRecord:
    """Runs steps that need no TensorFlow on a record of placeholder objects."""
    names = (part for name, feature in features.items() for part in record_names(name, feature))
    given: dict[str, Any] = {part: object() for part in names}
    record, after = given, [dict(features)]
    read: set[str] = set()
    for step in steps:
        assert isinstance(step, PrepareStep)
        before, following = after[-1], dict(step.features(after[-1]))
        after.append(following)
        if StepTraits.of(step).on_columns is None:
            record = _apply_step(step, record, before)
            continue
        made = {name: f for name, f in following.items() if f is not before.get(name)}
        parts = {part: object() for name, f in made.items() for part in record_names(name, f)}
        record = {
            part: record[part]
            for name in following.keys() - made.keys()
            for part in record_names(name, following[name])
        } | parts
        used = before.keys() - (following.keys() - made.keys())
        read |= {column for name in used for column in columns_of(name, before[name])}
    return TracedRecord(
        features=after[-1],
        record=record,
        read=frozenset(read),
        copied=_copied(record, after[-1], given=given, features=features),
        after=tuple(after[1:]),
        filters=False,
    )


def _copied(
    record: dict[str, Any], made: Features, *, given: dict[str, Any], features: Features
) -> dict[str, str]:
    """Which features of a record are unchanged from the input, and their names there.

    Columns of an encoded image are listed one by one: checking its bytes changes only one.
    """
    origins = {id(given[name]): name for name in features}
    copied: dict[str, str] = {}
    for name, feature in made.items():
        origin = origins.get(id(record[name]))
        if origin is None:
            continue
        sides = zip(side_names(name, feature), side_names(origin, features[origin]), strict=False)
        same = {new: old for new, old in sides if record.get(new) is given[old]}
        if is_encoded(feature):
            copied |= {name: origin} | same
        elif (
            len(same) == len(side_names(name, feature)) == len(side_names(origin, features[origin]))
        ):
            copied[name] = origin
    return copied


def record_names(name: str, feature: Feature) -> set[str]:
    """The names of a feature's entries in a record: its own and those of its side tensors."""
    return {name, *side_names(name, feature)}


def columns_of(name: str, feature: Feature) -> set[str]:
    """The names of a feature's wire columns."""
    return {column.name for column in feature.wire_columns(name)}


def apply_steps(
    steps: Sequence[Step], record: dict[str, Any], features: Features, *, first: int = 0
) -> tuple[dict[str, Any], list[dict[str, Feature]]]:
    """Runs the steps on one record inside a traced function: the record, the features after each.

    ``first`` is the number of the first step.
    """
    import tensorflow as tf

    after = [dict(features)]
    for number, step in enumerate(steps, first):
        # Run-time errors contain this scope, which identifies the step.
        with tf.name_scope(f"step{number}"):
            if isinstance(step, PrepareStep):
                after.append(dict(step.features(after[-1])))
                record = _fix_shapes(_apply_step(step, record, after[-2]), after[-1])
            else:
                record, following = _apply_function(step, record, after[-1])
                after.append(following)
    return record, after[1:]


def apply_batched(
    steps: Sequence[Step],
    records: dict[str, Any],
    features: Features,
    *,
    after: Sequence[Features],
    first: int = 0,
) -> dict[str, Any]:
    """Runs batched steps on all records of a batch at once, inside a traced function.

    ``after`` holds the features after each step, from :func:`trace`.
    """
    import tensorflow as tf

    before = features
    for number, (step, following) in enumerate(zip(steps, after, strict=True), first):
        with tf.name_scope(f"step{number}"):
            if isinstance(step, PrepareStep):
                records = _apply_step(step, records, before)
            else:
                records = _call_function(step, records, before, following)
        before = following
    return records


def _apply_step(step: PrepareStep, record: dict[str, Any], features: Features) -> dict[str, Any]:
    with running(step if is_users_class(type(step)) else None):
        if not StepTraits.of(step).sees_features:
            return step.apply(record)
        applied: dict[str, Any] = step.apply(record, features)  # type: ignore[call-arg]
        return applied


def _fix_shapes(record: dict[str, Any], features: Features) -> dict[str, Any]:
    """Sets the static shapes of images whose sizes are known, for the next step."""
    import tensorflow as tf

    fixed = {
        name: tf.ensure_shape(record[name], (feature.height, feature.width, feature.channels))
        for name, feature in features.items()
        if isinstance(feature, Image)
        and feature.storage == "raw"
        and not record[name].shape.is_fully_defined()
        and (feature.height is not None or feature.width is not None)
    }
    return {**record, **fixed} if fixed else record


def _apply_function(
    step: RecordFn, record: dict[str, Any], features: dict[str, Feature]
) -> tuple[dict[str, Any], dict[str, Feature]]:
    import tensorflow as tf

    from .tensors import infer_feature

    where = where_of(step)
    after: dict[str, Feature] = {}
    values: dict[str, Any] = {name: record[name] for name in record if name == KEEP}
    for name, value in result_of(step, record, features).items():
        kept = features[name] if name in features and value is record[name] else None
        if kept is None and not isinstance(value, tf.RaggedTensor | tf.SparseTensor):
            value = tf.convert_to_tensor(value)
        after[name] = infer_feature(name, value, given=kept, where=where)
        before = features.get(name)
        after[name] = _same_kind(after[name], before) or after[name]
        values[name] = value
        if kept is not None:
            values.update({part: record[part] for part in record_names(name, kept)})
    return values, after


def _same_kind(made: Feature, before: Feature | None) -> Feature | None:
    """What a function made of a mask, an image of 16 bits or a clip, if it still has that form."""
    if before is not None and frames_of(before) is not None:
        form = tensor_form(made)
        is_clip = form is not None and (form.dtype, form.shape) == ("string", (None,))
        return before if is_clip else None
    if isinstance(before, Mask) and isinstance(made, Image) and made.channels == 1:
        # Steps after a function that maps indices must not interpolate them.
        return dataclasses.replace(before, height=made.height, width=made.width)
    if not isinstance(before, Image) or not isinstance(made, Tensor):
        return None
    if made.dtype != before.dtype or len(made.shape) != 3 or made.shape[2] != before.channels:
        return None
    return dataclasses.replace(before, height=made.shape[0], width=made.shape[1])


def _call_function(
    step: RecordFn, records: dict[str, Any], features: Features, declared: Features
) -> dict[str, Any]:
    """Calls a function on a batch of records; adds the side tensors of each feature."""
    result = result_of(step, records, features)
    if set(result) != set(declared):
        raise RecipeError(
            f"prepare: {where_of(step)} returned {sorted(result)} for a batch but "
            f"{sorted(declared)} for one record. Remove batched=True."
        )
    values = {name: records[name] for name in records if name == KEEP} | result
    for name, value in result.items():
        if name in features and value is records[name]:
            values.update({part: records[part] for part in record_names(name, features[name])})
    return values


def read_step_files(recipe: Recipe) -> dict[str, bytes]:
    """Reads the files of all steps and stores them in the recipe.

    Raises:
        RecipeError: if a file does not exist.
        StorageError: if a file cannot be read.
    """
    contents: dict[str, bytes] = {}
    for step in recipe.prepare:
        for url in StepTraits.of(step).files:
            if url not in contents:
                contents[url] = _read(url, step, folder=recipe.folder)
    give_files(recipe, contents)
    return contents


def give_files(recipe: Recipe, contents: Mapping[str, bytes]) -> None:
    """Stores the contents of the steps' files in the recipe."""
    object.__setattr__(recipe, "contents", dict(contents))


def with_files(steps: Iterable[_Step], recipe: Recipe) -> tuple[_Step, ...]:
    """The steps to run, with their files loaded.

    Raises:
        RecipeError: if a file does not exist, or is not valid for its step.
        StorageError: if a file cannot be read.
    """
    made = []
    for step in steps:
        files = StepTraits.of(step).files
        if files and not recipe.contents.keys() >= set(files):
            read_step_files(recipe)
        made.append(
            step.with_files([recipe.contents[url] for url in files])  # type: ignore[attr-defined]
            if files
            else step
        )
    return tuple(made)


def digest_with_files(step: object, recipe: Recipe, code: CodeHashes) -> str:
    """The sha256 (hex) of a step and the contents of its files.

    Raises:
        RecipeError: as ``CodeHashes.step_digest``.
    """
    digest = code.step_digest(step)
    files = StepTraits.of(step).files
    if not files:
        return digest
    contents = [hashlib.sha256(recipe.contents[url]).hexdigest() for url in files]
    return hashlib.sha256("\n".join([digest, *contents]).encode()).hexdigest()


def _read(url: str, step: object, *, folder: str) -> bytes:
    try:
        opened = open_source(url, folder)
    except RecipeError:
        raise RecipeError(
            f"prepare: {step!r}: the file {url} does not exist. Correct the path; relative paths "
            "start at the recipe's folder."
        ) from None
    if not opened.single:
        raise RecipeError(f"prepare: {step!r}: {url} is a folder or a glob, expected one file.")
    return opened.read(opened.single)
