"""The contract: definitions of recipes, features, blocks, plans and manifests.

Plain frozen data and its validation, the names of all paths, the fingerprint, the errors, and the
protocols that sources, prepare steps and runners implement. Imports nothing from the other
packages, and neither Apache Beam nor TensorFlow.
"""
