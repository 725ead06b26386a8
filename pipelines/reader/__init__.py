"""The reader that every snapshot ships: a package that needs only TensorFlow.

``runtime/`` is that package, copied verbatim. Only ``facts.py`` is generated, by ``emit``, from the
build's knowledge of the snapshot. The reader imports nothing from this folder.
"""
