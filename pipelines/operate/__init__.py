"""Running builds where others depend on them: gc, Airflow, Dataflow, runner checks."""
