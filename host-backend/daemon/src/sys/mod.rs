//! What the operating system offers only by unsafe calls.
#![allow(unsafe_code)]

use std::io;

/// Makes every program that this process starts from now on run without
/// address-space randomisation (personality(2), `ADDR_NO_RANDOMIZE`), so that
/// workers load module globals at equal addresses (D5).
///
/// # Errors
/// What the system says; a container's filter may forbid it.
pub fn fix_addresses_of_children() -> io::Result<()> {
    const QUERY: libc::c_ulong = 0xffff_ffff;
    // SAFETY: personality reads and writes a word of the task and no memory.
    let current = unsafe { libc::personality(QUERY) };
    if current < 0 {
        return Err(io::Error::last_os_error());
    }
    let wanted = libc::c_ulong::from(current.cast_unsigned())
        | libc::c_ulong::from(libc::ADDR_NO_RANDOMIZE.cast_unsigned());
    // SAFETY: as above.
    if unsafe { libc::personality(wanted) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Keeps descriptors that were inherited by accident from reaching children:
/// marks all but the standard three close-on-exec.
///
/// # Errors
/// What the system says.
pub fn close_inherited_on_exec() -> io::Result<()> {
    // SAFETY: CLOSE_RANGE_CLOEXEC closes nothing; it sets a flag that every
    // descriptor opened by this program has anyway.
    let result = unsafe {
        libc::close_range(
            3,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC.cast_signed(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
