"""The jobs and their order: inventory, prepare, analyze, plan, write, publish, verify.

Each step is a module that can be read on its own, with durable, idempotent output in the
workspace. May import `schemas` and `transforms`; `pipelines.build` alone also imports `runners`, to
pick one.
"""
