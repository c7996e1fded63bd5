//! Where a session's addresses lie: the same in guest and worker.
//!
//! Facts behind the numbers: the CUDA driver honours reservations from
//! 0x1000_0000_0000 on for every size up to 64 TiB, and keeps its own below;
//! Linux places programs and libraries far above.

/// Bytes between the regions of two devices of one guest process: 1 TiB.
pub const DEVICE_STRIDE: u64 = PLACES.stride;
/// First address of device 0's memory arena.
pub const ARENA_BASE: u64 = PLACES.arena;
/// First address of device 0's shadow region: guest host memory that has no
/// place in a window and of which the worker holds a copy.
pub const SHADOW_BASE: u64 = PLACES.shadow;
/// First address of device 0's window.
pub const WINDOW_BASE: u64 = PLACES.window;
/// End of the range in which NVIDIA's driver reserves what it has for itself on
/// the host, modules' variables among it: 8 TiB from there down.
pub const DRIVER_END: u64 = 0x6800_0000_0000;
/// Maximum number of devices one process can have, so that no two regions meet, and none
/// meets where Linux places programs (0x5500_0000_0000 and above).
pub const MAX_DEVICES: u32 = 16;
/// Unit of [`crate::table::MemMap`]: 2 MiB, the device's mapping granularity.
pub const CHUNK: u64 = 2 << 20;

/// Where the regions lie. Builds with a sanitizer lay them beside its shadow memory, so such a
/// guest and such a worker find only each other.
struct Places {
    stride: u64,
    arena: u64,
    shadow: u64,
    window: u64,
}

const PLACES: Places = if cfg!(sanitizer = "thread") {
    // The lowest 512 GiB are the program's. Above them lies shadow memory.
    Places {
        stride: 0x2_0000_0000,
        arena: 0x10_0000_0000,
        shadow: 0x30_0000_0000,
        window: 0x50_0000_0000,
    }
} else {
    Places {
        stride: 0x100_0000_0000,
        // The shadow memory of the address sanitizer ends 2 GiB behind the usual place.
        arena: if cfg!(sanitizer = "address") {
            0x1100_0000_0000
        } else {
            0x1000_0000_0000
        },
        shadow: 0x3000_0000_0000,
        window: 0x4000_0000_0000,
    }
};

/// Words at the start of a window's bulk area that tell the guest when a bulk
/// transfer is complete: the guest sets word `token - 1` to 1, the host sets it
/// to 0 when the transfer that named the token is complete, or to
/// [`BULK_TOKEN_FAILED`] when it failed. So the guest waits while the word is 1.
pub const BULK_TOKENS: u32 = 1024;
/// Value of a token word whose transfer failed: the guest asks for the error
/// with [`crate::table::WaitToken`], after which the word is 0.
pub const BULK_TOKEN_FAILED: u32 = 2;
/// The first tokens are those of staging slots; behind them each thread of the
/// guest that waits has one ([`crate::table::StreamSignal`]).
pub const STAGING_TOKENS: u32 = 32;
/// The last token of a thread: [host function words](host_function_word) follow.
pub const THREAD_TOKENS: u32 = BULK_TOKENS / 4;
/// Number of pairs of host function words.
pub const HOST_FUNCTION_PAIRS: u32 = 16;
/// Index of the first launch word among the token words.
const FIRST_LAUNCH_WORD: u32 = BULK_TOKENS / 2;
/// Numbers of threads that [say who they are](crate::table::Launch::by) end before this one, and
/// begin at 1.
pub const LAUNCHING_THREADS: u32 = 31;
/// Index, among the token words, of the one that is 1 while threads that launch should say who
/// they are. Only the host writes it.
pub const THREADS_WORD: u32 = launch_word(LAUNCHING_THREADS);

/// Index of the first of a pair of host function words among the token words. Each pair is
/// alone in its cache line ([`crate::table::HostFuncSignal`]). The first counts the functions
/// that the GPU has reached, the second those that have run.
#[must_use]
pub const fn host_function_word(pair: u32) -> u32 {
    let stride = (FIRST_LAUNCH_WORD - THREAD_TOKENS) / HOST_FUNCTION_PAIRS;
    THREAD_TOKENS + pair % HOST_FUNCTION_PAIRS * stride
}

/// Index of a thread's launch word among the token words. Only the host writes it: the lower half
/// of the position of the thread's last launch that is submitted. Each launch word is alone in its
/// cache line, and so is [`THREADS_WORD`].
#[must_use]
pub const fn launch_word(thread: u32) -> u32 {
    let stride = (BULK_TOKENS - FIRST_LAUNCH_WORD) / (LAUNCHING_THREADS + 1);
    FIRST_LAUNCH_WORD + thread * stride
}

/// Bytes of the token words: the first bytes of the bulk area.
pub const BULK_TOKEN_BYTES: u64 = BULK_TOKENS as u64 * 4;

/// The regions of one device of a guest process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Regions {
    /// First address of the memory arena.
    pub arena: u64,
    /// First address of the shadow region.
    pub shadow: u64,
    /// First address of the window.
    pub window: u64,
}

impl Regions {
    /// The regions of the guest's device `ordinal`; `None` past [`MAX_DEVICES`].
    #[must_use]
    pub fn of(ordinal: u32) -> Option<Self> {
        (ordinal < MAX_DEVICES).then(|| {
            let offset = u64::from(ordinal) * DEVICE_STRIDE;
            Self {
                arena: ARENA_BASE + offset,
                shadow: SHADOW_BASE + offset,
                window: WINDOW_BASE + offset,
            }
        })
    }

    /// First address of the arena, of whatever device, that holds
    /// `[address, address + size)`.
    #[must_use]
    pub fn arena_of(address: u64, size: u64) -> Option<u64> {
        let mut arenas = (0..MAX_DEVICES)
            .filter_map(Self::of)
            .map(|regions| regions.arena);
        arenas.find(|arena| Self::holds(*arena, address, size))
    }

    /// Whether `[address, address + size)` lies in the shadow region or the window of a
    /// device, of whichever.
    #[must_use]
    pub fn hold_host_memory(address: u64, size: u64) -> bool {
        let mut regions = (0..MAX_DEVICES)
            .filter_map(Self::of)
            .flat_map(|regions| [regions.shadow, regions.window]);
        regions.any(|base| Self::holds(base, address, size))
    }

    /// Whether `[address, address + size)` lies in the region that starts at
    /// `base`.
    #[must_use]
    pub fn holds(base: u64, address: u64, size: u64) -> bool {
        address >= base
            && address
                .checked_add(size)
                .is_some_and(|end| end <= base + DEVICE_STRIDE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_each_kind_are_alone_in_their_cache_lines() {
        let pairs = (0..HOST_FUNCTION_PAIRS).map(host_function_word);
        let launches = (0..LAUNCHING_THREADS).map(launch_word);
        let mut line = THREAD_TOKENS / 16;
        for word in pairs.chain(launches).chain([THREADS_WORD]) {
            assert_eq!(word, line * 16);
            line += 1;
        }
        assert_eq!(line * 16, BULK_TOKENS);
    }

    #[test]
    fn host_memory_is_in_one_shadow_region_or_window() {
        let size = 4096;
        for base in [SHADOW_BASE, WINDOW_BASE + 15 * DEVICE_STRIDE] {
            assert!(Regions::hold_host_memory(base, size));
            assert!(Regions::hold_host_memory(base + DEVICE_STRIDE - size, size));
            assert!(!Regions::hold_host_memory(base + DEVICE_STRIDE - 1, size));
        }
        let elsewhere = [0, ARENA_BASE, SHADOW_BASE - size, u64::MAX];
        assert!(
            !elsewhere
                .iter()
                .any(|at| Regions::hold_host_memory(*at, size))
        );
    }

    #[test]
    fn no_two_regions_meet() {
        let mut starts: Vec<u64> = (0..MAX_DEVICES)
            .filter_map(Regions::of)
            .flat_map(|regions| [regions.arena, regions.shadow, regions.window])
            .collect();
        starts.sort_unstable();
        assert_eq!(starts.len(), 3 * MAX_DEVICES as usize);
        for pair in starts.windows(2) {
            assert!(pair[0] + DEVICE_STRIDE <= pair[1], "{pair:x?}");
        }
        assert!(starts.last().unwrap() + DEVICE_STRIDE <= 0x5500_0000_0000);
        assert_eq!(Regions::of(MAX_DEVICES), None);
    }
}
