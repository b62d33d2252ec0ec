"""SQLAlchemy on a client's file: what a session commits is a transaction of edits.

::

    engine = lakesync.client.orm.engine(client)
    declare_tables(client, Base.metadata).unwrap()
    with Session(engine) as session:
        session.add(Todo(id="t1", title="Buy milk"))
        session.commit()

It needs SQLAlchemy. It is built on `lakesync.client.dbapi`: PEP 249, for any other tool.
"""

from __future__ import annotations

from lakesync.client.orm.dialect import engine
from lakesync.client.orm.tables import declare_tables

__all__ = ["declare_tables", "engine"]
