"""Where records come from: a package for each family of formats, or a single module.

In: the listed files of a source. Out: blocks of them, the features of the records, and each block's
records as Arrow record batches, with a reject for whatever cannot be read.
A source implements `schemas.recipe.Source`, in `source` of its package or in its format's module.
"""
