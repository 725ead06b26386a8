"""Files that are records as sources: folders of images and sounds, and WebDataset tars.

In: a folder's files, or a tar's members. Out: the files' bytes with what their headers state, and
the features that folders, names or a side table give them; a reject for each file that cannot be
read. ``files``, ``labels`` and ``side_tables`` are what ``images`` and ``audio`` share.
"""
