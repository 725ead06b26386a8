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
            "tests/pipelines/test_stratified_groups.py",
            "tests/pipelines/test_plan.py",
            "tests/pipelines/test_limits.py",
        ),
    ),
    "runs": Subject(
        modules=(
            "transforms/runs/files.py",
            "transforms/runs/summary.py",
            "transforms/storage/artifacts.py",
            "transforms/examples/shuffled.py",
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
            "pipelines/prepare/stratified_groups.py",
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
            "tests/transforms/sources/test_decompress.py",
            "tests/transforms/test_storage.py",
            "tests/transforms/test_store_answers.py",
            "tests/transforms/test_unchanged.py",
            "tests/transforms/test_opened_source.py",
            "tests/transforms/test_graph_files.py",
            "tests/integration/test_unreachable_sources.py",
            "tests/integration/test_hostile_credentials.py",
        ),
    ),
    "reader": Subject(
        modules=(
            "pipelines/reader/runtime/options.py",
            "pipelines/reader/runtime/order.py",
            "pipelines/reader/runtime/parsing.py",
            "pipelines/reader/runtime/pipeline.py",
            "pipelines/reader/runtime/plan.py",
            "pipelines/reader/runtime/resume.py",
            "pipelines/reader/runtime/shards.py",
            "pipelines/reader/runtime/splits.py",
        ),
        tests=(
            "tests/pipelines/test_reader.py",
            "tests/pipelines/test_reader_options.py",
            "tests/pipelines/test_reader_streams.py",
            "tests/pipelines/test_reader_values.py",
            "tests/pipelines/test_reader_mistakes.py",
            "tests/pipelines/test_reader_splits.py",
            "tests/pipelines/test_reader_resume.py",
        ),
    ),
    "csv": Subject(
        modules=(
            "transforms/sources/csv/cells.py",
            "transforms/sources/csv/dialect.py",
            "transforms/sources/csv/rows.py",
            "transforms/sources/csv/source.py",
            "transforms/sources/csv/types.py",
            "transforms/sources/text_stream.py",
        ),
        tests=(
            "tests/transforms/sources/test_csv.py",
            "tests/transforms/sources/test_csv_formats.py",
            "tests/transforms/sources/test_csv_sniff.py",
            "tests/transforms/sources/test_exact_numbers.py",
            "tests/transforms/sources/test_inference.py",
            "tests/transforms/sources/test_oracles.py",
        ),
    ),
    "json": Subject(
        modules=(
            "transforms/sources/json/rows.py",
            "transforms/sources/json/source.py",
            "transforms/sources/json/types.py",
            "transforms/sources/json/values.py",
        ),
        tests=(
            "tests/transforms/sources/test_json_lines.py",
            "tests/transforms/sources/test_json_lines_malformed.py",
            "tests/transforms/sources/test_exact_numbers.py",
            "tests/transforms/sources/test_mixed_types.py",
            "tests/transforms/sources/test_oracles.py",
        ),
    ),
    "labels": Subject(
        modules=(
            "transforms/sources/folders/labels.py",
            "transforms/sources/folders/side_tables.py",
        ),
        tests=(
            "tests/transforms/sources/test_file_labels.py",
            "tests/transforms/sources/test_image_folder.py",
            "tests/transforms/sources/test_audio_folder.py",
            "tests/transforms/sources/test_coco.py",
        ),
    ),
    "publish": Subject(
        modules=(
            "pipelines/publish/serving.py",
            "pipelines/publish/step.py",
            "pipelines/reader/emit.py",
            "schemas/manifest.py",
        ),
        tests=(
            "tests/schemas/test_manifest.py",
            "tests/pipelines/test_emit.py",
            "tests/pipelines/test_snapshot.py",
            "tests/pipelines/test_damage.py",
            "tests/pipelines/test_hostile_names.py",
            "tests/integration/test_publish_together.py",
            "tests/integration/test_told_to_reader.py",
        ),
    ),
    "digest": Subject(
        modules=(
            "transforms/code/dependencies.py",
            "transforms/code/digest.py",
            "transforms/code/user_code.py",
            "transforms/code/values.py",
        ),
        tests=(
            "tests/transforms/test_code_digest.py",
            "tests/pipelines/test_dependencies.py",
            "tests/pipelines/test_fingerprint_changes.py",
            "tests/transforms/test_computed.py",
        ),
    ),
}
