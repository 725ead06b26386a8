"""Which modules hold each subject, and which tests hold it: the only place here that knows paths.

Where code or tests move, edit this table; the mutants stay the same.
"""

import dataclasses

PACKAGE = "snapshard"
"""Paths of modules are relative to this package's folder, those of tests to the checkout's."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A part of the product that is mutated by itself."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    """Files, the likeliest to fail first."""


SUBJECTS = {
    "keys": Subject(
        modules=(
            "transforms/runs/keys.py",
            "transforms/runs/key_histogram.py",
            "transforms/runs/partitions.py",
            "pipelines/prepare/sort_keys.py",
            "pipelines/plan/key_columns.py",
        ),
        tests=(
            "tests/transforms/test_keys.py",
            "tests/transforms/test_key_histogram.py",
            "tests/transforms/test_membership.py",
            "tests/pipelines/test_cuts.py",
            "tests/pipelines/test_split_rounds.py",
            "tests/pipelines/test_plan.py",
            "tests/pipelines/test_limits.py",
        ),
    ),
    "runs": Subject(
        modules=(
            "transforms/runs/files.py",
            "transforms/runs/summary.py",
            "transforms/storage/artifacts.py",
            "transforms/runs/shuffled.py",
            "pipelines/prepare/block_worker.py",
            "pipelines/prepare/run_files.py",
        ),
        tests=(
            "tests/transforms/test_runs.py",
            "tests/transforms/test_run_table.py",
            "tests/transforms/test_artifacts.py",
            "tests/transforms/test_shuffled.py",
            "tests/pipelines/test_run_files.py",
            "tests/pipelines/test_block_worker.py",
            "tests/pipelines/test_reject_payloads.py",
            "tests/integration/test_damaged_work.py",
            "tests/integration/test_write_by.py",
        ),
    ),
    "encode": Subject(
        modules=(
            "transforms/examples/encode.py",
            "transforms/examples/varint.py",
            "transforms/examples/decode.py",
            "transforms/examples/tfrecord.py",
        ),
        tests=(
            "tests/transforms/test_decode.py",
            "tests/transforms/test_encode.py",
            "tests/transforms/test_tfrecord.py",
            "tests/transforms/test_rows.py",
            "tests/transforms/test_every_type.py",
        ),
    ),
    "plan": Subject(
        modules=(
            "pipelines/plan/ranges.py",
            "pipelines/plan/step.py",
            "pipelines/plan/splits.py",
            "pipelines/prepare/split_ends.py",
            "pipelines/write/strategy.py",
            "transforms/examples/sizing.py",
            "schemas/shards.py",
        ),
        tests=(
            "tests/pipelines/test_plan.py",
            "tests/pipelines/test_cuts.py",
            "tests/pipelines/test_write_strategy.py",
            "tests/pipelines/test_plan_step.py",
            "tests/pipelines/test_time_ends.py",
            "tests/transforms/test_lengths.py",
            "tests/pipelines/test_split_rounds.py",
            "tests/pipelines/test_limits.py",
            "tests/pipelines/test_ranges_apart.py",
            "tests/integration/test_write_by.py",
        ),
    ),
    "shards": Subject(
        modules=(
            "transforms/examples/shards.py",
            "transforms/examples/index.py",
            "transforms/examples/stored_records.py",
            "pipelines/write/job.py",
        ),
        tests=(
            "tests/transforms/test_index.py",
            "tests/transforms/test_shuffled.py",
            "tests/pipelines/test_diff.py",
            "tests/integration/test_write_by.py",
            "tests/integration/test_told_to_reader.py",
        ),
    ),
    "storage": Subject(
        modules=(
            "transforms/storage/__init__.py",
            "transforms/storage/failures.py",
            "transforms/storage/local.py",
            "transforms/storage/remote.py",
            "transforms/storage/unchanged.py",
            "transforms/storage/decompress.py",
        ),
        tests=(
            "tests/transforms/test_storage.py",
            "tests/transforms/test_store_answers.py",
            "tests/transforms/test_unchanged.py",
            "tests/transforms/test_opened_source.py",
            "tests/transforms/test_graph_files.py",
            "tests/integration/test_unreachable_sources.py",
            "tests/integration/test_hostile_credentials.py",
        ),
    ),
}
