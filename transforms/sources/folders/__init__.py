"""Reads files that are records: folders of images, sounds and clips, and WebDataset tars.

In: the files of a folder, or the members of a tar. Out: their bytes and header facts, and features
from folders, names or a side table, with a reject for each unreadable file. ``files``, ``labels``
and ``side_tables`` are shared by ``images``, ``audio`` and ``clips``.
"""
