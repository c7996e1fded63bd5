//! Texture reads and surface accesses of a warp.

use super::block::Env;
use super::memory::lanes;
use super::warp::{Flow, Warp};
use crate::error::Fault;
use crate::program::{ImageQuery, Reg, SurfAccess, TexGeometry, TexRead};
use crate::texture::Point;

type Stop = (Fault, u32);

fn dimensions(geometry: TexGeometry) -> (usize, bool) {
    match geometry {
        TexGeometry::D1 => (1, false),
        TexGeometry::D2 => (2, false),
        TexGeometry::D3 | TexGeometry::Cube => (3, false),
        TexGeometry::A1 => (1, true),
        TexGeometry::A2 => (2, true),
        TexGeometry::ACube => (3, true),
    }
}

impl Warp {
    pub(super) fn tex(
        &mut self,
        env: &mut Env<'_>,
        read: &TexRead,
        mask: u32,
    ) -> Result<Flow, Stop> {
        let handles = self.read(read.texture);
        let coords: Vec<[u64; 32]> = read.coords.iter().map(|&r| self.read(r)).collect();
        let levels = read.level.map(|r| self.read(r));
        let gradients = read.gradients.as_ref().map(|g| {
            g.each_ref()
                .map(|list| -> Vec<[u64; 32]> { list.iter().map(|&r| self.read(r)).collect() })
        });
        let (count, layered) = dimensions(read.geometry);
        let mut out = [[0u64; 32]; 4];
        let mut last = None;
        for l in lanes(mask) {
            let fail = |what: String| (Fault::Texture(what), l as u32);
            let texture = match last {
                Some((id, ref texture)) if id == handles[l] => texture,
                _ => {
                    let found = env
                        .grid
                        .device
                        .textures
                        .textures
                        .read()
                        .get(&handles[l])
                        .cloned();
                    let found = found
                        .ok_or_else(|| fail(format!("no texture object {:#x}", handles[l])))?;
                    &last.insert((handles[l], found)).1
                }
            };
            let skip = usize::from(layered);
            let layer = layered.then(|| coords[0][l] as u32);
            let level = levels.map(|v| f32::from_bits(v[l] as u32));
            let texel = if read.float_coords {
                let mut at = [0f32; 3];
                for (slot, c) in at.iter_mut().zip(coords.iter().skip(skip)) {
                    *slot = f32::from_bits(c[l] as u32);
                }
                let cube = matches!(read.geometry, TexGeometry::Cube | TexGeometry::ACube);
                let point = match cube {
                    true => texture.on_cube(at, layer),
                    false => Point {
                        coords: at,
                        dimensions: count,
                        layer,
                        clamped: false,
                    },
                };
                let level = match &gradients {
                    Some(directions) => {
                        let directions = directions.each_ref().map(|rows| {
                            let mut direction = [0f32; 3];
                            for (slot, row) in direction.iter_mut().zip(rows) {
                                *slot = f32::from_bits(row[l] as u32);
                            }
                            match cube {
                                true => texture.along_cube(at, direction),
                                false => direction,
                            }
                        });
                        texture.level_of(directions)
                    }
                    None => level.unwrap_or(0.0),
                };
                match read.gather {
                    Some(component) => texture.gather(env.memory, &point, component),
                    None => texture.sample(env.memory, &point, level),
                }
            } else {
                let mut at = [0i64; 3];
                for (slot, c) in at.iter_mut().zip(coords.iter().skip(skip)) {
                    *slot = i64::from(c[l] as i32);
                }
                if let Some(layer) = layer {
                    at[2] = i64::from(layer);
                }
                texture.at(env.memory, at, level)
            };
            let texel =
                texel.ok_or_else(|| fail("memory behind the texture is not mapped".to_owned()))?;
            for (row, value) in out.iter_mut().zip(texel) {
                row[l] = u64::from(value);
            }
        }
        for (d, values) in read.d.iter().zip(&out) {
            if let Some(d) = d {
                self.write(*d, values, mask);
            }
        }
        Ok(Flow::Next)
    }

    pub(super) fn image_query(
        &mut self,
        env: &Env<'_>,
        query: &ImageQuery,
        mask: u32,
    ) -> Result<Flow, Stop> {
        let objects = self.read(query.object);
        let levels = query.level.map(|row| self.read(Reg::R32(row)));
        let all = &env.grid.device.textures;
        let mut out = [0; 32];
        for l in lanes(mask) {
            let level = levels.map_or(0, |levels| levels[l] as u32);
            let answer = match query.surface {
                true => {
                    let surface = all.surfaces.read().get(&objects[l]).cloned();
                    surface.map(|surface| surface.property(query.property, level))
                }
                false => {
                    let texture = all.textures.read().get(&objects[l]).cloned();
                    texture.map(|texture| texture.property(query.property, level))
                }
            };
            let missing = || format!("no texture or surface object {:#x}", objects[l]);
            let answer = answer.ok_or_else(|| (Fault::Texture(missing()), l as u32))?;
            out[l] = u64::from(answer);
        }
        self.write(Reg::R32(query.d), &out, mask);
        Ok(Flow::Next)
    }

    pub(super) fn surf(
        &mut self,
        env: &mut Env<'_>,
        access: &SurfAccess,
        mask: u32,
    ) -> Result<Flow, Stop> {
        let handles = self.read(access.surface);
        let coords: Vec<[u64; 32]> = access.coords.iter().map(|&r| self.read(r)).collect();
        let (_, layered) = dimensions(access.geometry);
        let size = u64::from(access.width) * access.regs.len() as u64;
        let mut values: Vec<[u64; 32]> = access
            .regs
            .iter()
            .map(|&r| if access.store { self.read(r) } else { [0; 32] })
            .collect();
        for l in lanes(mask) {
            let fail = |what: String| (Fault::Texture(what), l as u32);
            let array = env
                .grid
                .device
                .textures
                .surfaces
                .read()
                .get(&handles[l])
                .cloned();
            let array =
                array.ok_or_else(|| fail(format!("no surface object {:#x}", handles[l])))?;
            let coordinate = |n: usize| coords.get(n).map_or(0, |c| i64::from(c[l] as i32));
            let mut at = if layered {
                let (x, layer) = (coordinate(1), coordinate(0));
                if access.geometry == TexGeometry::A1 {
                    [x, 0, layer]
                } else {
                    [x, coordinate(2), layer]
                }
            } else {
                [coordinate(0), coordinate(1), coordinate(2)]
            };
            let [w, h, d] = array.levels.first().map_or([1; 3], |level| level.extent);
            if access.mode == 1 {
                let row = (w * array.element()) as i64;
                at[0] = at[0].clamp(0, (row - size as i64).max(0));
                at[1] = at[1].clamp(0, h as i64 - 1);
                at[2] = at[2].clamp(0, d as i64 - 1);
            }
            let [x, y, z] = at.map(|v| u64::try_from(v).unwrap_or(u64::MAX / 2));
            if at[0].rem_euclid(size as i64) != 0 {
                return Err((
                    Fault::Misaligned {
                        address: at[0] as u64,
                        size: size as u32,
                        access: "surface",
                    },
                    l as u32,
                ));
            }
            let Some(offset) = array.offset(0, x, y, z, size) else {
                if access.mode == 2 {
                    continue;
                }
                return Err(fail(format!(
                    "coordinates ({}, {}, {}) outside the surface",
                    at[0], at[1], at[2]
                )));
            };
            for (n, row) in values.iter_mut().enumerate() {
                let at = offset + n as u64 * u64::from(access.width);
                let parts = if access.width == 8 { 2 } else { 1 };
                for part in 0..parts {
                    let (o, width) = (at + 4 * part, access.width.min(4));
                    if access.store {
                        array.write(o, width, (row[l] >> (32 * part)) as u32);
                    } else {
                        row[l] |= u64::from(array.read(o, width)) << (32 * part);
                    }
                }
            }
        }
        if !access.store {
            for (&d, row) in access.regs.iter().zip(&values) {
                let row = if matches!(d, Reg::R64(_)) {
                    *row
                } else {
                    row.map(|v| v & 0xffff_ffff)
                };
                self.write(d, &row, mask);
            }
        }
        Ok(Flow::Next)
    }
}
