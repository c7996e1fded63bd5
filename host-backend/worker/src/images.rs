//! Module images by content: sent once, kept between sessions.
//!
//! An image is named by its BLAKE3 hash. Parts that arrive are assembled in
//! order; the whole is kept only if its hash is the announced one. The store
//! is a directory of files named by hash, which workers share: files appear
//! by renaming, are hashed again when read, and the least recently used go
//! when the directory grows past its bound. Without a directory, the session
//! keeps its images in memory.

use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use paragpu_protocol::status::Status;

use crate::error::{Outcome, fail};

/// Most bytes of one image.
const MOST_BYTES: u64 = 1 << 30;
/// Most images that one session sends at once.
const MOST_AT_ONCE: usize = 8;

/// How the file of an unfinished image is called.
const PARTIAL: &str = ".partial-";

/// The hash that names an image.
pub(crate) type Hash = [u8; 32];

/// An image on its way.
#[derive(Debug)]
struct Assembly {
    hash: Hash,
    size: u64,
    hasher: Box<blake3::Hasher>,
    sink: Sink,
    received: u64,
}

#[derive(Debug)]
enum Sink {
    File(tempfile::NamedTempFile),
    Memory(Vec<u8>),
}

/// Where images are kept.
#[derive(Debug, Clone)]
pub struct ImageStore {
    /// The directory; `None`: in memory.
    pub directory: Option<PathBuf>,
    /// Most bytes kept, the newest image aside.
    pub limit: u64,
}

impl Default for ImageStore {
    /// In memory, up to 1 GiB.
    fn default() -> Self {
        Self {
            directory: None,
            limit: 1 << 30,
        }
    }
}

/// The images of a session.
#[derive(Debug)]
pub(crate) struct Images {
    store: ImageStore,
    assembling: Vec<Assembly>,
    /// Newest last; used where there is no directory.
    memory: VecDeque<(Hash, Arc<Vec<u8>>)>,
}

impl Images {
    pub(crate) fn new(store: ImageStore) -> Self {
        Self {
            store,
            assembling: Vec::new(),
            memory: VecDeque::new(),
        }
    }

    /// Is the image here?
    pub(crate) fn holds(&self, hash: &Hash, size: u64) -> bool {
        match &self.store.directory {
            Some(directory) => std::fs::metadata(path(directory, hash))
                .is_ok_and(|meta| meta.is_file() && meta.len() == size),
            None => self.memory.iter().any(|(known, _)| known == hash),
        }
    }

    /// Takes the next part of an image.
    pub(crate) fn write(
        &mut self,
        hash: &Hash,
        size: u64,
        offset: u64,
        part: &[u8],
    ) -> Outcome<()> {
        let index = match self.assembling.iter().position(|image| image.hash == *hash) {
            Some(index) => index,
            None => self.begin(hash, size)?,
        };
        let done = self.append(index, size, offset, part);
        if !matches!(done, Ok(false)) {
            let image = self.assembling.swap_remove(index);
            return done.and_then(|_| self.keep(image));
        }
        Ok(())
    }

    fn begin(&mut self, hash: &Hash, size: u64) -> Outcome<usize> {
        if size == 0 || size > MOST_BYTES {
            return fail(Status::INVALID_VALUE, format!("an image of {size} bytes"));
        }
        if self.assembling.len() >= MOST_AT_ONCE {
            return fail(
                Status::INVALID_VALUE,
                format!("more than {MOST_AT_ONCE} images are sent at once"),
            );
        }
        let sink = match &self.store.directory {
            Some(directory) => Sink::File(
                tempfile::Builder::new()
                    .prefix(PARTIAL)
                    .tempfile_in(directory)
                    .or_else(io)?,
            ),
            None => Sink::Memory(Vec::new()),
        };
        self.assembling.push(Assembly {
            hash: *hash,
            size,
            hasher: Box::default(),
            sink,
            received: 0,
        });
        Ok(self.assembling.len() - 1)
    }

    /// True once the image is whole.
    fn append(&mut self, index: usize, size: u64, offset: u64, part: &[u8]) -> Outcome<bool> {
        let Some(image) = self.assembling.get_mut(index) else {
            return Ok(false);
        };
        let received = image.received + part.len() as u64;
        if size != image.size || offset != image.received || received > size {
            return fail(
                Status::INVALID_VALUE,
                format!(
                    "bytes {offset}..{} of an image of {size} came where byte {} of {} was next",
                    offset.saturating_add(part.len() as u64),
                    image.received,
                    image.size,
                ),
            );
        }
        match &mut image.sink {
            Sink::File(file) => file.write_all(part).or_else(io)?,
            Sink::Memory(bytes) => bytes.extend_from_slice(part),
        }
        image.hasher.update(part);
        image.received = received;
        Ok(received == size)
    }

    fn keep(&mut self, image: Assembly) -> Outcome<()> {
        if image.hasher.finalize() != image.hash {
            return fail(
                Status::INVALID_IMAGE,
                "the image's hash is not the announced one",
            );
        }
        match (image.sink, &self.store.directory) {
            (Sink::File(file), Some(directory)) => {
                file.persist(path(directory, &image.hash))
                    .map_err(|error| error.error)
                    .or_else(io)?;
                trim(directory, self.store.limit, &image.hash);
            }
            (Sink::Memory(bytes), _) => {
                self.memory.push_back((image.hash, Arc::new(bytes)));
                let mut total: u64 = self.memory.iter().map(|(_, b)| b.len() as u64).sum();
                while total > self.store.limit && self.memory.len() > 1 {
                    let oldest = self.memory.pop_front();
                    total -= oldest.map_or(0, |(_, bytes)| bytes.len() as u64);
                }
            }
            (Sink::File(_), None) => {}
        }
        Ok(())
    }

    /// The image's bytes; `NOT_FOUND` where the host does not hold it (any
    /// more): the guest then sends it again.
    pub(crate) fn load(&self, hash: &Hash) -> Outcome<Arc<Vec<u8>>> {
        let missing = || fail(Status::NOT_FOUND, "the host does not hold this image");
        let Some(directory) = &self.store.directory else {
            let held = self.memory.iter().find(|(known, _)| known == hash);
            return held.map_or_else(missing, |(_, bytes)| Ok(Arc::clone(bytes)));
        };
        let path = path(directory, hash);
        let Ok(bytes) = std::fs::read(&path) else {
            return missing();
        };
        if blake3::hash(&bytes) != *hash {
            tracing::error!(path = %path.display(), "an image's bytes changed on disk: removed");
            let _ = std::fs::remove_file(&path);
            return missing();
        }
        // Its time of change says when it was used last.
        if let Ok(file) = std::fs::File::open(&path) {
            let _ = file.set_modified(SystemTime::now());
        }
        Ok(Arc::new(bytes))
    }
}

fn path(directory: &Path, hash: &Hash) -> PathBuf {
    directory.join(blake3::Hash::from_bytes(*hash).to_hex().as_str())
}

fn io<T>(error: std::io::Error) -> Outcome<T> {
    fail(
        Status::OPERATING_SYSTEM,
        format!("the host cannot keep the image: {error}"),
    )
}

/// Age after which an unfinished image's file is one that a killed worker left.
const ABANDONED: std::time::Duration = std::time::Duration::from_secs(3600);

/// Removes the least recently used images until at most `limit` bytes are
/// left, never `newest`, and what killed workers left. Another worker may do
/// the same at the same time.
fn trim(directory: &Path, limit: u64, newest: &Hash) {
    let newest = path(directory, newest);
    let Ok(entries) = std::fs::read_dir(directory) else {
        return;
    };
    let is_abandoned = |path: &Path, modified: SystemTime| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with(PARTIAL))
            && modified.elapsed().is_ok_and(|age| age > ABANDONED)
    };
    let is_image = |path: &Path| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    let mut images: Vec<(SystemTime, u64, PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let meta = std::fs::metadata(&path).ok()?;
            let modified = meta.modified().ok()?;
            if is_abandoned(&path, modified) {
                let _ = std::fs::remove_file(&path);
            }
            is_image(&path).then_some((modified, meta.len(), path))
        })
        .collect();
    images.sort();
    let mut total: u64 = images.iter().map(|(_, size, _)| size).sum();
    for (_, size, path) in images {
        if total <= limit {
            break;
        }
        if path != newest && std::fs::remove_file(&path).is_ok() {
            total -= size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Fault;

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

    fn stores(limit: u64) -> (tempfile::TempDir, [Images; 2]) {
        let directory = tempfile::tempdir().unwrap();
        let of = |directory| Images::new(ImageStore { directory, limit });
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
            assert_eq!(*images.load(&hash).unwrap(), bytes);
            assert_eq!(status(images.load(&[0; 32])), Status::NOT_FOUND);
            assert!(!images.holds(&[0; 32], 1));
        }
    }

    #[test]
    fn wrong_parts_are_dropped() {
        let (directory, both) = stores(1 << 20);
        for mut images in both {
            let hash = *blake3::hash(b"abcdef").as_bytes();
            let bad = images.write(&hash, 6, 3, b"def");
            assert_eq!(status(bad), Status::INVALID_VALUE);
            images.write(&hash, 6, 0, b"abc").unwrap();
            assert_eq!(
                status(images.write(&hash, 7, 3, b"def")),
                Status::INVALID_VALUE
            );
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
            assert!(images.assembling.is_empty());
            let huge = images.write(&hash, MOST_BYTES + 1, 0, b"a");
            assert_eq!(status(huge), Status::INVALID_VALUE);
            for index in 0..MOST_AT_ONCE {
                images.write(&[index as u8; 32], 6, 0, b"abc").unwrap();
            }
            assert_eq!(
                status(images.write(&hash, 6, 0, b"abc")),
                Status::INVALID_VALUE
            );
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_least_recently_used_goes() {
        let (directory, [mut memory, mut files]) = stores(2000);
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
    fn what_a_killed_worker_left_goes() {
        let (directory, [_, mut files]) = stores(1 << 20);
        for (name, age) in [("old", 4000), ("new", 10)] {
            let path = directory.path().join(format!("{PARTIAL}{name}"));
            let file = std::fs::File::create(path).unwrap();
            let age = std::time::Duration::from_secs(age);
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        send(&mut files, b"image", 5).unwrap();
        assert!(!directory.path().join(format!("{PARTIAL}old")).exists());
        assert!(directory.path().join(format!("{PARTIAL}new")).exists());
    }

    #[test]
    fn a_changed_file_is_not_loaded() {
        let (directory, [_, mut files]) = stores(1 << 20);
        let hash = send(&mut files, b"original", 8).unwrap();
        std::fs::write(path(directory.path(), &hash), b"0riginal").unwrap();
        assert_eq!(status(files.load(&hash)), Status::NOT_FOUND);
        assert!(!files.holds(&hash, 8));
    }
}
