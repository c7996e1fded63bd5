//! A bounds-checked view of an ELF object, in a file or in memory.
//!
//! Addresses are the object's own, as its program headers give them.

use object::LittleEndian as Little;
use object::U64;
use object::elf::{
    DT_GNU_HASH, DT_HASH, DT_NULL, DT_RELA, DT_RELACOUNT, DT_SONAME, DT_STRSZ, DT_STRTAB,
    DT_SYMTAB, Dyn64, ELFCLASS64, ELFDATA2LSB, ELFMAG, EM_X86_64, FileHeader64, NT_GNU_BUILD_ID,
    PF_X, PT_DYNAMIC, PT_GNU_EH_FRAME, PT_LOAD, PT_NOTE, ProgramFlags, ProgramHeader64,
    ProgramType, Rela64, SHN_UNDEF, Sym64,
};
use object::pod::{Pod, bytes_of_mut, from_bytes};

/// Segments that are looked at; a linker makes four or five.
const MAX_SEGMENTS: usize = 24;
/// Entries of the dynamic section that are looked at.
pub(crate) const MAX_DYNAMIC: u64 = 512;

/// Bytes of an object, by copying: what is read may be anything and may change.
pub trait Raw {
    /// Fills `into` from `position` on: an offset in a file, an address in a
    /// process. False if not all of it is there.
    fn read(&self, position: u64, into: &mut [u8]) -> bool;
}

impl Raw for &[u8] {
    fn read(&self, position: u64, into: &mut [u8]) -> bool {
        let bytes = usize::try_from(position)
            .ok()
            .and_then(|start| self.get(start..)?.get(..into.len()));
        match bytes {
            Some(bytes) => {
                into.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }
}

/// Where an object's bytes are.
#[derive(Debug, Clone, Copy)]
enum Layout {
    /// In a file: positions are offsets.
    File,
    /// Mapped by the loader, which added this to every address.
    Memory { base: u64 },
}

#[derive(Debug, Clone, Copy, Default)]
struct Segment {
    kind: ProgramType,
    flags: ProgramFlags,
    offset: u64,
    address: u64,
    size: u64,
}

/// An ELF object.
#[derive(Debug, Clone)]
pub struct Image<R> {
    raw: R,
    layout: Layout,
    segments: [Segment; MAX_SEGMENTS],
}

/// A build-id, as the linker wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuildId {
    bytes: [u8; 32],
    length: usize,
}

impl core::fmt::Display for BuildId {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for byte in self.bytes.iter().take(self.length) {
            write!(formatter, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// The table of function starts in `.eh_frame_hdr`: it survives `strip`.
#[derive(Debug, Clone, Copy)]
pub struct FunctionStarts {
    header: u64,
    table: u64,
    count: u32,
}

/// The dynamic symbols of an object, and its pointers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Dynamic {
    relocations: u64,
    /// Relocations of pointers into the object. Linkers sort them and put them first.
    relative: u64,
    symbols: u64,
    strings: u64,
    strings_size: u64,
    gnu_hash: u64,
    hash: u64,
    soname: Option<u64>,
}

pub(crate) fn value<T: Pod + Copy, R: Raw>(raw: &R, position: u64) -> Option<T> {
    // The largest record that is read.
    let mut bytes = [0u64; 8];
    let bytes = bytes_of_mut(&mut bytes).get_mut(..size_of::<T>())?;
    if !raw.read(position, bytes) {
        return None;
    }
    from_bytes::<T>(bytes).ok().map(|(record, _)| *record)
}

impl<R: Raw> Image<R> {
    /// An object in a file; nothing if it is none of this machine's.
    pub fn of_file(raw: R) -> Option<Self> {
        let header: FileHeader64<Little> = value(&raw, 0)?;
        let ident = header.e_ident;
        if ident.magic != ELFMAG
            || ident.class != ELFCLASS64
            || ident.data != ELFDATA2LSB
            || header.e_machine.get(Little) != EM_X86_64
            || usize::from(header.e_phentsize.get(Little)) != size_of::<ProgramHeader64<Little>>()
        {
            return None;
        }
        let (table, count) = (header.e_phoff.get(Little), header.e_phnum.get(Little));
        Some(Self::new(raw, Layout::File, table, count))
    }

    /// An object that the loader mapped: what it added to addresses, and where
    /// the program headers are in memory.
    pub fn of_memory(raw: R, base: u64, headers: u64, count: u16) -> Self {
        Self::new(raw, Layout::Memory { base }, headers, count)
    }

    fn new(raw: R, layout: Layout, table: u64, count: u16) -> Self {
        let mut segments = [Segment::default(); MAX_SEGMENTS];
        let mut places = segments.iter_mut();
        for index in 0..u64::from(count) {
            let position = index
                .checked_mul(size_of::<ProgramHeader64<Little>>() as u64)
                .and_then(|offset| table.checked_add(offset));
            let header =
                position.and_then(|place| value::<ProgramHeader64<Little>, R>(&raw, place));
            let Some(header) = header else { break };
            let kind = header.p_type.get(Little);
            if !matches!(kind, PT_LOAD | PT_DYNAMIC | PT_GNU_EH_FRAME | PT_NOTE) {
                continue;
            }
            let Some(place) = places.next() else { break };
            *place = Segment {
                kind,
                flags: header.p_flags.get(Little),
                offset: header.p_offset.get(Little),
                address: header.p_vaddr.get(Little),
                size: header.p_filesz.get(Little),
            };
        }
        Self {
            raw,
            layout,
            segments,
        }
    }

    /// The source of the object's bytes.
    pub fn raw(&self) -> &R {
        &self.raw
    }

    fn segments(&self, kind: ProgramType) -> impl Iterator<Item = &Segment> {
        self.segments
            .iter()
            .filter(move |segment| segment.kind == kind)
    }

    /// The loaded segment that has all of a range.
    fn holder(&self, address: u64, length: u64) -> Option<&Segment> {
        self.segments(PT_LOAD).find(|segment| {
            address
                .checked_sub(segment.address)
                .and_then(|skip| skip.checked_add(length))
                .is_some_and(|end| end <= segment.size)
        })
    }

    /// Where a range's bytes are, if all of it comes from the file: an offset in
    /// the file, or an address in the process.
    #[must_use]
    pub fn position(&self, address: u64, length: u64) -> Option<u64> {
        let segment = self.holder(address, length)?;
        match self.layout {
            Layout::File => segment.offset.checked_add(address - segment.address),
            Layout::Memory { base } => Some(base.wrapping_add(address)),
        }
    }

    /// Fills `into` from an address on, if all of it comes from the file.
    #[must_use]
    pub fn read(&self, address: u64, into: &mut [u8]) -> bool {
        u64::try_from(into.len())
            .ok()
            .and_then(|length| self.position(address, length))
            .is_some_and(|position| self.raw.read(position, into))
    }

    /// A record at an address.
    pub fn value<T: Pod + Copy>(&self, address: u64) -> Option<T> {
        let mut bytes = [0u64; 8];
        let bytes = bytes_of_mut(&mut bytes).get_mut(..size_of::<T>())?;
        if !self.read(address, bytes) {
            return None;
        }
        from_bytes::<T>(bytes).ok().map(|(record, _)| *record)
    }

    fn word(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)
            .then_some(u32::from_le_bytes(bytes))
    }

    /// Bytes from an address to the end of its segment, as far as they come from the file.
    #[must_use]
    pub(crate) fn left(&self, address: u64) -> u64 {
        let segment = self.holder(address, 1);
        segment.map_or(0, |segment| segment.address + segment.size - address)
    }

    /// Whether a range holds code.
    #[must_use]
    pub fn is_code(&self, address: u64, length: u64) -> bool {
        self.holder(address, length)
            .is_some_and(|segment| segment.flags.contains(PF_X))
    }

    /// The linker's build-id.
    #[must_use]
    pub fn build_id(&self) -> Option<BuildId> {
        for note in self.segments(PT_NOTE) {
            let (mut at, end) = (note.address, note.address.checked_add(note.size)?);
            while at < end {
                let (name, length) = (self.word(at)?, self.word(at.checked_add(4)?)?);
                let kind = self.word(at.checked_add(8)?)?;
                let padded = |size: u32| u64::from(size).next_multiple_of(4);
                let content = at.checked_add(12)?.checked_add(padded(name))?;
                if kind == NT_GNU_BUILD_ID.0 && name == 4 {
                    let mut id = BuildId {
                        bytes: [0; 32],
                        length: 0,
                    };
                    id.length = usize::try_from(length).ok()?.min(id.bytes.len());
                    let bytes = id.bytes.get_mut(..id.length)?;
                    return self.read(content, bytes).then_some(id);
                }
                at = content.checked_add(padded(length))?;
            }
        }
        None
    }

    /// The table of function starts.
    #[must_use]
    pub fn starts(&self) -> Option<FunctionStarts> {
        // Version, and encodings of: the frames' address, the count (u32), and
        // the table (i32, relative to the header).
        const VERSION: u8 = 1;
        const COUNT_U32: u8 = 0x03;
        const TABLE_I32_RELATIVE: u8 = 0x3b;
        let header = self.segments(PT_GNU_EH_FRAME).next()?.address;
        let mut head = [0; 4];
        if !self.read(header, &mut head) {
            return None;
        }
        let [version, frames, count, table] = head;
        if (version, count, table) != (VERSION, COUNT_U32, TABLE_I32_RELATIVE) {
            return None;
        }
        // The frames' address: four bytes (u32, i32) or eight.
        let skip = match frames & 0x0f {
            0x03 | 0x0b => 4,
            0x04 | 0x0c => 8,
            _ => return None,
        };
        let place = header.checked_add(4 + skip)?;
        Some(FunctionStarts {
            header,
            table: place.checked_add(4)?,
            count: self.word(place)?,
        })
    }

    /// The dynamic symbols.
    #[must_use]
    pub fn dynamic(&self) -> Option<Dynamic> {
        let segment = self.segments(PT_DYNAMIC).next()?;
        let mut found = Dynamic::default();
        // The loader may have added its base to addresses in memory.
        let address = |value: u64| match self.layout {
            Layout::Memory { base } if value >= base => value - base,
            _ => value,
        };
        for index in 0..MAX_DYNAMIC {
            let place = segment
                .address
                .checked_add(index * size_of::<Dyn64<Little>>() as u64)?;
            let entry: Dyn64<Little> = self.value(place)?;
            let value = entry.d_val.get(Little);
            match entry.d_tag.get(Little) {
                DT_NULL => break,
                DT_SYMTAB => found.symbols = address(value),
                DT_STRTAB => found.strings = address(value),
                DT_STRSZ => found.strings_size = value,
                DT_GNU_HASH => found.gnu_hash = address(value),
                DT_HASH => found.hash = address(value),
                DT_SONAME => found.soname = Some(value),
                DT_RELA => found.relocations = address(value),
                DT_RELACOUNT => found.relative = value,
                _ => {}
            }
        }
        (found.symbols != 0 && found.strings != 0).then_some(found)
    }
}

impl FunctionStarts {
    /// How many functions the table claims.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The address of the function at an index of the table.
    pub fn start<R: Raw>(&self, image: &Image<R>, index: u32) -> Option<u64> {
        let start = image.word(self.table.checked_add(u64::from(index).checked_mul(8)?)?)?;
        Some(
            self.header
                .wrapping_add_signed(i64::from(start.cast_signed())),
        )
    }

    /// Reads entries from an index on: pairs of start and frame. How many of
    /// them the table has.
    pub fn read<R: Raw>(&self, image: &Image<R>, index: u32, into: &mut [u8]) -> usize {
        let left = usize::try_from(self.count.saturating_sub(index)).unwrap_or(usize::MAX);
        let entries = left.min(into.len() / 8);
        let place = self.table.wrapping_add(u64::from(index) * 8);
        let complete = into
            .get_mut(..entries * 8)
            .is_some_and(|bytes| image.read(place, bytes));
        if complete { entries } else { 0 }
    }
}

impl Dynamic {
    /// The address, of this object, to which a pointer points once the object is loaded.
    pub fn pointer<R: Raw>(&self, image: &Image<R>, place: u64) -> Option<u64> {
        let value: U64<Little> = image.value(place)?;
        match (image.layout, value.get(Little)) {
            (Layout::Memory { base }, value) => value.checked_sub(base),
            // A relocation has it.
            (Layout::File, 0) => self.relocated(image, place),
            (Layout::File, value) => Some(value),
        }
    }

    /// The value of a relocation, by bisection.
    fn relocated<R: Raw>(&self, image: &Image<R>, place: u64) -> Option<u64> {
        let (mut low, mut high) = (0, self.relative);
        while low < high {
            let middle = low.midpoint(high);
            let offset = middle.checked_mul(size_of::<Rela64<Little>>() as u64)?;
            let relocation: Rela64<Little> = image.value(self.relocations.checked_add(offset)?)?;
            match relocation.r_offset.get(Little).cmp(&place) {
                core::cmp::Ordering::Equal => {
                    return Some(relocation.r_addend.get(Little).cast_unsigned());
                }
                core::cmp::Ordering::Less => low = middle + 1,
                core::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// The symbol at an index.
    pub fn symbol<R: Raw>(&self, image: &Image<R>, index: u32) -> Option<Sym64<Little>> {
        let offset = u64::from(index).checked_mul(size_of::<Sym64<Little>>() as u64)?;
        image.value(self.symbols.checked_add(offset)?)
    }

    /// The name at an offset of the strings, as far as it fits.
    pub fn string<'b, R: Raw>(
        &self,
        image: &Image<R>,
        offset: u64,
        buffer: &'b mut [u8],
    ) -> Option<&'b [u8]> {
        let left = usize::try_from(self.strings_size.checked_sub(offset)?).ok()?;
        let length = left.min(buffer.len());
        let bytes = buffer.get_mut(..length)?;
        if !image.read(self.strings.checked_add(offset)?, bytes) {
            return None;
        }
        bytes.split(|&byte| byte == 0).next()
    }

    /// The address of a symbol's name, for users that keep the object mapped.
    #[must_use]
    pub fn name_address(&self, symbol: &Sym64<Little>) -> u64 {
        self.strings
            .wrapping_add(u64::from(symbol.st_name.get(Little)))
    }

    /// The name that other objects know this one by.
    pub fn soname<'b, R: Raw>(&self, image: &Image<R>, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        self.string(image, self.soname?, buffer)
    }

    /// Whether the object takes functions of all these names from others.
    pub fn imports<R: Raw, const N: usize>(&self, image: &Image<R>, names: [&[u8]; N]) -> bool {
        let mut missing = names.map(Some);
        (1..self.count(image))
            .map_while(|index| self.symbol(image, index))
            .filter(|symbol| symbol.st_shndx.get(Little) == SHN_UNDEF)
            .any(|symbol| {
                for name in &mut missing {
                    if name.is_some_and(|name| self.is_named(image, &symbol, name)) {
                        *name = None;
                    }
                }
                missing.iter().all(Option::is_none)
            })
    }

    /// Whether the object exports a function of this name.
    pub fn exports<R: Raw>(&self, image: &Image<R>, name: &[u8]) -> bool {
        self.find(image, name).is_some()
    }

    fn is_named<R: Raw>(&self, image: &Image<R>, symbol: &Sym64<Little>, name: &[u8]) -> bool {
        let mut buffer = [0; 64];
        let Some(buffer) = buffer.get_mut(..=name.len()) else {
            return false;
        };
        self.string(image, u64::from(symbol.st_name.get(Little)), buffer) == Some(name)
    }

    /// A symbol that the object defines, by its hash table.
    pub fn find<R: Raw>(&self, image: &Image<R>, name: &[u8]) -> Option<Sym64<Little>> {
        if self.gnu_hash == 0 {
            return (1..self.count(image))
                .map_while(|index| self.symbol(image, index))
                .find(|symbol| {
                    symbol.st_shndx.get(Little) != SHN_UNDEF && self.is_named(image, symbol, name)
                });
        }
        let table = GnuHash::read(self.gnu_hash, image)?;
        let hash = name.iter().fold(5381u32, |hash, &byte| {
            hash.wrapping_mul(33).wrapping_add(u32::from(byte))
        });
        let mut index = table.bucket(image, hash.checked_rem(table.buckets)?)?;
        if index == 0 {
            return None;
        }
        loop {
            let link = table.link(image, index)?;
            if link | 1 == hash | 1 {
                let symbol = self.symbol(image, index)?;
                if symbol.st_shndx.get(Little) != SHN_UNDEF && self.is_named(image, &symbol, name) {
                    return Some(symbol);
                }
            }
            if link & 1 != 0 {
                return None;
            }
            index = index.checked_add(1)?;
        }
    }

    /// How many symbols there are.
    pub fn count<R: Raw>(&self, image: &Image<R>) -> u32 {
        if self.hash != 0 {
            return self
                .hash
                .checked_add(4)
                .and_then(|place| image.word(place))
                .unwrap_or(0);
        }
        let counted = GnuHash::read(self.gnu_hash, image).and_then(|table| table.symbols(image));
        counted.unwrap_or_else(|| {
            // Nothing is hashed where nothing is exported. Linkers lay the
            // strings behind the symbols.
            let bytes = self.strings.saturating_sub(self.symbols);
            u32::try_from(bytes / size_of::<Sym64<Little>>() as u64).unwrap_or(0)
        })
    }
}

/// The head of a GNU hash table.
struct GnuHash {
    buckets: u32,
    first: u32,
    table: u64,
}

impl GnuHash {
    fn read<R: Raw>(place: u64, image: &Image<R>) -> Option<Self> {
        let word = |index: u64| image.word(place.checked_add(index * 4)?);
        let bloom = u64::from(word(2)?) * 8;
        Some(Self {
            buckets: word(0)?,
            first: word(1)?,
            table: place.checked_add(16)?.checked_add(bloom)?,
        })
    }

    fn bucket<R: Raw>(&self, image: &Image<R>, index: u32) -> Option<u32> {
        image.word(self.table.checked_add(u64::from(index) * 4)?)
    }

    fn link<R: Raw>(&self, image: &Image<R>, symbol: u32) -> Option<u32> {
        let index = u64::from(symbol.checked_sub(self.first)?);
        let skipped = u64::from(self.buckets).checked_add(index)?;
        image.word(self.table.checked_add(skipped.checked_mul(4)?)?)
    }

    /// One more than the last symbol of the fullest chain; nothing if there is
    /// none.
    fn symbols<R: Raw>(&self, image: &Image<R>) -> Option<u32> {
        let mut last = 0;
        for index in 0..self.buckets {
            last = last.max(self.bucket(image, index)?);
        }
        if last == 0 {
            return None;
        }
        while self.link(image, last)? & 1 == 0 {
            last = last.checked_add(1)?;
        }
        last.checked_add(1)
    }
}
