//! Matrix operations of a warp (PTX ISA 9.7.14).

use super::memory::space;
use super::{Decoder, Result};
use crate::exec::fragment::{
    self, Combine, Element, Fragment, Layout, MAX_DOUBLES, MAX_SINGLES, Matrix, Multiply, Role,
    Scale, Scales, Shape, Transfer,
};
use crate::exec::sparse::{self, Sparse};
use crate::program::{Ext, Reg};
use crate::ptx::ast::{Operand, Type};
use std::sync::Arc;

/// Maximum number of rows or columns of a matrix.
const MAX_DIMENSION: u32 = 256;

/// `m16n8k16`.
fn shape(m: &str) -> Option<Shape> {
    let rest = m.strip_prefix('m')?;
    let (rows, rest) = rest.split_once('n')?;
    let (columns, depth) = rest.split_once('k')?;
    let size = |text: &str| {
        text.parse()
            .ok()
            .filter(|n| (1..=MAX_DIMENSION).contains(n))
    };
    Some([size(rows)?, size(columns)?, size(depth)?])
}

fn boxed(matrix: Matrix) -> Ext {
    Ext::Matrix(Box::new(matrix))
}

/// The modifiers of `mma` and `wmma`.
#[derive(Default)]
struct Form<'a> {
    shape: Option<Shape>,
    elements: Vec<Element>,
    layouts: Vec<&'a str>,
    saturate: bool,
    combine: Option<Combine>,
    /// `.kind::`
    kind: Option<&'a str>,
    /// Blocks of `.scale_vec`.
    blocks: Option<u32>,
    /// Whether the scales are ue4m3 instead of ue8m0.
    fraction: Option<bool>,
}

impl Form<'_> {
    /// Whether the shape, types and scales belong to the kind.
    fn fits_kind(&self, [d, a, b, c]: [Element; 4]) -> bool {
        let narrow = |element: Element| element.narrow_float() && element.bits() == 8;
        let sums = |element| [d, c] == [element; 2];
        let unpacked = self.shape == Some([16, 8, 32]) && narrow(a) && narrow(b);
        let packed = self.shape == Some([16, 8, 64]) && [a, b] == [Element::E2m1; 2];
        match self.kind {
            Some("f8f6f4") => {
                let sums = sums(Element::F32) || sums(Element::F16);
                unpacked && sums && self.blocks.is_none() && self.fraction.is_none()
            }
            Some("mxf8f6f4") => {
                let scales = matches!((self.blocks, self.fraction), (None | Some(1), Some(false)));
                unpacked && scales && sums(Element::F32)
            }
            Some("mxf4") => {
                let scales = matches!((self.blocks, self.fraction), (None | Some(2), Some(false)));
                packed && scales && sums(Element::F32)
            }
            Some("mxf4nvf4") => {
                let scales = matches!(
                    (self.blocks, self.fraction),
                    (Some(2), Some(false)) | (Some(4), Some(_))
                );
                packed && scales && sums(Element::F32)
            }
            _ => false,
        }
    }
}

impl<'m> Decoder<'m> {
    pub(super) fn matrix(
        &mut self,
        base: &str,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        match (base, mods) {
            ("mma", ["sync", rest @ ..]) => self.mma(Layout::Documented, rest, operands, None),
            ("mma", ["sp" | "sp::ordered_metadata", "sync", rest @ ..]) => {
                let [matrices @ .., metadata, Operand::Int(selector @ 0..=3)] = operands else {
                    return self.unfit("no sparsity selector");
                };
                let sparse = Sparse {
                    metadata: self.s32(metadata, Type::B32)?,
                    selector: *selector as u32,
                };
                self.mma(Layout::Documented, rest, matrices, Some(sparse))
            }
            ("wmma", ["mma", "sync", rest @ ..]) => self.mma(Layout::Rows, rest, operands, None),
            // For single bits, the combining operation comes first.
            ("wmma", ["mma", combine @ ("and" | "xor"), "popc", "sync", rest @ ..]) => {
                self.mma(Layout::Rows, &[&[*combine], rest].concat(), operands, None)
            }
            ("wmma", ["load", role @ ("a" | "b" | "c"), "sync", rest @ ..]) => {
                self.wmma_transfer(role, false, rest, operands)
            }
            ("wmma", ["store", "d", "sync", rest @ ..]) => {
                self.wmma_transfer("d", true, rest, operands)
            }
            ("ldmatrix" | "stmatrix", _) => self.matrix_rows(base == "stmatrix", mods, operands),
            ("movmatrix", ["sync", "aligned", "m8n8", "trans", "b16"]) => {
                let [d, a] = self.operands(operands)?;
                let (a, d) = (self.s32(a, Type::B32)?, self.d32(d)?);
                self.ext(boxed(Matrix::Transpose {
                    d: Reg::R32(d),
                    a: Reg::R32(a),
                }));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn form<'a>(&self, mods: &[&'a str]) -> Result<Form<'a>> {
        let mut form = Form::default();
        for m in mods {
            match *m {
                "aligned" | "popc" | "rn" => {}
                "satfinite" => form.saturate = true,
                "and" => form.combine = Some(Combine::And),
                "xor" => form.combine = Some(Combine::Xor),
                "row" | "col" => form.layouts.push(m),
                "block_scale" => {}
                "scale_vec::1X" => form.blocks = Some(1),
                "scale_vec::2X" => form.blocks = Some(2),
                "scale_vec::4X" => form.blocks = Some(4),
                "ue8m0" => form.fraction = Some(false),
                "ue4m3" => form.fraction = Some(true),
                m if m.starts_with("shared") || m == "global" => {}
                m if m.starts_with("kind::") => form.kind = m.strip_prefix("kind::"),
                m => match (shape(m), Element::parse(m)) {
                    (Some(shape), _) => form.shape = Some(shape),
                    (None, Some(element)) => form.elements.push(element),
                    (None, None) => return self.unsupported(format!("matrix modifier .{m}")),
                },
            }
        }
        Ok(form)
    }

    fn fragment(
        &mut self,
        layout: Layout,
        shape: Shape,
        role: Role,
        element: Element,
        operand: &Operand<'m>,
        written: bool,
    ) -> Result<Fragment> {
        let list = match operand {
            Operand::Vector(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        let key = (layout, shape, role, element, list.len());
        let places = match self.places.get(&key) {
            Some(places) => Arc::clone(places),
            None => {
                let Some(places) = fragment::places(layout, shape, role, element, list.len())
                else {
                    return self.unsupported(format!(
                        "{} registers of {element:?} for this operand of m{}n{}k{}",
                        list.len(),
                        shape[0],
                        shape[1],
                        shape[2]
                    ));
                };
                self.places.insert(key, Arc::clone(&places));
                places
            }
        };
        let ty = match element {
            Element::F64 => Type::F64,
            Element::F32 => Type::F32,
            _ => Type::B32,
        };
        let mut regs = Vec::new();
        for operand in list {
            let reg = match written {
                true => self.dest(operand, ty)?,
                false => self.source(operand, ty)?,
            };
            if matches!(reg, Reg::R64(_)) != (element == Element::F64) {
                return self.unfit("width of a matrix register");
            }
            regs.push(reg);
        }
        Ok(Fragment {
            element,
            regs,
            places,
        })
    }

    fn mma(
        &mut self,
        layout: Layout,
        mods: &[&str],
        operands: &[Operand<'m>],
        sparse: Option<Sparse>,
    ) -> Result<bool> {
        let form = self.form(mods)?;
        let Some(shape) = form.shape else {
            return self.unfit("no shape");
        };
        // `wmma` of halves names only D and C.
        let [d, a, b, c] = match *form.elements.as_slice() {
            [d, c] if layout == Layout::Rows => [d, Element::F16, Element::F16, c],
            [d, a, b, c] => [d, a, b, c],
            _ => return self.unsupported("these matrix types"),
        };
        // Unpacked, each element has eight bits.
        let unpacked = |element| match form.kind {
            Some("f8f6f4" | "mxf8f6f4") if element == Element::E2m1 => Element::E2m1Padded,
            _ => element,
        };
        let (a, b) = (unpacked(a), unpacked(b));
        let sums = [d, c];
        let fits = match a {
            _ if form.kind.is_some() => form.fits_kind([d, a, b, c]),
            Element::F64 => b == a && sums == [Element::F64; 2],
            Element::S8 | Element::U8 | Element::S4 | Element::U4 => {
                b.bits() == a.bits() && !b.single() && sums == [Element::S32; 2]
            }
            Element::B1 => b == a && form.combine.is_some() && sums == [Element::S32; 2],
            Element::F16 | Element::E4m3 | Element::E5m2 => {
                b.bits() == a.bits()
                    && b.single()
                    && sums
                        .iter()
                        .all(|s| matches!(s, Element::F16 | Element::F32))
            }
            Element::Bf16 | Element::Tf32 => b == a && sums == [Element::F32; 2],
            _ => false,
        };
        let documented = shape[1] == 8 && matches!(shape[0], 8 | 16);
        let layouts = match (layout, form.layouts.as_slice()) {
            // Four independent products with their own layouts.
            (Layout::Documented, [of_a, of_b]) if shape == [8, 8, 4] && a == Element::F16 => {
                let pairs = |order: &str| Layout::Pairs {
                    columns: order == "col",
                };
                [pairs(of_a), pairs(of_b), pairs("row")]
            }
            (Layout::Documented, ["row", "col"]) if documented => [layout; 3],
            (Layout::Rows, _) => [layout; 3],
            _ => return self.unsupported(format!("matrix multiplication .{}", mods.join("."))),
        };
        // Half of A is there.
        let [m, n, k] = shape;
        let shape_a = if sparse.is_some() {
            [m, n, k / 2]
        } else {
            shape
        };
        let selects = sparse.is_none_or(|sparse| {
            let words = sparse::words(shape, a);
            layouts == [layout; 3]
                && form.kind.is_none()
                && a != Element::F64
                && words.is_some_and(|words| sparse.selector < 4 / words)
        });
        if !fits || !selects {
            return self.unsupported(format!("matrix multiplication .{}", mods.join(".")));
        }
        let largest = [Role::A, Role::B, Role::Sum]
            .map(|role| fragment::extent(shape, role).iter().product::<u32>())
            .into_iter()
            .max();
        if a.single() && largest > Some(MAX_SINGLES)
            || a == Element::F64 && largest > Some(MAX_DOUBLES)
        {
            return self.unsupported("matrices of this size");
        }
        let (operands, scales) = match (operands, form.fraction) {
            ([matrices @ .., fa, at_a, fb, at_b], Some(fraction)) => {
                let scales = Scales {
                    a: self.scale(fa, at_a)?,
                    b: self.scale(fb, at_b)?,
                    blocks: form.blocks.unwrap_or(shape[2] / 32),
                    fraction,
                };
                (matrices, Some(scales))
            }
            _ => (operands, None),
        };
        let [dd, aa, bb, cc] = self.operands(operands)?;
        let [of_a, of_b, of_sums] = layouts;
        let multiply = Multiply {
            shape,
            a: self.fragment(of_a, shape_a, Role::A, a, aa, false)?,
            b: self.fragment(of_b, shape, Role::B, b, bb, false)?,
            c: self.fragment(of_sums, shape, Role::Sum, c, cc, false)?,
            d: self.fragment(of_sums, shape, Role::Sum, d, dd, true)?,
            products: of_sums.products() as usize,
            sparse,
            saturate: form.saturate,
            combine: form.combine.unwrap_or(Combine::Multiply),
            scales,
        };
        self.ext(boxed(Matrix::Multiply(multiply)));
        Ok(true)
    }

    /// A register of factors, and `{byte, thread}`.
    fn scale(&mut self, factors: &Operand<'m>, place: &Operand<'m>) -> Result<Scale> {
        let Operand::Vector(place) = place else {
            return self.unfit("expected {byte, thread}");
        };
        let [byte, thread] = self.operands(place)?;
        let factors = match factors {
            Operand::Vector(list) if list.len() == 1 => &list[0],
            factors => factors,
        };
        Ok(Scale {
            factors: self.s32(factors, Type::B32)?,
            byte: self.s32(byte, Type::U16)?,
            thread: self.s32(thread, Type::U16)?,
        })
    }

    fn wmma_transfer(
        &mut self,
        role: &str,
        store: bool,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        let form = self.form(mods)?;
        let (Some(shape), [element], [order]) = (
            form.shape,
            form.elements.as_slice(),
            form.layouts.as_slice(),
        ) else {
            return self.unfit("malformed wmma");
        };
        let role = match role {
            "a" => Role::A,
            "b" => Role::B,
            _ => Role::Sum,
        };
        let (first, second, stride) = match operands {
            [first, second] => (first, second, None),
            [first, second, stride] => (first, second, Some(self.s32(stride, Type::U32)?)),
            _ => return self.unfit("wrong number of operands"),
        };
        let (address, regs) = if store {
            (first, second)
        } else {
            (second, first)
        };
        let address = self.address(address, space(mods))?;
        let fragment = self.fragment(Layout::Rows, shape, role, *element, regs, !store)?;
        self.ext(boxed(Matrix::Transfer(Transfer {
            fragment,
            extent: fragment::extent(shape, role),
            address,
            stride,
            columns: *order == "col",
            store,
        })));
        Ok(true)
    }

    fn matrix_rows(
        &mut self,
        store: bool,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        let mut count = 0;
        let mut unpack = None;
        for m in mods {
            match *m {
                "sync" | "aligned" | "m8n8" | "trans" | "b16" | "m8n16" | "b8x16" => {}
                "b4x16_p64" => unpack = Some(4),
                "b6x16_p32" => unpack = Some(6),
                "shared" | "shared::cta" => {}
                "x1" => count = 1,
                "x2" => count = 2,
                "x4" => count = 4,
                m => return self.unsupported(format!("modifier .{m}")),
            }
        }
        let has = |m: &str| mods.contains(&m);
        let whole = has("m8n8") && has("b16") && unpack.is_none();
        let packed = has("m8n16") && has("b8x16") && unpack.is_some() && !store && !has("trans");
        if !whole && !packed {
            return Ok(false);
        }
        let [first, second] = self.operands(operands)?;
        let (address, list) = if store {
            (first, second)
        } else {
            (second, first)
        };
        let list = match list {
            Operand::Vector(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        if list.len() != count {
            return self.unfit("number of matrices");
        }
        let address = self.address(address, space(mods))?;
        let mut regs = Vec::new();
        for operand in list {
            regs.push(Reg::R32(match store {
                true => self.s32(operand, Type::B32)?,
                false => self.d32(operand)?,
            }));
        }
        self.ext(boxed(Matrix::Rows {
            address,
            regs,
            transposed: has("trans"),
            store,
            unpack,
        }));
        Ok(true)
    }
}
