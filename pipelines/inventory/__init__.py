"""The first step: which files there are, what they contain, and the blocks they make.

In: a source. Out: its files, listed and hashed, in blocks.
"""
