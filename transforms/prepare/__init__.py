"""Deterministic steps on the records of a block, batch-wise: decode, resize and the like.

A step fulfils the `PrepareStep` protocol of `schemas.recipe`; one module for each kind of data. May
import `schemas` and the modules of `transforms` beside it; loads TensorFlow only where it runs.
"""
