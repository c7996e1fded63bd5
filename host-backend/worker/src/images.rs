//! Module images by content: sent once, kept between sessions.
//!
//! An image is identified by its BLAKE3 hash. One at a time is assembled from its parts, and stored
//! only if it has the announced hash. The store is a directory of files named
//! by hash that the workers of one VM share. A worker that queries a hash thereby learns
//! what other programs of its VM use. Files appear by link(2), are hashed again when
//! read whole, and are evicted in LRU order when the directory exceeds its limits. An incomplete
//! image is an unnamed file that disappears with its worker. Without a directory, the
//! session keeps its images in memory, and so it does with each image that the directory
//! cannot take, for example because its disk is full.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use paragpu_protocol::status::Status;
use rustix::fs::{AtFlags, CWD};

use crate::error::{Outcome, fail};
use crate::session::host_account::{Charge, HostAccount};

/// Maximum number of bytes of one image.
const MAX_BYTES: u64 = 1 << 30;
/// Images of at least so many bytes are hashed by several threads, and parts of files read.
const LONG: usize = 1 << 20;
/// Maximum number of stored images of a VM.
const MAX_STORED: u64 = 16 * 1024;
/// Bytes that the smallest image counts for: a file has whole pages, and an inode.
const LEAST: u64 = 4096;
/// A session scans its VM's directory again once it has stored one part in so many of a limit.
/// Its other sessions, 64 by default, do the same, so all together store at most about as much
/// again as the limits allow.
const PARTS: u64 = 64;
/// Host memory charged for an image in memory, in addition to its bytes.
const ENTRY: u64 = 256;

/// Maximum number of VMs with cached images.
const MAX_VMS: usize = 256;

/// The hash that identifies an image.
pub(crate) type Hash = [u8; 32];

/// An image in transfer.
#[derive(Debug)]
struct Assembly {
    hash: Hash,
    size: u64,
    hasher: Box<blake3::Hasher>,
    sink: Sink,
    received: u64,
    held: Charge,
}

#[derive(Debug)]
enum Sink {
    /// An unnamed file.
    File(File),
    Memory(Vec<u8>),
}

impl Assembly {
    /// Whether its next part is this one.
    fn expects(&self, hash: &Hash, size: u64, offset: u64) -> bool {
        self.hash == *hash && self.size == size && self.received == offset
    }

    /// Continues in memory with what the file holds. A failing disk may return other bytes.
    ///
    /// # Errors
    /// `OPERATING_SYSTEM` if the file cannot be read back, `OUT_OF_MEMORY`.
    fn move_to_memory(&mut self) -> Outcome<()> {
        let Sink::File(file) = &self.sink else {
            return Ok(());
        };
        self.held.grow(ENTRY)?;
        let mut bytes = vec![0; usize::try_from(self.received).unwrap_or(usize::MAX)];
        if let Err(error) = file.read_exact_at(&mut bytes, 0) {
            return unkept(&error.to_string());
        }
        if hash_of(&bytes) != self.hasher.finalize() {
            return unkept("its file does not return what was written");
        }
        self.sink = Sink::Memory(bytes);
        Ok(())
    }
}

/// An image in memory.
#[derive(Debug)]
struct CachedImage {
    hash: Hash,
    bytes: Arc<Vec<u8>>,
    _held: Charge,
}

/// The store of images.
#[derive(Debug, Clone)]
pub struct ImageStore {
    /// The directory; `None` for memory.
    pub directory: Option<PathBuf>,
    /// Limit in bytes, not counting the newest image. An image counts for at least a page.
    pub limit: u64,
}

impl ImageStore {
    /// The store of a VM, in the directory of all VMs.
    #[must_use]
    pub fn of_vm(all: Option<&Path>, vm: &str, limit: u64) -> Self {
        let directory = all.map(|all| all.join(blake3::hash(vm.as_bytes()).to_hex().as_str()));
        let made = directory.filter(|own| {
            let made = std::fs::DirBuilder::new().mode(0o700).create(own);
            match made {
                Ok(()) => forget_vms(all, own),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    tracing::warn!(directory = %own.display(), %error, "images are not cached");
                    return false;
                }
            }
            is_usable(own)
        });
        Self {
            directory: made,
            limit,
        }
    }

    /// The store of a VM in a directory that the daemon opened. This process's user may
    /// be unable to open it by path.
    #[must_use]
    pub fn given(directory: Option<OwnedFd>, limit: u64) -> Self {
        let own = directory.map(|directory| {
            // It stays open until the process exits.
            PathBuf::from(format!("/proc/self/fd/{}", directory.into_raw_fd()))
        });
        Self {
            directory: own.filter(|own| is_usable(own)),
            limit,
        }
    }
}

/// Records when a VM's directory was last used. Returns false if that fails.
fn is_usable(own: &Path) -> bool {
    let now = File::open(own).and_then(|own| own.set_modified(SystemTime::now()));
    if let Err(error) = &now {
        tracing::warn!(directory = %shown(own).display(), %error, "images are not cached");
    }
    now.is_ok()
}

/// The directory's path for the log, also if only its descriptor was given.
fn shown(directory: &Path) -> PathBuf {
    std::fs::read_link(directory).unwrap_or_else(|_| directory.to_owned())
}

/// Removes the images of the least recently used VM if there are too many VMs.
fn forget_vms(all: Option<&Path>, own: &Path) {
    let entries = all.and_then(|all| std::fs::read_dir(all).ok());
    let folders = entries.into_iter().flatten().filter_map(|entry| {
        let entry = entry.ok()?;
        let meta = entry.metadata().ok()?;
        let path = entry.path();
        (meta.is_dir() && path != own).then_some((meta.modified().ok()?, path))
    });
    let folders: Vec<_> = folders.collect();
    if folders.len() >= MAX_VMS
        && let Some((_, oldest)) = folders.into_iter().min()
    {
        // Another worker may do the same at the same time.
        let _ = std::fs::remove_dir_all(oldest);
    }
}

impl Default for ImageStore {
    /// In memory, with a limit of 1 GiB.
    fn default() -> Self {
        Self {
            directory: None,
            limit: 1 << 30,
        }
    }
}

/// Room for images.
#[derive(Debug, Default)]
struct Room {
    bytes: u64,
    files: u64,
}

impl Room {
    /// Takes room for an image of `size` bytes. Returns false if there is too little.
    fn take(&mut self, size: u64) -> bool {
        let bytes = self.bytes.checked_sub(occupied(size));
        let files = self.files.checked_sub(1);
        let (Some(bytes), Some(files)) = (bytes, files) else {
            return false;
        };
        *self = Self { bytes, files };
        true
    }
}

/// Bytes that an image of `size` bytes counts for.
fn occupied(size: u64) -> u64 {
    size.max(LEAST)
}

/// The images of a session.
#[derive(Debug)]
pub(crate) struct Images {
    store: ImageStore,
    /// The image in transfer.
    assembling: Option<Assembly>,
    /// The images that are not in the directory, newest last.
    memory: VecDeque<CachedImage>,
    /// The directory has failed, and the log says so.
    is_warned: bool,
    /// What the session stores in the directory before it is scanned again.
    room: Room,
    account: Arc<HostAccount>,
}

impl Images {
    pub(crate) fn new(store: ImageStore, account: Arc<HostAccount>) -> Self {
        Self {
            store,
            assembling: None,
            memory: VecDeque::new(),
            is_warned: false,
            room: Room::default(),
            account,
        }
    }

    /// Whether the image is stored.
    pub(crate) fn holds(&self, hash: &Hash, size: u64) -> bool {
        let is_file = |directory: &PathBuf| {
            std::fs::metadata(path(directory, hash))
                .is_ok_and(|meta| meta.is_file() && meta.len() == size)
        };
        self.memory.iter().any(|kept| kept.hash == *hash)
            || self.store.directory.as_ref().is_some_and(is_file)
    }

    /// Adds the next part of an image; its first one takes the place of an image in transfer. A
    /// part that does not follow is dropped: those before it went to the host from which the
    /// session moved. The guest sends the image again when the host lacks it.
    pub(crate) fn write(
        &mut self,
        hash: &Hash,
        size: u64,
        offset: u64,
        part: &[u8],
    ) -> Outcome<()> {
        let mut image = match offset {
            0 => self.begin(hash, size)?,
            _ => match self
                .assembling
                .take_if(|image| image.expects(hash, size, offset))
            {
                Some(image) => image,
                None => return Ok(()),
            },
        };
        self.append(&mut image, part)?;
        if image.received == image.size {
            return self.keep(image);
        }
        self.assembling = Some(image);
        Ok(())
    }

    fn begin(&mut self, hash: &Hash, size: u64) -> Outcome<Assembly> {
        if size == 0 || size > MAX_BYTES {
            return fail(Status::INVALID_VALUE, format!("an image of {size} bytes"));
        }
        let file = self.store.directory.as_ref().map(tempfile::tempfile_in);
        let (sink, own) = match file {
            Some(Ok(file)) => (Sink::File(file), 0),
            Some(Err(error)) => {
                self.warn(&error);
                (Sink::Memory(Vec::new()), ENTRY)
            }
            None => (Sink::Memory(Vec::new()), ENTRY),
        };
        Ok(Assembly {
            held: self.account.take(own)?,
            hash: *hash,
            size,
            hasher: Box::default(),
            sink,
            received: 0,
        })
    }

    /// Logs the first error of the directory.
    fn warn(&mut self, error: &std::io::Error) {
        if !std::mem::replace(&mut self.is_warned, true) {
            let directory = self.store.directory.as_deref().unwrap_or(Path::new(""));
            tracing::warn!(
                directory = %shown(directory).display(), %error,
                "images are not cached: the directory cannot take them, so the session keeps them in memory"
            );
        }
    }

    fn append(&mut self, image: &mut Assembly, part: &[u8]) -> Outcome<()> {
        let received = image.received + part.len() as u64;
        if received > image.size {
            return fail(
                Status::INVALID_VALUE,
                format!("{received} bytes of an image of {} were sent", image.size),
            );
        }
        image.held.grow(part.len() as u64)?;
        let mut failed = None;
        if let Sink::File(file) = &mut image.sink
            && let Err(error) = file.write_all(part)
        {
            image.move_to_memory()?;
            failed = Some(error);
        }
        if let Sink::Memory(bytes) = &mut image.sink {
            bytes.extend_from_slice(part);
        }
        image.hasher.update(part);
        image.received = received;
        if let Some(error) = failed {
            self.warn(&error);
        }
        Ok(())
    }

    fn keep(&mut self, mut image: Assembly) -> Outcome<()> {
        if image.hasher.finalize() != image.hash {
            return fail(
                Status::INVALID_IMAGE,
                "the image's hash is not the announced one",
            );
        }
        if let (Sink::File(file), Some(directory)) = (&image.sink, &self.store.directory) {
            match give_name(file, &path(directory, &image.hash)) {
                Ok(()) => {
                    if !self.room.take(image.size) {
                        self.room = trim(directory, self.store.limit, &image.hash);
                    }
                }
                Err(error) => {
                    image.move_to_memory()?;
                    self.warn(&error);
                }
            }
        }
        if let Sink::Memory(bytes) = image.sink {
            self.memory.push_back(CachedImage {
                hash: image.hash,
                bytes: Arc::new(bytes),
                _held: image.held,
            });
            let size = |kept: &CachedImage| occupied(kept.bytes.len() as u64);
            let mut total: u64 = self.memory.iter().map(size).sum();
            let is_full = |total, images| total > self.store.limit || images > MAX_STORED;
            while is_full(total, self.memory.len() as u64) && self.memory.len() > 1 {
                total -= self.memory.pop_front().as_ref().map_or(0, size);
            }
        }
        Ok(())
    }

    /// Finds the image, to be charged for before it is read, or to be read by another thread.
    /// `NOT_FOUND` if the host does not have it, or has evicted it. The guest then sends it
    /// again.
    pub(crate) fn find(&self, hash: &Hash) -> Outcome<Stored> {
        if let Some(kept) = self.memory.iter().find(|kept| kept.hash == *hash) {
            return Ok(Stored {
                hash: *hash,
                size: kept.bytes.len() as u64,
                contents: Contents::Memory(Arc::clone(&kept.bytes)),
            });
        }
        let Some(directory) = &self.store.directory else {
            return missing();
        };
        let path = path(directory, hash);
        match std::fs::metadata(&path) {
            Ok(meta) => Ok(Stored {
                hash: *hash,
                size: meta.len(),
                contents: Contents::File(path),
            }),
            Err(_) => missing(),
        }
    }
}

fn missing<T>() -> Outcome<T> {
    fail(Status::NOT_FOUND, "the host does not hold this image")
}

/// A stored image that has not been read yet.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    /// Its hash.
    pub(crate) hash: Hash,
    /// Its size.
    pub(crate) size: u64,
    contents: Contents,
}

#[derive(Debug, Clone)]
enum Contents {
    File(PathBuf),
    Memory(Arc<Vec<u8>>),
}

impl Stored {
    /// Its bytes. `NOT_FOUND` as [`Images::find`].
    pub(crate) fn load(&self) -> Outcome<Arc<Vec<u8>>> {
        let path = match &self.contents {
            Contents::Memory(bytes) => return Ok(Arc::clone(bytes)),
            Contents::File(path) => path,
        };
        let mut bytes = vec![0; usize::try_from(self.size).unwrap_or(usize::MAX)];
        let read = File::open(path).and_then(|file| fill(&mut bytes, &file, 0));
        if read.is_err() {
            return missing();
        }
        if hash_of(&bytes) != self.hash {
            tracing::error!(path = %path.display(), "an image changed on disk and was removed");
            let _ = std::fs::remove_file(path);
            return missing();
        }
        // The modification time records the last use.
        if let Ok(file) = std::fs::File::open(path) {
            let _ = file.set_modified(SystemTime::now());
        }
        Ok(Arc::new(bytes))
    }

    /// At most `most` of its bytes from `offset` on. A part cannot be hashed; the guest hashes
    /// the whole.
    pub(crate) fn part(&self, offset: u64, most: usize) -> Outcome<Vec<u8>> {
        let length = self.size.saturating_sub(offset).min(most as u64);
        let mut part = vec![0; usize::try_from(length).unwrap_or(most)];
        match &self.contents {
            Contents::Memory(bytes) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                let rest = bytes.get(from..).unwrap_or_default();
                part = rest.get(..part.len()).unwrap_or(rest).to_vec();
            }
            Contents::File(path) => {
                let read = File::open(path).and_then(|file| file.read_exact_at(&mut part, offset));
                if read.is_err() {
                    return missing();
                }
            }
        }
        Ok(part)
    }
}

/// Reads a file from `offset` on, for which a program waits. Much is read by several threads,
/// because new memory takes longer than the copy.
fn fill(bytes: &mut [u8], file: &File, offset: u64) -> std::io::Result<()> {
    if bytes.len() < 2 * LONG {
        return file.read_exact_at(bytes, offset);
    }
    let (left, right) = bytes.split_at_mut(bytes.len() / 2);
    let middle = offset + left.len() as u64;
    let (left, right) = rayon_core::join(|| fill(left, file, offset), || fill(right, file, middle));
    left.and(right)
}

/// The hash of an image, for which a program waits.
fn hash_of(image: &[u8]) -> blake3::Hash {
    match image.len() < LONG {
        true => blake3::hash(image),
        false => blake3::Hasher::new().update_rayon(image).finalize(),
    }
}

fn path(directory: &Path, hash: &Hash) -> PathBuf {
    directory.join(blake3::Hash::from_bytes(*hash).to_hex().as_str())
}

fn unkept<T>(reason: &str) -> Outcome<T> {
    fail(
        Status::OPERATING_SYSTEM,
        format!("the host cannot keep the image: {reason}"),
    )
}

/// Links an unnamed file into the directory.
fn give_name(file: &File, path: &Path) -> std::io::Result<()> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    let named = rustix::fs::linkat(CWD, own, CWD, path, AtFlags::SYMLINK_FOLLOW);
    match named {
        // Another worker of the VM stored it first.
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// If the directory exceeds a limit, removes the least recently used images, never `newest`,
/// until there is room for some. Returns the room until the next scan. Another worker may do
/// the same at the same time.
fn trim(directory: &Path, limit: u64, newest: &Hash) -> Room {
    let newest = path(directory, newest);
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Room::default();
    };
    let step = Room {
        bytes: limit / PARTS,
        files: MAX_STORED / PARTS,
    };
    let is_image = |path: &Path| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    let mut images: Vec<(SystemTime, u64, PathBuf)> = entries
        .filter_map(|entry| {
            let path = Some(entry.ok()?.path()).filter(|path| is_image(path))?;
            let meta = std::fs::metadata(&path).ok()?;
            Some((meta.modified().ok()?, occupied(meta.len()), path))
        })
        .collect();
    images.sort();
    let mut total: u64 = images.iter().map(|(_, size, _)| size).sum();
    let mut files = images.len() as u64;
    if total > limit || files > MAX_STORED {
        for (_, size, path) in images {
            if total <= limit - step.bytes && files <= MAX_STORED - step.files {
                break;
            }
            if path != newest && std::fs::remove_file(&path).is_ok() {
                total -= size;
                files -= 1;
            }
        }
    }
    Room {
        bytes: limit.saturating_sub(total).min(step.bytes),
        files: MAX_STORED.saturating_sub(files).min(step.files),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Fault;
    use crate::testing::share_of_host_memory;
    use paragpu_control::account::Book;

    fn status<T: std::fmt::Debug>(outcome: Outcome<T>) -> Status {
        match outcome {
            Err(Fault::Call(error)) => error.status,
            other => panic!("{other:?}"),
        }
    }

    fn send(images: &mut Images, bytes: &[u8], part: usize) -> Outcome<Hash> {
        let hash = *blake3::hash(bytes).as_bytes();
        for (index, chunk) in bytes.chunks(part).enumerate() {
            images.write(&hash, bytes.len() as u64, (index * part) as u64, chunk)?;
        }
        Ok(hash)
    }

    fn account(limit: u64) -> Arc<HostAccount> {
        let share = share_of_host_memory(limit).unwrap();
        HostAccount::new(share.of(Book::Host), Arc::default())
    }

    fn stores(limit: u64) -> (tempfile::TempDir, [Images; 2]) {
        let directory = tempfile::tempdir().unwrap();
        let of = |directory| Images::new(ImageStore { directory, limit }, account(1 << 30));
        let both = [of(None), of(Some(directory.path().to_owned()))];
        (directory, both)
    }

    #[test]
    fn parts_become_the_image() {
        let (_directory, both) = stores(1 << 20);
        for mut images in both {
            let bytes: Vec<u8> = (0..5000_u32).map(|i| i as u8).collect();
            let hash = send(&mut images, &bytes, 999).unwrap();
            assert!(images.holds(&hash, 5000));
            let stored = images.find(&hash).unwrap();
            assert_eq!(*stored.load().unwrap(), bytes);
            for (offset, most) in [(0, 7), (4990, 100), (5000, 3), (u64::MAX, 3)] {
                let from = usize::try_from(offset).unwrap().min(bytes.len());
                let end = (from + most).min(bytes.len());
                assert_eq!(stored.part(offset, most).unwrap(), bytes[from..end]);
            }
            assert_eq!(status(images.find(&[0; 32])), Status::NOT_FOUND);
            assert!(!images.holds(&[0; 32], 1));
        }
    }

    #[test]
    fn a_large_image_is_read_whole() {
        let (_directory, both) = stores(64 << 20);
        for mut images in both {
            let bytes: Vec<u8> = (0..5 * LONG as u32 + 77)
                .map(|i| (i ^ i >> 9) as u8)
                .collect();
            let hash = send(&mut images, &bytes, LONG).unwrap();
            assert!(*images.find(&hash).unwrap().load().unwrap() == bytes);
        }
    }

    #[test]
    fn wrong_parts_are_refused() {
        let (directory, both) = stores(1 << 20);
        for mut images in both {
            let hash = *blake3::hash(b"abcdef").as_bytes();
            images.write(&hash, 6, 0, b"abc").unwrap();
            assert_eq!(
                status(images.write(&hash, 6, 3, b"defg")),
                Status::INVALID_VALUE
            );
            images.write(&hash, 6, 0, b"abc").unwrap();
            assert_eq!(
                status(images.write(&hash, 6, 3, b"dex")),
                Status::INVALID_IMAGE
            );
            assert!(!images.holds(&hash, 6));
            assert!(images.assembling.is_none());
            let huge = images.write(&hash, MAX_BYTES + 1, 0, b"a");
            assert_eq!(status(huge), Status::INVALID_VALUE);
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn parts_that_do_not_follow_are_dropped() {
        let (_directory, both) = stores(1 << 20);
        for mut images in both {
            let bytes = b"abcdef";
            let [hash, other] = [&bytes[..], &bytes[1..]].map(|of| *blake3::hash(of).as_bytes());
            // The first part went to another host.
            images.write(&hash, 6, 3, b"def").unwrap();
            assert!(!images.holds(&hash, 6) && images.assembling.is_none());
            images.write(&hash, 6, 0, b"abc").unwrap();
            images.write(&hash, 6, 4, b"ef").unwrap();
            images.write(&hash, 7, 3, b"def").unwrap();
            images.write(&other, 6, 3, b"def").unwrap();
            // A whole image does not disturb it.
            send(&mut images, &bytes[1..], 5).unwrap();
            images.write(&hash, 6, 3, b"def").unwrap();
            assert!(images.holds(&hash, 6) && images.holds(&other, 5));
            // It begins again, and the beginning of another one takes its place.
            let long: Vec<u8> = (0..100).collect();
            let of_long = *blake3::hash(&long).as_bytes();
            for _ in 0..2 {
                images.write(&of_long, 100, 0, &long[..50]).unwrap();
            }
            images.write(&hash, 6, 0, b"a").unwrap();
            images.write(&of_long, 100, 50, &long[50..]).unwrap();
            assert!(!images.holds(&of_long, 100));
            send(&mut images, &long, 50).unwrap();
            assert!(images.holds(&of_long, 100));
        }
    }

    #[test]
    fn the_least_recently_used_is_evicted() {
        let (directory, [mut memory, mut files]) = stores(2 * LEAST + 200);
        for images in [&mut memory, &mut files] {
            let hashes: Vec<Hash> = (0..3_u8)
                .map(|fill| {
                    let hash = send(images, &[fill; 900], 100).unwrap();
                    if let Some(directory) = &images.store.directory {
                        let file = std::fs::File::open(path(directory, &hash)).unwrap();
                        let age = std::time::Duration::from_secs(100 - u64::from(fill));
                        file.set_modified(SystemTime::now() - age).unwrap();
                    }
                    hash
                })
                .collect();
            let kept: Vec<bool> = hashes.iter().map(|hash| images.holds(hash, 900)).collect();
            assert_eq!(kept, [false, true, true]);
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn small_images_count_for_pages() {
        let (directory, both) = stores(100 * LEAST);
        for mut images in both {
            for fill in 0..1000_u32 {
                send(&mut images, &fill.to_le_bytes(), 4).unwrap();
            }
            assert!(images.memory.len() <= 100, "{}", images.memory.len());
        }
        let files = std::fs::read_dir(directory.path()).unwrap().count();
        assert!((90..=100).contains(&files), "{files}");
    }

    #[test]
    fn a_directory_is_scanned_once_for_many_images() {
        let (directory, [_, mut files]) = stores(128 * LEAST);
        send(&mut files, &[1; 4], 4).unwrap();
        assert_eq!(files.room.bytes, 2 * LEAST);
        // Another session's, unseen until the next scan.
        let other = directory.path().join("0".repeat(64));
        std::fs::write(&other, vec![0; 128 * LEAST as usize]).unwrap();
        for fill in 2..4 {
            send(&mut files, &[fill; 4], 4).unwrap();
            assert!(other.exists());
        }
        assert_eq!(files.room.bytes, 0);
        let old = File::open(&other).unwrap();
        old.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        send(&mut files, &[4; 4], 4).unwrap();
        assert!(!other.exists());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 4);
    }

    #[test]
    fn an_unfinished_image_has_no_name() {
        let (directory, [_, mut files]) = stores(1 << 20);
        files.write(&[1; 32], 6, 0, b"abc").unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert_eq!(files.account.held(), 3);
        drop(files.assembling.take());
        assert_eq!(files.account.held(), 0);
    }

    #[test]
    fn unfinished_images_count() {
        let (_directory, both) = stores(1 << 20);
        for mut images in both {
            images.account = account(1000 + ENTRY);
            images.write(&[1; 32], 5000, 0, &[7; 800]).unwrap();
            let full = images.write(&[1; 32], 5000, 800, &[7; 800]);
            assert_eq!(status(full), Status::OUT_OF_MEMORY);
            // It is dropped, as are images for which there is no room.
            images.write(&[2; 32], 5000, 0, &[7; 1000]).unwrap();
        }
    }

    /// Writing to the image's file fails from now on, as on a full disk.
    fn refuse_writes(image: &mut Assembly) {
        if let Sink::File(file) = &mut image.sink {
            *file = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        }
    }

    #[test]
    fn images_that_the_directory_cannot_take_are_in_memory() {
        let (directory, [_, mut files]) = stores(1 << 20);
        let bytes = [7; 900];
        // It is full when the image begins.
        files.store.directory = Some(directory.path().join("missing"));
        let first = send(&mut files, &bytes[..600], 100).unwrap();
        // It is full in the middle of an image. The first part is in the file.
        files.store.directory = Some(directory.path().to_owned());
        let second = *blake3::hash(&bytes[..700]).as_bytes();
        files.write(&second, 700, 0, &bytes[..300]).unwrap();
        let held = files.account.held();
        refuse_writes(files.assembling.as_mut().unwrap());
        files.write(&second, 700, 300, &bytes[300..700]).unwrap();
        assert_eq!(files.account.held(), held + ENTRY + 400);
        // It is full when the image gets its name.
        let third = *blake3::hash(&bytes[..800]).as_bytes();
        files.write(&third, 800, 0, &bytes[..300]).unwrap();
        files.store.directory = Some(directory.path().join("missing"));
        files.write(&third, 800, 300, &bytes[300..800]).unwrap();

        assert!(files.is_warned);
        for (hash, size) in [(first, 600), (second, 700), (third, 800)] {
            assert!(files.holds(&hash, size));
            let stored = files.find(&hash).unwrap();
            assert_eq!(*stored.load().unwrap(), bytes[..stored.size as usize]);
            assert_eq!(stored.size, size);
        }
        assert_eq!(files.account.held(), 600 + 700 + 800 + 3 * ENTRY);
        // Its other images are still found, and later ones are cached again.
        files.store.directory = Some(directory.path().to_owned());
        let cached = send(&mut files, &bytes, 900).unwrap();
        assert!(path(directory.path(), &cached).exists());
        assert!(files.holds(&cached, 900) && files.holds(&first, 600));
        assert_eq!(files.memory.len(), 3);
    }

    #[test]
    fn each_vm_has_separate_images() {
        let directory = tempfile::tempdir().unwrap();
        let of = |vm: &str| {
            let store = ImageStore::of_vm(Some(directory.path()), vm, 2000);
            Images::new(store, account(1 << 20))
        };
        let (mut one, mut other) = (of("a"), of("b"));
        let hash = send(&mut one, &[1; 900], 900).unwrap();
        assert!(!other.holds(&hash, 900));
        assert_eq!(status(other.find(&hash)), Status::NOT_FOUND);
        for fill in 2..9 {
            send(&mut other, &[fill; 900], 900).unwrap();
        }
        assert!(of("a").holds(&hash, 900));
    }

    #[test]
    fn images_of_too_many_vms_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        for vm in 0..2 * MAX_VMS {
            let _ = ImageStore::of_vm(Some(directory.path()), &vm.to_string(), 1);
        }
        let folders = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(folders, MAX_VMS);
    }

    #[test]
    fn a_changed_file_is_not_loaded() {
        let (directory, [_, mut files]) = stores(1 << 20);
        let hash = send(&mut files, b"original", 8).unwrap();
        std::fs::write(path(directory.path(), &hash), b"0riginal").unwrap();
        let stored = files.find(&hash).unwrap();
        assert_eq!(status(stored.load()), Status::NOT_FOUND);
        assert!(!files.holds(&hash, 8));
    }
}
