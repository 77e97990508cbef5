"""The types as a NodeSet file (OPC 10000-6, annex F), for engineering tools and other servers."""

from collections.abc import Iterable
from xml.etree import ElementTree as ET

from steadyhand.adapters.opcua.units import UNIT_URI, unit_number
from steadyhand.runtime.scada.model import MODEL_DATE, MODEL_VERSION, TYPES_URI, Argument
from steadyhand.runtime.scada.nodes import DATA_TYPES, Node, Ref, type_nodes

UA_URI = "http://opcfoundation.org/UA/"
_NODESET = "http://opcfoundation.org/UA/2011/03/UANodeSet.xsd"
_TYPES = "http://opcfoundation.org/UA/2008/02/Types.xsd"
_ALIASES = {
    **DATA_TYPES,
    "HasSubtype": 45,
    "HasProperty": 46,
    "HasComponent": 47,
    "HasTypeDefinition": 40,
    "HasModellingRule": 37,
}
_ENCODINGS = {"Argument": 297, "Range": 885, "EUInformation": 888}
"""XML encodings of the structures we use."""
_REFERENCES = {46: "HasProperty", 47: "HasComponent", 45: "HasSubtype"}


def nodeset_xml() -> bytes:
    """The whole file; the same bytes every time."""
    root = ET.Element("UANodeSet", {"xmlns": _NODESET})
    uris = ET.SubElement(root, "NamespaceUris")
    ET.SubElement(uris, "Uri").text = TYPES_URI
    about = {
        "ModelUri": TYPES_URI,
        "Version": MODEL_VERSION,
        "PublicationDate": MODEL_DATE,
    }
    model = ET.SubElement(ET.SubElement(root, "Models"), "Model", about)
    ET.SubElement(
        model,
        "RequiredModel",
        {"ModelUri": UA_URI, "Version": "1.04", "PublicationDate": "2019-01-31T00:00:00Z"},
    )
    aliases = ET.SubElement(root, "Aliases")
    for name, number in sorted(_ALIASES.items()):
        ET.SubElement(aliases, "Alias", {"Alias": name}).text = f"i={number}"
    nodes = list(type_nodes())
    children: dict[Ref, list[Node]] = {}
    for node in nodes:
        children.setdefault(node.parent, []).append(node)
    for node in nodes:
        _node(root, node, children.get(node.ref, ()))
    ET.indent(root, "  ")
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _id(ref: Ref) -> str:
    space, name = ref
    return f"i={name}" if space == "ua" else f"ns=1;s={name}"


def _node(root: ET.Element, node: Node, children: Iterable[Node]) -> None:
    about = {
        "NodeId": _id(node.ref),
        "BrowseName": node.name if node.home == "ua" else f"1:{node.name}",
    }
    if node.kind != "ObjectType":
        about["ParentNodeId"] = _id(node.parent)
    if node.kind == "Variable":
        about["DataType"] = node.data
        if node.array:
            about |= {"ValueRank": "1", "ArrayDimensions": "0"}
    made = ET.SubElement(root, f"UA{node.kind}", about)
    ET.SubElement(made, "DisplayName").text = node.name
    if node.meaning:
        ET.SubElement(made, "Description").text = node.meaning
    references = ET.SubElement(made, "References")
    back = {
        "ReferenceType": _REFERENCES[int(node.reference[1])],
        "IsForward": "false",
    }
    ET.SubElement(references, "Reference", back).text = _id(node.parent)
    for kind, target in (("HasTypeDefinition", node.type), ("HasModellingRule", node.rule)):
        if target is not None:
            ET.SubElement(references, "Reference", {"ReferenceType": kind}).text = _id(target)
    for child in children:
        forward = {"ReferenceType": _REFERENCES[int(child.reference[1])]}
        ET.SubElement(references, "Reference", forward).text = _id(child.ref)
    if node.value is not None:
        _value(ET.SubElement(made, "Value"), node)


def _value(parent: ET.Element, node: Node) -> None:
    if node.data == "LocalizedText":
        texts = ET.SubElement(parent, "ListOfLocalizedText", {"xmlns": _TYPES})
        for choice in node.value:
            ET.SubElement(ET.SubElement(texts, "LocalizedText"), "Text").text = choice
    elif node.data == "Argument":
        arguments = ET.SubElement(parent, "ListOfExtensionObject", {"xmlns": _TYPES})
        for argument in node.value:
            _argument(_structure(arguments, "Argument"), argument)
    elif node.data == "Range":
        body = _structure(parent, "Range", {"xmlns": _TYPES})
        for name, number in zip(("Low", "High"), node.value, strict=True):
            ET.SubElement(body, name).text = repr(number)
    else:
        body = _structure(parent, "EUInformation", {"xmlns": _TYPES})
        ET.SubElement(body, "NamespaceUri").text = UNIT_URI
        ET.SubElement(body, "UnitId").text = str(unit_number(node.value))
        for name in ("DisplayName", "Description"):
            ET.SubElement(ET.SubElement(body, name), "Text").text = node.value


def _structure(parent: ET.Element, name: str, about: dict[str, str] | None = None) -> ET.Element:
    made = ET.SubElement(parent, "ExtensionObject", about or {})
    kind = ET.SubElement(made, "TypeId")
    ET.SubElement(kind, "Identifier").text = f"i={_ENCODINGS[name]}"
    return ET.SubElement(ET.SubElement(made, "Body"), name)


def _argument(body: ET.Element, argument: Argument) -> None:
    ET.SubElement(body, "Name").text = argument.name
    kind = ET.SubElement(body, "DataType")
    ET.SubElement(kind, "Identifier").text = f"i={DATA_TYPES[argument.kind]}"
    ET.SubElement(body, "ValueRank").text = "-1"
    ET.SubElement(body, "ArrayDimensions")
    ET.SubElement(ET.SubElement(body, "Description"), "Text").text = argument.meaning
