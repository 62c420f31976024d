"""The table of the invoices (`db/migration/V1__create_nfe.sql`)."""

import sqlalchemy as sa

NFE = sa.Table(
    "nfe",
    sa.MetaData(),
    sa.Column("chave", sa.String(44), primary_key=True),
    sa.Column("cnpj_emitente", sa.String(14)),
    sa.Column("serie", sa.Integer),
    sa.Column("numero", sa.Integer),
    sa.Column("emitida_em", sa.String(25)),  # as it stands in the XML, with its offset
    sa.Column("valor_centavos", sa.BigInteger),
    sa.Column("documento", sa.Text),  # the whole of it, as JSON
    sa.Column("xml_sha256", sa.String(64)),  # NULL: there is no XML yet
)
