"""Running builds where others depend on them: gc, Airflow, Dataflow's Flex Template, runner checks.

In: an output root, a recipe, or an engine's settings. Out: a workspace without garbage, a DAG, a
template's job, a report on the engine's workers, a tf.data service that shares the reading.
"""
