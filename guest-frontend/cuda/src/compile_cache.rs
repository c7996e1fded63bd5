//! Compiled code on the user's disk.
//!
//! NVRTC and nvJitLink cache compiled code through the driver (CUDA Programming
//! Guide, environment variables `CUDA_CACHE_DISABLE`, `CUDA_CACHE_PATH`,
//! `CUDA_CACHE_MAXSIZE`). This cache is a separate folder beside the driver's
//! files. An entry is a file named by the hash of its input; it begins with the
//! hash of its contents. An entry that cannot be read or written counts as missing.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

/// Default limit of all entries in bytes.
const MAX_BYTES: u64 = 1 << 30;
/// Bytes of a hash.
const HASH: usize = 32;

/// The source of compiled code.
pub type Key = [u8; HASH];

/// The key of code that was compiled from these parts, in this order.
#[must_use]
pub fn key(parts: &[&[u8]]) -> Key {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// A folder of compiled code.
#[derive(Debug)]
pub struct CompileCache {
    folder: PathBuf,
    most_bytes: u64,
}

impl CompileCache {
    /// The user's cache; `None` if it is disabled or has no folder, or if the program has more
    /// rights than its user, who named the folder.
    #[must_use]
    pub fn of_user() -> Option<Self> {
        if paragpu_config::is_privileged() {
            return None;
        }
        let number = |name| std::env::var(name).ok()?.trim().parse::<u64>().ok();
        if number("CUDA_CACHE_DISABLE").is_some_and(|disable| disable != 0) {
            return None;
        }
        let named = std::env::var_os("CUDA_CACHE_PATH").filter(|path| !path.is_empty());
        let beside = match named {
            Some(path) => PathBuf::from(path),
            None => Path::new(&std::env::var_os("HOME")?).join(".nv/ComputeCache"),
        };
        let most_bytes = number("CUDA_CACHE_MAXSIZE").unwrap_or(MAX_BYTES);
        Some(Self::at(beside.join("paragpu"), most_bytes))
    }

    /// A cache in this folder, with a limit in bytes.
    #[must_use]
    pub fn at(folder: PathBuf, most_bytes: u64) -> Self {
        Self { folder, most_bytes }
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder
            .join(blake3::Hash::from_bytes(*key).to_hex().as_str())
    }

    /// The cached entry.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let path = self.path(key);
        let mut bytes = fs::read(&path).ok()?;
        if bytes.len() < HASH {
            let _ = fs::remove_file(&path);
            return None;
        }
        let code = bytes.split_off(HASH);
        if blake3::hash(&code).as_bytes()[..] != bytes[..] {
            let _ = fs::remove_file(&path);
            return None;
        }
        // The modification time records the last use.
        let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Some(code)
    }

    /// Stores code, and evicts the least recently used entries to make room.
    pub fn put(&self, key: &Key, code: &[u8]) {
        let size = (HASH + code.len()) as u64;
        if size > self.most_bytes || fs::create_dir_all(&self.folder).is_err() {
            return;
        }
        self.make_room(size);
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let unfinished = self.folder.join(format!("{}-{number}", std::process::id()));
        let written = File::create(&unfinished).and_then(|mut file| {
            file.write_all(blake3::hash(code).as_bytes())?;
            file.write_all(code)?;
            fs::rename(&unfinished, self.path(key))
        });
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
    }

    /// Evicts entries. Other processes may do the same at the same time.
    fn make_room(&self, size: u64) {
        let entries = fs::read_dir(&self.folder).into_iter().flatten();
        let mut files: Vec<_> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let meta = entry.metadata().ok()?;
                Some((meta.modified().ok()?, meta.len(), entry.path()))
            })
            .collect();
        files.sort();
        let mut total = size + files.iter().map(|(_, size, _)| size).sum::<u64>();
        for (_, size, path) in files {
            if total <= self.most_bytes {
                return;
            }
            if fs::remove_file(path).is_ok() {
                total -= size;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("paragpu-cache-{}-{name}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&folder);
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_stored_entry_is_found() {
        let folder = Folder::new("put");
        let cache = CompileCache::at(folder.0.clone(), 1 << 20);
        let (one, other) = (key(&[b"a", b"bc"]), key(&[b"ab", b"c"]));
        assert_ne!(one, other);
        assert_eq!(cache.get(&one), None);
        cache.put(&one, b"code");
        cache.put(&other, b"");
        assert_eq!(cache.get(&one).as_deref(), Some(&b"code"[..]));
        assert_eq!(cache.get(&other).as_deref(), Some(&b""[..]));
        cache.put(&one, b"new");
        assert_eq!(cache.get(&one).as_deref(), Some(&b"new"[..]));
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 2);
    }

    #[test]
    fn a_damaged_entry_counts_as_missing() {
        let folder = Folder::new("damaged");
        let cache = CompileCache::at(folder.0.clone(), 1 << 20);
        let key = key(&[b"a"]);
        for damage in [&b""[..], b"short", &[7; 40]] {
            cache.put(&key, b"code");
            fs::write(cache.path(&key), damage).unwrap();
            assert_eq!(cache.get(&key), None);
        }
    }

    #[test]
    fn the_least_recently_used_entry_is_evicted() {
        let folder = Folder::new("room");
        let cache = CompileCache::at(folder.0.clone(), 1000);
        let keys: Vec<Key> = (0..4_u8).map(|number| key(&[&[number]])).collect();
        for (age, key) in keys.iter().enumerate() {
            cache.put(key, &[0; 400]);
            let used = SystemTime::now() - std::time::Duration::from_secs(100 - age as u64);
            if let Ok(file) = File::open(cache.path(key)) {
                file.set_modified(used).unwrap();
            }
        }
        let there: Vec<bool> = keys.iter().map(|key| cache.get(key).is_some()).collect();
        assert_eq!(there, [false, false, true, true]);
        cache.put(&keys[0], &[0; 2000]);
        assert_eq!(cache.get(&keys[0]), None);
    }
}
