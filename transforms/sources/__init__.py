"""Where records come from: a package for each family of formats, or a module where one is enough.

In: the listed files of a source. Out: their grouping into blocks, the features of the records, and
each block's records as Arrow record batches, with a reject for what cannot be read.

A source fulfils the `Source` protocol of `schemas.recipe`. The class is in `source` of its package,
or in the module of its format. Shared are `blocks`, `remembered`, `table_files`, `text_stream`,
`extracted` and `python_values`. May import `schemas` and the other packages of `transforms`.
"""
