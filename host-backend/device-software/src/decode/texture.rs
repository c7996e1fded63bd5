//! Texture reads and surface accesses (PTX ISA 9.7.10, 9.7.11).

use super::{Decoder, Result};
use crate::program::{Ext, ImageProperty, ImageQuery, Op, Reg, SurfAccess, TexGeometry, TexRead};
use crate::ptx::ast::{Operand, Type};

fn geometry(m: &str) -> Option<TexGeometry> {
    Some(match m {
        "1d" => TexGeometry::D1,
        "2d" => TexGeometry::D2,
        "3d" => TexGeometry::D3,
        "a1d" => TexGeometry::A1,
        "a2d" => TexGeometry::A2,
        "cube" => TexGeometry::Cube,
        "acube" => TexGeometry::ACube,
        _ => return None,
    })
}

fn coordinates(geometry: TexGeometry) -> usize {
    match geometry {
        TexGeometry::D1 => 1,
        TexGeometry::D2 | TexGeometry::A1 => 2,
        TexGeometry::D3 | TexGeometry::A2 | TexGeometry::Cube => 3,
        TexGeometry::ACube => 4,
    }
}

/// Whether the first coordinate is a layer.
fn has_layers(geometry: TexGeometry) -> bool {
    matches!(
        geometry,
        TexGeometry::A1 | TexGeometry::A2 | TexGeometry::ACube
    )
}

impl<'m> Decoder<'m> {
    pub(super) fn texture(
        &mut self,
        base: &str,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        match base {
            "tex" | "tld4" => self.tex(base == "tld4", mods, operands),
            "suld" | "sust" => self.surf(base == "sust", mods, operands),
            "txq" | "suq" => self.image_query(base == "suq", mods, operands),
            _ => Ok(false),
        }
    }

    fn image_query(
        &mut self,
        surface: bool,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        let property = match mods {
            [.., "width", "b32"] => ImageProperty::Extent(0),
            [.., "height", "b32"] => ImageProperty::Extent(1),
            [.., "depth", "b32"] => ImageProperty::Extent(2),
            [.., "array_size", "b32"] => ImageProperty::Layers,
            [.., "num_mipmap_levels", "b32"] if !surface => ImageProperty::Levels,
            [.., "normalized_coords", "b32"] if !surface => ImageProperty::Normalized,
            _ => return Ok(false),
        };
        let (d, object, level) = match (operands, mods) {
            ([d, object], [_, _]) => (d, object, None),
            ([d, object, level], ["level", _, _]) => (d, object, Some(self.s32(level, Type::U32)?)),
            _ => return self.unfit("wrong number of operands"),
        };
        let object = match object {
            Operand::Address {
                base: Some(name),
                offset: 0,
                more,
            } if more.is_empty() => self.image(name)?,
            _ => return self.unfit("expected [object]"),
        };
        let d = self.d32(d)?;
        self.ext(Ext::ImageQuery(Box::new(ImageQuery {
            property,
            surface,
            object,
            level,
            d,
        })));
        Ok(true)
    }

    /// The register of a texture or surface object.
    fn image(&mut self, name: &'m str) -> Result<Reg> {
        match self.find_register(name) {
            Some((reg @ Reg::R64(_), _)) => Ok(reg),
            _ => self.unsupported("texture and surface references"),
        }
    }

    /// The object and the coordinate list of `[object, {coordinates}]`.
    fn object(
        &mut self,
        operand: &Operand<'m>,
        ty: Type,
        shape: TexGeometry,
    ) -> Result<(Reg, Vec<Reg>)> {
        let Operand::Address {
            base: Some(name),
            offset: 0,
            more,
        } = operand
        else {
            return self.unfit("expected [object, coordinates]");
        };
        let [list] = more.as_slice() else {
            return self.unsupported("separate samplers");
        };
        let object = self.image(name)?;
        let list = match list {
            Operand::Vector(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        let array = has_layers(shape);
        let mut regs = Vec::new();
        for (n, operand) in list.iter().enumerate().take(coordinates(shape)) {
            let ty = if array && n == 0 { Type::U32 } else { ty };
            regs.push(Reg::R32(self.s32(operand, ty)?));
        }
        if regs.len() < coordinates(shape) {
            return self.unfit("too few coordinates");
        }
        Ok((object, regs))
    }

    fn tex(&mut self, gather: bool, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let (dty, cty) = {
            let n = mods.len();
            (
                self.type_at(mods, n.wrapping_sub(2))?,
                self.type_at(mods, n.wrapping_sub(1))?,
            )
        };
        let mut shape = None;
        let (mut level, mut gradients) = (false, false);
        let mut component = gather.then_some(0);
        for m in mods.iter().take(mods.len() - 2) {
            match *m {
                "v4" | "base" => {}
                "level" => level = true,
                "grad" => gradients = true,
                "r" => component = Some(0),
                "g" => component = Some(1),
                "b" => component = Some(2),
                "a" => component = Some(3),
                m => match geometry(m) {
                    Some(g) => shape = Some(g),
                    None => return self.unsupported(format!("texture modifier .{m}")),
                },
            }
        }
        let Some(shape) = shape else {
            return self.unfit("no geometry");
        };
        let cube = matches!(shape, TexGeometry::Cube | TexGeometry::ACube);
        if gather && !cube && !matches!(shape, TexGeometry::D2 | TexGeometry::A2) {
            return self.unfit("tld4 of this geometry");
        }
        if dty.size() != 4 || !matches!(cty, Type::S32 | Type::F32) {
            return self.unsupported("texture types");
        }
        let (d, object) = match operands {
            [d, object, ..] => (d, object),
            _ => return self.unfit("wrong number of operands"),
        };
        let expected = match (level, gradients) {
            (false, false) => 2,
            (true, false) => 3,
            (false, true) => 4,
            _ => return self.unfit("both a level and gradients"),
        };
        if operands.len() != expected {
            return self.unsupported("further texture operands");
        }
        if gradients && cty != Type::F32 {
            return self.unfit("gradients of integer coordinates");
        }
        if cube && cty != Type::F32 {
            return self.unfit("a cube's coordinates are floats");
        }
        let (list, resident) = match d {
            Operand::Vector(list) => (list, None),
            Operand::VectorPair(list, p) => (list, Some(self.pred_named(p)?)),
            _ => return self.unsupported("scalar texture result"),
        };
        let (texture, coords) = self.object(object, cty, shape)?;
        let gradients = match operands {
            [_, _, x, y] if gradients => {
                let count = coordinates(shape) - usize::from(has_layers(shape));
                Some([self.direction(x, count)?, self.direction(y, count)?])
            }
            _ => None,
        };
        let level = match operands.get(2).filter(|_| gradients.is_none()) {
            Some(l) if cty == Type::F32 => Some(Reg::R32(self.s32(l, Type::F32)?)),
            // The level has the type of the coordinates.
            Some(l) => {
                let (whole, float) = (self.s32(l, Type::S32)?, self.f.temp32());
                self.emit(Op::S32ToF32, float, whole, 0, 0, 0);
                Some(Reg::R32(float))
            }
            None => None,
        };
        let mut d = Vec::new();
        for operand in list {
            d.push(Some(Reg::R32(self.d32(operand)?)));
        }
        let float_coords = cty == Type::F32;
        self.ext(Ext::Tex(Box::new(TexRead {
            geometry: shape,
            float_coords,
            texture,
            coords,
            level,
            gradients,
            d,
            gather: component,
        })));
        // All of a texture is resident: this device has no sparse arrays.
        if let Some(p) = resident {
            let t = self.f.temp_pred();
            self.emit(Op::PXor, t, t, t, 0, 0);
            self.emit(Op::PNot, p, t, 0, 0, 0);
        }
        Ok(true)
    }

    /// The first `count` components of a derivative.
    fn direction(&mut self, operand: &Operand<'m>, count: usize) -> Result<Vec<Reg>> {
        let list = match operand {
            Operand::Vector(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        if list.len() < count {
            return self.unfit("too few components of a gradient");
        }
        let rows = list.iter().take(count);
        rows.map(|o| Ok(Reg::R32(self.s32(o, Type::F32)?)))
            .collect()
    }

    fn surf(&mut self, store: bool, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        // `sust.b.2d.v2.b32.clamp`: the type precedes the mode.
        let Some(ty) = mods.iter().rev().find_map(|m| Type::parse(m)) else {
            return self.unfit("expected a type");
        };
        let (mut shape, mut mode, mut count) = (None, 0, 1);
        for m in mods {
            match *m {
                m if Type::parse(m).is_some() => {}
                "b" | "cg" | "ca" | "cs" | "cv" | "wb" | "wt" => {}
                "trap" => mode = 0,
                "clamp" => mode = 1,
                "zero" => mode = 2,
                "v2" => count = 2,
                "v4" => count = 4,
                m => match geometry(m) {
                    Some(g) => shape = Some(g),
                    None => return self.unsupported(format!("surface modifier .{m}")),
                },
            }
        }
        let Some(shape) = shape.filter(|s| !matches!(s, TexGeometry::Cube | TexGeometry::ACube))
        else {
            return self.unfit("no geometry");
        };
        let [first, second] = self.operands(operands)?;
        let (object, data) = if store {
            (first, second)
        } else {
            (second, first)
        };
        let (surface, coords) = self.object(object, Type::S32, shape)?;
        let list = match data {
            Operand::Vector(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        if list.len() != count {
            return self.unfit("number of elements");
        }
        let mut regs = Vec::new();
        for operand in list {
            regs.push(if store {
                self.source(operand, ty)?
            } else {
                self.dest(operand, ty)?
            });
        }
        let width = ty.size() as u8;
        self.ext(Ext::Surf(Box::new(SurfAccess {
            geometry: shape,
            store,
            mode,
            surface,
            coords,
            width,
            regs,
        })));
        Ok(true)
    }
}
