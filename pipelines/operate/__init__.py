"""Running builds where others depend on them, and handing snapshots to other tools.

In: an output root, a recipe, a snapshot, or an engine's settings. Out: a workspace without garbage,
files of other formats, a DAG, a template's job, a report on the engine's workers, a tf.data service
that shares the reading.
"""
