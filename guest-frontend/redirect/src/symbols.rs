//! Runtimes that still have symbols: static ones that were not stripped, and
//! NVIDIA's shared library under whatever name.

use object::LittleEndian as Little;
use object::elf::{FileHeader64, SHN_UNDEF, SHT_SYMTAB, STT_FUNC, SectionHeader64, Sym64};
use object::pod::{Pod, bytes_of_mut, from_bytes};

use crate::facts::Facts;
use crate::image::{Dynamic, Image, Raw};
use crate::{Interface, is_public};

/// Exported by paragpu's own runtime, and by no other.
pub const OWN_MARKER: &[u8] = b"paragpu_runtime_interface";
/// The first function that nvcc's code calls; every runtime has it.
const REGISTER: &[u8] = b"__cudaRegisterFatBinary";
/// CUDA 12 alone has it.
pub(crate) const ONLY_12: &[u8] = b"cudaGetDeviceProperties_v2";
/// Gone since CUDA 13.
pub(crate) const BEFORE_13: &[u8] = b"cudaThreadSynchronize";
/// Functions that a symbol table must name to be believed; every runtime from
/// 12.0 on has more.
const MIN_FUNCTIONS: usize = 300;
/// A static runtime's code is smaller.
pub(crate) const LARGEST: u64 = 4 << 20;
/// Every entry starts at a multiple of this, so it has that much room.
const ALIGNMENT: u64 = 16;
/// Sections that are looked at.
const MAX_SECTIONS: u16 = 4096;
/// Bytes of a name that are read; the runtime's longest has fewer.
pub(crate) const NAME: usize = 96;

/// A public function of a runtime.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'b> {
    /// Its name.
    pub name: &'b [u8],
    /// Where the name lies: an address of the object (shared runtime), or an
    /// offset in the file (static runtime).
    pub name_place: u64,
    /// Its address.
    pub address: u64,
}

/// A runtime that other objects use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shared {
    /// paragpu's.
    Ours,
    /// NVIDIA's, with this interface if it is served.
    Nvidias(Option<Interface>),
}

/// Whether an object exports a runtime, and whose.
pub fn shared<R: Raw>(image: &Image<R>, dynamic: &Dynamic) -> Option<Shared> {
    if !dynamic.exports(image, REGISTER) {
        return None;
    }
    if dynamic.exports(image, OWN_MARKER) {
        return Some(Shared::Ours);
    }
    let mut buffer = [0; NAME];
    let soname = dynamic.soname(image, &mut buffer).unwrap_or_default();
    let interface = if soname.ends_with(b".so.13") {
        Some(Interface::Cuda13)
    } else if soname.ends_with(b".so.12") {
        Some(Interface::Cuda12)
    } else {
        interface(
            dynamic.exports(image, ONLY_12),
            dynamic.exports(image, BEFORE_13),
        )
    };
    Some(Shared::Nvidias(interface))
}

/// The interface that telling functions belong to.
pub(crate) fn interface(only_12: bool, before_13: bool) -> Option<Interface> {
    match (only_12, before_13) {
        (true, _) => Some(Interface::Cuda12),
        (false, false) => Some(Interface::Cuda13),
        (false, true) => None,
    }
}

/// Calls `found` for each public function that a shared runtime exports.
pub fn shared_entries<R: Raw>(
    image: &Image<R>,
    dynamic: &Dynamic,
    mut found: impl FnMut(Entry<'_>),
) {
    for index in 1..dynamic.count(image) {
        let Some(symbol) = dynamic.symbol(image, index) else {
            return;
        };
        let address = symbol.st_value.get(Little);
        if is_function(&symbol) && is_entry(image, address) {
            let mut buffer = [0; NAME];
            let offset = u64::from(symbol.st_name.get(Little));
            let name = dynamic
                .string(image, offset, &mut buffer)
                .unwrap_or_default();
            if is_public(name) {
                let name_place = dynamic.name_address(&symbol);
                found(Entry {
                    name,
                    name_place,
                    address,
                });
            }
        }
    }
}

fn is_function(symbol: &Sym64<Little>) -> bool {
    symbol.st_info.st_type() == STT_FUNC && symbol.st_shndx.get(Little) != SHN_UNDEF
}

pub(crate) fn is_entry<R: Raw>(image: &Image<R>, address: u64) -> bool {
    address.is_multiple_of(ALIGNMENT) && image.is_code(address, ALIGNMENT)
}

/// The symbol table of a file.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    symbols: u64,
    count: u64,
    strings: u64,
    strings_size: u64,
}

/// A static runtime that a symbol table names.
#[derive(Debug, Clone, Copy)]
pub struct Named {
    table: Table,
    low: u64,
    high: u64,
    /// Its interface, if it is served.
    pub interface: Option<Interface>,
}

fn record<T: Pod + Copy, R: Raw>(raw: &R, position: u64) -> Option<T> {
    let mut bytes = [0u64; 8];
    let bytes = bytes_of_mut(&mut bytes).get_mut(..size_of::<T>())?;
    if !raw.read(position, bytes) {
        return None;
    }
    from_bytes::<T>(bytes).ok().map(|(record, _)| *record)
}

/// A section of a file by its number.
fn section<R: Raw>(
    raw: &R,
    header: &FileHeader64<Little>,
    index: u64,
) -> Option<SectionHeader64<Little>> {
    let offset = index.checked_mul(size_of::<SectionHeader64<Little>>() as u64)?;
    record(raw, header.e_shoff.get(Little).checked_add(offset)?)
}

/// All sections of a file but the first, which is none.
fn sections<R: Raw>(
    raw: &R,
    header: &FileHeader64<Little>,
) -> impl Iterator<Item = SectionHeader64<Little>> {
    let count = header.e_shnum.get(Little).min(MAX_SECTIONS);
    (1..u64::from(count)).map_while(|index| section(raw, header, index))
}

/// Where a section of this name is in a file: its offset and size.
pub fn section_named<R: Raw>(raw: &R, name: &[u8]) -> Option<(u64, u64)> {
    let header: FileHeader64<Little> = record(raw, 0)?;
    let names = section(raw, &header, u64::from(header.e_shstrndx.get(Little).0))?;
    let mut buffer = [0; 32];
    let buffer = buffer.get_mut(..name.len() + 1)?;
    let found = sections(raw, &header).find(|section| {
        let at = names.sh_offset.get(Little);
        at.checked_add(u64::from(section.sh_name.get(Little)))
            .is_some_and(|at| raw.read(at, buffer))
            && buffer.strip_suffix(&[0]) == Some(name)
    })?;
    Some((found.sh_offset.get(Little), found.sh_size.get(Little)))
}

impl Table {
    /// The symbol table of a file, unless it was stripped.
    pub fn of_file<R: Raw>(raw: &R) -> Option<Self> {
        let header: FileHeader64<Little> = record(raw, 0)?;
        let symbols =
            sections(raw, &header).find(|section| section.sh_type.get(Little) == SHT_SYMTAB)?;
        let strings = section(raw, &header, u64::from(symbols.sh_link.get(Little)))?;
        Some(Self {
            symbols: symbols.sh_offset.get(Little),
            count: symbols.sh_size.get(Little) / size_of::<Sym64<Little>>() as u64,
            strings: strings.sh_offset.get(Little),
            strings_size: strings.sh_size.get(Little),
        })
    }

    /// Calls `found` for each public function of a runtime that it names.
    fn functions<R: Raw>(&self, image: &Image<R>, mut found: impl FnMut(Entry<'_>)) {
        for index in 0..self.count {
            let position = index
                .checked_mul(size_of::<Sym64<Little>>() as u64)
                .and_then(|offset| self.symbols.checked_add(offset));
            let symbol = position.and_then(|at| record::<Sym64<Little>, R>(image.raw(), at));
            let Some(symbol) = symbol else { return };
            let address = symbol.st_value.get(Little);
            if !is_function(&symbol) || !is_entry(image, address) {
                continue;
            }
            let offset = u64::from(symbol.st_name.get(Little));
            let left = self.strings_size.saturating_sub(offset);
            let mut buffer = [0; NAME];
            let length = usize::try_from(left).unwrap_or(NAME).min(NAME);
            let (Some(bytes), Some(name_place)) =
                (buffer.get_mut(..length), self.strings.checked_add(offset))
            else {
                continue;
            };
            if !image.raw().read(name_place, bytes) {
                continue;
            }
            let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
            if is_public(name) {
                found(Entry {
                    name,
                    name_place,
                    address,
                });
            }
        }
    }

    /// The static runtime that the table names. A table that names too few of
    /// its functions, or has them far from each other, is not believed.
    pub fn runtime<R: Raw>(&self, image: &Image<R>, facts: &Facts<'_>) -> Option<Named> {
        let (mut low, mut high, mut count) = (u64::MAX, 0, 0usize);
        let (mut only_12, mut before_13, mut register) = (false, false, 0usize);
        self.functions(image, |entry| {
            if facts.knows(entry.name) {
                low = low.min(entry.address);
                high = high.max(entry.address);
                count += 1;
                only_12 |= entry.name == ONLY_12;
                before_13 |= entry.name == BEFORE_13;
                register += usize::from(entry.name == REGISTER);
            }
        });
        let believed = count >= MIN_FUNCTIONS && register == 1 && high.checked_sub(low)? <= LARGEST;
        believed.then_some(Named {
            table: *self,
            low,
            high,
            interface: interface(only_12, before_13),
        })
    }
}

impl Named {
    /// Calls `found` for each of its public functions, those that are newer
    /// than all facts included.
    pub fn entries<R: Raw>(&self, image: &Image<R>, mut found: impl FnMut(Entry<'_>)) {
        self.table.functions(image, |entry| {
            if (self.low..=self.high).contains(&entry.address) {
                found(entry);
            }
        });
    }
}
