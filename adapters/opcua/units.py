"""Engineering units as OPC 10000-8 wants them: UNECE Recommendation 20 common codes."""

from asyncua import ua

UNIT_URI = "http://www.opcfoundation.org/UA/units/un/cefact"
UNIT_CODES = {
    "kW": "KWT",
    "kWh": "KWH",
    "degC": "CEL",
    "h": "HUR",
    "s": "SEC",
    "%": "P1",
    "1": "C62",
}


def unit_number(unit: str) -> int:
    """The code's characters as one number; -1 for a unit that has no code."""
    code = UNIT_CODES.get(unit)
    return -1 if code is None else int.from_bytes(code.encode("ascii"), "big")


def unit_information(unit: str) -> ua.EUInformation:
    """EUInformation whose display name is our unit."""
    return ua.EUInformation(
        NamespaceUri=UNIT_URI,
        UnitId=unit_number(unit),
        DisplayName=ua.LocalizedText(unit),
        Description=ua.LocalizedText(unit),
    )
