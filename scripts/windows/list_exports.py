"""Print the source of python3.dll: a list of exports that forwards to python311.dll."""

import struct
import sys
from pathlib import Path
from typing import Any

SECTION_BYTES = 40
EXPORTED = ("Py", "_Py")


def read(data: bytes, layout: str, offset: int) -> tuple[Any, ...]:
    return struct.unpack_from(layout, data, offset)


def exported_names(data: bytes) -> list[str]:
    (header,) = read(data, "<I", 0x3C)
    (section_count,) = read(data, "<H", header + 6)
    (optional_size,) = read(data, "<H", header + 20)
    first_section = header + 24 + optional_size
    sections = [
        read(data, "<8sIIII", first_section + SECTION_BYTES * index)
        for index in range(section_count)
    ]

    def offset_of(address: int) -> int:
        for _, size, start, stored, offset in sections:
            if start <= address < start + max(size, stored):
                return offset + address - start
        raise ValueError(f"address {address:#x} is in no section")

    (export_table,) = read(data, "<I", header + 136)
    table = offset_of(export_table)
    count, _, names_address = read(data, "<III", table + 24)
    names = offset_of(names_address)
    starts = [offset_of(read(data, "<I", names + 4 * index)[0]) for index in range(count)]
    return [data[start : data.index(b"\0", start)].decode() for start in starts]


if __name__ == "__main__":
    print("LIBRARY python3.dll\nEXPORTS")
    for name in exported_names(Path(sys.argv[1]).read_bytes()):
        if name.startswith(EXPORTED):
            print(f"  {name}=python311.{name}")
