"""Deterministic preparation steps such as decode and resize; one module for each kind of data.

A step implements the `PrepareStep` protocol of `schemas.recipe`: it declares the features after it
and transforms records or batches in TensorFlow. Imports only `schemas` and its siblings in
`transforms`; loads TensorFlow only when steps run.
"""
