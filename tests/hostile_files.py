"""Files that mean harm: pickles that run a command, images that claim to be huge."""

import os
import struct
import zlib
from pathlib import Path


class Payload:
    """Unpickled the careless way, it leaves a file behind."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def huge_png(width: int, height: int) -> bytes:
    """A PNG that claims a size far beyond its few bytes."""

    def block(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + block(b"IHDR", header) + block(b"IDAT", rows) + block(b"IEND", b"")
