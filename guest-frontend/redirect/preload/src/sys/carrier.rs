//! Carriers: runtimes inside objects, with the records of their functions.

use core::mem::size_of;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use paragpu_redirect::Interface;

use super::entry::Entry;
use super::memory::{self, File};

/// Maximum length of a path in messages.
const PATH: usize = 200;

/// One runtime inside an object. It is the head of a mapping that also contains its
/// entries, and lives as long as the object.
pub struct Carrier {
    /// The next runtime of the same object.
    pub next: *mut Self,
    /// The interface of its functions; `None` if it is not served.
    pub interface: Option<Interface>,
    /// Identifies its last errors.
    pub number: u32,
    count: usize,
    capacity: usize,
    length: usize,
    /// The file that contains the names of entries.
    file: Option<File>,
    path: [u8; PATH],
    path_length: usize,
}

impl Carrier {
    /// Allocates a carrier with room for entries; null if there is no memory.
    pub fn new(
        path: &[u8],
        interface: Option<Interface>,
        capacity: usize,
        file: Option<File>,
    ) -> *mut Self {
        static NUMBERS: AtomicU32 = AtomicU32::new(1);
        let length = size_of::<Self>() + capacity * size_of::<Entry>();
        let place = memory::pages(length).cast::<Self>();
        if place.is_null() {
            return place;
        }
        // The end of a long path is more informative than its start.
        let end = path
            .get(path.len().saturating_sub(PATH)..)
            .unwrap_or_default();
        let mut kept = [0; PATH];
        for (to, from) in kept.iter_mut().zip(end) {
            *to = *from;
        }
        let carrier = Self {
            next: ptr::null_mut(),
            interface,
            // Zero means a caller without a carrier.
            number: NUMBERS.fetch_add(1, Ordering::Relaxed).max(1),
            count: 0,
            capacity,
            length,
            file,
            path: kept,
            path_length: end.len(),
        };
        // SAFETY: the mapping is large enough, aligned and exclusively owned.
        unsafe { place.write(carrier) };
        place
    }

    /// The object's path.
    pub fn path(&self) -> &[u8] {
        self.path.get(..self.path_length).unwrap_or_default()
    }

    /// Adds an entry; false if there is no room.
    ///
    /// # Safety
    /// `carrier` came from [`new`](Self::new), `name` has `name_length` bytes
    /// for as long as the object is loaded, and `address` is a function of it.
    pub unsafe fn add(
        carrier: *mut Self,
        name: *const u8,
        name_length: usize,
        address: usize,
    ) -> bool {
        // SAFETY: the caller upholds this; entries follow the head.
        unsafe {
            if (*carrier).count == (*carrier).capacity {
                return false;
            }
            let place = Self::first(carrier).add((*carrier).count);
            place.write(Entry::new(carrier, name, name_length, address));
            (*carrier).count += 1;
        }
        true
    }

    /// The first entry after the head.
    ///
    /// # Safety
    /// `carrier` heads an allocation with room for an entry.
    unsafe fn first(carrier: *mut Self) -> *mut Entry {
        // SAFETY: entries follow the head; its size is a multiple of their
        // alignment.
        unsafe { carrier.add(1).cast() }
    }

    /// The entries.
    ///
    /// # Safety
    /// `carrier` came from [`new`](Self::new) and is not released.
    pub unsafe fn entries<'a>(carrier: *mut Self) -> &'a [Entry] {
        // SAFETY: the caller upholds this; all entries up to the count are initialized.
        unsafe { core::slice::from_raw_parts(Self::first(carrier), (*carrier).count) }
    }

    /// Frees a list of carriers.
    ///
    /// # Safety
    /// The object that carried them is unloaded, or was never patched.
    pub unsafe fn release(mut carrier: *mut Self) {
        while !carrier.is_null() {
            // SAFETY: it came from `new`, and nothing jumps through it any more.
            unsafe {
                let next = (*carrier).next;
                if let Some(file) = (*carrier).file {
                    file.release();
                }
                memory::release(carrier.cast(), (*carrier).length);
                carrier = next;
            }
        }
    }
}

const _: () = assert!(size_of::<Carrier>().is_multiple_of(align_of::<Entry>()));
