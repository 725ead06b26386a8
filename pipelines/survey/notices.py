"""What users should know of their data before it is built: ``plan`` and ``build`` say the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.features import ClassLabel, Features, Scalar, Text, Timestamp, written
from ...transforms.runs.partitions import is_countable
from ...transforms.sources.csv.source import Csv
from .stages import label_of
from .survey import Survey
from .telltales import is_id

_NUMBER = r"^[ \t]*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?[ \t]*$"
_CODE = r"^[ \t]*[-+]?(0[0-9xX]|[0-9]{16,}[ \t]*$)"
"""Numbers that are texts on purpose: with leading zeros, in hexadecimal, or too long."""
_NEARLY = 0.95
_SENTENCE = r"\s.*[.!?][\"')]*\s*$"
_MIN_RECORDS = 50
"""Of fewer records, many features have a different value in each."""
_UNIQUE = 0.95
_MAX_BYTES = 40
"""Mean length of texts that may be ids: longer ones are different as texts are."""


def survey_notices(survey: Survey) -> Iterator[str]:
    """What the list of files and the features say, before a record is read."""
    problems = Counter(file.problem for file in survey.inventory.files if file.problem)
    for problem, number in problems.most_common():
        become = "files will become rejects" if number > 1 else "file will become a reject"
        yield f"{number:,} {become}: {problem}"
    recipe, prepared = survey.recipe, survey.features.prepared
    for name, feature in prepared.items():
        if isinstance(feature, ClassLabel) and len(feature.names) < 2:
            yield f"feature {name!r} has only the class {', '.join(map(repr, feature.names))}"
    lost = recipe.source.label
    is_last = recipe.preprocessing_fn is None and recipe.transform_from is None
    has_it = lost in survey.features.raw or lost in survey.features.undeclared
    if is_last and has_it and label_of(recipe, prepared) is None:
        yield (
            f"the source's label {lost!r} is not a feature of the examples: they have no label. "
            "Keep it, or name another one: ss.Recipe(label=…)"
        )


def sample_notices(batches: Sequence[pa.RecordBatch], survey: Survey) -> Iterator[str]:
    """What prepared records say, some or all.

    Args:
        batches: The records, with the wire columns of the prepared features.
        survey: The survey.
    """
    recipe, features = survey.recipe, survey.features.prepared
    yield from _nearly_numbers(batches, survey)
    yield from _without_values(batches, survey)
    if recipe.preprocessing_fn is not None or recipe.transform_from is not None:
        return  # it chooses and changes features
    splits = recipe.splits
    of_rule = splits.rule.feature if splits.rule is not None else None
    told = {label_of(recipe, features), splits.group_by, splits.stratify_by, of_rule}
    if recipe.features is None:
        told |= {name for name in features if is_id(name)}  # inference names them
    num_records = sum(map(len, batches))
    if num_records < _MIN_RECORDS:
        return
    names = [
        name
        for name in _may_be_ids(features)
        if name not in told and _is_unique([batch.column(name) for batch in batches])
    ]
    if names:
        listed = ", ".join(map(repr, names))
        few = f"ss.records.drop([{', '.join(written(name) for name in names)}])"
        yield (
            f"nearly every one of {num_records:,} sampled records has a value of its own of "
            f"{listed}. A model can only memorize such values, as ids are: {few} in prepare= "
            "leaves them out"
        )


def _nearly_numbers(batches: Sequence[pa.RecordBatch], survey: Survey) -> Iterator[str]:
    """Columns of CSV that are texts because of a few cells: a row of units, a note, a mark."""
    recipe, features = survey.recipe, survey.features
    if recipe.features is not None or not isinstance(recipe.source, Csv):
        return
    for name, feature in features.prepared.items():
        is_text = isinstance(feature, Scalar) and feature.dtype == "string"
        if not is_text or features.raw.get(name) != feature or name in (recipe.source.types or {}):
            continue
        texts = pa.chunked_array([batch.column(name) for batch in batches]).drop_null()
        fits = pc.match_substring_regex(texts, _NUMBER)
        num = pc.sum(fits).as_py() or 0
        is_code = pc.any(pc.match_substring_regex(texts, _CODE)).as_py()
        if len(texts) < _MIN_RECORDS or num < _NEARLY * len(texts) or is_code:
            continue
        odd = pc.unique(texts.filter(pc.invert(fits))).to_pylist()[:1]
        shown = f", such as {odd[0].decode(errors='replace')!r}" if odd else ""
        yield (
            f"column {name!r} is text, although {num:,} of {len(texts):,} sampled cells are "
            f"numbers: others are not{shown}. Remove rows that are none, list such cells in "
            f"null_values=, or keep the texts: types={{{name!r}: 'string'}}"
        )


def _without_values(batches: Sequence[pa.RecordBatch], survey: Survey) -> Iterator[str]:
    """Rows of CSV in which all values are missing, as spreadsheets write them at the end."""
    names = [*survey.features.prepared]
    if not isinstance(survey.recipe.source, Csv) or names != [*survey.features.raw]:
        return
    if not all({*names} <= {*batch.schema.names} for batch in batches):
        return  # lists have columns of other names
    num_records = sum(map(len, batches))
    empty = [reduce(pc.and_, [pc.is_null(batch.column(n)) for n in names]) for batch in batches]
    if num := sum(pc.sum(rows).as_py() or 0 for rows in empty):
        yield (
            f"{num:,} of {num_records:,} sampled records have no value: all cells of their rows "
            "are empty, or mean a missing value. Remove these rows"
        )


def _may_be_ids(features: Features) -> Iterable[str]:
    for name, feature in features.items():
        if is_countable(feature) and not isinstance(feature, ClassLabel | Text | Timestamp):
            yield name


def _is_unique(columns: Sequence[pa.Array]) -> bool:
    """Whether nearly all short texts differ, or integers count the records: prices differ, too.

    Sentences differ, too.
    """
    column = pa.chunked_array(columns)
    num_distinct, num_values = pc.count_distinct(column).as_py(), len(column) - column.null_count
    if num_values < _MIN_RECORDS or num_distinct < _UNIQUE * num_values:
        return False
    if pa.types.is_integer(column.type):
        ends = pc.min_max(column).as_py()
        return bool(num_distinct == num_values == ends["max"] - ends["min"] + 1)
    mean: float = pc.mean(pc.binary_length(column)).as_py()
    num_sentences: int = pc.sum(pc.match_substring_regex(column, _SENTENCE)).as_py() or 0
    return mean <= _MAX_BYTES and 2 * num_sentences < num_values
