//! Video instructions (PTX ISA 9.7.18 and 9.7.19).

use super::{Decoder, Result};
use crate::exec::video::{Comparison, Part, Second, Video, VideoLane, VideoOp};
use crate::program::Ext;
use crate::ptx::ast::{Operand, Type};

/// The part of a word that a selector names.
fn part(selector: &str) -> Option<Part> {
    let (at, bits) = match selector {
        "b0" => (0, 8),
        "b1" => (8, 8),
        "b2" => (16, 8),
        "b3" => (24, 8),
        "h0" => (0, 16),
        "h1" => (16, 16),
        _ => return None,
    };
    Some(Part { at, bits })
}

/// The numbers in `.h32` or `.b7531`, the lowest lane's first.
fn numbers(selector: &str, letter: char) -> Option<Vec<u8>> {
    let digits = selector.strip_prefix(letter)?;
    digits
        .chars()
        .rev()
        .map(|c| c.to_digit(10).and_then(|n| u8::try_from(n).ok()))
        .collect()
}

fn operation(name: &str) -> Option<VideoOp> {
    Some(match name {
        "vadd" => VideoOp::Add,
        "vsub" => VideoOp::Sub,
        "vabsdiff" => VideoOp::Difference,
        "vavrg" => VideoOp::Average,
        "vmin" => VideoOp::Min,
        "vmax" => VideoOp::Max,
        "vshl" => VideoOp::ShiftLeft,
        "vshr" => VideoOp::ShiftRight,
        "vmad" => VideoOp::Mad,
        "vset" => VideoOp::Set(Comparison::Eq),
        _ => return None,
    })
}

fn comparison(name: &str) -> Option<Comparison> {
    Some(match name {
        "eq" => Comparison::Eq,
        "ne" => Comparison::Ne,
        "lt" => Comparison::Lt,
        "le" => Comparison::Le,
        "gt" => Comparison::Gt,
        "ge" => Comparison::Ge,
        _ => return None,
    })
}

impl<'m> Decoder<'m> {
    pub(super) fn video(
        &mut self,
        base: &str,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        let (name, count) = match (base.strip_suffix('2'), base.strip_suffix('4')) {
            (Some(name), _) => (name, 2),
            (_, Some(name)) => (name, 4),
            _ => (base, 1),
        };
        let Some(op) = operation(name) else {
            return Ok(false);
        };
        let simd = count > 1;
        let only_simd = op == VideoOp::Average;
        let only_scalar = matches!(op, VideoOp::ShiftLeft | VideoOp::ShiftRight | VideoOp::Mad);
        if simd && only_scalar || !simd && only_simd {
            return Ok(false);
        }
        let mut video = Video {
            op,
            signed: [false; 3],
            saturate: false,
            second: Second::Merge,
            wrap: false,
            scale: 0,
            plus_one: false,
            lanes: Vec::new(),
            simd,
        };
        self.video_modifiers(&mut video, mods)?;
        let (list, c) = match operands {
            [list @ .., c] if list.len() == 3 => (list, Some(c)),
            list => (list, None),
        };
        let [d, a, b] = self.operands(list)?;
        let ((d, to), (a, from), (b, by)) =
            (self.selected(d)?, self.selected(a)?, self.selected(b)?);
        video.lanes = if simd {
            self.video_lanes(count, [to, from, by])?
        } else {
            let mut parts = [Part::WORD; 3];
            for (part_of, selector) in parts.iter_mut().zip([to, from, by]) {
                if let Some(selector) = selector {
                    *part_of = match part(selector) {
                        Some(part) => part,
                        None => return self.unfit(format!("selector .{selector}")),
                    };
                }
            }
            let [d, a, b] = parts;
            vec![VideoLane { d, a, b }]
        };
        let needed = simd || to.is_some() || video.second != Second::Merge || op == VideoOp::Mad;
        let c = match c {
            Some(c) if needed => self.s32(c, Type::U32)?,
            None if !needed => self.f.const32(0),
            _ => return self.unfit("wrong number of operands"),
        };
        let (a, b) = (self.s32(&a, Type::U32)?, self.s32(&b, Type::U32)?);
        let d = self.d32(&d)?;
        self.ext(Ext::Video {
            d,
            sources: [a, b, c],
            video: Box::new(video),
        });
        Ok(true)
    }

    fn video_modifiers(&mut self, video: &mut Video, mods: &[&str]) -> Result<()> {
        let typed = if matches!(video.op, VideoOp::Set(_)) {
            1
        } else {
            0
        };
        let mut rest = mods.iter();
        for signed in video.signed.iter_mut().skip(typed) {
            *signed = match rest.next() {
                Some(&"s32") => true,
                Some(&"u32") => false,
                _ => return self.unfit("expected .u32 or .s32"),
            };
        }
        if let VideoOp::Set(what) = &mut video.op {
            *what = match rest.next().and_then(|name| comparison(name)) {
                Some(what) => what,
                None => return self.unfit("expected a comparison"),
            };
        }
        let shift = matches!(video.op, VideoOp::ShiftLeft | VideoOp::ShiftRight);
        let mad = video.op == VideoOp::Mad;
        for &name in rest {
            match name {
                "sat" if typed == 0 => video.saturate = true,
                "add" if !mad => video.second = Second::Add,
                "min" if !mad && !video.simd => video.second = Second::Min,
                "max" if !mad && !video.simd => video.second = Second::Max,
                "clamp" if shift => {}
                "wrap" if shift => video.wrap = true,
                "po" if mad => video.plus_one = true,
                "shr7" if mad => video.scale = 7,
                "shr15" if mad => video.scale = 15,
                name => return self.unsupported(format!("modifier .{name}")),
            }
        }
        Ok(())
    }

    /// The lanes of an instruction of `count`, with the selectors of destination and sources.
    fn video_lanes(&mut self, count: u8, selectors: [Option<&str>; 3]) -> Result<Vec<VideoLane>> {
        let (letter, bits) = if count == 2 { ('h', 16) } else { ('b', 8) };
        let [mask, from, by] = selectors;
        let mut sources = [
            (0..count).collect::<Vec<u8>>(),
            (count..2 * count).collect(),
        ];
        for (list, selector) in sources.iter_mut().zip([from, by]) {
            if let Some(selector) = selector {
                *list = match numbers(selector, letter) {
                    Some(list)
                        if list.len() == usize::from(count)
                            && list.iter().all(|&n| n < 2 * count) =>
                    {
                        list
                    }
                    _ => return self.unfit(format!("selector .{selector}")),
                };
            }
        }
        let mask = match mask {
            None => (0..count).collect(),
            Some(mask) => match numbers(mask, letter) {
                Some(list) if list.iter().all(|&n| n < count) => list,
                _ => return self.unfit(format!("mask .{mask}")),
            },
        };
        let place = |n: u8| Part { at: n * bits, bits };
        let [from, by] = sources;
        Ok(from
            .iter()
            .zip(by)
            .zip(0..)
            .filter(|(_, lane)| mask.contains(lane))
            .map(|((&a, b), lane)| VideoLane {
                d: place(lane),
                a: place(a),
                b: place(b),
            })
            .collect())
    }

    /// A register without its selector, and the selector.
    fn selected(&mut self, operand: &Operand<'m>) -> Result<(Operand<'m>, Option<&'m str>)> {
        Ok(match *operand {
            Operand::Name(name) => match name.rsplit_once('.') {
                Some((register, selector)) if self.find_register(register).is_some() => {
                    (Operand::Name(register), Some(selector))
                }
                _ => (Operand::Name(name), None),
            },
            Operand::Int(value) => (Operand::Int(value), None),
            _ => return self.unfit("expected a register"),
        })
    }
}
