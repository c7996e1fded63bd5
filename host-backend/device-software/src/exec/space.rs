//! The state space of an address, and how a loaded element fills its register.

use crate::program::{
    Access, Extend, LOCAL_WINDOW, MemSpace, PARAM_WINDOW, Reg, SHARED_WINDOW, WINDOW_SHIFT,
};

fn window(space: MemSpace) -> u64 {
    match space {
        MemSpace::Shared => SHARED_WINDOW,
        MemSpace::Local => LOCAL_WINDOW,
        MemSpace::Param => PARAM_WINDOW,
        _ => 0,
    }
}

/// The space of a generic address, and the address in it.
pub(super) fn resolve(address: u64) -> (MemSpace, u64) {
    let space = match address >> WINDOW_SHIFT {
        w if w == SHARED_WINDOW >> WINDOW_SHIFT => MemSpace::Shared,
        w if w == LOCAL_WINDOW >> WINDOW_SHIFT => MemSpace::Local,
        w if w == PARAM_WINDOW >> WINDOW_SHIFT => MemSpace::Param,
        _ => return (MemSpace::Global, address),
    };
    (space, address - window(space))
}

/// A loaded element, extended for its register.
#[inline(always)]
pub(super) fn extended(access: &Access, reg: Reg, value: u64) -> u64 {
    let mut value = value;
    if access.extend == Extend::Sign && access.width < 8 {
        let spare = 64 - 8 * u32::from(access.width);
        value = ((value << spare) as i64 >> spare) as u64;
    }
    if access.narrow != 0 && matches!(reg, Reg::R32(_)) {
        value &= (1 << access.narrow) - 1;
    }
    value
}
