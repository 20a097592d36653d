"""What the header of a JPEG file says: whether a GPU reads the file as the CPU does, and how large the image is."""

from PIL import Image

_OTHER_FRAMES = {0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}
"""Progressive, lossless and arithmetic ones, and those of 12 bits: for the CPU."""
_LUMINANCE = {0x11, 0x12, 0x21, 0x22}
_RGB = b"RGB"


def baseline_size(data: bytes | bytearray) -> tuple[int, int] | None:
    """Width and height of an ordinary baseline JPEG that is there to its end; None for all else: the CPU's to judge.

    Ordinary: 8 bits, YCbCr with the usual samplings. Of grey files an H200 makes other pixels from call to call
    (driver 580, torchvision 0.26). A file cut short has no end marker behind its scan.
    """
    if data[:2] != b"\xff\xd8":
        return None
    size, place, end = None, 2, len(data)
    while place + 9 < end and data[place] == 0xFF:
        marker, length = data[place + 1], int.from_bytes(data[place + 2 : place + 4])
        if marker == 0xFF:  # a fill byte
            place += 1
            continue
        if marker in _OTHER_FRAMES:
            return None
        if marker == 0xC0:
            size = _frame_size(data[place + 4 : place + 2 + length])
        elif marker == 0xEE and data[place + 4 : place + 9] == b"Adobe" and data[place + 15 : place + 16] != b"\x01":
            return None  # not YCbCr
        elif marker == 0xDA:
            return size if data.rfind(b"\xff\xd9") > place else None
        place += 2 + length
    return None


def _frame_size(frame: bytes | bytearray) -> tuple[int, int] | None:
    """The fields of a frame: bits, height, width, then identity, sampling and table of each component."""
    if len(frame) != 15 or frame[0] != 8:
        return None
    height, width = int.from_bytes(frame[1:3]), int.from_bytes(frame[3:5])
    samplings = frame[7::3]
    usual = samplings[0] in _LUMINANCE and samplings[1:] == b"\x11\x11"
    if not usual or frame[6::3] == _RGB or not 0 < width * height <= (Image.MAX_IMAGE_PIXELS or width * height):
        return None
    return width, height
