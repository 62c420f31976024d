-- The invoices. An issuer uses a number once in each series.
CREATE TABLE nfe (
    chave CHAR(44) NOT NULL PRIMARY KEY,
    cnpj_emitente CHAR(14) NOT NULL,
    serie INTEGER NOT NULL,
    numero INTEGER NOT NULL,
    emitida_em VARCHAR(25) NOT NULL,
    valor_centavos BIGINT NOT NULL,
    documento TEXT NOT NULL,
    xml_sha256 CHAR(64),
    UNIQUE (cnpj_emitente, serie, numero)
);
