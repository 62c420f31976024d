"""An invoice as XML, in the order and shape of the layout 4.00 (http://www.portalfiscal.inf.br/nfe).

It is what would be signed and sent: without the signature, in the environment for tests (tpAmb 2), for a company under
the Simples Nacional, whose invoices show no taxes of their own. The same invoice always gives the same bytes, so that
making it twice makes one.
"""

from __future__ import annotations

from decimal import Decimal
from xml.etree import ElementTree as ET

from examples.nfe.nota import Destinatario, Emitente, Item, Nota

NAMESPACE = "http://www.portalfiscal.inf.br/nfe"
VERSION = "4.00"


def make_xml(nota: Nota, *, chave: str, at: str) -> bytes:
    """`at`: the moment of emission, with its offset."""
    root = ET.Element("NFe", {"xmlns": NAMESPACE})
    content = ET.SubElement(root, "infNFe", {"versao": VERSION, "Id": f"NFe{chave}"})
    _add_identification(content, nota, chave, at)
    _add_issuer(content, nota.emitente)
    _add_recipient(content, nota.destinatario)
    for number, item in enumerate(nota.itens, 1):
        _add_item(content, number, item)
    _add_total(content, nota)
    _add(ET.SubElement(content, "transp"), modFrete="9")  # nobody's
    _add(ET.SubElement(ET.SubElement(content, "pag"), "detPag"), tPag="90", vPag="0.00")  # no payment told
    xml: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return xml


def _add_identification(content: ET.Element, nota: Nota, chave: str, at: str) -> None:
    _add(
        ET.SubElement(content, "ide"),
        cUF=chave[:2],
        cNF=chave[35:43],
        natOp=nota.natureza,
        mod=chave[20:22],
        serie=str(nota.serie),
        nNF=str(nota.numero),
        dhEmi=at,
        tpNF="1",
        idDest="1",
        cMunFG=nota.emitente.endereco.municipio,
        tpImp="1",
        tpEmis=chave[34],
        cDV=chave[43],
        tpAmb="2",
        finNFe="1",
        indFinal="1",
        indPres="1",
        procEmi="0",
        verProc="redrive",
    )


def _add_issuer(content: ET.Element, issuer: Emitente) -> None:
    place = issuer.endereco
    emit = _add(ET.SubElement(content, "emit"), CNPJ=issuer.cnpj, xNome=issuer.nome)
    _add(
        ET.SubElement(emit, "enderEmit"),
        xLgr=place.logradouro,
        nro=place.numero,
        xBairro=place.bairro,
        cMun=place.municipio,
        xMun=place.nome_municipio,
        UF=place.uf,
        CEP=place.cep,
    )
    _add(emit, IE=issuer.inscricao_estadual, CRT="1")


def _add_recipient(content: ET.Element, recipient: Destinatario) -> None:
    kind = "CNPJ" if len(recipient.documento) == 14 else "CPF"
    _add(ET.SubElement(content, "dest"), **{kind: recipient.documento, "xNome": recipient.nome, "indIEDest": "9"})


def _add_item(content: ET.Element, number: int, item: Item) -> None:
    det = ET.SubElement(content, "det", {"nItem": str(number)})
    quantity, price = _plain(item.quantidade), _plain(item.valor_unitario)
    product = _add(
        ET.SubElement(det, "prod"),
        cProd=item.codigo,
        cEAN="SEM GTIN",
        xProd=item.descricao,
        NCM=item.ncm,
        CFOP=item.cfop,
        uCom=item.unidade,
        qCom=quantity,
        vUnCom=price,
        vProd=_money(item.valor),
        cEANTrib="SEM GTIN",
        uTrib=item.unidade,
        qTrib=quantity,
        vUnTrib=price,
    )
    if item.desconto:
        _add(product, vDesc=_money(item.desconto))
    _add(product, indTot="1")
    taxes = ET.SubElement(ET.SubElement(ET.SubElement(det, "imposto"), "ICMS"), "ICMSSN102")
    _add(taxes, orig="0", CSOSN="102")


def _add_total(content: ET.Element, nota: Nota) -> None:
    names = (
        "vBC vICMS vICMSDeson vFCP vBCST vST vFCPST vFCPSTRet vProd vFrete vSeg vDesc vII vIPI vIPIDevol vPIS vCOFINS "
        "vOutro vNF"
    )
    known = {"vProd": nota.valor_produtos, "vDesc": nota.desconto, "vNF": nota.valor_total}
    amounts = {name: _money(known.get(name, Decimal(0))) for name in names.split()}
    _add(ET.SubElement(ET.SubElement(content, "total"), "ICMSTot"), **amounts)


def _add(parent: ET.Element, **texts: str) -> ET.Element:
    for tag, text in texts.items():
        ET.SubElement(parent, tag).text = text
    return parent


def _money(amount: Decimal) -> str:
    return f"{amount:.2f}"


def _plain(number: Decimal) -> str:
    """Without an exponent, and with four decimals at least."""
    decimals = max(4, -int(number.normalize().as_tuple().exponent))
    return f"{number:.{decimals}f}"
