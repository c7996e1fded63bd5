//! Host memory that a device uses for its session.

/// The account of a session's host memory.
pub trait HostMemory: std::fmt::Debug + Send + Sync {
    /// Charges bytes. Returns false if that would exceed a limit.
    fn charge(&self, bytes: u64) -> bool;

    /// Returns bytes.
    fn discharge(&self, bytes: u64);
}
