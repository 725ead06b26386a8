"""Recognizes what raw data is, by positive evidence: class folders, tables, annotations, texts.

In: a listing and the heads of files. Out: a ``Reading``, which is a source and maybe splits, or a
refusal with a line to copy for each reading that is possible. Nothing is a class, a record or a
reject because nothing else fitted. ``data`` asks the others in order.
"""
