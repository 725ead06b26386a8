"""Where the jobs run: one module for each engine.

A runner fulfils the protocol in `schemas.runner` and hides what is particular to its engine. May
import `schemas` only; `pipelines.build` picks one.
"""
