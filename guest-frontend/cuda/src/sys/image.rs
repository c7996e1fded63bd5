//! Images of modules. Programs pass a pointer without a length, so each image is measured
//! by its own headers.

use std::ffi::{c_int, c_uint, c_void};

use paragpu_abi::{
    CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_INFO_LOG_BUFFER,
    CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_WALL_TIME,
};
use paragpu_protocol::jit;
use paragpu_protocol::status::Status;

use super::Result;

/// The first word of an ELF file: "\x7fELF", little-endian.
const ELF: u32 = 0x464c_457f;
/// The first word of a fat binary.
const CONTAINER: u32 = 0xba55_ed50;
/// The first word of the wrapper that nvcc puts around a fat binary.
const WRAPPER: u32 = 0x4662_43b1;
/// Maximum number of bytes of an image (the limit of ImageQuery).
pub const MAX_SIZE: usize = 1 << 30;
/// Type of sections that take no space in the file.
const NOBITS: u32 = 8;

/// Whether `image` begins like an ELF file or a fat binary.
pub fn is_binary(image: &[u8]) -> bool {
    [ELF, CONTAINER]
        .map(u32::to_le_bytes)
        .iter()
        .any(|word| image.starts_with(word))
}

/// An image as a program passes it.
#[derive(Debug)]
pub struct Image<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// The fat binaries from which nvcc's linker created the image, if it lists them. They
    /// are linked if the image has no code for the device.
    pub linked: Vec<&'a [u8]>,
}

/// Version of nvcc's wrapper that lists the linked fat binaries (fatbinary_section.h).
const LINK_VERSION: u32 = 2;
/// Maximum number of fat binaries of a program.
const MAX_LINKED: usize = 1 << 16;

impl Image<'_> {
    /// Measures an image.
    ///
    /// # Safety
    /// `image` must point to a whole image.
    pub unsafe fn read(image: *const c_void) -> Result<Self> {
        // SAFETY: the caller upholds the contracts of `measure` and `linked`.
        unsafe {
            Ok(Self {
                bytes: measure(image)?,
                linked: linked(image.cast())?,
            })
        }
    }
}

/// The fat binaries that a wrapper lists.
///
/// # Safety
/// `image` points to a whole image.
unsafe fn linked<'a>(image: *const u8) -> Result<Vec<&'a [u8]>> {
    // SAFETY: the caller upholds the contract of `first_word`.
    if unsafe { first_word(image) } != Some(WRAPPER) {
        return Ok(Vec::new());
    }
    // SAFETY: a wrapper has 24 bytes: magic, version, and two pointers.
    let (version, list) = unsafe { (word(image, 4), image.add(16).cast::<*const *const c_void>()) };
    // SAFETY: as above.
    let list = unsafe { list.read_unaligned() };
    let mut found = Vec::new();
    while version == LINK_VERSION && !list.is_null() && found.len() < MAX_LINKED {
        // SAFETY: the list ends with a null pointer, which has not been reached.
        let next = unsafe { list.add(found.len()).read() };
        if next.is_null() {
            break;
        }
        // SAFETY: a wrapper lists whole fat binaries.
        found.push(unsafe { measure(next) }?);
    }
    Ok(found)
}

/// The bytes of an image: an ELF file, a fat binary, nvcc's wrapper around one, or else PTX
/// text that ends with a zero.
///
/// # Safety
/// `image` must point to a whole image.
unsafe fn measure<'a>(image: *const c_void) -> Result<&'a [u8]> {
    let mut image: *const u8 = image.cast();
    if image.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the caller upholds the contract of `first_word`.
    let mut first = unsafe { first_word(image) };
    if first == Some(WRAPPER) {
        // SAFETY: `image` is readable here, as the caller promises.
        image = unsafe { image.add(8).cast::<*const u8>().read_unaligned() };
        if image.is_null() {
            return Err(Status::INVALID_IMAGE);
        }
        // SAFETY: the caller upholds the contract of `first_word`.
        first = unsafe { first_word(image) };
        if first != Some(CONTAINER) {
            return Err(Status::INVALID_IMAGE);
        }
    }
    let length = match first {
        // SAFETY: the caller upholds the contract of `container`.
        Some(CONTAINER) => unsafe { container(image) }?,
        // SAFETY: the caller upholds the contract of `elf`.
        Some(ELF) => unsafe { elf(image) }?,
        // SAFETY: `image` is null or readable, as the caller promises.
        _ => unsafe { text(image) }?,
    };
    if length > MAX_SIZE {
        return Err(Status::INVALID_IMAGE);
    }
    // SAFETY: the caller promises an image that is as long as its headers say.
    Ok(unsafe { std::slice::from_raw_parts(image, length) })
}

/// The first word; `None` for text shorter than that.
///
/// # Safety
/// `image` is readable for four bytes, or up to a zero before.
unsafe fn first_word(image: *const u8) -> Option<u32> {
    for at in 0..3 {
        // SAFETY: `image` is readable here, as the caller promises.
        if unsafe { image.add(at).read() } == 0 {
            return None;
        }
    }
    // SAFETY: the caller upholds the contract of `word`.
    Some(unsafe { word(image, 0) })
}

/// A little-endian number of two bytes.
///
/// # Safety
/// `image` is readable up to `at + 2`.
unsafe fn half(image: *const u8, at: usize) -> usize {
    // SAFETY: `image` is readable here, as the caller promises.
    u16::from_le(unsafe { image.add(at).cast::<u16>().read_unaligned() }).into()
}

/// A little-endian number of four bytes.
///
/// # Safety
/// `image` is readable up to `at + 4`.
unsafe fn word(image: *const u8, at: usize) -> u32 {
    // SAFETY: `image` is readable here, as the caller promises.
    u32::from_le(unsafe { image.add(at).cast::<u32>().read_unaligned() })
}

/// A little-endian size of eight bytes, refused above [`MAX_SIZE`].
///
/// # Safety
/// `image` is readable up to `at + 8`.
unsafe fn long(image: *const u8, at: usize) -> Result<usize> {
    // SAFETY: `image` is readable here, as the caller promises.
    let value = u64::from_le(unsafe { image.add(at).cast::<u64>().read_unaligned() });
    match usize::try_from(value) {
        Ok(value) if value <= MAX_SIZE => Ok(value),
        _ => Err(Status::INVALID_IMAGE),
    }
}

/// The length of a fat binary: its header, which contains its own size, and its entries.
///
/// # Safety
/// `image` is readable for the 16 bytes of a fat binary's header.
unsafe fn container(image: *const u8) -> Result<usize> {
    // SAFETY: the caller upholds the contract of `half`. The caller upholds the contract of
    // `long`.
    Ok(unsafe { half(image, 6) } + unsafe { long(image, 8) }?)
}

/// The length of an ELF file: the end of its last table, segment or section.
///
/// # Safety
/// `image` points to a whole ELF file: a header, and the tables to which it refers.
unsafe fn elf(image: *const u8) -> Result<usize> {
    // Only 64-bit little-endian files are device code.
    // SAFETY: `image` is readable here, as the caller promises.
    if unsafe { image.add(4).read() } != 2 || unsafe { image.add(5).read() } != 1 {
        return Err(Status::INVALID_IMAGE);
    }
    // SAFETY: the caller upholds the contract of `long`.
    let (programs, sections) = (unsafe { long(image, 32) }?, unsafe { long(image, 40) }?);
    // SAFETY: the caller upholds the contract of `half`.
    let (program_size, program_count) = (unsafe { half(image, 54) }, unsafe { half(image, 56) });
    // SAFETY: the caller upholds the contract of `half`.
    let (section_size, section_count) = (unsafe { half(image, 58) }, unsafe { half(image, 60) });
    // SAFETY: the caller upholds the contract of `half`.
    let mut end = unsafe { half(image, 52) }
        .max(programs + program_size * program_count)
        .max(sections + section_size * section_count);
    if section_size >= 64 {
        for section in 0..section_count {
            let at = sections + section * section_size;
            // SAFETY: the caller upholds the contract of `word`.
            if unsafe { word(image, at + 4) } != NOBITS {
                // SAFETY: the caller upholds the contract of `long`.
                end = end.max(unsafe { long(image, at + 24) }? + unsafe { long(image, at + 32) }?);
            }
        }
    }
    if program_size >= 56 {
        for program in 0..program_count {
            let at = programs + program * program_size;
            // SAFETY: the caller upholds the contract of `long`.
            end = end.max(unsafe { long(image, at + 8) }? + unsafe { long(image, at + 32) }?);
        }
    }
    Ok(end)
}

/// The length of text with the zero that ends it.
///
/// # Safety
/// `image` is readable up to a zero, or for more than [`MAX_SIZE`] bytes.
unsafe fn text(image: *const u8) -> Result<usize> {
    // SAFETY: the text of an image ends with a zero, as the caller promises.
    let length = unsafe { libc::strnlen(image.cast(), MAX_SIZE + 1) };
    if length == 0 || length > MAX_SIZE {
        return Err(Status::INVALID_IMAGE);
    }
    Ok(length)
}

/// The options of a load: numbers, and the program's buffers for the loader's messages.
#[derive(Debug)]
pub struct Options {
    /// Pairs of CUjit_option and value.
    pub numbers: Vec<(u32, u32)>,
    info: Log,
    error: Log,
}

#[derive(Debug, Clone, Copy)]
struct Log {
    buffer: *mut c_void,
    size: usize,
    /// Receives the number of bytes written, without the zero at the end.
    written: *mut *mut c_void,
}

impl Log {
    const NONE: Self = Self {
        buffer: std::ptr::null_mut(),
        size: 0,
        written: std::ptr::null_mut(),
    };

    /// Writes text to the program's buffer, cut to its size and ended with a zero.
    ///
    /// # Safety
    /// `buffer` is null or writable for `size` bytes, `written` null or
    /// writable.
    unsafe fn write(&self, text: &str) {
        let mut length = 0;
        if !self.buffer.is_null() && self.size > 0 {
            length = text.len().min(self.size - 1);
            let place: *mut u8 = self.buffer.cast();
            // SAFETY: the program's buffer has room for `length` bytes and a zero.
            unsafe {
                std::ptr::copy_nonoverlapping(text.as_ptr(), place, length);
                place.add(length).write(0);
            }
        }
        if !self.written.is_null() {
            // SAFETY: the pointer is writable here, as the caller promises.
            unsafe { self.written.write(std::ptr::without_provenance_mut(length)) };
        }
    }
}

/// Refused options: an internal one, then the names, addresses and count of symbols to
/// bind, and the names and counts of kernels and variables to keep.
const UNSERVED: [c_int; 8] = [15, 17, 18, 19, 25, 26, 27, 28];

impl Options {
    /// Reads the arrays of cuModuleLoadDataEx.
    ///
    /// # Safety
    /// `number` options and values must be readable.
    pub unsafe fn read(
        number: c_uint,
        options: *const c_int,
        values: *mut *mut c_void,
    ) -> Result<Self> {
        let mut read = Self {
            numbers: Vec::new(),
            info: Log::NONE,
            error: Log::NONE,
        };
        if number == 0 {
            return Ok(read);
        }
        if options.is_null() || values.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        for at in 0..number as usize {
            // SAFETY: `options` is readable here, as the caller promises.
            let option = unsafe { options.add(at).read() };
            // SAFETY: `values` points to that many elements, as the caller promises.
            let place = unsafe { values.add(at) };
            // SAFETY: the pointer is readable here, as the caller promises.
            let value = unsafe { place.read() };
            let number = value.addr();
            match option {
                // SAFETY: `place` is writable here, as the caller promises.
                CU_JIT_WALL_TIME => unsafe { place.cast::<f32>().write(0.0) },
                CU_JIT_INFO_LOG_BUFFER => read.info.buffer = value,
                CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => {
                    read.info.size = number & 0xffff_ffff;
                    read.info.written = place;
                }
                CU_JIT_ERROR_LOG_BUFFER => read.error.buffer = value,
                CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => {
                    read.error.size = number & 0xffff_ffff;
                    read.error.written = place;
                }
                other if UNSERVED.contains(&other) => {
                    return Err(super::unsupported_use!(
                        "loading with symbols to bind",
                        "addresses of the program mean nothing to the host's linker"
                    ));
                }
                other => {
                    let option = u32::try_from(other).ok();
                    let option = option.filter(|option| jit::is_number(*option));
                    let option = option.ok_or(Status::INVALID_VALUE)?;
                    // Numbers are passed in the low half of the pointer.
                    let value = u32::try_from(number & 0xffff_ffff).unwrap_or(0);
                    read.numbers.push((option, value));
                }
            }
        }
        Ok(read)
    }

    /// Writes the loader's messages to the program's buffers.
    ///
    /// # Safety
    /// The buffers given to [`read`](Self::read) must still be writable.
    pub unsafe fn report(&self, info: &str, error: &str) {
        // SAFETY: the caller upholds the contract of `Log::write`.
        unsafe {
            self.info.write(info);
            self.error.write(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_numbers_or_buffers() {
        let read = |option: c_int, value: usize| {
            let mut value: *mut c_void = std::ptr::without_provenance_mut(value);
            // SAFETY: one option and one value.
            unsafe { Options::read(1, &raw const option, &raw mut value) }
        };
        assert_eq!(read(7, 3).unwrap().numbers, [(7, 3)]);
        assert!(read(CU_JIT_INFO_LOG_BUFFER, 8).unwrap().numbers.is_empty());
        for (option, expected) in [
            (17, Status::NOT_SUPPORTED),
            (25, Status::NOT_SUPPORTED),
            (35, Status::INVALID_VALUE),
            (-1, Status::INVALID_VALUE),
        ] {
            assert_eq!(read(option, 1).err(), Some(expected), "{option}");
        }
    }

    #[test]
    fn text_ends_with_a_zero() {
        let text = c".version 8.0";
        // SAFETY: text that ends with a zero.
        let bytes = unsafe { measure(text.as_ptr().cast()) }.unwrap();
        assert_eq!(bytes, text.to_bytes());
        // SAFETY: as above.
        let none = unsafe { measure(c"".as_ptr().cast()) };
        assert_eq!(none.err(), Some(Status::INVALID_IMAGE));
    }

    #[test]
    fn a_container_contains_its_size_and_a_wrapper_points_to_it() {
        let mut container = Vec::from(CONTAINER.to_le_bytes());
        container.extend(1u16.to_le_bytes());
        container.extend(16u16.to_le_bytes());
        container.extend(24u64.to_le_bytes());
        container.extend([7; 30]);
        // SAFETY: the 16 bytes of header and 24 of entries are there.
        let bytes = unsafe { measure(container.as_ptr().cast()) }.unwrap();
        assert_eq!(bytes.len(), 40);
        let mut wrapper = Vec::from(WRAPPER.to_le_bytes());
        wrapper.extend(1u32.to_le_bytes());
        wrapper.extend((container.as_ptr() as u64).to_le_bytes());
        wrapper.extend([0; 8]);
        // SAFETY: the wrapper is whole and points to `container`.
        let again = unsafe { measure(wrapper.as_ptr().cast()) }.unwrap();
        assert_eq!(again.as_ptr(), container.as_ptr());
        assert_eq!(again.len(), 40);
    }

    #[test]
    fn an_absurd_size_is_refused() {
        let mut container = Vec::from(CONTAINER.to_le_bytes());
        container.extend([0; 4]);
        container.extend(u64::MAX.to_le_bytes());
        // SAFETY: the header is whole, and nothing else is read if its size is refused.
        let measured = unsafe { measure(container.as_ptr().cast()) };
        assert_eq!(measured.err(), Some(Status::INVALID_IMAGE));
    }

    #[test]
    fn an_elf_file_ends_with_its_last_section() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        // SAFETY: the file of a running program is a whole ELF file.
        let bytes = unsafe { measure(own.as_ptr().cast()) }.unwrap();
        assert_eq!(bytes.len(), own.len());
    }
}
