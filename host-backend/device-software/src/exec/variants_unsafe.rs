//! The arithmetic loop compiled for each vector extension, chosen at run time.

use super::alu::{Left, straight};
use super::frame::Frame;
use super::reach::Reach;
use crate::program::Inst;

/// A compiled arithmetic loop: see [`super::alu`].
pub type Straight = fn(&mut Frame<'_>, Option<&mut Reach<'_>>, &[Inst], usize, usize, u32) -> Left;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Frame, Inst, Left, Reach, straight};

    #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    fn avx2_body(
        frame: &mut Frame<'_>,
        reach: Option<&mut Reach<'_>>,
        code: &[Inst],
        pc: usize,
        end: usize,
        active: u32,
    ) -> Left {
        straight(frame, reach, code, pc, end, active)
    }

    pub(super) fn avx2(
        frame: &mut Frame<'_>,
        reach: Option<&mut Reach<'_>>,
        code: &[Inst],
        pc: usize,
        end: usize,
        active: u32,
    ) -> Left {
        // SAFETY: `select` hands this function out only where the processor has all these features.
        unsafe { avx2_body(frame, reach, code, pc, end, active) }
    }

    #[target_feature(
        enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512cd,avx2,fma,bmi1,bmi2,lzcnt,popcnt"
    )]
    fn avx512_body(
        frame: &mut Frame<'_>,
        reach: Option<&mut Reach<'_>>,
        code: &[Inst],
        pc: usize,
        end: usize,
        active: u32,
    ) -> Left {
        straight(frame, reach, code, pc, end, active)
    }

    pub(super) fn avx512(
        frame: &mut Frame<'_>,
        reach: Option<&mut Reach<'_>>,
        code: &[Inst],
        pc: usize,
        end: usize,
        active: u32,
    ) -> Left {
        // SAFETY: `select` hands this function out only where the processor has all these features.
        unsafe { avx512_body(frame, reach, code, pc, end, active) }
    }

    pub(super) fn has_avx2() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
    }

    pub(super) fn has_avx512() -> bool {
        has_avx2()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512cd")
    }
}

fn base(
    frame: &mut Frame<'_>,
    reach: Option<&mut Reach<'_>>,
    code: &[Inst],
    pc: usize,
    end: usize,
    active: u32,
) -> Left {
    straight(frame, reach, code, pc, end, active)
}

/// Every variant this processor can run, slowest first.
#[must_use]
pub fn available() -> Vec<(&'static str, Straight)> {
    let mut list: Vec<(&'static str, Straight)> = vec![("base", base)];
    #[cfg(target_arch = "x86_64")]
    {
        if x86::has_avx2() {
            list.push(("avx2", x86::avx2));
        }
        if x86::has_avx512() {
            list.push(("avx512", x86::avx512));
        }
    }
    list
}

/// The fastest variant.
#[must_use]
pub fn select() -> Straight {
    available().last().map_or(base as Straight, |&(_, f)| f)
}
