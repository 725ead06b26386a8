"""The last step: writes the files next to the shards, and the manifest, which is the commit.

In: shards, features, rejects and graph. Out: a published snapshot, which is the latest of its name.
"""
