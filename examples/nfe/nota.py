"""An invoice as somebody wants it emitted: what it must say, and what it adds up to.

Amounts are decimal numbers from beginning to end; each line is rounded to the cent, half up, and the total is the sum
of the rounded lines, so that whoever adds up the XML comes to the same.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from examples.nfe.chave import is_cnpj, is_cpf

CENT = Decimal("0.01")
LARGEST = Decimal("9999999999999.99")  # 13 digits before the comma

# What the layout takes for text: Latin-1 without control characters, and no space at either end.
Text = Annotated[str, Field(pattern=r"^[!-~\xa1-ÿ]([ -~\xa1-ÿ]*[!-~\xa1-ÿ])?$")]
Name = Annotated[Text, Field(min_length=2, max_length=60)]


def _cnpj(text: str) -> str:
    if not is_cnpj(text):
        raise ValueError("not a CNPJ: 14 digits, of which the last two check the others")
    return text


def _person(text: str) -> str:
    if not (is_cnpj(text) or is_cpf(text)):
        raise ValueError("neither a CNPJ nor a CPF: digits alone, of which the last two check the others")
    return text


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Endereco(Part):
    logradouro: Name
    numero: Annotated[Text, Field(max_length=60)]
    bairro: Name
    municipio: Annotated[str, Field(pattern=r"^[1-5][0-9]{6}$")]  # as IBGE numbers it: begins with the state
    nome_municipio: Name
    uf: Annotated[str, Field(pattern=r"^[A-Z]{2}$")]
    cep: Annotated[str, Field(pattern=r"^[0-9]{8}$")]


class Emitente(Part):
    cnpj: Annotated[str, AfterValidator(_cnpj)]
    nome: Name
    inscricao_estadual: Annotated[str, Field(pattern=r"^[0-9]{2,14}$")]
    endereco: Endereco


class Destinatario(Part):
    documento: Annotated[str, AfterValidator(_person)]  # CNPJ or CPF
    nome: Name


class Item(Part):
    codigo: Annotated[Text, Field(max_length=60)]
    descricao: Annotated[Text, Field(max_length=120)]
    ncm: Annotated[str, Field(pattern=r"^[0-9]{8}$")]
    cfop: Annotated[str, Field(pattern=r"^[1-7][0-9]{3}$")]
    unidade: Annotated[Text, Field(max_length=6)]
    quantidade: Annotated[Decimal, Field(gt=0, max_digits=15, decimal_places=4)]
    valor_unitario: Annotated[Decimal, Field(gt=0, max_digits=21, decimal_places=10)]
    desconto: Annotated[Decimal, Field(ge=0, max_digits=15, decimal_places=2)] = Decimal(0)

    @property
    def valor(self) -> Decimal:
        return (self.quantidade * self.valor_unitario).quantize(CENT, ROUND_HALF_UP)

    @model_validator(mode="after")
    def _discounted_by_no_more_than_its_price(self) -> Self:
        if not 0 < self.valor <= LARGEST:
            raise ValueError(f"{self.quantidade} × {self.valor_unitario} is no amount: want 0.01 to {LARGEST}")
        if self.desconto > self.valor:
            raise ValueError(f"a discount of {self.desconto} on {self.valor}")
        return self


class Nota(Part):
    serie: Annotated[int, Field(ge=0, le=889)]  # 890 and above are the tax office's own
    numero: Annotated[int, Field(ge=1, le=999_999_999)]
    natureza: Name
    emitente: Emitente
    destinatario: Destinatario
    itens: Annotated[list[Item], Field(min_length=1, max_length=990)]

    @property
    def valor_produtos(self) -> Decimal:
        return sum((item.valor for item in self.itens), Decimal(0))

    @property
    def desconto(self) -> Decimal:
        return sum((item.desconto for item in self.itens), Decimal(0))

    @property
    def valor_total(self) -> Decimal:
        return self.valor_produtos - self.desconto

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.valor_produtos > LARGEST:
            raise ValueError(f"the items add up to {self.valor_produtos}: want at most {LARGEST}")
        return self
