"""Records as Python values through the steps: in a batch, and one by one."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from snapshard.schemas.blocks import RawBatch
from snapshard.schemas.features import Feature, wire_columns
from snapshard.schemas.step_traits import StepTraits
from snapshard.transforms.encode import encode_examples
from snapshard.transforms.prepare.compile import StepRunner
from snapshard.transforms.rows import _array, _to_wire, parse_example
from snapshard.transforms.runs import wire_schema


class OneByOne:
    """A step that goes record by record through the loop."""

    def __init__(self, step: Any) -> None:
        self._step = step
        self.sees_features = StepTraits.of(step).sees_features
        self.filters = StepTraits.of(step).filters

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
        arrays = [pa.concat_arrays(columns[name]).cast(schema.field(name).type) for name in columns]
        return RawBatch(
            ids=[f"t#{i}" for i in range(len(rows))],
            columns=pa.RecordBatch.from_arrays(arrays, schema=schema),
        )

    def cook(
        self,
        steps: Sequence[Any],
        rows: Sequence[Mapping[str, Any]],
        features: Mapping[str, Feature],
    ) -> tuple[list[dict[str, Any]], RawBatch, StepRunner]:
        """Prepared records as Python values; batched and one by one must agree to the bit."""
        raw = self.raw(rows, features)
        runner = StepRunner(steps, features)
        done = runner.prepare(raw)
        single = [OneByOne(step) if hasattr(step, "apply") else step for step in steps]
        again = StepRunner(single, features).prepare(raw)
        examples = encode_examples(done.columns)
        assert encode_examples(again.columns).equals(examples)
        assert (again.ids, again.num_filtered) == (done.ids, done.num_filtered)
        assert [r.record_id for r in again.rejects] == [r.record_id for r in done.rejects]
        values = [parse_example(example.as_py(), runner.features) for example in examples]
        return values, done, runner


@pytest.fixture(scope="session")
def kitchen() -> Kitchen:
    return Kitchen()
