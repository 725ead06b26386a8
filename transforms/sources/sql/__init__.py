"""Queries of SQL databases as a source: SQLite and PostgreSQL.

In: the address of a database and a query. Out: the result's rows in Arrow files of the workspace,
read as any extracted records are. Read ``source`` first; ``rows`` is what the databases share.
"""
