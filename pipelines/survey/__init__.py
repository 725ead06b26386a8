"""The survey: what a build will read and make, before it does.

In: a recipe and its inventory. Out: the features at each stage of prepare, and the fingerprint.
All later steps ask the survey; it asks none of them.
"""
