//! CUDA arrays, texture and surface objects, and how textures are sampled (CUDA C++
//! Programming Guide, appendix "Texture Fetching").

use crate::format::Format;
use crate::memory_unsafe::Memory;
use crate::program::ImageProperty;
use paragpu_abi::{CUDA_ARRAY3D_CUBEMAP, CUDA_ARRAY3D_LAYERED};
use paragpu_device::{LEVEL_GRANULARITY, MAX_LEVELS};
use paragpu_protocol::types::{ArrayShape, LinearResource, Sampling};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Address mode: clamp to the edge.
const CLAMP: u32 = 1;

const READ_AS_INTEGER: u32 = 1;
const NORMALIZED: u32 = 2;
const SRGB: u32 = 16;

/// One mipmap level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// Byte at which it starts.
    pub offset: u64,
    /// Elements in a row, rows, slices or layers; at least 1 each.
    pub extent: [u64; 3],
}

/// A CUDA array: rows without padding, in words that kernels and copies may access
/// concurrently.
#[derive(Debug)]
pub struct Array {
    /// As created.
    pub shape: ArrayShape,
    /// Channel format.
    pub format: Format,
    /// Levels, at least one.
    pub levels: Vec<Level>,
    /// Shared with the arrays of its levels.
    words: Arc<[AtomicU32]>,
    /// The bytes of the words. Declared after them, so that they are counted until they are
    /// freed.
    counted: Option<Arc<Counted>>,
}

/// Bytes that an account counts until it is dropped.
#[derive(Debug)]
struct Counted {
    bytes: u64,
    account: Arc<AtomicU64>,
}

impl Counted {
    fn new(bytes: u64, account: &Arc<AtomicU64>) -> Self {
        account.fetch_add(bytes, Ordering::Relaxed);
        Self {
            bytes,
            account: Arc::clone(account),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.account.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Array {
    /// The format, levels and total bytes of an array with this shape; `None` if the shape
    /// is invalid.
    #[must_use]
    pub fn plan(shape: &ArrayShape) -> Option<(Format, Vec<Level>, u64)> {
        let format = Format::of_channels(shape.format, shape.channels)?;
        if shape.width == 0 {
            return None;
        }
        let cube = shape.flags & CUDA_ARRAY3D_CUBEMAP != 0;
        let faces = match shape.flags & CUDA_ARRAY3D_LAYERED != 0 {
            true => shape.depth != 0 && shape.depth.is_multiple_of(6),
            false => shape.depth == 6,
        };
        if cube && (shape.width != shape.height || !faces) {
            return None;
        }
        let limit = |v: u64| (v <= 131_072).then_some(v.max(1));
        let layered = cube || shape.flags & CUDA_ARRAY3D_LAYERED != 0;
        let mut extent = [
            limit(shape.width)?,
            limit(shape.height)?,
            limit(shape.depth)?,
        ];
        let element = u64::from(format.element(shape.channels));
        let (mut levels, mut offset) = (Vec::new(), 0u64);
        for _ in 0..shape.levels.clamp(1, MAX_LEVELS) {
            levels.push(Level { offset, extent });
            let bytes = extent.iter().try_fold(element, |a, &b| a.checked_mul(b))?;
            offset = offset.checked_add(bytes.next_multiple_of(LEVEL_GRANULARITY))?;
            for n in if layered {
                &mut extent[..2]
            } else {
                &mut extent[..]
            } {
                *n = (*n / 2).max(1);
            }
        }
        Some((format, levels, offset))
    }

    /// An array of zeros. `account` counts its bytes until nothing uses them any more.
    #[must_use]
    pub fn new(shape: &ArrayShape, account: &Arc<AtomicU64>) -> Option<Self> {
        let (format, levels, bytes) = Self::plan(shape)?;
        let counted = Some(Arc::new(Counted::new(bytes, account)));
        let words = (0..bytes.div_ceil(4)).map(|_| AtomicU32::new(0)).collect();
        Some(Self {
            shape: *shape,
            format,
            levels,
            words,
            counted,
        })
    }

    /// The array of one level, in the same memory.
    #[must_use]
    pub fn level(&self, level: u32) -> Option<Self> {
        let found = *self.levels.get(level as usize)?;
        let [width, height, depth] = found.extent;
        Some(Self {
            shape: ArrayShape {
                levels: 0,
                width,
                height,
                depth,
                ..self.shape
            },
            format: self.format,
            levels: vec![found],
            words: Arc::clone(&self.words),
            counted: self.counted.clone(),
        })
    }

    /// The array after its destruction, without memory: it reads as zeros.
    #[must_use]
    pub fn destroyed(&self) -> Self {
        Self {
            shape: self.shape,
            format: self.format,
            levels: self.levels.clone(),
            words: Arc::default(),
            counted: None,
        }
    }

    /// Whether both are in the same memory.
    #[must_use]
    pub fn shares_memory_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.words, &other.words)
    }

    /// Whether others are in its memory.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.words) > 1
    }

    /// The answer to `txq` or `suq`.
    #[must_use]
    pub fn property(&self, property: ImageProperty, level: u32) -> u32 {
        let level = self.levels.get(level as usize);
        let extent = level.map_or([0; 3], |level| level.extent);
        let has = |flag: u32| self.shape.flags & flag != 0;
        match property {
            ImageProperty::Extent(n) => extent[usize::from(n) % 3] as u32,
            ImageProperty::Layers if !has(CUDA_ARRAY3D_LAYERED) => 1,
            ImageProperty::Layers if has(CUDA_ARRAY3D_CUBEMAP) => extent[2] as u32 / 6,
            ImageProperty::Layers => extent[2] as u32,
            ImageProperty::Levels => self.levels.len() as u32,
            ImageProperty::Normalized => 0,
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub fn element(&self) -> u64 {
        u64::from(self.format.element(self.shape.channels))
    }

    /// Offset of byte `x` of row `y` of slice `z`, if `size` bytes from there lie in the row.
    #[must_use]
    pub fn offset(&self, level: u32, x: u64, y: u64, z: u64, size: u64) -> Option<u64> {
        let level = self.levels.get(level as usize)?;
        let [w, h, d] = level.extent;
        let row = w * self.element();
        (x.checked_add(size)? <= row && y < h && z < d)
            .then(|| level.offset + (z * h + y) * row + x)
    }

    fn word(&self, offset: u64) -> Option<&AtomicU32> {
        self.words.get(usize::try_from(offset / 4).ok()?)
    }

    /// Reads 1, 2 or 4 aligned bytes.
    #[must_use]
    pub fn read(&self, offset: u64, width: u8) -> u32 {
        let word = self.word(offset).map_or(0, |w| w.load(Ordering::Relaxed)) >> (offset % 4 * 8);
        if width >= 4 {
            word
        } else {
            word & ((1 << (width * 8)) - 1)
        }
    }

    /// Writes 1, 2 or 4 aligned bytes.
    pub fn write(&self, offset: u64, width: u8, value: u32) {
        let Some(word) = self.word(offset) else {
            return;
        };
        if width >= 4 {
            word.store(value, Ordering::Relaxed);
            return;
        }
        let shift = offset % 4 * 8;
        let mask = ((1u32 << (width * 8)) - 1) << shift;
        let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |w| {
            Some(w & !mask | value << shift & mask)
        });
    }

    /// Copies bytes out.
    pub fn read_bytes(&self, offset: u64, out: &mut [u8]) {
        let mut at = 0;
        while at < out.len() {
            let o = offset + at as u64;
            if o.is_multiple_of(4) && out.len() - at >= 4 {
                out[at..at + 4].copy_from_slice(&self.read(o, 4).to_le_bytes());
                at += 4;
            } else {
                out[at] = self.read(o, 1) as u8;
                at += 1;
            }
        }
    }

    /// Copies bytes in.
    pub fn write_bytes(&self, offset: u64, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let o = offset + at as u64;
            match bytes[at..].first_chunk::<4>() {
                Some(word) if o.is_multiple_of(4) => {
                    self.write(o, 4, u32::from_le_bytes(*word));
                    at += 4;
                }
                _ => {
                    self.write(o, 1, u32::from(bytes[at]));
                    at += 1;
                }
            }
        }
    }
}

/// The resource of a texture.
#[derive(Debug, Clone)]
pub enum TextureSource {
    /// An array.
    Array(Arc<Array>),
    /// Linear or pitched memory.
    Linear(LinearResource, Format),
}

/// A texture object.
#[derive(Debug, Clone)]
pub struct Texture {
    /// Its resource.
    pub source: TextureSource,
    /// How.
    pub sampling: Sampling,
}

/// All texture and surface objects of a device.
#[derive(Debug, Default)]
pub struct Textures {
    /// Textures by id.
    pub textures: RwLock<HashMap<u64, Arc<Texture>>>,
    /// Surfaces by id.
    pub surfaces: RwLock<HashMap<u64, Arc<Array>>>,
}

impl Textures {
    /// Frees the memory of a destroyed array, which textures and surfaces may still name. As
    /// natively, their use is undefined from then on.
    pub fn free(&self, array: &Arc<Array>) {
        // Textures and surfaces of a whole array share it; those of a level share its words.
        if Arc::strong_count(array) == 1 && !array.is_shared() {
            return;
        }
        for texture in self.textures.write().values_mut() {
            if let TextureSource::Array(other) = &texture.source
                && other.shares_memory_with(array)
            {
                *texture = Arc::new(Texture {
                    source: TextureSource::Array(Arc::new(other.destroyed())),
                    sampling: texture.sampling,
                });
            }
        }
        for surface in self.surfaces.write().values_mut() {
            if surface.shares_memory_with(array) {
                *surface = Arc::new(surface.destroyed());
            }
        }
    }
}

/// The index of a texel after applying the address mode; `None` outside.
fn place(index: i64, size: u64, mode: u32) -> Option<u64> {
    let n = size as i64;
    let inside = (0..n).contains(&index);
    Some(match mode {
        _ if inside => index,
        0 => index.rem_euclid(n),
        2 => {
            let m = index.rem_euclid(2 * n);
            if m < n { m } else { 2 * n - 1 - m }
        }
        3 => return None,
        _ => index.clamp(0, n - 1),
    } as u64)
}

/// The point at which a texture is sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Coordinates.
    pub coords: [f32; 3],
    /// Number of coordinates in use.
    pub dimensions: usize,
    /// Layer of an array.
    pub layer: Option<u32>,
    /// Whether to clamp, regardless of the texture's address mode.
    pub clamped: bool,
}

/// The face of a cube in a direction: of the largest coordinate, and its sign.
fn face_of([x, y, z]: [f32; 3]) -> u32 {
    let [ax, ay, az] = [x, y, z].map(f32::abs);
    let (axis, along) = if ax >= ay && ax >= az {
        (0, x)
    } else if ay >= az {
        (2, y)
    } else {
        (4, z)
    };
    axis + u32::from(along < 0.0)
}

/// A direction in the coordinates of a face: on it, from -1 to 1 where the third is 1.
fn on_face(face: u32, [x, y, z]: [f32; 3]) -> [f32; 3] {
    match face {
        0 => [-z, -y, x],
        1 => [z, -y, -x],
        2 => [x, z, y],
        3 => [x, -z, -y],
        4 => [x, -y, z],
        _ => [-x, -y, -z],
    }
}

/// The four channels of a texel, as bit patterns of the texture's result type.
pub type Texel = [u32; 4];

impl Texture {
    fn format(&self) -> (Format, u32) {
        match &self.source {
            TextureSource::Array(array) => (array.format, array.shape.channels),
            TextureSource::Linear(linear, format) => (*format, linear.channels),
        }
    }

    fn extent(&self, level: u32) -> [u64; 3] {
        match &self.source {
            TextureSource::Array(array) => array
                .levels
                .get(level as usize)
                .map_or([1; 3], |l| l.extent),
            TextureSource::Linear(linear, format) => {
                let element = u64::from(format.element(linear.channels));
                let width = if linear.height == 0 {
                    linear.width / element.max(1)
                } else {
                    linear.width
                };
                [width.max(1), linear.height.max(1), 1]
            }
        }
    }

    /// Whether it returns floats.
    fn floats(&self) -> bool {
        let (format, _) = self.format();
        let promoted = self.sampling.flags & READ_AS_INTEGER == 0 && format.size() < 4;
        format.float() || format.normalized() || promoted
    }

    /// One texel as stored; `None` if its device memory is not mapped.
    fn fetch(&self, memory: &Memory, level: u32, at: [Option<u64>; 3]) -> Option<Texel> {
        let (format, channels) = self.format();
        let [Some(x), Some(y), Some(z)] = at else {
            let border = &self.sampling.border;
            let channel = |n: usize| {
                border[4 * n..]
                    .first_chunk()
                    .map_or(0, |b| u32::from_le_bytes(*b))
            };
            return Some([channel(0), channel(1), channel(2), channel(3)]);
        };
        let size = format.size();
        let mut out = [0; 4];
        for n in 0..channels {
            let byte = format.place(x, n, channels);
            let bits = match &self.source {
                TextureSource::Array(array) => array.read(
                    array.offset(level, byte, y, z, u64::from(size))?,
                    size as u8,
                ),
                TextureSource::Linear(linear, _) => {
                    memory.load(linear.address + y * linear.pitch + byte, size as u8)? as u32
                }
            };
            let bits = format.extend(bits, n);
            let value = if self.floats() {
                let mut v = if format.float() {
                    f32::from_bits(bits)
                } else {
                    format.normalize(bits, n)
                };
                let bytes = matches!(format, Format::U8 | Format::Unorm8);
                if self.sampling.flags & SRGB != 0 && n < 3 && bytes {
                    v = if v <= 0.040_45 {
                        v / 12.92
                    } else {
                        ((v + 0.055) / 1.055).powf(2.4)
                    };
                }
                v.to_bits()
            } else {
                bits
            };
            if let Some(slot) = out.get_mut(n as usize) {
                *slot = value;
            }
        }
        Some(out)
    }

    /// Reads at integer coordinates of a mipmap level, or of level 0: no filtering, zero
    /// outside (PTX ISA, tex with `.s32` coordinates).
    #[must_use]
    pub fn at(&self, memory: &Memory, coords: [i64; 3], level: Option<f32>) -> Option<Texel> {
        let level = level.map_or(0, |level| self.existing_level(level).round() as u32);
        let extent = self.extent(level);
        let mut at = [None; 3];
        for n in 0..3 {
            if coords[n] < 0 || coords[n] as u64 >= extent[n] {
                return Some([0; 4]);
            }
            at[n] = Some(coords[n] as u64);
        }
        self.fetch(memory, level, at)
    }

    /// The point of a direction on a cube, or on cube `layer` of an array: a face, and a
    /// position on it (CUDA programming guide, cubemap textures). Filtering stays within
    /// the face.
    #[must_use]
    pub fn on_cube(&self, direction: [f32; 3], layer: Option<u32>) -> Point {
        let face = face_of(direction);
        let [s, t, m] = on_face(face, direction);
        let place = |v: f32| (v / m + 1.0) * 0.5 * self.edge();
        Point {
            coords: [place(s), place(t), 0.0],
            dimensions: 2,
            layer: Some(layer.unwrap_or(0).saturating_mul(6).saturating_add(face)),
            clamped: true,
        }
    }

    /// The derivative of the position on the face of `direction` where that changes by
    /// `change`.
    #[must_use]
    pub fn along_cube(&self, direction: [f32; 3], change: [f32; 3]) -> [f32; 3] {
        let face = face_of(direction);
        let ([s, t, m], [ds, dt, dm]) = (on_face(face, direction), on_face(face, change));
        let along = |v: f32, dv: f32| (dv * m - v * dm) / (m * m) * 0.5 * self.edge();
        [along(s, ds), along(t, dt), 0.0]
    }

    /// The greatest coordinate on a face of a cube.
    fn edge(&self) -> f32 {
        match self.sampling.flags & NORMALIZED {
            0 => self.extent(0)[0] as f32,
            _ => 1.0,
        }
    }

    /// The answer to `txq`.
    #[must_use]
    pub fn property(&self, property: ImageProperty, level: u32) -> u32 {
        match (&self.source, property) {
            (_, ImageProperty::Normalized) => u32::from(self.sampling.flags & NORMALIZED != 0),
            (TextureSource::Array(array), _) => array.property(property, level),
            (_, ImageProperty::Extent(n)) => self.extent(0)[usize::from(n) % 3] as u32,
            (_, ImageProperty::Layers | ImageProperty::Levels) => 1,
        }
    }

    /// The mipmap level at which the longer of two derivatives is one texel long.
    #[must_use]
    pub fn level_of(&self, directions: [[f32; 3]; 2]) -> f32 {
        let extent = self.extent(0);
        let [x, y] = directions.map(|d| {
            let texels = |n: usize| self.scaled(d[n], extent[n]);
            (0..3).map(|n| texels(n) * texels(n)).sum::<f32>()
        });
        // Half the logarithm of a square.
        x.max(y).log2() * 0.5
    }

    /// The level with the bias, in the range of the sampling and of the levels that exist.
    fn existing_level(&self, level: f32) -> f32 {
        let count = match &self.source {
            TextureSource::Array(array) => array.levels.len() as u32,
            TextureSource::Linear(..) => 1,
        };
        let s = &self.sampling;
        let top = (count - 1) as f32;
        let level = if level.is_nan() { 0.0 } else { level };
        (level + s.mipmap_bias)
            .max(s.mipmap_min.max(0.0))
            .min(s.mipmap_max.max(0.0).min(top))
            .clamp(0.0, top)
    }

    /// Reads at a point and mipmap `level`.
    #[must_use]
    pub fn sample(&self, memory: &Memory, point: &Point, level: f32) -> Option<Texel> {
        let level = self.existing_level(level);
        if self.sampling.mipmap_filter == 0 || !self.floats() {
            return self.sample_level(memory, point, level.round() as u32);
        }
        let (low, part) = (level.floor(), weight(level - level.floor()));
        let a = self.sample_level(memory, point, low as u32)?;
        if part == 0.0 {
            return Some(a);
        }
        let b = self.sample_level(memory, point, low as u32 + 1)?;
        Some(std::array::from_fn(|n| {
            let (a, b) = (f32::from_bits(a[n]), f32::from_bits(b[n]));
            ((1.0 - part) * a + part * b).to_bits()
        }))
    }

    fn scaled(&self, v: f32, size: u64) -> f32 {
        let v = if v.is_nan() { 0.0 } else { v };
        if self.sampling.flags & NORMALIZED != 0 {
            v * size as f32
        } else {
            v
        }
    }

    /// Address mode of a dimension: wrap and mirror need normalized coordinates.
    fn mode(&self, dimension: usize) -> u32 {
        let mode = self.sampling.address_modes[dimension];
        if self.sampling.flags & NORMALIZED == 0 && matches!(mode, 0 | 2) {
            1
        } else {
            mode
        }
    }

    fn sample_level(&self, memory: &Memory, point: &Point, level: u32) -> Option<Texel> {
        let &Point {
            coords,
            dimensions,
            layer,
            clamped,
        } = point;
        let mode = |n: usize| if clamped { CLAMP } else { self.mode(n) };
        let extent = self.extent(level);
        let mut at = [Some(0); 3];
        if let Some(layer) = layer {
            // Layers follow the dimensions of one: rows of a 1D array's layers are slices
            // here as well.
            let layers = extent[2].max(1);
            at[2] = Some(u64::from(layer).min(layers - 1));
        }
        if self.sampling.filter == 0 || !self.floats() {
            for n in 0..dimensions {
                at[n] = place(
                    self.scaled(coords[n], extent[n]).floor() as i64,
                    extent[n],
                    mode(n),
                );
            }
            return self.fetch(memory, level, at);
        }
        let mut first = [0i64; 3];
        let mut part = [0f32; 3];
        for n in 0..dimensions {
            let x = self.scaled(coords[n], extent[n]) - 0.5;
            first[n] = x.floor() as i64;
            part[n] = weight(x - x.floor());
        }
        let mut sum = [0f32; 4];
        for corner in 0..1usize << dimensions {
            let mut factor = 1.0;
            for n in 0..dimensions {
                let far = corner >> n & 1;
                factor *= if far == 1 { part[n] } else { 1.0 - part[n] };
                at[n] = place(first[n] + far as i64, extent[n], mode(n));
            }
            if factor == 0.0 {
                continue;
            }
            let texel = self.fetch(memory, level, at)?;
            for (total, bits) in sum.iter_mut().zip(texel) {
                *total += factor * f32::from_bits(bits);
            }
        }
        Some(sum.map(f32::to_bits))
    }

    /// The `component` of each of the four texels that a linear sample of two dimensions would
    /// use, in the order of `tld4`.
    #[must_use]
    pub fn gather(&self, memory: &Memory, point: &Point, component: u8) -> Option<Texel> {
        let extent = self.extent(0);
        let mode = |n: usize| if point.clamped { CLAMP } else { self.mode(n) };
        let first = |n: usize| (self.scaled(point.coords[n], extent[n]) - 0.5).floor() as i64;
        let layer = u64::from(point.layer.unwrap_or(0)).min(extent[2].max(1) - 1);
        let mut out = [0; 4];
        for (slot, (dx, dy)) in out.iter_mut().zip([(0, 1), (1, 1), (1, 0), (0, 0)]) {
            let at = [
                place(first(0) + dx, extent[0], mode(0)),
                place(first(1) + dy, extent[1], mode(1)),
                Some(layer),
            ];
            *slot = *self.fetch(memory, 0, at)?.get(usize::from(component))?;
        }
        Some(out)
    }
}

/// Weights have 8 bits of fraction.
fn weight(fraction: f32) -> f32 {
    (fraction * 256.0).round() / 256.0
}
