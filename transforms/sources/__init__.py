"""Where records come from: one module for each format of raw files.

A source fulfils the `Source` protocol of `schemas.recipe`: it groups the listed files into blocks
and reads a block as Arrow record batches. May import `schemas` and the modules of `transforms`
beside it.
"""
