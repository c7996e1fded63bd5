//! The process's mappings, from /proc/self/maps.

use crate::sys::map_query;

/// A line of /proc/self/maps: a mapping, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapped {
    /// First address.
    pub(crate) from: u64,
    /// The address after the last byte.
    pub(crate) to: u64,
    /// Such as "rw-p": readable, writable, not executable, private.
    pub(crate) protection: String,
    /// The offset of its first byte in its file.
    pub(crate) offset: u64,
    /// Major and minor number of the file's device.
    pub(crate) device: (u32, u32),
    /// The file's inode; 0 for anonymous memory.
    pub(crate) inode: u64,
    /// The file's path, a name in brackets such as `[heap]`, or nothing.
    pub(crate) name: String,
}

impl Mapped {
    /// Parses a line.
    fn parse(line: &str) -> Option<Self> {
        let (from, to) = addresses(line)?;
        let mut words = line.splitn(6, ' ').skip(1);
        let protection = words.next()?.to_owned();
        let offset = words.next()?;
        let (major, minor) = words.next()?.split_once(':')?;
        let inode = words.next()?.parse().ok()?;
        // Padded with blanks. The path may contain blanks itself.
        let name = words.next().unwrap_or_default().trim_start_matches(' ');
        Some(Self {
            from,
            to,
            protection,
            offset: u64::from_str_radix(offset, 16).ok()?,
            device: (
                u32::from_str_radix(major, 16).ok()?,
                u32::from_str_radix(minor, 16).ok()?,
            ),
            inode,
            name: name.to_owned(),
        })
    }

    /// Whether both map the same file.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// The offset of an address in the file.
    pub(crate) fn offset_of(&self, address: u64) -> u64 {
        self.offset.wrapping_add(address.wrapping_sub(self.from))
    }
}

/// The mappings that overlap a range, in order; `None` if they cannot be read.
pub(crate) fn overlapping(address: u64, length: u64) -> Option<Vec<Mapped>> {
    let end = address.checked_add(length)?;
    map_query::overlapping(address, end).or_else(|| parsed(address, end))
}

/// [`overlapping`] for earlier kernels: a program may have tens of thousands of mappings, and
/// they are all read.
fn parsed(address: u64, end: u64) -> Option<Vec<Mapped>> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let overlaps =
        |line: &&str| addresses(line).is_some_and(|(from, to)| from < end && to > address);
    Some(
        maps.lines()
            .filter(overlaps)
            .filter_map(Mapped::parse)
            .collect(),
    )
}

/// The first address of a line's mapping, and the one after its last byte.
fn addresses(line: &str) -> Option<(u64, u64)> {
    let (from, to) = line.split_once(' ')?.0.split_once('-')?;
    Some((
        u64::from_str_radix(from, 16).ok()?,
        u64::from_str_radix(to, 16).ok()?,
    ))
}

/// What the program may do with all of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Part of it is not mapped, or cannot be read.
    None,
    /// Part of it cannot be written.
    Read,
    /// Neither.
    ReadWrite,
}

/// What the program may do with all of a range; `None` if the mappings cannot be read.
pub(crate) fn access(address: u64, length: u64) -> Option<Access> {
    Some(access_of(&overlapping(address, length)?, address, length))
}

fn access_of(mappings: &[Mapped], address: u64, length: u64) -> Access {
    let all = |rights: &str| {
        mappings
            .iter()
            .all(|mapped| mapped.protection.starts_with(rights))
    };
    match cover(mappings, address, length) {
        true if all("rw") => Access::ReadWrite,
        true if all("r") => Access::Read,
        _ => Access::None,
    }
}

/// Whether the mappings cover the range without a gap.
pub(crate) fn cover(mappings: &[Mapped], address: u64, length: u64) -> bool {
    let mut next = address;
    for mapped in mappings {
        if mapped.from > next {
            return false;
        }
        next = mapped.to;
    }
    next >= address + length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let line = "7f00a000-7f00c000 rw-s 00003000 fe:01 1234      /dev/shm/a name (deleted)";
        let mapped = Mapped::parse(line).unwrap();
        assert_eq!((mapped.from, mapped.to), (0x7f00_a000, 0x7f00_c000));
        assert_eq!(mapped.protection, "rw-s");
        assert_eq!(mapped.device, (0xfe, 1));
        assert_eq!(mapped.inode, 1234);
        assert_eq!(mapped.name, "/dev/shm/a name (deleted)");
        assert_eq!(mapped.offset_of(0x7f00_b000), 0x4000);
        let bare = Mapped::parse("1000-2000 rw-p 00000000 00:00 0 ").unwrap();
        assert_eq!((bare.inode, bare.name.as_str()), (0, ""));
        for bad in [
            "",
            "1000 rw-p 0 00:00 0",
            "1000-2000 rw-p",
            "x-y rw-p 0 00:00 0",
        ] {
            assert_eq!(Mapped::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_kernel_answers_as_its_text_says() {
        static DATA: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let data = (&raw const DATA).addr() as u64;
        let code = parsed as *const () as u64;
        // Other tests change nothing there.
        for (address, end) in [(data, data + 1), (code, code + 1), (0, 4096)] {
            if let Some(mappings) = map_query::overlapping(address, end) {
                assert_eq!(mappings, parsed(address, end).unwrap(), "{address:#x}");
            }
        }
    }

    #[test]
    fn access_is_that_of_the_whole_range() {
        let lines = [
            "1000-2000 rw-p 0 00:00 0",
            "2000-3000 r--p 0 00:00 0",
            "3000-4000 ---p 0 00:00 0",
        ];
        let mappings = lines.map(|line| Mapped::parse(line).unwrap());
        let of = |count: usize, length| access_of(&mappings[..count], 0x1000, length);
        assert_eq!(of(1, 0x1000), Access::ReadWrite);
        assert_eq!(of(2, 0x1800), Access::Read);
        assert_eq!(of(3, 0x2800), Access::None);
        // Nothing is mapped behind them.
        assert_eq!(of(2, 0x2800), Access::None);
        assert_eq!(of(0, 1), Access::None);
        let here = 0_u64;
        let address = (&raw const here).addr() as u64;
        assert_eq!(access(address, 8), Some(Access::ReadWrite));
        assert_eq!(access(4096, 1), Some(Access::None));
    }

    #[test]
    fn a_gap_is_seen() {
        let part = |from, to| Mapped {
            from,
            ..Mapped::parse(&format!("0-{to:x} rw-p 0 00:00 0")).unwrap()
        };
        assert!(cover(&[part(0, 8192), part(8192, 12288)], 4096, 8192));
        assert!(!cover(&[part(0, 8192), part(9000, 12288)], 4096, 8192));
        assert!(!cover(&[part(0, 8192)], 4096, 8192));
        assert!(!cover(&[], 4096, 1));
    }
}
