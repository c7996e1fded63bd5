//! Matrix operations of a warp: `mma`, `wmma`, `ldmatrix`, `stmatrix`, `movmatrix`.
//!
//! Numerics, the same for all of them:
//! - floats below single precision: added as on an H100, as determined from its results:
//!   [`wide_sum`]. The lower 13
//!   bits of tf32 operands are ignored. A D of f16 is rounded once more. For an element of D
//!   with an infinity or a NaN among its factors, the products are added to C one after the
//!   other.
//! - f64: the same with fused multiply-add in double precision.
//! - integers and bits: exact; then wrapped to 32 bits, or clamped with `.satfinite`.
//!
//! Other GPUs use other widths, and agree up to rounding.

use super::block::Env;
use super::fp8;
use super::fragment::{
    Combine, Element, Fragment, MAX_DOUBLES, MAX_SINGLES, Matrix, Multiply, Scale, Scales, Transfer,
};
use super::lanes::nan32;
use super::soft::{Format, f16_to_f32, f32_to_half};
use super::warp::{Flow, Warp};
use crate::decode::{FP4_E2M1, FP6_E2M3, FP6_E3M2, FP8_E5M2, FP8_UE8M0};
use crate::error::Fault;
use crate::program::{Address, Reg};

type Stop = (Fault, u32);

const SINGLES: usize = MAX_SINGLES as usize;
const DOUBLES: usize = MAX_DOUBLES as usize;

impl Warp {
    pub(super) fn matrix(
        &mut self,
        env: &mut Env<'_>,
        matrix: &Matrix,
        active: u32,
    ) -> Result<Flow, Stop> {
        // `.aligned`: all lanes that have not exited execute it together.
        let met = self.meet(&[u32::MAX; 32], active);
        if met.lanes != 0 {
            match matrix {
                Matrix::Multiply(multiply) => self.multiply(multiply, met.lanes),
                Matrix::Transfer(transfer) => self.transfer(env, transfer, met.lanes)?,
                Matrix::Rows {
                    address,
                    regs,
                    transposed,
                    store,
                    unpack,
                } => {
                    self.rows(
                        env,
                        address,
                        regs,
                        (*transposed, *unpack),
                        *store,
                        met.lanes,
                    )?;
                }
                Matrix::Transpose { d, a } => {
                    let tile = tile_of(&self.read(*a));
                    self.write(*d, &lanes_of(&tile, true), met.lanes);
                }
            }
        }
        Ok(self.part(&met))
    }

    /// Calls `f` with the index and the bits of every element.
    fn gather(&self, fragment: &Fragment, mut f: impl FnMut(usize, u64)) {
        let (bits, packed) = (fragment.element.bits(), fragment.element.packed() as usize);
        let each = fragment.regs.len() * packed;
        let mask = u64::MAX >> (64 - bits);
        for (n, reg) in fragment.regs.iter().enumerate() {
            let row = self.read(*reg);
            for (places, value) in fragment.places.chunks_exact(each).zip(row) {
                let places = &places[n * packed..][..packed];
                for (part, &place) in places.iter().enumerate() {
                    f(usize::from(place), value >> (part as u32 * bits) & mask);
                }
            }
        }
    }

    /// Fills the registers with the result of `f` for each element's index.
    fn scatter(&mut self, fragment: &Fragment, lanes: u32, f: impl Fn(usize) -> u64) {
        let (bits, packed) = (fragment.element.bits(), fragment.element.packed() as usize);
        let each = fragment.regs.len() * packed;
        for (n, reg) in fragment.regs.iter().enumerate() {
            let mut row = [0; 32];
            for (places, value) in fragment.places.chunks_exact(each).zip(&mut row) {
                for (part, &place) in places[n * packed..][..packed].iter().enumerate() {
                    *value |= f(usize::from(place)) << (part as u32 * bits);
                }
            }
            self.write(*reg, &row, lanes);
        }
    }

    fn multiply(&mut self, m: &Multiply, lanes: u32) {
        if let Some(scales) = &m.scales {
            return self.multiply_scaled(m, scales, lanes);
        }
        match m.a.element {
            Element::F64 => self.multiply_doubles(m, lanes),
            element if element.single() => self.multiply_singles(m, lanes),
            _ => self.multiply_integers(m, lanes),
        }
    }

    fn multiply_singles(&mut self, m: &Multiply, lanes: u32) {
        let [rows, columns, _] = m.shape.map(|n| n as usize);
        let mut sums = [0f32; SINGLES];
        for (number, sum) in sums
            .chunks_exact_mut(rows * columns)
            .enumerate()
            .take(m.products)
        {
            self.product_of_singles(m, number, sum);
        }
        let half = m.d.element == Element::F16;
        self.scatter(&m.d, lanes, |at| {
            u64::from(match half {
                true => f32_to_half(Format::F16, sums[at]),
                false => nan32(sums[at]),
            })
        });
    }

    /// The index in the whole A of each element that is there, if some are not.
    fn places_of_sparse(&self, m: &Multiply) -> Option<Vec<usize>> {
        let sparse = m.sparse?;
        let metadata = self.read(Reg::R32(sparse.metadata));
        Some(sparse.places(&metadata, m.shape, m.a.element))
    }

    /// Computes D of product `number`.
    fn product_of_singles(&self, m: &Multiply, number: usize, sum: &mut [f32]) {
        let [rows, columns, depth] = m.shape.map(|n| n as usize);
        let (mut a, mut b) = ([0f32; SINGLES], [0f32; SINGLES]);
        let gather = |fragment: &Fragment, out: &mut [f32], size: usize| {
            self.gather(fragment, |at, bits| {
                let at = at.wrapping_sub(number * size);
                if at < size {
                    out[at] = single(fragment.element, bits as u32);
                }
            });
        };
        let places = self.places_of_sparse(m);
        match &places {
            None => gather(&m.a, &mut a, rows * depth),
            Some(places) => self.gather(&m.a, |at, bits| {
                a[places[at]] = single(m.a.element, bits as u32);
            }),
        }
        gather(&m.b, &mut b, depth * columns);
        gather(&m.c, sum, rows * columns);
        let mut before = [0f32; SINGLES];
        let before = &mut before[..sum.len()];
        before.copy_from_slice(sum);
        let (parts_a, parts_b) = (Parts::of(&a), Parts::of(&b));
        let narrow = m.a.element.narrow_float();
        let deep = if m.sparse.is_some() { 2 * DEEP } else { DEEP };
        for (row, sum) in sum.chunks_exact_mut(columns).enumerate() {
            let row = row * depth;
            if narrow {
                narrow_sum(&parts_a, row, &parts_b, depth, sum);
                continue;
            }
            for from in (0..depth).step_by(deep) {
                let ks = from..depth.min(from + deep);
                wide_sum(&parts_a, row, &parts_b, ks, sum);
            }
        }
        let finite = |all: &[f32]| all.iter().all(|v| v.is_finite());
        if !(finite(&a) && finite(&b) && finite(before)) {
            for (at, sum) in sum.iter_mut().enumerate() {
                let (row, column) = (at / columns * depth, at % columns);
                let is_there = |k: &usize| {
                    let places = places.as_ref();
                    places.is_none_or(|places| places.contains(&(row + k)))
                };
                let ks = (0..depth).filter(is_there);
                let factors = ks.map(|k| (a[row + k], b[k * columns + column]));
                let is_finite = |(a, b): (f32, f32)| a.is_finite() && b.is_finite();
                if !(before[at].is_finite() && factors.clone().all(is_finite)) {
                    let products = factors.map(|(a, b)| a * b);
                    *sum = products.fold(before[at], |sum, product| sum + product);
                }
            }
        }
    }

    /// The factors of each of `count` rows or columns; `lane` tells which lane has them.
    fn factors(
        &self,
        scales: &Scales,
        of: Scale,
        count: usize,
        lane: impl Fn(usize, usize) -> usize,
    ) -> Vec<f64> {
        let first = |row| self.read(Reg::R32(row))[0] as usize;
        let (byte, thread) = (first(of.byte), first(of.thread));
        let words = self.read(Reg::R32(of.factors));
        let blocks = scales.blocks as usize;
        let factor = |n: usize| {
            let word = words[lane(n / blocks, thread) % 32];
            let bits = (word >> (8 * ((byte + n % blocks) % 4))) as u32;
            f64::from(match scales.fraction {
                true => fp8::to_single(0, bits & 0x7f),
                false => fp8::to_single(FP8_UE8M0, bits),
            })
        };
        (0..count * blocks).map(factor).collect()
    }

    /// With factors of blocks of K. The sum is rounded once from double precision.
    fn multiply_scaled(&mut self, m: &Multiply, scales: &Scales, lanes: u32) {
        let (mut a, mut b, mut sum) = ([0f32; SINGLES], [0f32; SINGLES], [0f32; SINGLES]);
        for (fragment, out) in [(&m.a, &mut a), (&m.b, &mut b), (&m.c, &mut sum)] {
            let element = fragment.element;
            self.gather(fragment, |at, bits| out[at] = single(element, bits as u32));
        }
        let [rows, columns, depth] = m.shape.map(|n| n as usize);
        let of_rows = self.factors(scales, scales.a, rows, |row, pair| {
            row % 8 * 4 + pair * 2 + row / 8
        });
        let of_columns = self.factors(scales, scales.b, columns, |column, thread| {
            column * 4 + thread
        });
        let blocks = scales.blocks as usize;
        for (at, sum) in sum.iter_mut().enumerate().take(rows * columns) {
            let (row, column) = (at / columns, at % columns);
            let mut total = f64::from(*sum);
            for block in 0..blocks {
                let ks = block * depth / blocks..(block + 1) * depth / blocks;
                let products =
                    ks.map(|k| f64::from(a[row * depth + k]) * f64::from(b[k * columns + column]));
                let factor = of_rows[row * blocks + block] * of_columns[column * blocks + block];
                total += products.sum::<f64>() * factor;
            }
            *sum = total as f32;
        }
        self.scatter(&m.d, lanes, |at| u64::from(nan32(sum[at])));
    }

    fn multiply_doubles(&mut self, m: &Multiply, lanes: u32) {
        let (mut a, mut b, mut sum) = ([0f64; DOUBLES], [0f64; DOUBLES], [0f64; DOUBLES]);
        for (fragment, out) in [(&m.a, &mut a), (&m.b, &mut b), (&m.c, &mut sum)] {
            self.gather(fragment, |at, bits| out[at] = f64::from_bits(bits));
        }
        let [rows, columns, depth] = m.shape.map(|n| n as usize);
        for (row, sum) in sum.chunks_exact_mut(columns).take(rows).enumerate() {
            for (k, b) in b.chunks_exact(columns).take(depth).enumerate() {
                let factor = a[row * depth + k];
                for (sum, b) in sum.iter_mut().zip(b) {
                    *sum = factor.mul_add(*b, *sum);
                }
            }
        }
        self.scatter(&m.d, lanes, |at| sum[at].to_bits());
    }

    fn multiply_integers(&mut self, m: &Multiply, lanes: u32) {
        let [rows, columns, depth] = m.shape.map(|n| n as usize);
        let mut a = vec![0i32; rows * depth];
        let mut b = vec![0i32; depth * columns];
        let mut sum = vec![0i64; rows * columns];
        let places = self.places_of_sparse(m);
        self.gather(&m.a, |at, bits| {
            let at = places.as_ref().map_or(at, |places| places[at]);
            a[at] = integer(m.a.element, bits as u32);
        });
        self.gather(&m.b, |at, bits| b[at] = integer(m.b.element, bits as u32));
        self.gather(&m.c, |at, bits| sum[at] = i64::from(bits as u32 as i32));
        for (row, sum) in sum.chunks_exact_mut(columns).enumerate() {
            for (k, b) in b.chunks_exact(columns).enumerate() {
                let factor = a[row * depth + k];
                for (sum, &b) in sum.iter_mut().zip(b) {
                    *sum += i64::from(match m.combine {
                        Combine::Multiply => factor * b,
                        Combine::And => factor & b,
                        Combine::Xor => factor ^ b,
                    });
                }
            }
        }
        self.scatter(&m.d, lanes, |at| {
            let value = match m.saturate {
                true => sum[at].clamp(i32::MIN.into(), i32::MAX.into()),
                false => sum[at],
            };
            u64::from(value as u32)
        });
    }

    /// The first lane's address. It is the same for all lanes.
    fn common(&self, address: &Address, lanes: u32) -> (u64, u32) {
        let lane = lanes.trailing_zeros() & 31;
        (self.addresses(address)[lane as usize], lane)
    }

    fn transfer(&mut self, env: &mut Env<'_>, t: &Transfer, lanes: u32) -> Result<(), Stop> {
        let (base, lane) = self.common(&t.address, lanes);
        let [rows, columns] = t.extent;
        let stride = match t.stride {
            Some(row) => self.read(Reg::R32(row))[lane as usize],
            None if t.columns => u64::from(rows),
            None => u64::from(columns),
        };
        let element = t.fragment.element;
        let bits = u64::from(element.bits());
        // A narrow element is a part of a byte.
        let width = (bits / 8).max(1) as u8;
        let place = |at: usize| {
            let (row, column) = (
                at as u64 / u64::from(columns),
                at as u64 % u64::from(columns),
            );
            let index = match t.columns {
                true => column * stride + row,
                false => row * stride + column,
            };
            (base.wrapping_add(index * bits / 8), index * bits % 8)
        };
        let size = (rows * columns) as usize;
        let mut values = vec![0u64; size];
        let space = t.address.space;
        if t.store {
            self.gather(&t.fragment, |at, bits| values[at] = bits);
            for (at, value) in values.into_iter().enumerate() {
                self.lane_store(env, space, lane as usize, place(at).0, width, value)
                    .map_err(|fault| (fault, lane))?;
            }
        } else {
            for (at, value) in values.iter_mut().enumerate() {
                let (address, shift) = place(at);
                let got = self.lane_load(env, space, lane as usize, address, width);
                *value = got.map_err(|fault| (fault, lane))? >> shift & (u64::MAX >> (64 - bits));
            }
            self.scatter(&t.fragment, lanes, |at| values[at]);
        }
        Ok(())
    }

    fn rows(
        &mut self,
        env: &mut Env<'_>,
        address: &Address,
        regs: &[Reg],
        (transposed, unpack): (bool, Option<u32>),
        store: bool,
        lanes: u32,
    ) -> Result<(), Stop> {
        let at = self.addresses(address);
        for (n, reg) in regs.iter().enumerate() {
            let mut tile = if store {
                let tile = tile_of(&self.read(*reg));
                if transposed { turned(&tile) } else { tile }
            } else {
                [[0; 8]; 8]
            };
            for (row, elements) in tile.iter_mut().enumerate() {
                let lane = (8 * n + row) & 31;
                let start = at[lane];
                if !start.is_multiple_of(16) {
                    let fault = Fault::Misaligned {
                        address: start,
                        size: 16,
                        access: if store { "store" } else { "load" },
                    };
                    return Err((fault, lane as u32));
                }
                for (half, four) in elements.chunks_exact_mut(4).enumerate() {
                    let part_of = start.wrapping_add(8 * half as u64);
                    let stop = |fault| (fault, lane as u32);
                    if store {
                        let value = four.iter().rev().fold(0, |v, &e| v << 16 | u64::from(e));
                        self.lane_store(env, address.space, lane, part_of, 8, value)
                            .map_err(stop)?;
                    } else {
                        let value = self
                            .lane_load(env, address.space, lane, part_of, 8)
                            .map_err(stop)?;
                        for (part, element) in four.iter_mut().enumerate() {
                            *element = (value >> (16 * part)) as u16;
                        }
                    }
                }
                if let Some(bits) = unpack {
                    *elements = unpacked(elements, bits);
                }
            }
            if !store {
                self.write(*reg, &lanes_of(&tile, transposed), lanes);
            }
        }
        Ok(())
    }
}

/// Number of products that are added at once.
const DEEP: usize = 16;
/// Fraction bits of the addends, once all have the largest exponent.
const FRACTION: i32 = 25;
/// The exponent of zero, which is less than any other.
const NOTHING: i32 = -4096;
/// Maximum number of columns of D.
const WIDE: usize = 32;

/// Decomposed numbers: `±magnitude * 2^(exponent - bits)`.
struct Parts {
    magnitude: [u32; SINGLES],
    /// All ones for a negative number.
    sign: [i32; SINGLES],
    /// The exponent of the first bit.
    exponent: [i32; SINGLES],
}

impl Parts {
    /// Decomposes numbers with at most 11 bits. Their products have 22 bits, two of them
    /// before the point.
    fn of(all: &[f32; SINGLES]) -> Self {
        let mut parts = Self {
            magnitude: [0; SINGLES],
            sign: [0; SINGLES],
            exponent: [0; SINGLES],
        };
        for (at, value) in all.iter().enumerate() {
            let (magnitude, sign, exponent) = taken_apart(*value);
            parts.magnitude[at] = magnitude >> 13;
            parts.sign[at] = sign;
            parts.exponent[at] = exponent;
        }
        parts
    }
}

/// Decomposes a single into 24 bits, sign, and exponent of the first bit.
#[inline(always)]
fn taken_apart(value: f32) -> (u32, i32, i32) {
    let bits = value.to_bits();
    let (field, fraction) = ((bits >> 23 & 0xff) as i32, bits & 0x7f_ffff);
    let sign = bits as i32 >> 31;
    match (field, fraction) {
        (0, 0) => (0, sign, NOTHING),
        (0, _) => {
            let up = fraction.leading_zeros() - 8;
            (fraction << up, sign, -126 - up as i32)
        }
        _ => (fraction | 1 << 23, sign, field - 127),
    }
}

/// Adds the products for some k to a row of sums, as an H100 does. All exact products and
/// the previous sum are truncated to [`FRACTION`] bits after the point of the largest
/// exponent. The exponent of a product is the sum of its factors' exponents, whatever its
/// first bit. Then they are added, and the result is truncated to single precision.
fn wide_sum(
    a: &Parts,
    row: usize,
    b: &Parts,
    ks: impl Iterator<Item = usize> + Clone,
    sum: &mut [f32],
) {
    let columns = sum.len().min(WIDE);
    let mut before = [(0u32, 0i32, 0i32); WIDE];
    let mut largest = [NOTHING; WIDE];
    for (column, value) in sum.iter().enumerate().take(columns) {
        before[column] = taken_apart(*value);
        largest[column] = before[column].2;
    }
    for k in ks.clone() {
        let exponent = a.exponent[row + k];
        let b = &b.exponent[k * columns..][..columns];
        for (largest, b) in largest.iter_mut().zip(b) {
            *largest = (*largest).max(exponent + b);
        }
    }
    // A product then has at most 27 bits, so eight of them fit into 32 bits with a sign.
    let mut total = [0i64; WIDE];
    let mut some = [0i32; WIDE];
    for (number, k) in ks.enumerate() {
        if number % 8 == 0 {
            settle(&mut total, &mut some);
        }
        let (magnitude, sign) = (a.magnitude[row + k] << (FRACTION - 20), a.sign[row + k]);
        let exponent = a.exponent[row + k];
        let from = k * columns;
        let b = b.magnitude[from..][..columns]
            .iter()
            .zip(&b.sign[from..][..columns])
            .zip(&b.exponent[from..][..columns]);
        for ((some, largest), ((other, other_sign), other_exponent)) in
            some.iter_mut().zip(&largest).zip(b)
        {
            let down = (largest - (exponent + other_exponent)).clamp(0, 31);
            let product = (magnitude * other) >> (down & 31);
            let sign = sign ^ other_sign;
            *some += (product as i32 ^ sign) - sign;
        }
    }
    settle(&mut total, &mut some);
    for (column, sum) in sum.iter_mut().enumerate().take(columns) {
        let (magnitude, sign, exponent) = before[column];
        let down = (largest[column] - exponent).clamp(0, 31);
        let own = ((magnitude << (FRACTION - 23)) >> down) as i32;
        let total = total[column] + i64::from((own ^ sign) - sign);
        if largest[column] > NOTHING {
            *sum = put_together(total, largest[column] - FRACTION);
        }
    }
}

fn settle(total: &mut [i64; WIDE], some: &mut [i32; WIDE]) {
    for (total, some) in total.iter_mut().zip(some) {
        *total += i64::from(std::mem::take(some));
    }
}

/// The same for 8-bit floats, which an H100 converts to halves. First the lower two of each
/// register's four elements are added, then the upper two, and last C, rounded to nearest.
fn narrow_sum(a: &Parts, row: usize, b: &Parts, depth: usize, sum: &mut [f32]) {
    let columns = sum.len().min(WIDE);
    let mut products = [0f32; WIDE];
    for upper in [false, true] {
        let ks = (0..depth).filter(|k| (k % 4 >= 2) == upper);
        wide_sum(a, row, b, ks, &mut products[..columns]);
    }
    for (sum, product) in sum.iter_mut().zip(products) {
        *sum += product;
    }
}

/// `total * 2^exponent` in single precision, towards zero.
#[inline(always)]
fn put_together(total: i64, exponent: i32) -> f32 {
    let magnitude = total.unsigned_abs();
    let spare = (64 - magnitude.leading_zeros()).saturating_sub(24);
    let cut = (magnitude >> spare << spare) as f64;
    let scale = f64::from_bits(((exponent + 1023) as u64) << 52);
    let value = cut * scale;
    let near = value as f32;
    // Subnormal results have fewer bits.
    let toward_zero = match f64::from(near) > value {
        true => f32::from_bits(near.to_bits() - 1),
        false => near,
    };
    if total < 0 { -toward_zero } else { toward_zero }
}

/// An 8×8 matrix of 16-bit elements.
type Tile = [[u16; 8]; 8];

/// Each lane holds two neighbours of a row.
fn tile_of(row: &[u64; 32]) -> Tile {
    std::array::from_fn(|r| std::array::from_fn(|c| (row[r * 4 + c / 2] >> (16 * (c % 2))) as u16))
}

/// The first 16 elements of `bits` bits, with a byte each.
fn unpacked(row: &[u16; 8], bits: u32) -> [u16; 8] {
    let all = row
        .iter()
        .rev()
        .fold(0u128, |all, half| all << 16 | u128::from(*half));
    let element = |n: usize| (all >> (n as u32 * bits)) as u16 & ((1 << bits) - 1);
    std::array::from_fn(|n| element(2 * n) | element(2 * n + 1) << 8)
}

fn turned(tile: &Tile) -> Tile {
    std::array::from_fn(|r| std::array::from_fn(|c| tile[c][r]))
}

fn lanes_of(tile: &Tile, transposed: bool) -> [u64; 32] {
    let tile = if transposed { turned(tile) } else { *tile };
    std::array::from_fn(|lane| {
        let (row, column) = (lane / 4, lane % 4 * 2);
        u64::from(tile[row][column]) | u64::from(tile[row][column + 1]) << 16
    })
}

fn single(element: Element, bits: u32) -> f32 {
    match element {
        Element::F16 => f16_to_f32(bits),
        Element::Bf16 => f32::from_bits(bits << 16),
        Element::Tf32 => f32::from_bits(bits & !0x1fff),
        Element::E2m1Padded => fp8::to_single(FP4_E2M1, bits >> 2 & 15),
        Element::E2m1 => fp8::to_single(FP4_E2M1, bits),
        Element::E2m3 => fp8::to_single(FP6_E2M3, bits & 63),
        Element::E3m2 => fp8::to_single(FP6_E3M2, bits & 63),
        Element::E4m3 => fp8::to_single(0, bits),
        Element::E5m2 => fp8::to_single(FP8_E5M2, bits),
        _ => f32::from_bits(bits),
    }
}

fn integer(element: Element, bits: u32) -> i32 {
    match element {
        Element::S8 => i32::from(bits as i8),
        Element::S4 => (bits << 28) as i32 >> 28,
        _ => bits as i32,
    }
}
