//! Copies of boxes of tensors. As other asynchronous copies, they complete with their
//! instruction.

use super::asynchronous::complete;
use super::atomics::apply;
use super::block::Env;
use super::cluster::places;
use super::memory::{bad, lanes};
use super::warp::{Flow, Warp};
use crate::error::Fault;
use crate::program::{AtomOp, CopyTensor, MemSpace, Reg, TensorCopy};
use crate::tensor::{Element, SIZE, TensorMap};

/// Bytes that a swizzle keeps together.
const PIECE: usize = 16;
/// Alignment of a box in shared memory.
const ALIGNMENT: u64 = 128;

/// Elements of a row of the box that are in the tensor, and where the first of them is.
struct Row {
    inside: std::ops::Range<usize>,
    address: u64,
}

/// Row number `index` of a box at `corner`; `rows` are the positions of its rows in the
/// second dimension if they are not adjacent.
fn row(map: &TensorMap, corner: &[i64], rows: Option<&[i64]>, index: u64) -> Row {
    let mut rest = index;
    let mut address = map.address;
    let mut inside = true;
    for (n, start) in corner.iter().enumerate().take(map.rank).skip(1) {
        let at = match rows {
            Some(rows) => rows.get(index as usize).copied().unwrap_or(-1),
            None => {
                let step = rest % map.counts[n] * map.steps[n];
                rest /= map.counts[n];
                start + step as i64
            }
        };
        inside &= u64::try_from(at).is_ok_and(|at| at < map.dimensions[n]);
        address = address.wrapping_add((at as u64).wrapping_mul(map.strides[n]));
    }
    let first = corner[0].saturating_neg().max(0);
    let end = (map.dimensions[0] as i64 - corner[0]).min(map.counts[0] as i64);
    if !inside || first >= end {
        return Row {
            inside: 0..0,
            address: 0,
        };
    }
    let start = (corner[0] + first) as u64 * map.strides[0];
    Row {
        inside: first as usize..end as usize,
        address: address.wrapping_add(start),
    }
}

/// The element of so many bytes at the start of `bytes`.
fn element(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    for (to, from) in word.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_le_bytes(word)
}

/// The operation on elements of a type that one on integers stands for.
fn combination(op: AtomOp, of: Element) -> Option<AtomOp> {
    Some(match (op, of) {
        (AtomOp::Add, Element::F16) => AtomOp::AddF16,
        (AtomOp::Add, Element::Bf16) => AtomOp::AddBf16,
        (AtomOp::Add, Element::F32(..)) => AtomOp::AddF32,
        (AtomOp::Add, Element::F64) => AtomOp::AddF64,
        (AtomOp::MinU, Element::F16) => AtomOp::MinF16,
        (AtomOp::MinU, Element::Bf16) => AtomOp::MinBf16,
        (AtomOp::MaxU, Element::F16) => AtomOp::MaxF16,
        (AtomOp::MaxU, Element::Bf16) => AtomOp::MaxBf16,
        (AtomOp::MinU, Element::Signed(_)) => AtomOp::MinS,
        (AtomOp::MaxU, Element::Signed(_)) => AtomOp::MaxS,
        (op, Element::Signed(_) | Element::Unsigned(4 | 8)) => op,
        _ => return None,
    })
}

/// A row of a box.
type Line = Vec<u8>;

impl Warp {
    fn map(&self, env: &Env<'_>, address: u64, lane: usize) -> Result<TensorMap, Fault> {
        let mut bytes = [0; SIZE];
        for (n, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let at = address.wrapping_add(8 * n as u64);
            let value = self.lane_load(env, MemSpace::Generic, lane, at, 8)?;
            *word = value.to_le_bytes();
        }
        TensorMap::unpack(&bytes).map_err(Fault::Tensor)
    }

    pub(super) fn copy_tensor(
        &mut self,
        env: &mut Env<'_>,
        copy: &CopyTensor,
        mask: u32,
    ) -> Result<Flow, (Fault, u32)> {
        let (maps, shared) = (self.addresses(&copy.map), self.addresses(&copy.shared));
        let coordinates = copy.coordinates.iter();
        let coordinates: Vec<_> = coordinates.map(|c| self.read(Reg::R32(*c))).collect();
        for l in lanes(mask) {
            let stop = |fault| (fault, l as u32);
            let map = self.map(env, maps[l], l).map_err(stop)?;
            let at: Vec<i64> = coordinates.iter().map(|c| i64::from(c[l] as i32)).collect();
            let [_, rows @ ..] = at.as_slice() else {
                continue;
            };
            if map.rank != copy.rank || copy.rows && map.counts[1] != 1 {
                return Err(stop(Fault::Tensor("a map of another shape than the copy")));
            }
            if !shared[l].is_multiple_of(ALIGNMENT) {
                let (address, size) = (shared[l], ALIGNMENT as u32);
                let access = "copy";
                return Err(stop(Fault::Misaligned {
                    address,
                    size,
                    access,
                }));
            }
            // Seen on an H100 for stores and reductions of boxes, in each dimension.
            let writes = !matches!(copy.what, TensorCopy::Load { .. });
            if writes && !copy.rows && at.iter().any(|coordinate| *coordinate < 0) {
                return Err(stop(Fault::Tensor("a store that begins before the tensor")));
            }
            let rows = copy.rows.then_some(rows);
            let count = match rows {
                Some(rows) => rows.len() as u64,
                None => map.bytes() / map.row(),
            };
            let lines = (0..count).map(|n| {
                let place = shared[l].wrapping_add(n * map.row());
                (place, row(&map, &at, rows, n))
            });
            match &copy.what {
                TensorCopy::Load { barrier, blocks } => {
                    let blocks = blocks.map(|row| self.read(Reg::R32(row))[l]);
                    let barrier = self.addresses(barrier)[l];
                    for (place, row) in lines {
                        let line = load(env, &map, &row).map_err(stop)?;
                        for place in places(place, blocks) {
                            put(env, &map, place, &line).map_err(stop)?;
                        }
                    }
                    for barrier in places(barrier, blocks) {
                        complete(env, barrier, count * map.row()).map_err(stop)?;
                    }
                }
                TensorCopy::Store => {
                    for (place, row) in lines {
                        store(env, &map, place, &row, None).map_err(stop)?;
                    }
                }
                TensorCopy::Reduce(op) => {
                    let Some(op) = combination(*op, map.element) else {
                        return Err(stop(Fault::Tensor("reduction of this type")));
                    };
                    for (place, row) in lines {
                        store(env, &map, place, &row, Some(op)).map_err(stop)?;
                    }
                }
            }
        }
        Ok(Flow::Next)
    }
}

/// A row of the box from global memory.
fn load(env: &Env<'_>, map: &TensorMap, row: &Row) -> Result<Line, Fault> {
    let size = usize::from(map.element.size());
    let mut line = vec![0; map.row() as usize];
    if map.fill {
        let nan = map.element.nan().to_le_bytes();
        for place in line.chunks_exact_mut(size) {
            place.copy_from_slice(&nan[..size]);
        }
    }
    let inside = row.inside.start * size..row.inside.end * size;
    let inside = line.get_mut(inside).unwrap_or_default();
    if !env.memory.read(row.address, inside) {
        return Err(bad(row.address, size as u32, "load"));
    }
    if let Element::F32(true, _) | Element::F32(_, true) = map.element {
        for place in inside.chunks_exact_mut(size) {
            let value = map.element.loaded(element(place));
            place.copy_from_slice(&value.to_le_bytes()[..size]);
        }
    }
    Ok(line)
}

/// Writes a row to shared memory.
fn put(env: &mut Env<'_>, map: &TensorMap, address: u64, line: &[u8]) -> Result<(), Fault> {
    for (n, piece) in line.chunks(PIECE).enumerate() {
        let address = map.swizzle.place(address.wrapping_add((n * PIECE) as u64));
        let place = env.shared_at(address).and_then(|(bytes, at)| {
            let at = usize::try_from(at).ok()?;
            bytes.get_mut(at..at.checked_add(piece.len())?)
        });
        place
            .ok_or_else(|| bad(address, PIECE as u32, "store"))?
            .copy_from_slice(piece);
    }
    Ok(())
}

/// Stores those elements of a row in shared memory that are in the tensor, or combines them
/// with what is there.
fn store(
    env: &mut Env<'_>,
    map: &TensorMap,
    address: u64,
    row: &Row,
    op: Option<AtomOp>,
) -> Result<(), Fault> {
    let size = usize::from(map.element.size());
    let mut line = vec![0; map.row() as usize];
    for (n, piece) in line.chunks_mut(PIECE).enumerate() {
        let address = map.swizzle.place(address.wrapping_add((n * PIECE) as u64));
        let place = env.shared_from(address).and_then(|(bytes, at)| {
            let at = usize::try_from(at).ok()?;
            bytes.get(at..at.checked_add(piece.len())?)
        });
        piece.copy_from_slice(place.ok_or_else(|| bad(address, PIECE as u32, "load"))?);
    }
    let inside = row.inside.start * size..row.inside.end * size;
    let inside = line.get(inside).unwrap_or_default();
    let Some(op) = op else {
        return match env.memory.write(row.address, inside) {
            true => Ok(()),
            false => Err(bad(row.address, size as u32, "store")),
        };
    };
    for (n, place) in inside.chunks_exact(size).enumerate() {
        let (value, width) = (element(place), size as u8);
        let address = row.address.wrapping_add((n * size) as u64);
        env.memory
            .update(address, width, |old| apply(op, width, old, value, 0))
            .ok_or_else(|| bad(address, size as u32, "atomic"))?;
    }
    Ok(())
}
