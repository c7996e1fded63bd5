"""Kernels in Triton: products of matrices, a softmax, fused attention."""

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


@triton.jit
def described_product_kernel(left, right, out, rows, columns, depth, TILE: tl.constexpr):
    """One tile of a product; each matrix has a descriptor, so tiles are copied by tensor maps."""
    lefts = tl.make_tensor_descriptor(left, [rows, depth], [depth, 1], [TILE, TILE])
    rights = tl.make_tensor_descriptor(right, [depth, columns], [columns, 1], [TILE, TILE])
    outs = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [TILE, TILE])
    row, column = tl.program_id(0) * TILE, tl.program_id(1) * TILE
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, depth, TILE):
        total = tl.dot(lefts.load([row, start]), rights.load([start, column]), total)
    outs.store([row, column], total.to(tl.float16))


def described_product(left, right):
    """left @ right; the lengths of rows are multiples of 8."""
    triton.set_allocator(lambda size, _align, _stream: torch.empty(size, dtype=torch.int8, device=left.device))
    (rows, depth), columns = left.shape, right.shape[1]
    out = torch.empty((rows, columns), dtype=left.dtype, device=left.device)
    grid = (triton.cdiv(rows, 32), triton.cdiv(columns, 32))
    described_product_kernel[grid](left, right, out, rows, columns, depth, TILE=32)
    return out


@triton.jit
def scaled_product_kernel(
    left, left_scale, right, right_scale, out, SIZE: tl.constexpr, PACKED: tl.constexpr, FORMAT: tl.constexpr
):
    """A square product of narrow floats, with a factor for each 32 of a row or column."""
    at, narrow, block = tl.arange(0, SIZE), tl.arange(0, SIZE // PACKED), tl.arange(0, SIZE // 32)
    lefts = tl.load(left + at[:, None] * (SIZE // PACKED) + narrow[None, :])
    rights = tl.load(right + narrow[:, None] * SIZE + at[None, :])
    scales = at[:, None] * (SIZE // 32) + block[None, :]
    product = tl.dot_scaled(
        lefts, tl.load(left_scale + scales), FORMAT, rights, tl.load(right_scale + scales), FORMAT
    )
    tl.store(out + at[:, None] * SIZE + at[None, :], product)


def scaled_product(left, left_scale, right, right_scale, form):
    """left @ right, each with its factors (ue8m0): e4m3, or e2m1 with two to a byte."""
    size, packed = left.shape[0], 2 if form == "e2m1" else 1
    out = torch.empty((size, size), device=left.device)
    scaled_product_kernel[(1,)](left, left_scale, right, right_scale, out, SIZE=size, PACKED=packed, FORMAT=form)
    return out
