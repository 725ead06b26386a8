"""The jobs and their order: inventory, prepare, analyze, plan, write, publish, verify.

`build` calls the steps in their order. Each is a folder that can be read on its own, with durable,
idempotent output in the workspace: `step` is what it does, `job` its Beam job. May import `schemas`
and `transforms`; `pipelines.build` alone also imports `runners`, to pick one.
"""
