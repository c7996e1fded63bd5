//! Asks the kernel for single mappings (`PROCMAP_QUERY`, Linux 6.11), because the text of all of
//! them takes time by their number. Linux's uapi/linux/fs.h describes the question.

use std::fs::File;
use std::os::fd::AsRawFd as _;

use crate::maps::Mapped;

/// The request's number: `_IOWR('f', 17, struct procmap_query)`.
const QUERY: libc::Ioctl =
    (3 << 30 | (size_of::<Question>() << 16) | 0x66 << 8 | 17) as libc::Ioctl;
/// A mapping may be read, written, executed, and is shared.
const RIGHTS: [(u64, char); 3] = [(1, 'r'), (2, 'w'), (4, 'x')];
const SHARED: u64 = 8;
/// Asks for the next mapping if none covers the address.
const OR_NEXT: u64 = 16;
/// Bytes for a mapping's name: of a path.
const NAME: usize = 4096;

/// `struct procmap_query`.
#[repr(C)]
#[derive(Debug, Default)]
struct Question {
    size: u64,
    flags: u64,
    address: u64,
    from: u64,
    to: u64,
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// The mappings that overlap `[address, end)`, in order; `None` if the kernel does not answer
/// such questions.
pub(crate) fn overlapping(address: u64, end: u64) -> Option<Vec<Mapped>> {
    let maps = File::open("/proc/self/maps").ok()?;
    let (mut found, mut next) = (Vec::new(), address);
    while next < end {
        match at_or_after(&maps, next)? {
            Some(mapped) if mapped.from < end => {
                next = mapped.to;
                found.push(mapped);
            }
            _ => break,
        }
    }
    Some(found)
}

/// The mapping at an address, or else the next one; `Some(None)` if there is none.
fn at_or_after(maps: &File, address: u64) -> Option<Option<Mapped>> {
    let mut name = [0_u8; NAME];
    let mut question = Question {
        size: size_of::<Question>() as u64,
        flags: OR_NEXT,
        address,
        name_size: NAME as u32,
        name: name.as_mut_ptr().expose_provenance() as u64,
        ..Question::default()
    };
    // SAFETY: the kernel writes to the question, and at most `name_size` bytes to `name`.
    if unsafe { libc::ioctl(maps.as_raw_fd(), QUERY, &raw mut question) } != 0 {
        let error = std::io::Error::last_os_error().raw_os_error();
        return (error == Some(libc::ENOENT)).then_some(None);
    }
    let mut protection: String = RIGHTS
        .iter()
        .map(|(bit, letter)| match question.rights & bit {
            0 => '-',
            _ => *letter,
        })
        .collect();
    protection.push(match question.rights & SHARED {
        0 => 'p',
        _ => 's',
    });
    // With its final zero.
    let length = (question.name_size as usize).saturating_sub(1);
    let name = name.get(..length).unwrap_or_default();
    Some(Some(Mapped {
        from: question.from,
        to: question.to,
        protection,
        offset: question.offset,
        device: question.device.into(),
        inode: question.inode,
        name: String::from_utf8_lossy(name).into_owned(),
    }))
}
