"""The reader that every snapshot ships: a package that needs TensorFlow and nothing else.

``runtime/`` is that package as it is copied; only ``facts.py`` is generated, by ``emit``, from what
the build knows of the snapshot. Nothing here is imported by the reader.
"""
