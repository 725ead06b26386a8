"""Records as Python values through the steps: in a batch, and one by one."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from snapshard.schemas.blocks import RawBatch
from snapshard.schemas.features import Feature, Features, wire_columns
from snapshard.schemas.recipe import CrossStep, SortedRecords, StepTraits
from snapshard.transforms.examples.encode import encode_examples
from snapshard.transforms.prepare.engine.program import StepRunner
from snapshard.transforms.prepare.engine.rows import _array, _to_wire, parse_example
from snapshard.transforms.runs.files import wire_schema


class OneByOne:
    """A step that goes record by record through the loop."""

    def __init__(self, step: Any) -> None:
        self._step = step
        self.sees_features = StepTraits.of(step).sees_features
        self.filters = StepTraits.of(step).filters
        self.export_obstacle = StepTraits.of(step).export_obstacle  # it runs what the step runs

    def settings(self) -> dict[str, object]:
        return dict(self._step.settings())

    def features(self, features: Any) -> Any:
        return self._step.features(features)

    def apply(self, *arguments: Any) -> Any:
        return self._step.apply(*arguments)


class Kitchen:
    """Runs steps on a few records."""

    def raw(self, rows: Sequence[Mapping[str, Any]], features: Mapping[str, Feature]) -> RawBatch:
        """The records as a source gives them."""
        schema = wire_schema(features)
        columns: dict[str, list[pa.Array]] = {name: [] for name in schema.names}
        for row in rows:
            lists: dict[str, Any] = {}
            for name, feature in features.items():
                lists |= _to_wire(name, feature, row)
            for column in wire_columns(features):
                columns[column.name].append(_array(column, lists[column.name]))
        arrays = [
            pa.concat_arrays([pa.array([], schema.field(name).type), *columns[name]])
            for name in columns
        ]
        return RawBatch(
            ids=[f"t#{i}" for i in range(len(rows))],
            columns=pa.RecordBatch.from_arrays(arrays, schema=schema),
        )

    def menu(self, steps: Sequence[Any], features: Mapping[str, Feature]) -> "Menu":
        """The steps, compiled to be run on batches and one by one."""
        return Menu(self, steps, features)

    def cook(
        self,
        steps: Sequence[Any],
        rows: Sequence[Mapping[str, Any]],
        features: Mapping[str, Feature],
    ) -> tuple[list[dict[str, Any]], RawBatch, StepRunner]:
        """Prepared records as Python values, the batch that held them, and what made it."""
        menu = self.menu(steps, features)
        values, done = menu.run(rows)
        return values, done, menu.runner


class Menu:
    """Compiled steps; batched and one by one must agree to the bit."""

    def __init__(
        self, kitchen: Kitchen, steps: Sequence[Any], features: Mapping[str, Feature]
    ) -> None:
        self._kitchen = kitchen
        self._raw = features
        self.runner = StepRunner(steps, features)
        single = [OneByOne(step) if hasattr(step, "apply") else step for step in steps]
        self._single = StepRunner(single, features)

    def run(self, rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], RawBatch]:
        raw = self._kitchen.raw(rows, self._raw)
        done, again = self.runner.prepare(raw), self._single.prepare(raw)
        examples = encode_examples(done.columns)
        assert encode_examples(again.columns).equals(examples)
        assert (again.ids, again.num_filtered) == (done.ids, done.num_filtered)
        assert [r.record_id for r in again.rejects] == [r.record_id for r in done.rejects]
        values = [parse_example(example.as_py(), self.runner.features) for example in examples]
        return values, done


@pytest.fixture(scope="session")
def kitchen() -> Kitchen:
    return Kitchen()


@pytest.fixture(scope="session")
def sorted_parts() -> Callable[..., Iterator[SortedRecords]]:
    """Gives records as a merge of runs gives them to a step across records."""
    return _sorted_parts


def _sorted_parts(
    step: CrossStep,
    ids: Sequence[str],
    columns: pa.RecordBatch,
    *,
    features: Features,
    splits: Sequence[int],
    cuts: Sequence[int],
) -> Iterator[SortedRecords]:
    """Sorts records as a step asks and gives them in parts, cut where keys change."""
    keys, prefixes = step.order(ids, columns, features=features, seed=0)
    order = sorted(range(len(ids)), key=lambda i: (keys[i], prefixes[i].as_py(), ids[i].encode()))
    ends = [end for end in sorted({*cuts}) if 0 < end < len(ids)]
    ends = [end for end in ends if keys[order[end]] != keys[order[end - 1]]]
    for start, stop in itertools.pairwise([0, *ends, len(ids)]):
        part = order[start:stop]
        yield SortedRecords(
            ids=[ids[i] for i in part],
            prefixes=prefixes.take(pa.array(part, pa.int64())),
            splits=np.array([splits[i] for i in part], np.int16),
            columns=columns.take(pa.array(part, pa.int64())),
            numbered=True,
        )
