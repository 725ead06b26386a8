"""Where the jobs run: one module for each engine.

A runner implements the protocol in `schemas.runner` and hides the details of its engine. Imports
only `schemas`; `pipelines.build` chooses the runner.
"""
