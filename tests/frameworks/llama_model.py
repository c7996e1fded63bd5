#!/usr/bin/env python3
"""Writes a language model of random weights for llama.cpp.

usage: llama_model.py [--layers N] [--width N] [--heads N] [--words N] [--type f16|q8_0] [--seed N] FILE

The model has Llama's layout and a vocabulary of the 256 bytes and of made-up
words, so that any text can be its prompt. What it says means nothing; that it
says the same natively and through paragpu is what is tested. The format is that
of GGUF's specification (ggml/docs/gguf.md of llama.cpp), version 3.
"""

import argparse
import struct

import numpy

ALIGNMENT = 32
# Types of values and of tensors in GGUF.
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9
F32, F16, Q8_0 = 0, 1, 8
# Kinds of tokens: a word, unknown, control, a byte.
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
# Tokens that are not words.
SPECIAL = 3
# Weights of a block of Q8_0, which have one scale.
BLOCK = 32


def text(value):
    """A string, after its length."""
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value_of(kind, value):
    """A value as it is written."""
    if kind == STRING:
        return text(value)
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f"}[kind], value)


def field(key, kind, value):
    """A key with its value, or with a list of them."""
    if isinstance(value, list):
        values = b"".join(value_of(kind, one) for one in value)
        return text(key) + struct.pack("<IIQ", ARRAY, kind, len(value)) + values
    return text(key) + struct.pack("<I", kind) + value_of(kind, value)


def vocabulary(words):
    """Tokens and their kinds."""
    tokens = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    tokens += [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    tokens += [(f"\u2581w{number}", NORMAL) for number in range(words - len(tokens))]
    return tokens


def inner_width(options):
    """Width inside a feed-forward network: 11/4 of the model's, in whole blocks."""
    return options.width * 11 // 4 // BLOCK * BLOCK


def shapes(options):
    """Names and shapes of the tensors, the innermost dimension last, as numpy has them."""
    width, inner = options.width, inner_width(options)
    yield "token_embd.weight", (options.words, width)
    for layer in range(options.layers):
        name = f"blk.{layer}."
        yield name + "attn_norm.weight", (width,)
        for part in "qkv":
            yield name + f"attn_{part}.weight", (width, width)
        yield name + "attn_output.weight", (width, width)
        yield name + "ffn_norm.weight", (width,)
        yield name + "ffn_gate.weight", (inner, width)
        yield name + "ffn_up.weight", (inner, width)
        yield name + "ffn_down.weight", (width, inner)
    yield "output_norm.weight", (width,)
    yield "output.weight", (options.words, width)


def encoded(shape, kind, random, silent):
    """A tensor's type and bytes: norms are near one, weights small, and zero in the first `silent` rows."""
    if len(shape) == 1:
        return F32, (1 + 0.1 * random.standard_normal(shape, dtype=numpy.float32)).tobytes()
    spread = numpy.float32(shape[1] ** -0.5)
    if kind == "f16":
        weights = (random.standard_normal(shape, dtype=numpy.float32) * spread).astype(numpy.float16)
        weights[:silent] = 0
        return F16, weights.tobytes()
    count = shape[0] * shape[1] // BLOCK
    blocks = numpy.empty(count, dtype=[("scale", "<f2"), ("weights", "i1", BLOCK)])
    blocks["scale"] = spread / 73
    blocks["weights"] = random.integers(-127, 128, (count, BLOCK), dtype=numpy.int8)
    blocks["weights"][: silent * shape[1] // BLOCK] = 0
    return Q8_0, blocks.tobytes()


def write(path, options):
    """Writes the model."""
    tokens = vocabulary(options.words)
    fields = [
        field("general.architecture", STRING, "llama"),
        field("general.name", STRING, "random weights"),
        field("llama.block_count", UINT32, options.layers),
        field("llama.context_length", UINT32, 2048),
        field("llama.embedding_length", UINT32, options.width),
        field("llama.feed_forward_length", UINT32, inner_width(options)),
        field("llama.attention.head_count", UINT32, options.heads),
        field("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        field("llama.rope.dimension_count", UINT32, options.width // options.heads),
        field("tokenizer.ggml.model", STRING, "llama"),
        field("tokenizer.ggml.tokens", STRING, [token for token, _ in tokens]),
        field("tokenizer.ggml.scores", FLOAT32, [-float(number) for number in range(len(tokens))]),
        field("tokenizer.ggml.token_type", INT32, [kind for _, kind in tokens]),
        field("tokenizer.ggml.bos_token_id", UINT32, 1),
        field("tokenizer.ggml.eos_token_id", UINT32, 2),
        field("tokenizer.ggml.unknown_token_id", UINT32, 0),
    ]
    random = numpy.random.default_rng(options.seed)
    infos, data, offset = [], [], 0
    for name, shape in shapes(options):
        # It never says that it is at its end.
        kind, content = encoded(shape, options.type, random, SPECIAL if name == "output.weight" else 0)
        content += bytes(-len(content) % ALIGNMENT)
        sides = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        infos.append(text(name) + sides + struct.pack("<IQ", kind, offset))
        data.append(content)
        offset += len(content)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(fields)) + b"".join(fields) + b"".join(infos)
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT))
        file.writelines(data)


def main():
    """Executes the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2, help="default 2")
    parser.add_argument("--width", type=int, default=256, help="a multiple of 32 (default 256)")
    parser.add_argument("--heads", type=int, default=4, help="default 4")
    parser.add_argument("--words", type=int, default=1024, help="tokens, at least 260 (default 1024)")
    parser.add_argument("--type", choices=("f16", "q8_0"), default="q8_0", help="default q8_0")
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    parser.add_argument("file")
    options = parser.parse_args()
    write(options.file, options)


if __name__ == "__main__":
    main()
