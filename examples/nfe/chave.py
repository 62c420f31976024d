"""The access key of an invoice (chave de acesso): 44 digits that tell who issued it, and when.

    35 2611 12345678000195 55 001 000000042 1 01234567 8
    │  │    │              │  │   │         │ │        └ check digit, modulo 11
    │  │    │              │  │   │         │ └ a number that nobody can guess
    │  │    │              │  │   │         └ how it was issued: 1, as usual
    │  │    │              │  │   └ number
    │  │    │              │  └ series
    │  │    │              └ model: 55, NF-e
    │  │    └ CNPJ of the issuer
    │  └ year and month
    └ state, as IBGE numbers it

The same sum guards the numbers of companies (CNPJ) and, with longer weights, of people (CPF).
"""

from __future__ import annotations

from datetime import datetime

MODEL = "55"
NORMAL = "1"


def check_digit(digits: str, heaviest: int = 9) -> str:
    """Modulo 11: weights 2, 3, … from the right, and after the heaviest from 2 again."""
    span = heaviest - 1
    total = sum(int(digit) * (2 + place % span) for place, digit in enumerate(reversed(digits)))
    rest = total % 11
    return str(11 - rest) if rest > 1 else "0"


def make_chave(*, state: str, at: datetime, cnpj: str, series: int, number: int, code: int) -> str:
    head = f"{state}{at:%y%m}{cnpj}{MODEL}{series:03d}{number:09d}{NORMAL}{code:08d}"
    return head + check_digit(head)


def is_chave(text: str) -> bool:
    return _is_number(text, 44) and check_digit(text[:43]) == text[43]


def is_cnpj(text: str) -> bool:
    return _is_number(text, 14) and check_digit(text[:12]) + check_digit(text[:13]) == text[12:]


def is_cpf(text: str) -> bool:
    return _is_number(text, 11) and check_digit(text[:9], 11) + check_digit(text[:10], 11) == text[9:]


def _is_number(text: str, length: int) -> bool:
    """So many digits, and not one digit over and over: such numbers pass every sum and are nobody's."""
    return len(text) == length and text.isascii() and text.isdigit() and len(set(text)) > 1
