"""The first step: which files there are, what they contain, and the blocks they make.

In: a recipe. Out: the listed and hashed files in blocks, the features and the fingerprint; in
short, the survey that all later steps start from.
"""
