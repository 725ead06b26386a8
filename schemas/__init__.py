"""The contract: what a recipe, a feature, a block, a plan and a manifest are.

Plain frozen data and its validation, the names of all paths, the fingerprint, the errors, and the
protocols that sources, prepare steps and runners fulfil. Imports nothing from the other rooms, and
neither Apache Beam nor TensorFlow.
"""
