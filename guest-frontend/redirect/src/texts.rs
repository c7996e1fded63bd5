//! Finds a static runtime of any build by the names to which its functions refer.
//!
//! The runtime tells profilers which function a program calls. So each public function refers to
//! the text of its own name, or to a pointer to it:
//!
//! ```text
//! code   __cudaRegister… │ internal ones │ cudaDeviceReset │ cudaDeviceSynchronize │ …
//!                                                 └────────┼──────────────────┐
//!                                               ┌──────────┘                  │
//! texts                             … cudaDeviceSynchronize 0 0 cudaDeviceReset 0 …
//! ```
//!
//! The registration functions do not; [`facts`](crate::facts) has their code, which few releases
//! change. All other public functions follow each other, and compilers lay out the texts of one
//! source file in the opposite order.
//!
//! Nothing is disassembled: any four bytes of a function may be the distance to a text, and by
//! chance some others are. The order of the texts decides which one is meant. A runtime must have
//! all functions of the oldest release with its registration functions, each once. Otherwise it is
//! not believed.

use crate::Interface;
use crate::facts::{Build, Facts};
use crate::find::{self, Match};
use crate::image::{Dynamic, FunctionStarts, Image, Raw};
use crate::is_public;
use crate::symbols::{BEFORE_13, Entry, LARGEST, NAME, ONLY_12, interface, is_entry};

/// Places with known registration functions that are looked at, so that every search ends soon.
const MAX_PLACES: usize = 8;
/// Most functions that refer to their names; 13.5 has 442.
const MAX_FUNCTIONS: usize = 640;
/// Most functions of a release, for a set of them.
const MAX_NAMES: usize = 768;
/// Fewer consecutive functions are not the public ones.
const MIN_FUNCTIONS: usize = 300;
/// Most functions from the registration functions to the last public one.
const MAX_DISTANCE: u32 = 4096;
/// Bytes of a function that are searched; the longest has fewer.
const CODE: usize = 4096;
/// Texts of which a function may contain the distance.
const MAX_TEXTS: usize = 8;
/// Most zeros between two texts, which are aligned to 32 bytes.
const MAX_GAP: usize = 32;

/// A runtime.
#[derive(Debug)]
pub struct Runtime<'a> {
    registration: Match<'a>,
    /// Its interface, if it is served.
    pub interface: Option<Interface>,
    /// Index of the first function that refers to its name, and the addresses of the names of
    /// this one and the next ones.
    first: u32,
    texts: [u64; MAX_FUNCTIONS],
    count: usize,
}

/// The address of a name, and its length without the zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Text {
    address: u64,
    length: u64,
}

/// The texts to which a function may refer.
#[derive(Default)]
struct Texts {
    list: [Text; MAX_TEXTS],
    count: usize,
}

/// Calls `found` for each runtime.
pub fn search<'a, R: Raw>(
    image: &Image<R>,
    facts: &Facts<'a>,
    mut found: impl FnMut(&Runtime<'a>),
) {
    let (Some(starts), Some(dynamic)) = (image.starts(), image.dynamic()) else {
        return;
    };
    let object = Object {
        image,
        starts,
        dynamic,
    };
    let mut places = 0;
    find::search(image, facts.registrations(), |place| {
        places += usize::from(place.exact);
        if place.exact
            && places <= MAX_PLACES
            && let Some(mut runtime) = object.behind(place)
            && runtime.is_complete(image, facts)
        {
            found(&runtime);
        }
    });
}

impl<'a> Runtime<'a> {
    /// How many public functions it has.
    #[must_use]
    pub fn count(&self, facts: &Facts<'a>) -> usize {
        self.registration(facts).count() + self.count
    }

    /// Name and address of the registration functions.
    pub fn registration(&self, facts: &Facts<'a>) -> impl Iterator<Item = (&'a str, u64)> {
        let Match { block, build, .. } = self.registration;
        let entries = facts.entries(&build);
        entries.map(move |(name, offset)| (name, block.wrapping_add(u64::from(offset))))
    }

    /// Calls `found` for each of the other public functions.
    pub fn functions<R: Raw>(&self, image: &Image<R>, mut found: impl FnMut(Entry<'_>)) {
        let Some(starts) = image.starts() else { return };
        for (index, &name_place) in (self.first..).zip(self.texts()) {
            let mut buffer = [0; NAME];
            if let Some(name) = name(image, name_place, &mut buffer)
                && let Some(address) = starts.start(image, index)
            {
                found(Entry {
                    name,
                    name_place,
                    address,
                });
            }
        }
    }

    fn texts(&self) -> &[u64] {
        self.texts.get(..self.count).unwrap_or_default()
    }

    /// Whether each function of the oldest release with these registration functions is
    /// there, once: releases of one interface only add functions. Notes the interface.
    fn is_complete<R: Raw>(&mut self, image: &Image<R>, facts: &Facts<'a>) -> bool {
        let oldest = self.registration.build.oldest();
        let Some(oldest) = facts.builds().find(|build| build.oldest() == oldest) else {
            return false;
        };
        let mut names = Names::default();
        let (mut only_12, mut before_13, mut sound) = (false, false, true);
        for (name, _) in self.registration(facts) {
            sound &= names.add(name.as_bytes(), oldest, facts);
        }
        self.functions(image, |entry| {
            sound &= names.add(entry.name, oldest, facts);
            only_12 |= entry.name == ONLY_12;
            before_13 |= entry.name == BEFORE_13;
        });
        self.interface = interface(only_12, before_13);
        sound && names.count == facts.entries(oldest).count()
    }

    /// Adds the next function's text; false if there is no room, or if another has it.
    fn add(&mut self, text: u64) -> bool {
        if self.texts().contains(&text) {
            return false;
        }
        let Some(place) = self.texts.get_mut(self.count) else {
            return false;
        };
        *place = text;
        self.count += 1;
        true
    }
}

/// Names of a build that were met.
struct Names {
    met: [bool; MAX_NAMES],
    count: usize,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            met: [false; MAX_NAMES],
            count: 0,
        }
    }
}

impl Names {
    /// Adds a name; false if it was met before. Names that the build lacks are newer.
    fn add(&mut self, name: &[u8], build: &Build<'_>, facts: &Facts<'_>) -> bool {
        let mut entries = facts.entries(build);
        let Some(index) = entries.position(|(known, _)| known.as_bytes() == name) else {
            return true;
        };
        let Some(met) = self.met.get_mut(index).filter(|met| !**met) else {
            return false;
        };
        *met = true;
        self.count += 1;
        true
    }
}

/// An object that is searched.
struct Object<'i, R> {
    image: &'i Image<R>,
    starts: FunctionStarts,
    dynamic: Dynamic,
}

impl<R: Raw> Object<'_, R> {
    /// The first long run of functions behind the registration functions that refer to their
    /// names.
    fn behind<'a>(&self, place: Match<'a>) -> Option<Runtime<'a>> {
        let functions = u32::try_from(place.build.window().len()).ok()?;
        let begin = place.index.checked_add(functions)?;
        let end = begin.checked_add(MAX_DISTANCE)?.min(self.starts.count());
        let mut run = Runtime {
            registration: place,
            interface: None,
            first: begin,
            texts: [0; MAX_FUNCTIONS],
            count: 0,
        };
        let mut texts = self.texts(begin, place.block);
        for index in begin..end {
            let next = self.texts(index.checked_add(1)?, place.block);
            let chosen = self.choose(run.texts().last().copied(), &texts, &next);
            if chosen.is_none_or(|text| !run.add(text)) {
                if run.count >= MIN_FUNCTIONS {
                    break;
                }
                (run.first, run.count) = (index.checked_add(1)?, 0);
            }
            texts = next;
        }
        (run.count >= MIN_FUNCTIONS).then_some(run)
    }

    /// The text of a function's own name: the one before its predecessor's, or, for the first
    /// function of a source file, the one behind its successor's.
    fn choose(&self, previous: Option<u64>, texts: &Texts, next: &Texts) -> Option<u64> {
        let own = |is_own: &dyn Fn(&Text) -> bool| {
            let mut owns = texts.list().iter().filter(|text| is_own(text));
            match (owns.next(), owns.next()) {
                (Some(text), None) => Some(text.address),
                _ => None,
            }
        };
        let follows = |text: &Text| previous.is_some_and(|previous| self.adjoin(text, previous));
        let is_followed = |text: &Text| {
            let mut next = next.list().iter();
            next.any(|next| self.adjoin(next, text.address))
        };
        own(&follows).or_else(|| own(&is_followed))
    }

    /// Whether there are only zeros between two texts.
    fn adjoin(&self, below: &Text, above: u64) -> bool {
        let end = below.address.wrapping_add(below.length);
        let mut gap = [0; MAX_GAP];
        let length = usize::try_from(above.wrapping_sub(end)).unwrap_or(usize::MAX);
        let gap = gap.get_mut(..length).filter(|gap| !gap.is_empty());
        gap.is_some_and(|gap| self.image.read(end, gap) && gap.iter().all(|&byte| byte == 0))
    }

    /// The texts to which the function at an index may refer.
    fn texts(&self, index: u32, block: u64) -> Texts {
        self.texts_of(index, block).unwrap_or_default()
    }

    fn texts_of(&self, index: u32, block: u64) -> Option<Texts> {
        if index >= self.starts.count() {
            return None;
        }
        let start = self.starts.start(self.image, index)?;
        let mut length = self.image.left(start);
        let next = index.checked_add(1)?;
        if next < self.starts.count() {
            length = length.min(self.starts.start(self.image, next)?.checked_sub(start)?);
        }
        if !is_entry(self.image, start) || start.checked_sub(block)? > LARGEST {
            return None;
        }
        let mut code = [0; CODE];
        let length = usize::try_from(length).unwrap_or(CODE).min(CODE);
        let code = code.get_mut(..length)?;
        if !self.image.read(start, code) {
            return None;
        }
        let mut texts = Texts::default();
        for (offset, distance) in (4u64..).zip(code.windows(4)) {
            let distance = i32::from_le_bytes(*distance.first_chunk()?);
            let place = start
                .wrapping_add(offset)
                .wrapping_add_signed(distance.into());
            if let Some(text) = self.text(place) {
                texts.add(text);
            }
        }
        Some(texts)
    }

    /// The public name at a place, or behind the pointer there.
    fn text(&self, place: u64) -> Option<Text> {
        let at = |address| {
            let mut buffer = [0; NAME];
            let length = name(self.image, address, &mut buffer)?.len();
            let length = u64::try_from(length).ok()?;
            Some(Text { address, length })
        };
        at(place).or_else(|| {
            let is_aligned = place.is_multiple_of(8);
            at(is_aligned.then(|| self.dynamic.pointer(self.image, place))??)
        })
    }
}

impl Texts {
    fn list(&self) -> &[Text] {
        self.list.get(..self.count).unwrap_or_default()
    }

    fn add(&mut self, text: Text) {
        if !self.list().contains(&text)
            && let Some(place) = self.list.get_mut(self.count)
        {
            *place = text;
            self.count += 1;
        }
    }
}

/// The public name at an address.
fn name<'b, R: Raw>(
    image: &Image<R>,
    address: u64,
    buffer: &'b mut [u8; NAME],
) -> Option<&'b [u8]> {
    // Most places have none.
    let (head, _) = buffer.split_at_mut_checked(8)?;
    if !image.read(address, head) || !is_public(head) {
        return None;
    }
    let length = usize::try_from(image.left(address)).unwrap_or(NAME);
    let bytes = buffer.get_mut(..length.min(NAME))?;
    if !image.read(address, bytes) {
        return None;
    }
    let end = bytes.iter().position(|&byte| byte == 0)?;
    let name = bytes.get(..end)?;
    let is_name = name
        .iter()
        .all(|&byte| byte == b'_' || byte.is_ascii_alphanumeric());
    is_name.then_some(name)
}
