"""Kernels in Triton: a product of matrices, a softmax, fused attention."""

import torch
import triton
import triton.language as tl


@triton.jit
def product_kernel(left, right, out, size, TILE: tl.constexpr, DEPTH: tl.constexpr):
    """One tile of a square product."""
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, size, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        one = tl.load(left + rows[:, None] * size + depth[None, :])
        other = tl.load(right + depth[:, None] * size + columns[None, :])
        total += tl.dot(one, other)
    tl.store(out + rows[:, None] * size + columns[None, :], total.to(tl.float16))


def product(left, right):
    """left @ right; the size is a multiple of 64."""
    out = torch.empty_like(left)
    size = left.shape[0]
    product_kernel[(size // 64, size // 64)](left, right, out, size, TILE=64, DEPTH=32)
    return out


@triton.jit
def softmax_kernel(rows, out, width, TILE: tl.constexpr):
    """One row."""
    at = tl.arange(0, TILE)
    here = tl.program_id(0) * width + at
    row = tl.load(rows + here, mask=at < width, other=-float("inf")).to(tl.float32)
    power = tl.exp(row - tl.max(row, 0))
    tl.store(out + here, (power / tl.sum(power, 0)).to(tl.float16), mask=at < width)


def softmax(rows):
    """Softmax along the last of two dimensions."""
    out = torch.empty_like(rows)
    softmax_kernel[(rows.shape[0],)](rows, out, rows.shape[1], TILE=triton.next_power_of_2(rows.shape[1]))
    return out


@triton.jit
def attention_kernel(query, key, value, out, length, scale, TILE: tl.constexpr, WIDTH: tl.constexpr):
    """A tile of queries against all keys, with a running maximum."""
    base = tl.program_id(1) * length * WIDTH
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    wide = tl.arange(0, WIDTH)
    queries = tl.load(query + base + rows[:, None] * WIDTH + wide[None, :])
    most = tl.full((TILE,), -float("inf"), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    mixed = tl.zeros((TILE, WIDTH), tl.float32)
    for start in range(0, length, TILE):
        columns = start + tl.arange(0, TILE)
        keys = tl.load(key + base + columns[None, :] * WIDTH + wide[:, None])
        scores = tl.dot(queries, keys) * scale
        higher = tl.maximum(most, tl.max(scores, 1))
        power = tl.exp(scores - higher[:, None])
        shrink = tl.exp(most - higher)
        values = tl.load(value + base + columns[:, None] * WIDTH + wide[None, :])
        mixed = mixed * shrink[:, None] + tl.dot(power.to(tl.float16), values)
        total = total * shrink + tl.sum(power, 1)
        most = higher
    tl.store(out + base + rows[:, None] * WIDTH + wide[None, :], (mixed / total[:, None]).to(tl.float16))


def attention(query, key, value):
    """Attention of (batch, heads, length, width); the length is a multiple of 64."""
    batch, heads, length, width = query.shape
    out = torch.empty_like(query)
    grid = (length // 64, batch * heads)
    attention_kernel[grid](query, key, value, out, length, width**-0.5, TILE=64, WIDTH=width)
    return out
