"""The table of the receipts that were sent."""

import sqlalchemy as sa

metadata = sa.MetaData()
RECEIPTS = sa.Table(
    "receipts",
    metadata,
    sa.Column("charge", sa.String(64), primary_key=True),
    sa.Column("payment", sa.String(64)),
    sa.Column("amount", sa.BigInteger),
    sa.Column("currency", sa.String(3)),
    sa.Column("address", sa.Text),
)
