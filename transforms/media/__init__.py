"""Headers and decoders of images and sounds, shared by sources and prepare steps.

In: the bytes of a file. Out: its format, size and orientation, or rate and length; its pixels or
samples.
"""
