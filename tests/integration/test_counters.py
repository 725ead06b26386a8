"""The counters that engines show for a build: what it made, by names that stay."""

from collections import Counter
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics import MetricsFilter

import snapshard as ss


@pytest.mark.parametrize("write_by", ["ranges", "shuffle"])
def test_jobs_count_what_they_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_by: Any
) -> None:
    results: list[Any] = []
    run = beam.Pipeline.run
    monkeypatch.setattr(
        beam.Pipeline,
        "run",
        lambda *args, **options: results.append(run(*args, **options)) or results[-1],
    )
    (tmp_path / "a.csv").write_text("x\n" + "".join(f"{k}\n" for k in range(20)) + "nope\n")
    recipe = ss.Recipe(
        name="numbers",
        source=ss.Csv(str(tmp_path / "a.csv")),
        features={"x": ss.Scalar("int64")},
        prepare=[ss.records.filter(lambda record: record["x"] > 2)],
        splits=ss.Splits(train=0.5, test=0.5),
        max_rejects=0.5,
    )
    ss.build(recipe, tmp_path / "out", write_by=write_by)
    found: Counter[str] = Counter()
    for result in results:
        named = result.metrics().query(MetricsFilter().with_namespace("snapshard"))
        for counter in named["counters"]:
            found[counter.key.metric.name] += counter.committed
    assert found == {
        "blocks_prepared": 1,
        "records_prepared": 17,
        "records_rejected": 1,
        "records_filtered": 3,
        "shards_written": 2,
        "examples_written": 17,
    }
