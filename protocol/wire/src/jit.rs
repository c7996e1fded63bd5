//! The options of a load or a link (CUjit_option) that may cross the wire.
//!
//! CUDA passes all values as pointers. An option that is a pointer, or the size of a buffer,
//! would name memory of the host's process, so only numbers cross. The guest library serves the
//! buffers for messages itself.

/// The options that are numbers, and the greatest value of each.
const NUMBERS: [(u32, u32); 22] = [
    // CU_JIT_MAX_REGISTERS, _THREADS_PER_BLOCK, _OPTIMIZATION_LEVEL.
    (0, u32::MAX),
    (1, u32::MAX),
    (7, 4),
    // CU_JIT_TARGET_FROM_CUCONTEXT has no value; whatever the program passes is ignored.
    (8, u32::MAX),
    // CU_JIT_TARGET, with the bits of accelerated and family features.
    (9, 0x3_ffff),
    // CU_JIT_FALLBACK_STRATEGY, then _GENERATE_DEBUG_INFO, _LOG_VERBOSE, _GENERATE_LINE_INFO.
    (10, 1),
    (11, u32::MAX),
    (12, u32::MAX),
    (13, u32::MAX),
    // CU_JIT_CACHE_MODE, _FAST_COMPILE.
    (14, 2),
    (16, u32::MAX),
    // CU_JIT_LTO, _FTZ, _PREC_DIV, _PREC_SQRT, _FMA.
    (20, u32::MAX),
    (21, u32::MAX),
    (22, u32::MAX),
    (23, u32::MAX),
    (24, u32::MAX),
    // CU_JIT_OPTIMIZE_UNUSED_DEVICE_VARIABLES, _POSITION_INDEPENDENT_CODE, _MIN_CTA_PER_SM,
    // _MAX_THREADS_PER_BLOCK, _OVERRIDE_DIRECTIVE_VALUES.
    (29, u32::MAX),
    (30, u32::MAX),
    (31, u32::MAX),
    (32, u32::MAX),
    (33, u32::MAX),
    // CU_JIT_SPLIT_COMPILE: threads of the host.
    (34, 256),
];

/// Whether a CUjit_option is a number.
#[must_use]
pub fn is_number(option: u32) -> bool {
    NUMBERS.iter().any(|(number, _)| *number == option)
}

/// The first of these CUjit_options that the host does not accept with its value.
#[must_use]
pub fn refused(options: &[(u32, u32)]) -> Option<(u32, u32)> {
    let mut options = options.iter().copied();
    options.find(|&(option, value)| !accepts(option, value))
}

/// Whether the host accepts a CUjit_option with this value.
fn accepts(option: u32, value: u32) -> bool {
    let greatest = NUMBERS.iter().find(|(number, _)| *number == option);
    greatest.is_some_and(|(_, greatest)| value <= *greatest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_are_accepted() {
        // The time, the four of the logs, names and addresses of symbols and their counts.
        for pointer in [2, 3, 4, 5, 6, 15, 17, 18, 19, 25, 26, 27, 28, 35, u32::MAX] {
            assert!(!is_number(pointer), "{pointer}");
            assert!(!accepts(pointer, 0), "{pointer}");
        }
        for (option, greatest) in [(7, 4), (10, 1), (14, 2), (34, 256)] {
            assert!(is_number(option));
            assert!(accepts(option, greatest) && !accepts(option, greatest + 1));
        }
    }
}
