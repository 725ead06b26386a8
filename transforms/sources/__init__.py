"""Where records come from: a package for each family of formats, or a single module.

In: the listed files of a source. Out: blocks of them, the features of the records, and each block's
records as Arrow record batches, with a reject for whatever cannot be read.
A source implements `schemas.recipe.Source`, in `source` of its package or in its format's module.

They share `table_files` (selecting files, declared types, classes, reading ranges), `text_stream`
(rows of text), `bundles` (small files at once, cached results), `python_values` (Python values to
wire columns), `arrow_records` (Python values to Arrow) and `extracted` (records copied to files of
the workspace). `blocks` cuts the files of every source into blocks; `combined` is several sources.
"""
