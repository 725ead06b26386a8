"""The reader that every snapshot ships: a package that needs only TensorFlow.

``runtime/`` is that package, copied verbatim. Only ``facts.py`` is generated, by ``emit``, from
what the build knows about the snapshot. The reader imports no other module of this folder.
"""
