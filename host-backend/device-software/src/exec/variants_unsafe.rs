//! The arithmetic loop compiled for each vector extension, chosen at run time.

use super::alu::{Left, straight};
use super::frame::Frame;
use super::reach::Reach;
use crate::program::Inst;

/// A compiled arithmetic loop: see [`super::alu`].
pub type Straight = fn(&mut Frame<'_>, Option<&mut Reach<'_>>, &[Inst], usize, usize, u32) -> Left;

/// A module with the loop for these features, and whether the processor has them.
#[cfg(target_arch = "x86_64")]
macro_rules! variant {
    ($name:ident: $($feature:tt)+) => {
        mod $name {
            use super::{Frame, Inst, Left, Reach, Straight, straight};

            pub(super) fn is_available() -> bool {
                true $( && is_x86_feature_detected!($feature) )+
            }

            #[target_feature($( enable = $feature ),+)]
            fn body(
                frame: &mut Frame<'_>,
                reach: Option<&mut Reach<'_>>,
                code: &[Inst],
                pc: usize,
                end: usize,
                active: u32,
            ) -> Left {
                straight(frame, reach, code, pc, end, active)
            }

            pub(super) const RUN: Straight = |frame, reach, code, pc, end, active| {
                // SAFETY: `available` returns this function only if `is_available` says
                // that the processor has all features of `body`.
                unsafe { body(frame, reach, code, pc, end, active) }
            };
        }
    };
}

#[cfg(target_arch = "x86_64")]
variant!(avx2: "avx2" "fma" "bmi1" "bmi2" "lzcnt" "popcnt");
#[cfg(target_arch = "x86_64")]
variant!(avx512:
    "avx512f" "avx512vl" "avx512dq" "avx512bw" "avx512cd" "avx2" "fma" "bmi1" "bmi2" "lzcnt" "popcnt");

/// Every variant this processor can run, slowest first.
#[must_use]
pub fn available() -> Vec<(&'static str, Straight)> {
    let mut list: Vec<(&'static str, Straight)> = vec![("base", straight)];
    #[cfg(target_arch = "x86_64")]
    {
        if avx2::is_available() {
            list.push(("avx2", avx2::RUN));
        }
        if avx512::is_available() {
            list.push(("avx512", avx512::RUN));
        }
    }
    list
}

/// The fastest variant.
#[must_use]
pub fn select() -> Straight {
    available().last().map_or(straight as Straight, |&(_, f)| f)
}
