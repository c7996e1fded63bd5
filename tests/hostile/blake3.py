"""BLAKE3 of short texts: images are named by it, and Python has none."""

import struct

IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
CHUNK_START, CHUNK_END, PARENT, ROOT = 1, 2, 4, 8
WORD = 0xFFFFFFFF


def compress(chaining, block, counter, length, flags):
    """One compression: the first eight words of the output."""
    words = list(struct.unpack("<16I", block.ljust(64, b"\0")))
    state = [*chaining, *IV[:4], counter & WORD, counter >> 32, length, flags]
    for step in range(7):
        for place, (a, b, c, d) in enumerate(COLUMNS + DIAGONALS):
            for x, low, high in ((words[2 * place], 16, 12), (words[2 * place + 1], 8, 7)):
                state[a] = (state[a] + state[b] + x) & WORD
                mixed = state[d] ^ state[a]
                state[d] = (mixed >> low | mixed << 32 - low) & WORD
                state[c] = (state[c] + state[d]) & WORD
                mixed = state[b] ^ state[c]
                state[b] = (mixed >> high | mixed << 32 - high) & WORD
        if step < 6:
            words = [words[place] for place in PERMUTATION]
    return tuple(state[place] ^ state[place + 8] for place in range(8))


def chunk(data, counter, root):
    """A chunk's chaining value."""
    value = IV
    blocks = [data[at : at + 64] for at in range(0, len(data), 64)] or [b""]
    for place, block in enumerate(blocks):
        flags = CHUNK_START if place == 0 else 0
        if place == len(blocks) - 1:
            flags |= CHUNK_END | (ROOT if root else 0)
        value = compress(value, block, counter, len(block), flags)
    return value


def tree(data, counter, root):
    """The chaining value of a run of chunks."""
    if len(data) <= 1024:
        return chunk(data, counter, root)
    left = 1024
    while left * 2 < len(data):
        left *= 2
    halves = tree(data[:left], counter, False) + tree(data[left:], counter + left // 1024, False)
    return compress(IV, struct.pack("<16I", *halves), 0, 64, PARENT | (ROOT if root else 0))


def blake3(data):
    """The 32 bytes that name an image."""
    return struct.pack("<8I", *tree(bytes(data), 0, True))
