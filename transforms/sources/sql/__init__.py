"""Reads query results from SQL databases: SQLite and PostgreSQL.

In: the address of a database and a query. Out: the rows of the result, in Arrow files of the
workspace that are read like all extracted records. Start with ``source``; ``rows`` is shared by the
databases.
"""
