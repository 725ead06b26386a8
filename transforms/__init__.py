"""Everything that is done to data: pure functions, with thin PTransforms around them.

A record enters through `sources` (which read through `storage`), is prepared by the steps of
`prepare`, sorted into `runs`, transformed by the graph of `analysis`, and leaves as an example of a
shard (`examples`). May import `schemas`; knows neither the order of the steps (`pipelines`) nor
where jobs run (`runners`).
"""
