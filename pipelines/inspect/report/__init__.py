"""The report: one HTML page that shows a snapshot, its data and what may be wrong with it.

In: one published snapshot, or two to compare. Out: the page, without scripts or anything that is
loaded from elsewhere. ``evidence`` reads what is known, ``findings`` says what may be wrong,
``facts`` prepares tables and charts, ``pictures`` draws records, ``page`` renders the templates.
"""
