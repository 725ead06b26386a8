"""What is done to data: pure functions first, thin PTransforms around them.

Keys, encoding, runs, shards, the index, rejects and atomic storage; the sources are in `sources`,
the per-record steps in `prepare`. May import `schemas`; knows nothing of the order of the steps
(`pipelines`) nor of where jobs run (`runners`).
"""
