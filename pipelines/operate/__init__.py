"""Running builds where others depend on them: gc, repair, Airflow, Dataflow, runner checks."""
