//! The format of a session's state: a stream of records, the same over a socket
//! and in a file.
//!
//! A record is a 24-byte header and a payload, numbers little-endian:
//!
//! ```text
//!  0  u16 kind       see [`Kind`]; an unknown kind is an error
//!  2  u16 version    of that kind's payload; must equal [`Kind::version`]
//!  4  u32 length     bytes of payload, at most [`MAX_PAYLOAD`]
//!  8  [u8; 16]       first bytes of the BLAKE3 of the eight bytes above and the payload
//! ```
//!
//! A complete state begins with [`Kind::Head`] and ends with [`Kind::End`], which
//! carries the BLAKE3 of the checksums of all records before it.
//!
//! In a file the contents of memory are not records, so that several threads can write and
//! read them, past the page cache and without a copy in between:
//!
//! ```text
//! Head, Layout | zeros | contents | Spans, Image, Objects, …, End
//!                      ^ Layout::contents
//!                                 ^ Layout::records
//! ```
//!
//! [`Kind::Spans`] lists the chunks in the order of their contents, each with its size and
//! BLAKE3. Each chunk begins at a multiple of [`BLOCK`], with zeros up to the next one.
#![forbid(unsafe_code)]

use crate::files::open_own;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use paragpu_protocol::codec::{Bytes, DecodeError, Text, decode_all};
use thiserror::Error;

/// Maximum payload of one record in bytes: a chunk of memory and some more.
pub const MAX_PAYLOAD: usize = 4 << 20;
/// Name of the state's file in a checkpoint directory.
pub const FILE: &str = "session.paragpu";
/// Alignment of each chunk of memory in a file, in bytes: that of direct I/O.
pub const BLOCK: u64 = 4096;
/// Size of a record's header in bytes.
pub const HEADER: usize = 24;
/// From this size on, hashing uses all cores.
const PARALLEL_HASH: usize = 256 << 10;

macro_rules! kinds {
    ($( $(#[$meta:meta])* $name:ident = $number:literal, $version:literal; )*) => {
        /// The contents of a record.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Kind { $( $(#[$meta])* $name = $number ),* }

        impl Kind {
            fn of(number: u16) -> Option<Self> {
                match number { $( $number => Some(Self::$name), )* _ => None }
            }

            /// The payload version of this release.
            #[must_use]
            pub fn version(self) -> u16 {
                match self { $( Self::$name => $version ),* }
            }
        }
    };
}

kinds! {
    /// [`Head`].
    Head = 1, 4;
    /// [`ImagePart`]: parts of module images, in order.
    Image = 2, 1;
    /// Some of the live objects, in the format of `replay.rs`.
    Objects = 3, 1;
    /// All live objects were sent: recreate them.
    ObjectsEnd = 4, 1;
    /// Contents of memory, in the format of `regions.rs`.
    Contents = 5, 1;
    /// State that is neither an object nor memory, in the format of `bookkeeping.rs`.
    Bookkeeping = 6, 1;
    /// A call that was received but not executed: frame header, one byte that is 1 if
    /// it was executed out of order, payload.
    Waiting = 7, 1;
    /// Frames to the guest that it has not acknowledged: header and payload of each.
    Kept = 9, 2;
    /// 32 bytes: the BLAKE3 of the checksums of all earlier records.
    End = 8, 1;
    /// In a file: [`Layout`], the second record.
    Layout = 10, 1;
    /// In a file: chunks and their hashes, in the format of `regions.rs`.
    Spans = 11, 1;

    /// Between workers: the images that the destination lacks, 32 bytes each.
    Missing = 32, 1;
    /// Between workers: the request was carried out.
    Ready = 33, 1;
    /// Between workers: the request failed; one sentence.
    Refused = 34, 1;
    /// Between workers: hash these contents, named in the format of `regions.rs`.
    Hash = 35, 1;
    /// Between workers: their hashes, in order, 32 bytes each.
    Hashes = 36, 1;
    /// Between workers: the guest's connection; descriptors follow.
    Connection = 37, 1;
    /// Between workers: the destination owns the session from now on.
    Commit = 38, 1;
    /// Between workers: the images of the session's modules, as [`ImagePart`] without
    /// bytes.
    ImageNames = 39, 1;
    /// Between workers: the session is complete, and its guest connects by itself; one
    /// byte that is 1 if the session moves alone.
    Await = 40, 1;
    /// Between workers: the guest has connected and waits for its welcome.
    Here = 41, 1;
    /// Between workers: keep-alive of a waiting source.
    Still = 42, 1;
    /// Between workers: identifies the device memory that each end can hand over and
    /// accept; empty if it can do neither.
    Domain = 43, 1;
    /// Between workers: mappings of the preceding objects, in the format of `shared.rs`;
    /// their descriptors follow.
    Shared = 44, 1;
    /// Between workers: a byte for each of those: 1 if it is mapped, 2 if the destination
    /// can copy from it, 0 if it must be sent, 3 if there is no room for it yet.
    Taken = 45, 1;
    /// Between workers: copy these contents, named in the format of `regions.rs`, from
    /// the memory that can be copied from; [`Ready`](Self::Ready) acknowledges it.
    Fetch = 46, 1;
    /// Between workers: memory shared with the sessions that move together, in the format
    /// of `sharing.rs`. The following objects use it.
    Sharing = 47, 1;
    /// Between workers: the first addresses, 8 bytes each, of memory that was handed over and that
    /// the program has freed: let go of it. [`Ready`](Self::Ready) acknowledges it.
    Freed = 48, 1;
}

/// Why a state cannot be read or written.
#[derive(Debug, Error)]
pub enum StateError {
    /// It is truncated.
    #[error("the state is incomplete")]
    Incomplete,
    /// A kind of another release, or corrupt data.
    #[error("the state holds a record of unknown kind {0}: it was written by another release")]
    UnknownKind(u16),
    /// A version of another release.
    #[error(
        "the state holds a record of kind {kind} in version {got}, and this release reads version {expected}"
    )]
    Version {
        /// The record's kind.
        kind: u16,
        /// Its version.
        got: u16,
        /// The version that this release reads.
        expected: u16,
    },
    /// A length beyond the limit.
    #[error("the state holds a record of {0} bytes")]
    TooLong(usize),
    /// The checksum does not match.
    #[error("the state is damaged: a record's checksum does not match")]
    Checksum,
    /// The hash of a chunk of memory does not match, or bytes between chunks are not zero.
    #[error("the state is damaged: contents of memory do not match their hash")]
    Contents,
    /// A record out of order.
    #[error("the state is not in order: {0}")]
    Order(&'static str),
    /// A payload that does not match its kind.
    #[error("the state holds a record that is not understood")]
    Payload(#[from] DecodeError),
    /// The session cannot move or be recreated; one sentence.
    #[error("{0}")]
    Impossible(String),
    /// The file or socket failed.
    #[error("the session cannot move: {0}")]
    Io(#[source] std::io::Error),
    /// The file or directory of a checkpoint failed.
    #[error("the checkpoint in {} cannot be {access}: {source}{}", directory.display(), advice(source))]
    Checkpoint {
        /// The directory.
        directory: PathBuf,
        /// "read" or "written".
        access: &'static str,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
}

impl StateError {
    /// Names the directory of a checkpoint that cannot be `access`: "read" or "written".
    #[must_use]
    pub fn in_directory(self, directory: &Path, access: &'static str) -> Self {
        match self {
            Self::Io(source) => Self::Checkpoint {
                directory: directory.to_owned(),
                access,
                source,
            },
            other => other,
        }
    }
}

/// The advice if a checkpoint's directory cannot be used.
fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::AlreadyExists | ErrorKind::NotADirectory => "; it must be a directory",
        ErrorKind::PermissionDenied => "; the user that paragpud runs as needs access to it",
        ErrorKind::ReadOnlyFilesystem => {
            "; if only paragpud's unit makes it read-only, name it in ReadWritePaths= (systemctl \
             edit paragpud)"
        }
        _ => "",
    }
}

impl From<std::io::Error> for StateError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof => Self::Incomplete,
            _ => Self::Io(error),
        }
    }
}

paragpu_protocol::record! {
    /// The identity of the session.
    Head<'a> {
        /// The guest's ordinal of the device.
        ordinal: u32,
        /// The secret with which the guest resumes the session.
        token: [u8; 16],
        /// Number of devices that the guest sees.
        device_count: u32,
        /// The process ID in the guest.
        guest_pid: u32,
        /// The VM, user or address.
        vm: Text<'a>,
        /// Name of the source's GPU, for display.
        device: Text<'a>,
        /// Bytes of device memory of the session.
        device_memory: u64,
        /// Where the contents of its pinned memory are: a value defined by the worker.
        pinned: u8,
        /// When the guest's certificate expires, in seconds since 1970; 0 if it showed none.
        expires: u64,
    }

    /// Where the parts of a file begin, in bytes from its start.
    Layout {
        /// The contents of memory; a multiple of [`BLOCK`].
        contents: u64,
        /// The records after them; a multiple of [`BLOCK`].
        records: u64,
    }

    /// Part of a module's image.
    ImagePart<'a> {
        /// The BLAKE3 of the image.
        hash: [u8; 32],
        /// Size of the image in bytes.
        size: u64,
        /// The part's offset in the image.
        offset: u64,
        /// The part's bytes.
        data: Bytes<'a>,
    }
}

/// The identity of the session in a directory, as far as the daemon needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The guest's ordinal of the device.
    pub ordinal: u32,
    /// The secret with which the guest resumes the session.
    pub token: [u8; 16],
    /// Number of devices that the guest sees.
    pub device_count: u32,
    /// The process ID in the guest.
    pub guest_pid: u32,
    /// The VM, user or address.
    pub vm: String,
    /// When the guest's certificate expires, in seconds since 1970; `None` if it showed
    /// none.
    pub expires: Option<u64>,
}

/// Reads the identity of the session in a file of a directory, such as [`FILE`], which is
/// only the head.
pub fn owner(directory: &Path, name: &str) -> Result<(Owner, File), StateError> {
    let opened = open_own(directory, name).map_err(StateError::from);
    let file = opened.map_err(|error| error.in_directory(directory, "read"))?;
    let owner = owner_of(&file).map_err(|error| error.in_directory(directory, "read"))?;
    Ok((owner, file))
}

/// Reads the head of a file, and goes back to its start.
fn owner_of(mut file: &File) -> Result<Owner, StateError> {
    let mut scanner = Scanner::new(BufReader::new(file));
    let (Kind::Head, payload) = scanner.record()? else {
        return Err(StateError::Order("it does not begin with its head"));
    };
    let head: Head<'_> = decode_all(payload)?;
    let owner = Owner {
        ordinal: head.ordinal,
        token: head.token,
        device_count: head.device_count,
        guest_pid: head.guest_pid,
        vm: head.vm.0.to_owned(),
        expires: (head.expires != 0).then_some(head.expires),
    };
    file.rewind()?;
    Ok(owner)
}

fn checksum(start: &[u8], payload: &[&[u8]]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(start);
    for part in payload {
        if part.len() < PARALLEL_HASH {
            hasher.update(part);
        } else {
            hasher.update_rayon(part);
        }
    }
    let mut sum = [0; 16];
    hasher.finalize_xof().fill(&mut sum);
    sum
}

/// Writes records.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
    whole: blake3::Hasher,
    /// Bytes written.
    pub bytes: u64,
}

impl<W: Write + Seek> Writer<W> {
    /// Continues at `offset` of the file.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn seek(&mut self, offset: u64) -> Result<(), StateError> {
        self.to.seek(SeekFrom::Start(offset))?;
        Ok(())
    }
}

impl<W: Write> Writer<W> {
    /// Writes to `to`, which should be buffered.
    pub fn new(to: W) -> Self {
        Self {
            to,
            whole: blake3::Hasher::new(),
            bytes: 0,
        }
    }

    /// Writes one record with the concatenation of `payload`.
    ///
    /// # Errors
    /// [`StateError::TooLong`], [`StateError::Io`].
    pub fn put(&mut self, kind: Kind, payload: &[&[u8]]) -> Result<(), StateError> {
        let length: usize = payload.iter().map(|part| part.len()).sum();
        if length > MAX_PAYLOAD {
            return Err(StateError::TooLong(length));
        }
        let mut header = Vec::with_capacity(HEADER);
        header.extend_from_slice(&(kind as u16).to_le_bytes());
        header.extend_from_slice(&kind.version().to_le_bytes());
        header.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        let sum = checksum(&header, payload);
        self.whole.update(&sum);
        header.extend_from_slice(&sum);
        self.to.write_all(&header)?;
        for part in payload {
            self.to.write_all(part)?;
        }
        self.bytes += (HEADER + length) as u64;
        Ok(())
    }

    /// Writes the end of a complete state.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn end(&mut self) -> Result<(), StateError> {
        let whole = self.whole.finalize();
        self.put(Kind::End, &[whole.as_bytes()])?;
        self.flush()
    }

    /// Flushes the writer.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn flush(&mut self) -> Result<(), StateError> {
        Ok(self.to.flush()?)
    }

    /// The underlying writer.
    pub fn get_ref(&self) -> &W {
        &self.to
    }

    /// Returns the underlying writer.
    pub fn into_inner(self) -> W {
        self.to
    }
}

/// Reads records, and checks each before it returns it. Never reads past a record.
#[derive(Debug)]
pub struct Scanner<R> {
    from: R,
    whole: blake3::Hasher,
    payload: Vec<u8>,
}

impl<R: Read + Seek> Scanner<R> {
    /// Continues at `offset` of the file.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn seek(&mut self, offset: u64) -> Result<(), StateError> {
        self.from.seek(SeekFrom::Start(offset))?;
        Ok(())
    }
}

impl<R: Read> Scanner<R> {
    /// Reads from `from`.
    pub fn new(from: R) -> Self {
        Self {
            from,
            whole: blake3::Hasher::new(),
            payload: Vec::new(),
        }
    }

    /// Its source.
    pub fn get_ref(&self) -> &R {
        &self.from
    }

    /// Its source.
    pub fn get_mut(&mut self) -> &mut R {
        &mut self.from
    }

    /// Its source.
    pub fn into_inner(self) -> R {
        self.from
    }

    /// Reads the next record.
    ///
    /// # Errors
    /// [`StateError`]; [`StateError::Incomplete`] if there is none.
    pub fn record(&mut self) -> Result<(Kind, &[u8]), StateError> {
        let mut header = [0; HEADER];
        self.from.read_exact(&mut header)?;
        let [k0, k1, v0, v1, l0, l1, l2, l3, sum @ ..] = header;
        let number = u16::from_le_bytes([k0, k1]);
        let kind = Kind::of(number).ok_or(StateError::UnknownKind(number))?;
        let got = u16::from_le_bytes([v0, v1]);
        if got != kind.version() {
            return Err(StateError::Version {
                kind: number,
                got,
                expected: kind.version(),
            });
        }
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > MAX_PAYLOAD {
            return Err(StateError::TooLong(length));
        }
        self.payload.resize(length, 0);
        self.from.read_exact(&mut self.payload)?;
        let (start, _) = header.split_at(8);
        if checksum(start, &[&self.payload]) != sum {
            return Err(StateError::Checksum);
        }
        if kind == Kind::End {
            if *self.whole.finalize().as_bytes() != *self.payload {
                return Err(StateError::Checksum);
            }
        } else {
            self.whole.update(&sum);
        }
        Ok((kind, &self.payload))
    }

    /// Checks that nothing follows the last record.
    ///
    /// # Errors
    /// [`StateError::Order`] if something does, [`StateError::Io`].
    pub fn finish(&mut self) -> Result<(), StateError> {
        match self.from.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(StateError::Order("bytes follow its last record")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new());
        writer.put(Kind::Head, &[b"head"]).unwrap();
        writer.put(Kind::Contents, &[&[7; 100], &[8; 50]]).unwrap();
        writer.end().unwrap();
        writer.into_inner()
    }

    fn read(bytes: &[u8]) -> Result<usize, StateError> {
        let mut scanner = Scanner::new(bytes);
        let mut count = 0;
        loop {
            count += 1;
            if scanner.record()?.0 == Kind::End {
                scanner.finish()?;
                return Ok(count);
            }
        }
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_noticed() {
        let good = sample();
        assert_eq!(read(&good).unwrap(), 3);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(read(&bad).is_err(), "byte {at}");
            assert!(matches!(read(&good[..at]), Err(StateError::Incomplete)));
        }
        let longer = [&good[..], &[0]].concat();
        assert!(matches!(read(&longer), Err(StateError::Order(_))));
    }

    #[test]
    fn records_cannot_be_left_out_or_exchanged() {
        let mut first = Writer::new(Vec::new());
        first.put(Kind::Head, &[b"head"]).unwrap();
        let skip = first.into_inner().len();
        let good = sample();
        assert!(matches!(read(&good[skip..]), Err(StateError::Checksum)));
    }

    #[test]
    fn errors_of_a_checkpoint_name_its_directory() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().display().to_string();
        let missing = owner(folder.path(), FILE).unwrap_err().to_string();
        assert!(
            missing.contains(&format!("{place} cannot be read")),
            "{missing}"
        );
        let denied = StateError::from(std::io::Error::from(ErrorKind::PermissionDenied));
        let denied = denied.in_directory(folder.path(), "written").to_string();
        assert!(
            denied.contains(&format!("{place} cannot be written")),
            "{denied}"
        );
        assert!(denied.contains("needs access"), "{denied}");
        std::fs::write(folder.path().join(FILE), sample()).unwrap();
        let other = owner(folder.path(), FILE).unwrap_err();
        assert!(matches!(other, StateError::Payload(_)), "{other}");
    }

    #[test]
    fn other_releases_are_named() {
        let mut bytes = sample();
        bytes[2] = 9;
        let error = read(&bytes).unwrap_err();
        assert!(matches!(
            error,
            StateError::Version {
                got: 9,
                expected: 4,
                ..
            }
        ));
        bytes[0] = 0xee;
        assert!(matches!(read(&bytes), Err(StateError::UnknownKind(0xee))));
    }
}
